"""Makes cells serve buckets again whose mover has died (docs/adr/0066).

Before its move, a bucket takes changes again in its old cell. If the mover has died after that, during the few
statements in which no cell serves the bucket, the new cell serves it. What was written into the log of changed names is
forgotten.

A mover holds a lease in both cells. Only this tells other processes that it lives; no change of a bucket depends on it.
If a process is taken for dead too early, because it was paused or a clock was changed, it finds that the state of the
bucket is no longer the one that it has set, and begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple, Protocol

import structlog

from nos_ec.core.errors import ConfigError, Conflict, NosError
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import bucket_of_parts
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.metadata import Directory, Leases, MoveRow, Moves, MoveState

_log = structlog.get_logger(__name__)

CHECK_WAIT_MS = 10_000
"""How often moves are checked. This costs a query while there are no moves."""
FORGOTTEN_MAX = 10_000
"""How many changed names are forgotten at most each time."""
NO_MOVER = 0
"""The number in a row that no mover has set."""
_LEASES = "move-"
_PAGE = 1000
_ALL = (1 << 63) - 1


class MovesMetadata(Moves, Leases, Protocol):
    """The parts of the metadata that know about movers."""


class MoveCells(NamedTuple):
    """The cells of a store, as `cell` sees them. `moves_in` yields the states of buckets in another cell, `directory`
    the directory; both raise Transient while that cell cannot be reached."""

    cell: str
    moves_in: Callable[[str], AbstractContextManager[Moves]]
    directory: Callable[[], AbstractContextManager[Directory]]


def mover_lease(mover: int) -> str:
    """Return the name of the lease of a mover with this number."""
    return f"{_LEASES}{mover:x}"


def all_unfinished_moves(metadata: Moves) -> list[MoveRow]:
    """Return the rows of a cell's moves that are not complete. Raises Transient."""
    rows, after = list[MoveRow](), ""
    while page := metadata.unfinished_moves(after, _PAGE):
        rows += page
        after = page[-1].bucket
    return rows


def stalled_among(metadata: Leases, rows: Sequence[MoveRow]) -> list[MoveRow]:
    """Return those of these rows whose movers do not hold their leases, so that they wait for somebody to continue. A
    row that is GONE without a mover does not wait: the other cell serves the bucket. Raises Transient."""
    if not rows:
        return []
    # A mover takes its lease before it changes a state, so the leases must be read after the states.
    held = {lease.name for lease in metadata.list_leases(_LEASES)}
    return [row for row in rows if not _is_left(row) and mover_lease(row.mover) not in held]


def _is_left(row: MoveRow) -> bool:
    return row.state is MoveState.GONE and row.mover == NO_MOVER


def stalled_moves(metadata: MovesMetadata) -> list[MoveRow]:
    """Return the rows of a cell's moves that wait for somebody to continue. Raises Transient."""
    return stalled_among(metadata, all_unfinished_moves(metadata))


class MoveRecovery:
    """Gives buckets back to their programs. Several processes may do so at once. Belongs to one thread."""

    def __init__(self, metadata: MovesMetadata, clock: Clock, others: MoveCells) -> None:
        self._metadata = metadata
        self._clock = clock
        self._others = others
        self._next_ms = 0
        self._failures: dict[str, str] = {}
        """Why the last attempts to serve buckets have failed."""

    def run_once(self, beat: Beat = unwatched) -> int:
        """Make the cell serve the buckets again that dead movers have left LEAVING or CLOSED in it, and those that are
        ARRIVING and GONE from the other cell. Note which of those that are GONE the other cell serves. Forget the names
        that dead movers have left in the log, up to FORGOTTEN_MAX. Does nothing if that was tried less than
        CHECK_WAIT_MS ago. Returns how many buckets are served again. Raises Transient."""
        now_ms = self._clock.now_ms()
        if waits(self._next_ms, now_ms, CHECK_WAIT_MS):
            return 0
        self._next_ms = now_ms + CHECK_WAIT_MS
        before, self._failures, served = self._failures, {}, 0
        for row in stalled_moves(self._metadata):
            beat(0)  # the database of another cell may take seconds to answer, or to be given up
            served += self._try_to_serve(row, before.get(row.bucket))
        self._forget_changes()
        return served

    def _try_to_serve(self, row: MoveRow, failed_before: str | None) -> bool:
        try:
            return self._serve(row)
        except Conflict:
            return False  # another process was faster, or the mover lives
        except NosError as error:
            why = self._failures[row.bucket] = str(error)
            if why != failed_before:
                _log.warning("a bucket whose mover died stays as it is; trying again", bucket=row.bucket, error=why)
            return False

    def _serve(self, row: MoveRow) -> bool:
        match row.state:
            case MoveState.LEAVING | MoveState.CLOSED:
                self._serve_again(row)
            case MoveState.ARRIVING if self._has_left(row):
                self._serve_moved(row)
            case MoveState.GONE if self._is_served(row):
                self._metadata.set_move(replace(row, mover=NO_MOVER), row)
                kill_point("moves.left")
                return False
            case _:
                return False
        return True

    def _has_left(self, row: MoveRow) -> bool:
        """Return whether the other cell has made the move of a bucket that is ARRIVING. The copies are complete then,
        and no mover changes them any more."""
        with self._others.moves_in(row.other) as moves:
            left = moves.move_row(row.bucket)
        return left is not None and (left.state, left.other, left.number) == (
            MoveState.GONE,
            self._others.cell,
            row.number,
        )

    def _is_served(self, row: MoveRow) -> bool:
        """Return whether the other cell serves a bucket that is GONE to it, or has moved it further. Then only the row
        of the bucket is left here, which a command removes."""
        with self._others.moves_in(row.other) as moves:
            there = moves.move_row(row.bucket)
        return there is not None and there.moves >= row.number and not there.arrives

    def _serve_moved(self, row: MoveRow) -> None:
        """Do what a mover does after the moment of the move, until this cell serves the bucket."""
        try:
            with self._others.directory() as directory:
                directory.move_home(row.bucket, row.other, self._others.cell, row.number)
        except Conflict as error:
            if self._metadata.move_row(row.bucket) != row:
                raise  # another process has completed the move
            raise ConfigError(f"{error}; if it was lost or restored, run `nos-ec cells rebuild-directory`") from error
        kill_point("moves.home_changed")
        self._metadata.set_move(replace(row, state=MoveState.HERE, since_ms=self._clock.now_ms()), row)
        kill_point("moves.served_moved")
        _log.warning(
            "a bucket is served by its new cell, although the process that moved it died; what to do next: nos-ec cells"
            " moves",
            bucket=row.bucket,
            left=row.other,
        )

    def _serve_again(self, row: MoveRow) -> None:
        here = replace(row, state=MoveState.HERE, number=row.moves, since_ms=self._clock.now_ms())
        self._metadata.set_move(here, row)
        kill_point("moves.served_again")
        _log.warning(
            "a bucket takes changes again, because the process that moved it died; move it again",
            bucket=row.bucket,
            to=row.other,
        )

    def _forget_changes(self) -> None:
        """Forget the changed names of buckets that are not LEAVING or CLOSED: the next mover compares all names."""
        rest, after = FORGOTTEN_MAX, ""
        while rest > 0 and (bucket := self._metadata.next_changed(after)) is not None:
            row, page = self._metadata.move_row(bucket_of_parts(bucket)), []
            if row is not None and row.state in (MoveState.HERE, MoveState.GONE):
                page = self._metadata.changed_names(bucket, _ALL, min(_PAGE, rest))
                try:
                    self._metadata.forget_changes(row, page)
                except Conflict:
                    page = []  # a mover has begun
            rest -= len(page)
            if not page:
                after = bucket

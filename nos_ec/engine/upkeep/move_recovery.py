"""Lets a bucket take changes again after its mover has died (docs/adr/0066).

A mover holds a lease in both cells. Only this tells other processes that it lives; no change of a bucket depends on it.
If a process is taken for dead too early, because it was paused or a clock was changed, it finds that the state of the
bucket is no longer the one that it has set, and begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import Leases, MoveRow, Moves, MoveState

_log = structlog.get_logger(__name__)

CHECK_WAIT_MS = 10_000
"""How often moves are checked. This costs a query while there are no moves."""
_LEASES = "move-"
_PAGE = 1000


class MovesMetadata(Moves, Leases, Protocol):
    """The parts of the metadata that know about movers."""


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
    """Return those of these rows whose movers do not hold their leases, so that they wait for somebody to continue.
    Raises Transient."""
    if not rows:
        return []
    # A mover takes its lease before it changes a state, so the leases must be read after the states.
    held = {lease.name for lease in metadata.list_leases(_LEASES)}
    return [row for row in rows if mover_lease(row.mover) not in held]


def stalled_moves(metadata: MovesMetadata) -> list[MoveRow]:
    """Return the rows of a cell's moves that wait for somebody to continue. Raises Transient."""
    return stalled_among(metadata, all_unfinished_moves(metadata))


class MoveRecovery:
    """Gives buckets back to their programs. Several processes may do so at once. Belongs to one thread."""

    def __init__(self, metadata: MovesMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._next_ms = 0

    def run_once(self) -> int:
        """Make the cell serve the buckets again that dead movers have left LEAVING or CLOSED in it, unless that was
        tried less than CHECK_WAIT_MS ago. Returns how many there were. Raises Transient."""
        now_ms = self._clock.now_ms()
        if waits(self._next_ms, now_ms, CHECK_WAIT_MS):
            return 0
        self._next_ms = now_ms + CHECK_WAIT_MS
        return sum(self._serve(row) for row in stalled_moves(self._metadata))

    def _serve(self, row: MoveRow) -> bool:
        if row.state not in (MoveState.LEAVING, MoveState.CLOSED):
            return False
        here = replace(row, state=MoveState.HERE, number=row.moves, since_ms=self._clock.now_ms())
        try:
            self._metadata.set_move(here, row)
        except Conflict:
            return False  # another process was faster, or the mover lives
        except Transient as error:
            _log.warning("a bucket whose mover died stays as it is; trying again", bucket=row.bucket, error=str(error))
            return False
        kill_point("moves.served_again")
        _log.warning(
            "a bucket takes changes again, because the process that moved it died; move it again",
            bucket=row.bucket,
            to=row.other,
        )
        return True

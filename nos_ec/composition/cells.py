"""The open cells of a store, and the home of each bucket (docs/CELLS.md).

Each cell is an open store of its own. A cell that cannot be reached does not keep the others from being opened: it is
tried again in the background, and until then what needs it raises Transient.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import gcd
from random import Random
from typing import Self

import structlog

from nos_ec.composition.ownership import CELL_NOTE, DIRECTORY_NOTE
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import ConfigError, InvalidInput, Moved, NosError, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.moving.bucket_mover import has_copies
from nos_ec.engine.upkeep.move_recovery import NO_MOVER
from nos_ec.engine.wide.buckets import WideBuckets
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import (
    ROOT_ACCOUNT,
    AccessOf,
    BucketRow,
    BucketState,
    DirectoryRow,
    DocumentKind,
    MoveRow,
    MoveState,
)
from nos_ec.ports.metadata.directory import SLICES_MAX, decode_slices, places_of
from nos_ec.settings import Settings

OPEN_WAIT_S = 10.0
"""How long a program waits for all cells when it starts."""
RETRY_MS, RETRY_MS_MAX = 1_000, 30_000
HOMES_MAX = 100_000
"""How many homes a process remembers."""
_PAGE_BUCKETS = 1000
_ENTERED = "cells"
"""Name of the note, in the directory's database, of the cells whose buckets are in the directory, with their ids."""
_INCOMPLETE = "!"
"""Begins the id, in that note, of a cell whose buckets are being entered."""
_RECORD_TRIES = 10
_ELSEWHERE = (MoveState.GONE, MoveState.ARRIVING, MoveState.REBUILT)
"""A cell in one of these states does not serve a bucket, whatever it still has of it."""

_log = structlog.get_logger(__name__)


class Cells:
    """The open cells of a store. A context manager. Safe to call from several threads.

    Use `open_cells`, which also starts to open them.
    """

    def __init__(self, settings: Settings, clock: Clock, opened: Callable[[System], None] = lambda _: None) -> None:
        """`opened` is called with each cell, in the thread that has opened it."""
        self.settings = settings
        self._clock = clock
        self._opened = opened
        self._random = Random()
        self._lock = threading.Lock()
        self._systems: dict[str, System] = {}
        self._failures: dict[str, Exception] = {}
        others = [name for name in settings.cells if name != self.directory_cell]
        self._tried = {name: threading.Event() for name in others}
        self._homes: OrderedDict[str, DirectoryRow] = OrderedDict()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_opening, args=(name,), name=f"open-{name}", daemon=True)
            for name in others
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(OPEN_WAIT_S)
        with ExitStack() as stack, self._lock:
            for system in self._systems.values():
                stack.push(system)
            self._systems = {}

    # --- opening ----------------------------------------------------------------------------------
    def start(self) -> None:
        """Open the cell of the directory, then the others, and wait up to OPEN_WAIT_S for each of them to be tried.
        Raises what keeps the cell of the directory from being opened."""
        self._open(self.directory_cell)
        for thread in self._threads:
            thread.start()
        for tried in self._tried.values():
            tried.wait(OPEN_WAIT_S)

    def _keep_opening(self, name: str) -> None:
        wait_ms = RETRY_MS
        while not self._closing.is_set():
            try:
                self._open(name)
            except Exception as error:  # whatever is wrong with a cell, the others are served
                if str(self._failures.get(name)) != str(error):
                    log = _log.warning if isinstance(error, Transient) else _log.error
                    log("a cell cannot be opened; trying again", cell=name, error=str(error))
                self._failures[name] = error
            self._tried[name].set()
            if name in self._systems:
                return
            self._clock.wait(self._closing, wait_ms)
            wait_ms = min(2 * wait_ms, RETRY_MS_MAX)

    def _open(self, name: str) -> None:
        system = open_system(self.settings.of_cell(name))
        try:
            self._require_entered(name, system)
            self._follow(name, system)
            self._opened(system)
        except BaseException:
            system.__exit__()
            raise
        with self._lock:
            if self._closing.is_set():
                system.__exit__()
                return
            self._systems[name] = system
        if self._failures.pop(name, None) is not None:
            _log.info("a cell has been opened", cell=name)

    def _follow(self, name: str, system: System) -> None:
        """Let the directory follow the buckets of a cell, and forget the homes of those that were moved."""
        system.metadata.on_access_changed(partial(self._access_changed, name))
        system.metadata.obey_moves(self.forget_home)

    def _require_entered(self, name: str, system: System) -> None:
        """Raise ConfigError unless the directory has the buckets of this cell, and knows the cell as this store."""
        directory = system if name == self.directory_cell else self.directory
        require_same_store(directory, system)
        if name not in known_cells(directory):
            raise ConfigError(f"the buckets of cell {name} are not in the directory yet; run `nos-ec init`")
        _require_not_rebuilt(system)

    # --- cells ------------------------------------------------------------------------------------
    @property
    def directory_cell(self) -> str:
        """The name of the cell whose database holds the directory."""
        assert self.settings.store.directory is not None  # load_settings requires it
        return self.settings.store.directory

    @property
    def directory(self) -> System:
        """The cell whose database holds the directory and the access keys. Raises Transient while it is closed."""
        return self.system(self.directory_cell)

    def system(self, name: str) -> System:
        """Return an open cell. Raises Transient, with the reason, while it cannot be opened."""
        system = self._systems.get(name)
        if system is None:
            why = self._failures.get(name)
            raise Transient(f"cell {name} is not open yet" + (f": {why}" if why is not None else ""))
        return system

    def names(self) -> list[str]:
        """Return the names of all cells."""
        return list(self.settings.cells)

    def opened(self) -> dict[str, System]:
        """Return the cells that are open."""
        with self._lock:
            return dict(self._systems)

    # --- homes ------------------------------------------------------------------------------------
    def known(self, bucket: str) -> DirectoryRow | None:
        """Return the row of a bucket if it is remembered."""
        return self._homes.get(bucket)

    def forget_home(self, bucket: str) -> None:
        """Forget the cell of a bucket that was moved, or is being moved. It is looked up again."""
        self._homes.pop(bucket, None)

    def place(self, bucket: str) -> DirectoryRow | None:
        """Return the row of a bucket, also of a deleted one; None if there never was such a bucket. The row of a bucket
        that exists is remembered, and then needs no directory, until its cell refuses a request because the bucket was
        moved. Raises Transient, also for an unknown bucket while the directory lacks those of a cell."""
        known = self._homes.get(bucket)
        if known is not None:
            return known
        row = self.directory.metadata.directory_row(bucket)
        if row is None:
            self._require_whole_directory()
        elif not row.is_deleted:
            self._remembered(row)
        return row

    def home(self, bucket: str) -> str | None:
        """Return the cell of a bucket, of a wide one its first; None if there never was such a bucket. Raises what
        `place` raises."""
        row = self.place(bucket)
        return None if row is None else row.home

    def place_for_put(self, bucket: str) -> DirectoryRow:
        """Return the row of a bucket into which a program puts an object without creating it. One that never was
        belongs to ROOT_ACCOUNT. Raises Transient, ConfigError."""
        return self.place(bucket) or self.claim(bucket, ROOT_ACCOUNT)

    def claim(self, bucket: str, owner: str, preferred: str | None = None, slices: Sequence[str] = ()) -> DirectoryRow:
        """Return the row of a bucket that is to be created: it stays where it is or was. Otherwise it becomes a wide
        bucket with these slices, or its home is `preferred`, else a cell by weight. Raises Transient, ConfigError."""
        home = self.home(bucket) or (slices[0] if slices else preferred or self.choose())
        row = self.directory.metadata.claim_home(bucket, owner, home, self._clock.now_ms(), slices)
        kill_point("cells.home_claimed")
        return row if row.is_deleted else self._remembered(row)

    def claim_wide(self, bucket: str, owner: str, slices: Sequence[str]) -> DirectoryRow:
        """Like `claim`, for a wide bucket with these slices. Raises InvalidInput if they cannot be the slices of a
        bucket, or if a bucket of this name is or was elsewhere, Transient if one of the cells is away."""
        if unknown := [cell for cell in dict.fromkeys(slices) if cell not in self.settings.cells]:
            raise InvalidInput(f"there is no cell {', '.join(unknown)}; the cells are {', '.join(self.settings.cells)}")
        if len(set(slices)) < 2 or len(slices) > SLICES_MAX:
            raise InvalidInput(f"a wide bucket has 2 to {SLICES_MAX} slices, in at least two cells")
        for cell in slices:
            self.system(cell)
        row = self.claim(bucket, owner, slices=slices)
        if row.slices != tuple(slices):
            where = f"the slices {','.join(row.slices)}" if row.slices else f"the home {row.home}"
            raise InvalidInput(f"the name {bucket} has {where}, even after a deletion; choose another name")
        return row

    def state_of(self, row: DirectoryRow) -> BucketState:
        """Return the metadata with the row and the documents of a bucket. Raises Transient."""
        return self.wide(row.slices) if row.slices else self.system(row.home).metadata

    def wide(self, slices: Sequence[str]) -> WideBuckets:
        """Return the rows and documents of wide buckets with these slices."""
        return WideBuckets(slices, lambda cell: self.system(cell).metadata)

    def _require_whole_directory(self) -> None:
        """Raise Transient while the buckets of a cell are not in the directory: it would give their names away."""
        if (lacks := _lacks(self.directory, self.settings.cells)) is not None:
            raise Transient(lacks)

    def choose(self) -> str:
        """Return a cell for a new bucket, at random by weight, among the cells that are open and have room. Raises
        Transient if there is none, ConfigError if none has a weight."""
        _require_weight(self.settings)
        opened = self.opened()
        weights = {
            name: cell.weight
            for name, cell in self.settings.cells.items()
            if cell.weight and name in opened and _has_room(opened[name])
        }
        if not weights:
            raise Transient("no cell takes new buckets: those that have a weight cannot be reached, or have no room")
        return self._random.choices(list(weights), list(weights.values()))[0]

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """Return a page of the buckets of an account. Raises Transient."""
        return self.directory.metadata.buckets_in_directory(owner, after, limit)

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """Return a page of the names of all buckets that have an object, in the byte order of UTF-8. Raises Transient
        if a cell is not open."""
        systems = [self.system(name).metadata for name in self.names()]
        found = {name for metadata in systems for name in metadata.list_buckets(after, limit)}
        page = sorted(found, key=str.encode)[:limit]
        last = page[-1].encode() if len(page) == limit else None
        # A bucket that moves meanwhile may be in no cell: read before it came, and read after it was gone. While nobody
        # serves it, no cell lists it either. Its cells know that it moves.
        found = set(page)
        for metadata in systems:
            at = after
            while (last is None or at.encode() < last) and (rows := metadata.move_rows(at, _PAGE_BUCKETS)):
                at = rows[-1].bucket
                for row in rows:
                    is_listed = row.bucket in found or (last is not None and row.bucket.encode() > last)
                    if row.state in _ELSEWHERE and not is_listed and self._has_object(row.bucket):
                        found.add(row.bucket)
        return sorted(found, key=str.encode)[:limit]

    def _has_object(self, bucket: str) -> bool:
        """Return whether a bucket that was moved has an object in its cells, or is not served there yet."""
        home = self.directory.metadata.directory_row(bucket)
        try:
            return home is not None and any(
                self.system(cell).metadata.list_names(bucket, "", "", 1) for cell in home.cells
            )
        except Moved:
            return True

    def _remembered(self, row: DirectoryRow) -> DirectoryRow:
        with self._lock:
            self._homes[row.bucket] = row
            if len(self._homes) > HOMES_MAX:
                self._homes.popitem(last=False)
        return row

    # --- keeping the directory up to date -----------------------------------------------------------
    def _access_changed(self, cell: str, of: AccessOf, name: str) -> None:
        system = self._systems.get(cell)
        if system is None:
            return  # it is being opened or closed, and changes nothing
        system.client.access_records().record(of, name)
        if of is AccessOf.BUCKET:
            self.record(cell, name)

    def record(self, cell: str, bucket: str, known: DirectoryRow | None = None) -> None:
        """Make the directory say of a bucket what its row in this cell says. `known` is its row in the directory, if it
        was read just now. May be repeated. Raises Transient."""
        known = self._homes.get(bucket) or known
        if known is not None and known.slices and known.home != cell:
            return  # the first cell of a wide bucket has its row
        row = self.system(cell).metadata.bucket(bucket)
        told = None if known is None or known.is_deleted else (known.owner, known.created_ms)
        if row is not None and told == (row.owner, row.created_ms):
            return  # something else of the bucket was changed
        state = self.wide(known.slices) if known is not None and known.slices else None
        found = record_bucket(self.directory, self.system(cell), bucket, state)
        if found is not None and not found.is_deleted:
            self._remembered(found)
        else:
            self._homes.pop(bucket, None)

    def correct(self, row: DirectoryRow) -> None:
        """Make the directory say whether a bucket exists, after its cells have answered a request otherwise than this
        row of the directory says. If this fails, the next such request tries it again."""
        with suppress(NosError):
            self.record(row.home, row.bucket, row)

    def correct_after_put(self, bucket: str) -> None:
        """Make the directory say that a bucket exists into which an object was put, unless this process knows that it
        does. If this fails, the next PUT tries it again."""
        if bucket in self._homes:
            return
        with suppress(NosError):
            row = self.place(bucket)
            if row is not None and row.is_deleted:
                self.correct(row)


def record_bucket(
    directory: System, system: System, bucket: str, state: BucketState | None = None
) -> DirectoryRow | None:
    """Make the directory say of a bucket what its row in this cell says, and return that; None if neither has the
    bucket. Two programs may do this at once, and the one that has read first may write last, so the cell is read again
    after each write. Of a wide bucket, the row in its first cell counts; that in another one only enters a bucket which
    the directory does not know. `state` says whether a wide bucket exists again because of objects in other cells than
    the first. Raises Transient."""
    cell, written, recorded = cell_of(system), None, None
    for _ in range(_RECORD_TRIES):
        place = system.metadata.move_row(bucket)
        if place is not None and place.state in _ELSEWHERE:
            return _record_elsewhere(directory, system, place)
        moves = 0 if place is None else place.moves
        row = (state or system.metadata).bucket(bucket)
        slices = decode_slices(system.metadata.bucket_document(bucket, DocumentKind.WIDE))
        known = None
        if row is None or slices[:1] not in ((), (cell,)):
            known = directory.metadata.directory_row(bucket)
            if known is None and row is None:
                return None
            if known is not None and cell in known.cells[1:]:
                return known
        if row is not None:
            home = slices[0] if slices else cell
            found = DirectoryRow(bucket, home, row.owner, row.created_ms, moves=moves)
            if slices:  # a cell knows only of its own slices how often they were moved
                found = found.with_slices([(one, moves if one == cell else 0) for one in slices])
        else:
            assert known is not None
            found = DirectoryRow(bucket, cell, known.owner, known.created_ms, is_deleted=True, moves=moves)
            if known.slices and known.home == cell:
                found = found.with_slices(known.counted_slices)
        if found == written:
            return recorded
        recorded = directory.metadata.record_in_directory(found)
        if recorded.home != found.home:
            if cell not in recorded.slices:
                _log.error(
                    "a bucket is in two cells; its home is served", bucket=bucket, home=recorded.home, other=cell
                )
            return recorded
        written = found
    raise Transient(f"bucket {bucket} was changed again and again; try again")


def _record_elsewhere(directory: System, system: System, place: MoveRow) -> DirectoryRow | None:
    """Make the directory say of a bucket that was moved away from a cell where it is, unless the directory knows of
    that move or of a later one. Otherwise its name could be given away while the other cell cannot be reached. The mark
    of a wide bucket says which slices were moved; without it, nothing is known of them."""
    known, cell = directory.metadata.directory_row(place.bucket), cell_of(system)
    if place.state is not MoveState.GONE:
        return known
    row, mark = system.metadata.unserved_bucket(place.bucket)
    slices = decode_slices(mark)
    owner, created_ms = (ROOT_ACCOUNT, 0) if row is None else (row.owner, row.created_ms)
    found = known or DirectoryRow(place.bucket, place.other, owner, created_ms)
    if slices and not found.slices:
        found = found.with_slices([(one, 0) for one in slices])
    if found.slices:
        if found is known and (not slices or cell not in known.cells or known.moves_of(cell) >= place.number):
            return known
        found = found.moved(cell, place.other, place.number)
    elif known is not None and known.moves >= place.number:
        return known
    else:
        found = replace(found, home=place.other, moves=place.number)
    return directory.metadata.record_in_directory(found)


def correct_directory(system: System, bucket: str) -> None:
    """Make the directory say that a bucket exists, after an object was put or brought back into this cell. Does nothing
    in a store without cells. An error is logged, because the object is stored; the next request corrects it."""
    settings = system.settings.whole
    if settings.store.directory is None:
        return
    try:
        with open_system(settings.of_cell(settings.store.directory)) as directory:
            row = directory.metadata.directory_row(bucket)
            if row is None or row.is_deleted:
                record_bucket(directory, system, bucket)
    except NosError as error:
        _log.warning(
            "the directory cannot be corrected; if the bucket was deleted, it is not listed until it is used",
            bucket=bucket,
            error=str(error),
        )


def is_rebuilt(system: System) -> bool:
    """Return whether the database of a cell was rebuilt, or is new, and the cell was not entered into the directory
    since. Raises Transient."""
    return system.metadata.note(DIRECTORY_NOTE) is None


def known_cells(directory: System) -> dict[str, str]:
    """Return the ids of the cells that the directory knows, by their names. Raises Transient."""
    return {name: store_id.removeprefix(_INCOMPLETE) for name, store_id in _noted(directory)[1].items()}


def entered_cells(directory: System) -> dict[str, str]:
    """Return the ids of the cells whose buckets are all in the directory, by the names of the cells. Raises
    Transient."""
    return {name: store_id for name, store_id in _noted(directory)[1].items() if not store_id.startswith(_INCOMPLETE)}


def _lacks(directory: System, cells: Iterable[str]) -> str | None:
    """Return which of these cells have buckets that may not be in the directory, and what to do; None if there are
    none."""
    if new := sorted(set(cells) - known_cells(directory).keys()):
        return f"the buckets of these cells are not in the directory yet: {', '.join(new)}; run `nos-ec init`"
    if incomplete := sorted(set(cells) - entered_cells(directory).keys()):
        names = ", ".join(incomplete)
        return f"some buckets of these cells are not in the directory: {names}; run `nos-ec cells rebuild-directory`"
    return None


def begin_entering(directory: System, cells: Collection[str]) -> None:
    """Note that the directory lacks buckets of these cells, from now on until `enter_buckets` is done. Raises
    Transient."""
    _note(directory, {name: _INCOMPLETE + known for name, known in known_cells(directory).items() if name in cells})


def enter_buckets(
    directory: System, system: System, buckets: Iterable[BucketRow], *, is_new: bool = False
) -> list[DirectoryRow]:
    """Enter all buckets of a cell into the directory, which then knows the cell, and mark in the cell which were moved
    away, and which were moved to it and must be completed from their old copies. Enter a cell whose database was
    rebuilt after the others: they may know which buckets were moved to it. A cell that is new has never had any.
    Returns the rows of the buckets that have another home, where they stay. May be repeated after any error. Raises
    what `require_same_store` raises, Transient."""
    cell = cell_of(system)
    require_same_store(directory, system)
    elsewhere: list[DirectoryRow] = []
    for row in buckets:
        found = record_bucket(directory, system, row.name)
        if found is not None and cell not in found.cells:
            elsewhere.append(found)
    after = ""
    while places := system.metadata.move_rows(after, _PAGE_BUCKETS):
        for place in places:
            if place.state in _ELSEWHERE:
                _record_elsewhere(directory, system, place)
        after = places[-1].bucket
    after, forgotten = "", list[DirectoryRow]()
    may_have_lost = is_rebuilt(system) and not is_new
    while page := directory.metadata.directory_page(after, _PAGE_BUCKETS):
        for listed in page:
            if (last := _forgotten_move(system, listed, may_have_lost=may_have_lost)) is not None:
                if last.other == cell:
                    forgotten.append(listed)
                else:
                    system.metadata.set_move(last, system.metadata.move_row(listed.bucket))
            if listed.home == cell and not listed.is_deleted and _has_no_bucket(system, listed.bucket):
                record_bucket(directory, system, listed.bucket)
        after = page[-1].bucket
    _arrive_again(system, forgotten)
    system.metadata.store_note(DIRECTORY_NOTE, directory.store_id, None)
    system.metadata.store_note(CELL_NOTE, cell, None)
    require_same_store(directory, system)
    _note(directory, {cell: system.store_id})
    return elsewhere


def _has_no_bucket(system: System, bucket: str) -> bool:
    """Return whether a cell does not have a bucket, although it serves its name."""
    place = system.metadata.move_row(bucket)
    return (place is None or place.state not in _ELSEWHERE) and system.metadata.bucket(bucket) is None


def _forgotten_move(system: System, listed: DirectoryRow, *, may_have_lost: bool) -> MoveRow | None:
    """Return the row GONE for the last move, by the directory, of what a cell has or had of a bucket, if the cell does
    not know of that move; its `other` may be the cell itself. A cell forgets a move if its database was lost, and
    rebuilt from a dump that began before."""
    cell, known = cell_of(system), system.metadata.move_row(listed.bucket)
    to, number = cell if cell in listed.cells else listed.home, listed.moves_of(cell)
    if listed.slices and cell not in listed.cells:
        _, mark = system.metadata.unserved_bucket(listed.bucket)
        if had := places_of(cell, decode_slices(mark)):
            to, number = listed.counted_slices[had[0]]
        elif known is not None or not may_have_lost:
            return None
        # Otherwise it may have had slices, and it is not known any more which.
    if number <= (0 if known is None else known.moves):
        return None
    return MoveRow(listed.bucket, MoveState.GONE, to, number, NO_MOVER, system.clock.now_ms())


def _arrive_again(system: System, forgotten: Collection[DirectoryRow]) -> None:
    """Make a cell know which of these buckets, whose home it is, still have old copies in the cells from which they
    were moved. No dump from which its database was rebuilt has these moves, so it does not serve the buckets before
    they are completed from the old copies. Raises Transient, also if another cell cannot be asked."""
    cell, whole = cell_of(system), system.settings.whole
    rest = {listed.bucket: listed for listed in forgotten}
    for name in whole.cells:
        if not rest or name == cell:
            continue
        try:
            with open_system(whole.of_cell(name)) as other:
                for bucket, listed in list(rest.items()):
                    left = other.metadata.move_row(bucket)
                    number = listed.moves_of(cell)
                    if left is None or (left.state, left.other, left.number) != (MoveState.GONE, cell, number):
                        continue
                    other.metadata.move_as(left)  # reads what there is
                    state = MoveState.REBUILT if has_copies(other.metadata, bucket) else MoveState.HERE
                    row = MoveRow(bucket, state, name, number, NO_MOVER, system.clock.now_ms())
                    system.metadata.set_move(row, system.metadata.move_row(bucket))
                    del rest[bucket]
        except NosError as error:
            raise Transient(
                f"buckets were moved to cell {cell} that its database has forgotten; cell {name}, which may have old"
                f" copies of them, cannot be read: {error}"
            ) from error


def require_same_store(directory: System, system: System) -> None:
    """Raise ConfigError if a cell is another store than the directory knows by its name, or the directory is not that
    of the cell."""
    cell, known = cell_of(system), known_cells(directory)
    if known.get(cell, system.store_id) != system.store_id:
        raise _another_store(cell)
    for name, store_id in known.items():
        if store_id == system.store_id and name != cell:
            raise ConfigError(f"the cells {name} and {cell} are the same store; give each a database of its own")
    if system.metadata.note(DIRECTORY_NOTE) not in (None, directory.store_id):
        raise ConfigError(f"the directory of cell {cell} is in another cell; correct store.directory")


def _require_not_rebuilt(system: System) -> None:
    """Raise ConfigError if the database of a cell was rebuilt, and may not know which buckets were moved away."""
    if is_rebuilt(system):
        raise ConfigError(
            f"the database of cell {cell_of(system)} does not know which buckets were moved to other cells; run"
            " `nos-ec cells rebuild-directory`"
        )


def _another_store(cell: str) -> ConfigError:
    return ConfigError(
        f"cell {cell} is another store than the one whose buckets are in the directory; correct the database and the"
        f" places in [cells.{cell}], or bring back what is missing there"
    )


def _noted(directory: System) -> tuple[str | None, dict[str, str]]:
    text = directory.metadata.note(_ENTERED)
    return text, {} if text is None else json.loads(text)


def _note(directory: System, changed: Mapping[str, str]) -> None:
    while True:
        text, known = _noted(directory)
        if directory.metadata.store_note(_ENTERED, json.dumps(known | dict(changed)), text):
            return


def cell_of(system: System) -> str:
    """Return the name of the cell that this is."""
    assert system.settings.cell is not None
    return system.settings.cell


def open_cells(settings: Settings, clock: Clock, opened: Callable[[System], None] = lambda _: None) -> Cells:
    """Open the cells of a store. Those that cannot be reached are opened later, but for the cell of the directory.
    Raises ConfigError, Transient."""
    cells = Cells(settings, clock, opened)
    try:
        cells.start()
    except BaseException:
        cells.__exit__()
        raise
    return cells


def open_home(
    settings: Settings, bucket: str, name: str | None = None, *, creates: bool = False, preferred: str | None = None
) -> System:
    """Open the store, or of several cells the one that holds an object of this name in a bucket, or all objects for
    None. `creates`: the bucket gets a home if it has none, because an object will be put into it: `preferred`, else one
    by weight. Raises NotFound, InvalidInput for all objects of a wide bucket, ConfigError, Transient."""
    if not settings.cells:
        return open_system(settings)
    row, ids = _placed(settings, bucket, creates=creates, preferred=preferred)
    if row.slices and name is None:
        cells = " and ".join(f"--cell {cell}" for cell in row.cells)
        raise InvalidInput(f"{bucket} is a wide bucket, and this command is about one cell: run it with {cells}")
    system = _open_known(settings, row.home if name is None else row.cell_of(name), ids)
    if creates and row.is_deleted:
        system.stack.callback(correct_directory, system, bucket)
    return system


@contextmanager
def open_places(
    settings: Settings, bucket: str, preferred: str | None = None
) -> Iterator[tuple[dict[str | None, System], Callable[[str], str | None]]]:
    """Open all cells that hold objects of a bucket, and yield them by name, with a function from the name of an object
    to that of its cell; a store without cells has the name None. The bucket gets a home if it has none, because objects
    will be put into it: `preferred`, else one by weight. Raises ConfigError, Transient."""
    if not settings.cells:
        with open_system(settings) as system:
            yield {None: system}, lambda _: None
        return
    row, ids = _placed(settings, bucket, creates=True, preferred=preferred)
    with ExitStack() as stack:
        systems: dict[str | None, System] = {
            cell: stack.enter_context(_open_known(settings, cell, ids)) for cell in row.cells
        }
        if row.is_deleted:
            stack.callback(correct_directory, systems[row.home], bucket)
        yield systems, row.cell_of


def _placed(
    settings: Settings, bucket: str, *, creates: bool, preferred: str | None
) -> tuple[DirectoryRow, dict[str, str]]:
    """Return the row of a bucket in the directory, and the ids of all cells. See `open_home`."""
    assert settings.store.directory is not None
    with open_system(settings.of_cell(settings.store.directory)) as first:
        ids = known_cells(first)
        row = first.metadata.directory_row(bucket)
        if row is None and (lacks := _lacks(first, settings.cells)) is not None:
            raise ConfigError(lacks)
        if row is None and not creates:
            raise NotFound(f"there is no bucket {bucket}")
        if row is None:
            home = preferred or _choose(settings, ids)
            row = first.metadata.claim_home(bucket, ROOT_ACCOUNT, home, first.clock.now_ms())
    return row, ids


def grouped_by_cell(settings: Settings, keys: Sequence[ObjectKey]) -> list[list[ObjectKey]]:
    """Return keys in groups by cell and bucket. Raises ConfigError, Transient."""
    if not settings.cells:
        return [list(keys)]
    assert settings.store.directory is not None
    groups: dict[tuple[str, str | None], list[ObjectKey]] = {}
    with open_system(settings.of_cell(settings.store.directory)) as first:
        rows = {bucket: first.metadata.directory_row(bucket) for bucket in {key.bucket for key in keys}}
    for key in keys:
        row = rows[key.bucket]
        groups.setdefault((key.bucket, None if row is None else row.cell_of(key.name)), []).append(key)
    return list(groups.values())


def _open_known(settings: Settings, cell: str, ids: Mapping[str, str]) -> System:
    """Open a cell. Raises ConfigError if it is another store than the one with this id."""
    system = open_system(settings.of_cell(cell))
    try:
        if system.store_id != ids.get(cell):
            raise _another_store(cell)
        _require_not_rebuilt(system)
    except BaseException:
        system.__exit__()
        raise
    return system


def _choose(settings: Settings, ids: Mapping[str, str]) -> str:
    """Return a cell for a new bucket: by weight, one that can be reached and has room."""
    _require_weight(settings)
    weights = {name: cell.weight for name, cell in settings.cells.items() if cell.weight}
    while True:
        name = Random().choices(list(weights), list(weights.values()))[0]
        del weights[name]
        try:
            with _open_known(settings, name, ids) as system:
                system.client.require_put_space()
        except NosError:
            if not weights:
                raise
        else:
            return name


def _require_weight(settings: Settings) -> None:
    if not any(cell.weight for cell in settings.cells.values()):
        raise ConfigError("no cell takes new buckets; give one a weight above 0")


def slices_by_weight(settings: Settings) -> tuple[str, ...]:
    """Return the cell of each slice of a wide bucket. Cells get slices in proportion to their weights, and at least one
    each unless their weight is 0. Raises ConfigError if every weight is 0."""
    _require_weight(settings)
    weights = {name: cell.weight for name, cell in settings.cells.items() if cell.weight}
    unit = max(gcd(*weights.values()), sum(weights.values()) / (SLICES_MAX - len(weights) + 1))
    return tuple(name for name, weight in weights.items() for _ in range(max(1, int(weight / unit))))


def _has_room(system: System) -> bool:
    try:
        system.client.require_put_space()
    except NosError:
        return False
    return True

"""The open cells of a store, and the home of each bucket (docs/CELLS.md).

Each cell is an open store of its own. A cell that cannot be reached does not keep the others from being opened: it is
tried again in the background, and until then what needs it raises Transient.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Self

import structlog

from nos_ec.composition.wiring import CELL_NOTE, System, open_system
from nos_ec.core.errors import ConfigError, NosError, NotFound, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessOf, BucketRow, DirectoryRow
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
_DIRECTORY = "directory"
"""Name of the note, in the database of each cell, with the id of the store that has its directory."""
_RECORD_TRIES = 10

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
        """Let the directory follow the buckets of a cell."""
        system.metadata.on_access_changed(partial(self._access_changed, name))

    def _require_entered(self, name: str, system: System) -> None:
        """Raise ConfigError unless the directory has the buckets of this cell, and knows the cell as this store."""
        directory = system if name == self.directory_cell else self.directory
        require_same_store(directory, system)
        if name not in known_cells(directory):
            raise ConfigError(f"the buckets of cell {name} are not in the directory yet; run `nos-ec init`")

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
    def known_home(self, bucket: str) -> str | None:
        """Return the cell of a bucket if it is remembered."""
        known = self._homes.get(bucket)
        return None if known is None else known.home

    def home(self, bucket: str) -> str | None:
        """Return the cell of a bucket; None if there never was such a bucket. A home never changes, so that of a bucket
        that exists is remembered, and then needs no directory. Raises Transient, also for an unknown bucket while the
        directory lacks those of a cell."""
        known = self._homes.get(bucket)
        if known is not None:
            return known.home
        row = self.directory.metadata.directory_row(bucket)
        if row is None:
            self._require_whole_directory()
            return None
        return row.home if row.is_deleted else self._remembered(row)

    def home_for_put(self, bucket: str) -> str:
        """Return the cell of a bucket into which a program puts an object without creating it. One that never was
        belongs to ROOT_ACCOUNT. Raises Transient, ConfigError."""
        return self.home(bucket) or self.claim(bucket, ROOT_ACCOUNT)

    def claim(self, bucket: str, owner: str, preferred: str | None = None) -> str:
        """Return the cell in which a bucket is to be created: the one where it is or was, else `preferred`, else a cell
        by weight. Raises Transient, ConfigError."""
        home = self.home(bucket) or preferred or self.choose()
        row = self.directory.metadata.claim_home(bucket, owner, home, self._clock.now_ms())
        kill_point("cells.home_claimed")
        return self._remembered(row)

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

    def _remembered(self, row: DirectoryRow) -> str:
        with self._lock:
            self._homes[row.bucket] = row
            if len(self._homes) > HOMES_MAX:
                self._homes.popitem(last=False)
        return row.home

    # --- keeping the directory up to date -----------------------------------------------------------
    def _access_changed(self, cell: str, of: AccessOf, name: str) -> None:
        system = self._systems.get(cell)
        if system is None:
            return  # it is being opened or closed, and changes nothing
        system.client.access_records().record(of, name)
        if of is AccessOf.BUCKET:
            self.record(cell, name)

    def record(self, cell: str, bucket: str) -> None:
        """Make the directory say of a bucket what its row in this cell says. May be repeated. Raises Transient."""
        known = self._homes.get(bucket)
        row = self.system(cell).metadata.bucket(bucket)
        if known is not None and row is not None and (known.owner, known.created_ms) == (row.owner, row.created_ms):
            return  # something else of the bucket was changed
        found = record_bucket(self.directory, self.system(cell), bucket)
        if found is not None and not found.is_deleted:
            self._remembered(found)
        else:
            self._homes.pop(bucket, None)


def record_bucket(directory: System, system: System, bucket: str) -> DirectoryRow | None:
    """Make the directory say of a bucket what its row in this cell says, and return that; None if neither has the
    bucket. Two programs may do this at once, and the one that has read first may write last, so the cell is read again
    after each write. Raises Transient."""
    cell, written = cell_of(system), None
    for _ in range(_RECORD_TRIES):
        row = system.metadata.bucket(bucket)
        if row is not None:
            found = DirectoryRow(bucket, cell, row.owner, row.created_ms)
        else:
            known = directory.metadata.directory_row(bucket)
            if known is None:
                return None
            found = DirectoryRow(bucket, cell, known.owner, known.created_ms, is_deleted=True)
        if found == written:
            return found
        other = directory.metadata.record_in_directory(found)
        if other is not None:
            _log.error("a bucket is in two cells; its home is served", bucket=bucket, home=other.home, other=cell)
            return other
        written = found
    raise Transient(f"bucket {bucket} was changed again and again; try again")


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


def enter_buckets(directory: System, system: System, buckets: Iterable[BucketRow]) -> list[DirectoryRow]:
    """Enter all buckets of a cell into the directory, which then knows the cell, and mark those that are gone. Returns
    the rows of those that have another home, where they stay. May be repeated after any error. Raises what
    `require_same_store` raises, Transient."""
    cell = cell_of(system)
    require_same_store(directory, system)
    elsewhere: list[DirectoryRow] = []
    for row in buckets:
        found = record_bucket(directory, system, row.name)
        if found is not None and found.home != cell:
            elsewhere.append(found)
    after = ""
    while page := directory.metadata.directory_page(after, _PAGE_BUCKETS):
        for listed in page:
            if listed.home == cell and not listed.is_deleted and system.metadata.bucket(listed.bucket) is None:
                record_bucket(directory, system, listed.bucket)
        after = page[-1].bucket
    system.metadata.store_note(_DIRECTORY, directory.store_id, None)
    system.metadata.store_note(CELL_NOTE, cell, None)
    require_same_store(directory, system)
    _note(directory, {cell: system.store_id})
    return elsewhere


def require_same_store(directory: System, system: System) -> None:
    """Raise ConfigError if a cell is another store than the directory knows by its name, or the directory is not that
    of the cell."""
    cell, known = cell_of(system), known_cells(directory)
    if known.get(cell, system.store_id) != system.store_id:
        raise _another_store(cell)
    for name, store_id in known.items():
        if store_id == system.store_id and name != cell:
            raise ConfigError(f"the cells {name} and {cell} are the same store; give each a database of its own")
    if system.metadata.note(_DIRECTORY) not in (None, directory.store_id):
        raise ConfigError(f"the directory of cell {cell} is in another cell; correct store.directory")


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


def open_home(settings: Settings, bucket: str, *, creates: bool = False, preferred: str | None = None) -> System:
    """Open the store, or of several cells the one that holds a bucket. `creates`: the bucket gets a home if it has
    none, because an object will be put into it: `preferred`, else one by weight. Raises NotFound, ConfigError,
    Transient."""
    if not settings.cells:
        return open_system(settings)
    assert settings.store.directory is not None
    with open_system(settings.of_cell(settings.store.directory)) as first:
        ids = known_cells(first)
        row = first.metadata.directory_row(bucket)
        if row is None and (lacks := _lacks(first, settings.cells)) is not None:
            raise ConfigError(lacks)
        if row is None and not creates:
            raise NotFound(f"there is no bucket {bucket}")
        home = row.home if row is not None else preferred or _choose(settings, ids)
        if row is None:
            home = first.metadata.claim_home(bucket, ROOT_ACCOUNT, home, first.clock.now_ms()).home
    return _open_known(settings, home, ids)


def _open_known(settings: Settings, cell: str, ids: Mapping[str, str]) -> System:
    """Open a cell. Raises ConfigError if it is another store than the one with this id."""
    system = open_system(settings.of_cell(cell))
    if system.store_id != ids.get(cell):
        system.__exit__()
        raise _another_store(cell)
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


def _has_room(system: System) -> bool:
    try:
        system.client.require_put_space()
    except NosError:
        return False
    return True

"""Creates and opens a store: the adapters that the settings name, and the engine on top of them."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Self

from nos_ec.adapters.sql.driver.engine import NEW_OR_LOST
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.adapters import Adapters, new_block_id, new_store_id
from nos_ec.composition.audit import open_trail
from nos_ec.composition.backends import (
    initialise_log,
    initialise_objects,
    make_root,
    mark_objects,
    open_objects,
    settings_named,
)
from nos_ec.composition.client_side import ClientSide
from nos_ec.composition.landing import initialise_devices, layered
from nos_ec.composition.log_on_demand import LagProbe, LogOnDemand
from nos_ec.composition.ownership import CELL_NOTE, refuse_data_without_metadata, refuse_other_stores
from nos_ec.composition.processes import run_name
from nos_ec.core.errors import ConfigError
from nos_ec.engine.expiry.survival import Deaths
from nos_ec.engine.objects.location_cache import LOCATION_CACHE_MS, LocationCache
from nos_ec.engine.read_threads import ReadThreads
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Metadata, OutboxOptions, Survival
from nos_ec.settings import Settings

if TYPE_CHECKING:
    from nos_ec.composition.operator_side import OperatorSide
    from nos_ec.composition.worker_side import WorkerSide


def initialise(settings: Settings, new_shards: Collection[int] = (), new_devices: Collection[int] = ()) -> None:
    """Create (or complete) the store that the settings describe: schema, folders or pools, message log. Idempotent.

    new_shards: shards of the embedded block store that are lost for good and must be created again, empty. new_devices:
    devices of its landing log that are lost for good and must be replaced by blank ones.
    Raises ConfigError if a store with another geometry, partition count or schema exists, data without its metadata, or
    the data of one store next to the metadata of another. Raises Transient if one of its servers cannot be reached.
    """
    require_one_cell(settings)
    geometry = settings.geometry.value()
    refuse_other_stores(settings)
    make_root(settings)
    with settings_named(settings.store.url_setting):
        migrate(settings.store.url())
        opened = open_metadata(settings.store.url())
    with closing(opened) as metadata:
        if metadata.is_new():
            _initialise_new(settings, metadata, new_shards)
        else:
            _complete(settings, metadata, new_shards)
        metadata.bind_geometry(geometry)
        store_id = metadata.find_store_id()
        assert store_id is not None
        initialise_devices(settings, metadata, store_id, new_devices)
    initialise_log(settings)


def require_one_cell(settings: Settings) -> None:
    """Raise ConfigError if the store is divided into cells and these settings do not name one."""
    if settings.cells:
        raise ConfigError(f"the store is divided into cells; choose one with --cell: {', '.join(settings.cells)}")


def _initialise_new(settings: Settings, metadata: Metadata, new_shards: Collection[int]) -> None:
    """Create the parts of a new store. The caller binds the geometry last, so that the metadata counts as new until
    then. So this can be repeated after a crash."""
    initialise_objects(settings, new_shards)
    refuse_data_without_metadata(settings, created=True)
    mark_objects(settings, metadata.claim_store_id(new_store_id()))


def _complete(settings: Settings, metadata: Metadata, new_shards: Collection[int]) -> None:
    """Complete an existing store. Never creates an empty place for objects that are elsewhere by the metadata."""
    metadata.bind_geometry(settings.geometry.value())
    initialise_objects(settings, new_shards)
    if metadata.find_store_id() is None:
        mark_objects(settings, metadata.claim_store_id(new_store_id()))


@dataclass(slots=True)
class System(Adapters):
    """An open store: its adapters, and three sides that make parts of programs from them. A context manager.

    client: for programs that store and read objects. worker: for daemons that pack them and reclaim space. operator:
    for monitoring, checks and repairs. Most programs use more than one side. The modules of the last two are loaded
    when they are first used, because a command that only stores or reads objects needs neither.
    """

    client: ClientSide = field(init=False)
    _worker: WorkerSide | None = field(default=None, init=False)
    _operator: OperatorSide | None = field(default=None, init=False)
    _making: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.client = ClientSide(self)

    @property
    def worker(self) -> WorkerSide:
        """The side for daemons that pack objects and reclaim space."""
        with self._making:
            if self._worker is None:
                from nos_ec.composition.worker_side import WorkerSide

                self._worker = WorkerSide(self)
            return self._worker

    @property
    def operator(self) -> OperatorSide:
        """The side for monitoring, checks and repairs."""
        with self._making:
            if self._operator is None:
                from nos_ec.composition.operator_side import OperatorSide

                self._operator = OperatorSide(self)
            return self._operator

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def open_system(settings: Settings) -> System:
    """Open an initialised store. Raises ConfigError if it is missing or does not match, Transient if one of its servers
    cannot be reached."""
    require_one_cell(settings)
    clock = SystemClock()
    with ExitStack() as stack:
        with settings_named(settings.store.url_setting):
            opened = open_metadata(settings.store.url(), replica=settings.store.metadata_replica)
            metadata = stack.enter_context(closing(opened))
            if metadata.is_new():
                raise ConfigError(f"the metadata of the store is new and empty; {NEW_OR_LOST}")
            metadata.bind_geometry(settings.geometry.value())
            store_id = metadata.find_store_id()
            if store_id is None:
                raise ConfigError("the metadata of the store has no id yet; run `nos-ec init`")
            _require_cell(settings, metadata)
        if settings.cell is not None:
            metadata.obey_moves(lambda _: None)
        watch_deaths(settings, metadata, clock, stack)
        if settings.s3.topics:
            topics = frozenset(settings.s3.topics)
            metadata.send_events(OutboxOptions(settings.s3.notification_events_max, settings.s3.region, topics))
        if settings.store.count_usage:
            metadata.count_usage()
        if settings.store.journal_rows_max:
            metadata.keep_journal(settings.store.journal_rows_max)
        objects = open_objects(settings, stack, lambda: new_block_id(clock), store_id)
        landing = layered(settings, objects.landing, objects.medium, metadata)
        log = LogOnDemand(settings, clock)
        lag = stack.enter_context(closing(LagProbe(log)))
        read_threads = stack.enter_context(closing(ReadThreads(settings.consumer.read_threads, perf_counter)))
        locations = LocationCache(clock, settings.get.location_cache_objects, LOCATION_CACHE_MS)
        system = System(
            settings,
            clock,
            store_id,
            metadata,
            landing,
            objects.medium,
            objects.blocks,
            objects.shards,
            objects.placement,
            objects.groups,
            read_threads,
            open_trail(settings, clock, run_name(clock)),
            locations,
            log,
            lag,
            stack.pop_all(),
        )
        metadata.on_access_changed(lambda of, name: system.client.access_records().record(of, name))
        return system


def _require_cell(settings: Settings, metadata: Metadata) -> None:
    """Raise ConfigError if the database is that of another cell. The directory may be away, so the cell itself says
    its name, once it has been entered there."""
    if settings.cell is not None and (noted := metadata.note(CELL_NOTE)) not in (None, settings.cell):
        raise ConfigError(
            f"cell {settings.cell} is another store than the one of that name: its database is that of cell {noted};"
            f" correct the database and the places in [cells.{settings.cell}]"
        )


def watch_deaths(settings: Settings, metadata: Survival, clock: Clock, stack: ExitStack) -> None:
    """Count the objects that this process deletes or overwrites, until `stack` is closed. A single stream does not need
    that."""
    if settings.gc.streams > 1:
        deaths = Deaths(metadata, clock)
        metadata.watch_deaths(deaths.died)
        stack.callback(deaths.flush)

"""Creates and opens a store: the adapters that the settings name, and the engine on top of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Self

import structlog
from prometheus_client import CollectorRegistry

from nos_ec.adapters.file_system import misfits
from nos_ec.adapters.sql.driver.engine import NEW_OR_LOST
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.audit import open_trail
from nos_ec.composition.backends import (
    initialise_log,
    initialise_objects,
    make_root,
    mark_objects,
    open_objects,
    settings_named,
)
from nos_ec.composition.developer_values import FIGURES_MS, HOUSEKEEPING_MS, STALL_MS
from nos_ec.composition.landing import Landers, initialise_devices, layered, open_segments_of
from nos_ec.composition.log_on_demand import LagProbe, LogOnDemand
from nos_ec.composition.ownership import refuse_data_without_metadata, refuse_other_stores
from nos_ec.composition.processes import member_name, process_name, run_name
from nos_ec.core.errors import Blocklisted, ConfigError, NosError, Transient
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, LandingId, timed_id
from nos_ec.core.packing.packer import size_max
from nos_ec.core.states import BlockKind
from nos_ec.engine.check.checker import Checked
from nos_ec.engine.dump.access_records import AccessRecords
from nos_ec.engine.dump.stored import StoredDumps
from nos_ec.engine.expiry.survival import Deaths, Survey
from nos_ec.engine.figures.header_survey import HeaderSurvey, read_headers_found
from nos_ec.engine.figures.log_figures import LogFigures, log_figures
from nos_ec.engine.figures.store_totals import DatedTotals, StoreTotals
from nos_ec.engine.figures.usage import usage_spans
from nos_ec.engine.gc.run_note import read_run
from nos_ec.engine.landing.copy_forward import CopyForward, ForwardOptions
from nos_ec.engine.landing.layered_landing import LayeredLanding
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.landing.log_recovery import LogRecovery
from nos_ec.engine.landing.trimmer import Trimmer
from nos_ec.engine.landing.unknown_segments import UnknownSegments
from nos_ec.engine.leases import HeldLease, HeldLeases
from nos_ec.engine.objects.large import LargeObjects
from nos_ec.engine.objects.large_lease import LargeLease
from nos_ec.engine.objects.location_cache import LOCATION_CACHE_MS, LocationCache
from nos_ec.engine.objects.put_batches import PutBatches
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.engine.objects.store import PutOptions, Store
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.engine.packing.source_reader import SourceReader
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriterOptions
from nos_ec.engine.read_threads import ReadThreads
from nos_ec.engine.scrub.planned import PlannedMending
from nos_ec.engine.scrub.scrubber import Scrubber, ScrubOptions
from nos_ec.engine.space_reserve import PACKING_RESERVES, PUT_RESERVES, require_put_space
from nos_ec.engine.upkeep.housekeeping import Housekeeping
from nos_ec.engine.upkeep.reaper import BATCH_OBJECTS, Reaper
from nos_ec.engine.upkeep.recovery import Recovery
from nos_ec.engine.upkeep.shard_rebuild import ShardRebuild
from nos_ec.engine.upkeep.verifier import LATE_S, LATE_S_AFTER_FAILURE, READS_MAX
from nos_ec.monitoring.declarations.metrics import AUDIT_FAILURES
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.gc_samples import interval_samples, nothing_counted, pass_samples, rebuild_counts, scrub_counts
from nos_ec.monitoring.monitor import Cached, Monitor
from nos_ec.monitoring.sources import (
    StoreFigures,
    dump_samples,
    group_samples,
    limit_samples,
    read_samples,
    store_samples,
    waiting_samples,
)
from nos_ec.monitoring.stored_counts import StoredCounts
from nos_ec.ports.audit_trail import AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.message_log import GroupProgress, MessageConsumer, MessagePublisher
from nos_ec.ports.metadata import Lease, Metadata, Survival
from nos_ec.ports.placement import Placement
from nos_ec.ports.placement_groups import PlacementGroups
from nos_ec.ports.segment_medium import SegmentMedium
from nos_ec.ports.shard_store import ShardStore
from nos_ec.settings import Settings
from nos_ec.settings.section import DAY

_log = structlog.get_logger(__name__)


def initialise(settings: Settings, new_shards: Collection[int] = (), new_devices: Collection[int] = ()) -> None:
    """Create (or complete) the store that the settings describe: schema, folders or pools, message log. Idempotent.

    new_shards: shards of the embedded block store that are lost for good and must be created again, empty. new_devices:
    devices of its landing log that are lost for good and must be replaced by blank ones.
    Raises ConfigError if a store with another geometry, partition count or schema exists, data without its metadata, or
    the data of one store next to the metadata of another. Raises Transient if one of its servers cannot be reached.
    """
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


def _initialise_new(settings: Settings, metadata: Metadata, new_shards: Collection[int]) -> None:
    """Create the parts of a new store. The caller binds the geometry last, so that the metadata counts as new until
    then. So this can be repeated after a crash."""
    initialise_objects(settings, new_shards)
    refuse_data_without_metadata(settings, created=True)
    mark_objects(settings, metadata.claim_store_id(os.urandom(16).hex()))


def _complete(settings: Settings, metadata: Metadata, new_shards: Collection[int]) -> None:
    """Complete an existing store. Never creates an empty place for objects that are elsewhere by the metadata."""
    metadata.bind_geometry(settings.geometry.value())
    initialise_objects(settings, new_shards)
    if metadata.find_store_id() is None:
        mark_objects(settings, metadata.claim_store_id(os.urandom(16).hex()))


@dataclass(slots=True)
class System:
    """An open store: its adapters, and factories for the parts that services are built from. A context manager."""

    settings: Settings
    clock: Clock
    store_id: str
    metadata: Metadata
    landing: LandingStore
    medium: SegmentMedium | None
    blocks: BlockStore
    shards: ShardStore | None
    placement: Placement
    groups: PlacementGroups
    read_threads: ReadThreads
    trail: AuditTrail
    _locations: LocationCache
    _messages: LogOnDemand
    _lag: LagProbe
    _stack: ExitStack
    _held: HeldLeases = field(default_factory=HeldLeases)
    _puts: tuple[tuple[object, ...], PutQueue] = field(init=False)
    """The parts that the queue works with, and the queue."""
    _leased: tuple[tuple[object, ...], LargeLease] | None = None
    """The parts that the lease of large PUTs works with, and the lease."""
    counts: StoredCounts = field(init=False)
    """The counts of GC, scrubs and shard rebuilds, which are kept in the store."""

    def __post_init__(self) -> None:
        self.counts = StoredCounts(self.metadata, nothing_counted())
        self._puts = self._put_parts(), self._put_queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def geometry(self) -> Geometry:
        """The geometry of the store."""
        return self.blocks.geometry

    def check_for_daemon(self, *, writes: bool, publishes: bool = True) -> None:
        """Check the configuration. A daemon calls this once before its loop, so that a wrong configuration ends it
        instead of being retried forever. Checks that the message log exists, if the daemon publishes or consumes, and
        that its user may write blocks, if it does. Warns of a missing audit trail.

        Permissions are tested by deleting ids that do not exist. A time-out says nothing about permissions, so it is
        ignored. Free space is queried so that a figure is known before a Ceph monitor may hang.
        Raises ConfigError, Transient (no message log).
        """
        if publishes:
            self._messages.get()
        if not writes:
            return
        if self.settings.audit.is_missing(self.settings.store.backend):
            _log.warning("deletions are not recorded in an audit trail; set audit.folder")
        with settings_named("ceph.user", "ceph.keyring_file"), suppress(Transient):
            self.blocks.delete(self.new_block_id())
            self.landing.delete(self.new_landing_id())
            self.blocks.free_bytes()
            self.landing.free_bytes()

    # --- the object store -------------------------------------------------------------------------
    def store(self) -> Store:
        """Return the object store: PUT, GET, DELETE, LIST."""
        put = self.settings.put
        keep_ms = self.settings.trash.keep_ms
        options = PutOptions(put.min_age_ms, put.reservation_ms, size_max(self.geometry), keep_ms)
        large = self._large()
        return Store(self.metadata, self.landing, self.blocks, large, self.clock, self.puts, options, self._locations)

    def access_records(self) -> AccessRecords:
        """Return the writer of the records of buckets and access keys that a rebuild of the metadata needs."""
        return AccessRecords(self.store(), self.metadata, self.clock, os.urandom)

    def trash(self) -> TrashCan:
        """Return the trash, from which deleted objects can be restored."""
        return TrashCan(self.metadata, self.clock)

    def dumps(self) -> StoredDumps:
        """Return the dumps of the metadata in the store itself."""
        return StoredDumps(self.store(), self._large())

    def _large(self) -> LargeObjects:
        return LargeObjects(
            self.metadata,
            self.blocks,
            self.clock,
            self.placement,
            self.large_lease,
            self._put_reserve,
            self.trail,
        )

    @property
    def large_lease(self) -> LargeLease:
        """The lease that all stores in this process share for PUTs of large objects. (A test that has exchanged a part
        of the system gets another lease.)"""
        parts = self.metadata, self.clock
        if self._leased is None or any(part is not now for part, now in zip(self._leased[0], parts, strict=True)):
            if self._leased is not None:
                self._leased[1].close()
            ttl_ms = self.settings.store.lease_ttl_ms
            lease = LargeLease(self.metadata, self.clock, lambda: f"put-{os.urandom(16).hex()}", ttl_ms, self._held)
            self._stack.callback(lease.close)
            self._leased = parts, lease
        return self._leased[1]

    @property
    def puts(self) -> PutQueue:
        """The queue of PUTs that all stores in this process share. (A test that has exchanged a part of the system gets
        another queue.)"""
        if any(part is not now for part, now in zip(self._puts[0], self._put_parts(), strict=True)):
            self._puts = self._put_parts(), self._put_queue()
        return self._puts[1]

    def _put_parts(self) -> tuple[object, ...]:
        return self.metadata, self.landing, self.medium, self.clock

    def _put_queue(self) -> PutQueue:
        lander = self._landers().for_puts(self.landing, self.medium)
        return PutQueue(PutBatches(lander, self.metadata, self.clock, self._locations), perf_counter)

    def _landers(self) -> Landers:
        return Landers(
            self.settings,
            self.metadata,
            self.clock,
            self._held,
            self.new_landing_id,
            os.urandom,
            self._put_reserve,
            self._stack,
            self.trail,
        )

    @property
    def _put_reserve(self) -> int:
        """Bytes that PUTs leave free."""
        return PUT_RESERVES * self.settings.gc.reserve_bytes

    def require_put_space(self) -> None:
        """Raise NoSpace while PUTs are refused for lack of space, Transient if the free space is unknown."""
        require_put_space(self.blocks, self.landing, self._put_reserve)

    # --- writers ----------------------------------------------------------------------------------
    def lease(self, name: str, ttl_ms: int) -> HeldLease:
        """Return a lease to hold in a `with` statement."""
        return HeldLease(self.metadata, self.clock, name, ttl_ms, among=self._held)

    def contended_lease(self, name: str, ttl_ms: int) -> HeldLease:
        """Return a lease that several processes may want at once. The error of the losers names the process that holds
        it."""
        return HeldLease(self.metadata, self.clock, name, ttl_ms, process_name(), self._held)

    def writer(self, lease: Lease, kind: BlockKind) -> StripeWriter:
        """Return a writer for one lane. Writers of fresh objects leave GC's reserve free. Writers of GC read back what
        they write, because they move the only copies of objects."""
        fresh = kind is BlockKind.FRESH
        options = WriterOptions(
            kind=kind,
            reserve_bytes=PACKING_RESERVES * self.settings.gc.reserve_bytes if fresh else 0,
            landing_grace_ms=self.settings.reaper.landing_grace_ms,
            read_back=not fresh,
        )
        return StripeWriter(
            self.metadata,
            self.blocks,
            self.source_reader(),
            self.clock,
            lease,
            self.placement,
            options,
            self.trail,
        )

    def source_reader(self) -> SourceReader:
        """Return a reader of the objects to pack."""
        records = self.landing.records if isinstance(self.landing, LayeredLanding) else None
        return SourceReader(self.landing, self.blocks, self.read_threads, records)

    def housekeeping(self) -> Housekeeping:
        """Return the housekeeping: recovery, the reaper, the trimmer and surveys. When the store is closed, the reaper
        logs what it has not logged yet."""
        threads = self._stack.enter_context(closing(ReadThreads(READS_MAX, perf_counter, LATE_S, LATE_S_AFTER_FAILURE)))
        reaper = Reaper(self.metadata, self.landing, self.blocks, self.clock, BATCH_OBJECTS, threads, self.trail)
        self._stack.callback(reaper.close)
        wait_ms = min(HOUSEKEEPING_MS, self.settings.store.lease_ttl_ms // 6)
        rng = random.Random(os.urandom(16))
        survey = new_survey(self.settings, self.metadata, self.clock, rng)
        headers = HeaderSurvey(self.metadata, self.blocks, self.clock, rng)
        if self.medium is None:
            recovery = Recovery(self.metadata, self.blocks, self.clock, self._held, trail=self.trail)
            return Housekeeping(recovery, reaper, self.clock, wait_ms, survey=survey, headers=headers)
        # On Ceph, listing the pool would cost more than the batch that is rarely left over.
        on_devices = self.settings.store.backend == "local"
        unknown = UnknownSegments(self.metadata, self.medium, self.clock, self.trail) if on_devices else None
        logs = LogRecovery(self.metadata, self.medium, self.clock, unknown, self.trail)
        recovery = Recovery(self.metadata, self.blocks, self.clock, self._held, logs, self.trail)
        trimmer = Trimmer(self.metadata, self.medium, self.clock, self.trail)
        forward = self._copy_forward(self.medium) if self.settings.landing.mode == "log" else None
        return Housekeeping(recovery, reaper, self.clock, wait_ms, trimmer, forward, survey, headers)

    def _copy_forward(self, medium: SegmentMedium) -> CopyForward:
        """Return the copy-forward, which writes old records again, into a separate log with one open segment."""
        landing = self.settings.landing
        open_segments = open_segments_of(medium) + 1
        options = ForwardOptions(landing.segment_age_ms, open_segments * medium.limits.segment_bytes)
        log = self._landers().log(medium, open_segments=1)
        return CopyForward(self.metadata, LogReader(medium), log, self.clock, options, self.trail)

    # --- the message log --------------------------------------------------------------------------
    def publisher(self) -> MessagePublisher:
        """Return a publisher to the message log."""
        return self._messages.get().publisher()

    def log_consumer(self, member: str) -> MessageConsumer:
        """Return a member of the configured consumer group."""
        return self._messages.get().consumer(member, self.settings.kafka.instance or "")

    def group_progress(self, name: str) -> GroupProgress:
        """Return a reader of the progress of the configured group. `name` is for operators."""
        return self._messages.get().progress(f"{name}-progress")

    def lag(self) -> int:
        """Return how many messages the configured group has not committed yet, without joining it. Raises Transient."""
        return self._lag.value()

    # --- monitoring -------------------------------------------------------------------------------
    def monitor(self, service: str, *, writes: bool, publishes: bool = True) -> Monitor:
        """Return a monitor of this process, with its own registry.

        The process is ready while the metadata and, if it publishes or consumes, the message log answer. For a process
        that writes, the block store and the landing store must also answer a probe that does a small piece of work.
        """
        monitor = Monitor(service, self.store_id, CollectorRegistry(), self.clock, stall_ms_max(self.settings))
        monitor.health.require("metadata", lambda: self.metadata.expired_leases(0))
        monitor.health.require("metadata locks", self.metadata.require_unblocked)
        if publishes:
            monitor.health.require("message log", self.lag)
        if writes:
            monitor.health.require("block store", self.blocks.probe)
            monitor.health.require("landing store", self.landing.probe)
            monitor.metrics.add("audit trail", lambda: [Sample(AUDIT_FAILURES, self.trail.failures)])
        monitor.metrics.add("reads", lambda: read_samples(self.blocks.counters()))
        return monitor

    def watch_store(self, monitor: Monitor) -> None:
        """Make a monitor also show the figures of the whole store."""
        put, consumer, gc = self.settings.put, self.settings.consumer, self.settings.gc
        linger_ms_max = max(consumer.linger_ms, consumer.linger_max_ms)
        figures = Cached(self.figures, self.clock, FIGURES_MS)
        monitor.metrics.add("store", lambda: store_samples(figures(), self.clock.now_ms()))
        monitor.metrics.add("waiting", lambda: waiting_samples(self.metadata, self.clock.now_ms()))
        monitor.metrics.add("dumps", lambda: dump_samples(self.metadata, self.clock.now_ms()))
        monitor.metrics.add("placement groups", lambda: group_samples(self.groups.states()))
        waiting_ms_max = put.min_age_ms + linger_ms_max
        monitor.metrics.add("limits", lambda: limit_samples(gc.reserve_bytes, waiting_ms_max, gc.target_space_amp))
        monitor.metrics.add("intervals", lambda: interval_samples(gc.wait_ms, self.settings.scrub.pass_days * DAY))
        monitor.metrics.add("gc", self.counts.samples)
        monitor.metrics.add("passes", lambda: pass_samples(self.metadata, DAY_MS))

    def store_totals(self) -> StoreTotals:
        """Return the reader of the sums over the whole store, which also keeps the stored sums up to date."""
        return StoreTotals(self.metadata, self.clock, FIGURES_MS)

    def figures(self) -> StoreFigures:
        """Return figures of the whole store, whose sums may be older than the rest. Raises Transient."""
        free_bytes, landing_free_bytes = _unless_away(self.blocks.free_bytes), _unless_away(self.landing.free_bytes)
        lag = _unless_away(self.lag)
        return self.figures_of(self.store_totals().read(), free_bytes, landing_free_bytes, lag)

    def figures_of(
        self, dated: DatedTotals, free_bytes: int | None, landing_free_bytes: int | None, lag: int | None = None
    ) -> StoreFigures:
        """Return these figures of the whole store together with the others, which are read now. Raises Transient."""
        run = read_run(self.metadata)
        return StoreFigures(
            dated.totals,
            dated.at_ms,
            self.geometry,
            free_bytes,
            landing_free_bytes,
            lag,
            self.log_figures(),
            usage_spans(self.metadata, dated.totals, dated.at_ms),
            None if run is None else run.behind,
            read_headers_found(self.metadata),
        )

    def log_figures(self) -> LogFigures | None:
        """Return figures of the landing log; None for a store without one. Raises Transient."""
        if self.medium is None:
            return None
        return log_figures(self.metadata, self.medium, in_use=self.settings.landing.mode == "log")

    def shard_rebuild(self, bytes_per_s: int | None = None) -> ShardRebuild | None:
        """Return a rebuild of shards at the configured rate or at `bytes_per_s`, where 0 means no limit; None if the
        store rebuilds its shards itself (Ceph)."""
        if self.shards is None:
            return None
        rate = self.settings.shards.rebuild_bytes_per_s if bytes_per_s is None else bytes_per_s
        rebuild = ShardRebuild(self.shards, self.metadata, self.clock, self.geometry.stripe_size, rate, self.trail)
        self.counts.add(lambda: rebuild_counts(rebuild.counters))
        return rebuild

    def scrubber(self, bytes_per_s: int | None = None, *, repair: bool | None = None) -> Scrubber:
        """Return a scrubber, with the configured rate and repair or with other values."""
        settings = self.settings.scrub
        options = ScrubOptions(
            settings.bytes_per_s if bytes_per_s is None else bytes_per_s,
            settings.repair if repair is None else repair,
            self.settings.put.reservation_ms,
        )
        ttl_ms = self.settings.store.lease_ttl_ms
        scrubber = Scrubber(
            self.checked(), self.shards, lambda name: self.contended_lease(name, ttl_ms), options, self.trail
        )
        self.counts.add(lambda: scrub_counts(scrubber.counters))
        return scrubber

    def planned_mending(self) -> PlannedMending:
        """Return the mender that makes the repairs which a check or scrub has planned."""
        return PlannedMending(self.checked(), self.shards, self.settings.put.reservation_ms, self.trail)

    def checked(self) -> Checked:
        """Return the parts of the store that a check or a scrub examines."""
        checked = Checked(self.metadata, self.blocks, self.landing, self.medium, self.clock)
        if self.settings.store.backend == "local":
            return replace(checked, misfits=partial(misfits, self.settings.store.root))
        return checked

    def shut_out(self) -> Blocklisted | None:
        """Return the error if the storage cluster refuses this process; otherwise None. Sends a request to the cluster,
        with the time limit of a read. Ignores all other failures."""
        for probe in (self.blocks.probe, self.landing.probe):
            try:
                probe()
            except Blocklisted as error:
                return error
            except NosError:
                continue
        return None

    # --- ids --------------------------------------------------------------------------------------
    def new_block_id(self) -> BlockId:
        """Return a new block id, without regard to placement."""
        return new_block_id(self.clock)

    def new_landing_id(self) -> LandingId:
        """Return a new landing id."""
        return LandingId(_new_id(self.clock))

    def member_name(self, service: str) -> str:
        """Return a name for a process of a service, unique forever and readable for operators."""
        return member_name(service, os.urandom(4))


def stall_ms_max(settings: Settings) -> int:
    """Return how long a loop may take for a turn until its process counts as stuck, in milliseconds: longer than an
    operation on Ceph that is tried again."""
    return max(STALL_MS, 3 * settings.ceph.op_timeout_ms if settings.store.backend == "ceph" else 0)


def _unless_away(figure: Callable[[], int]) -> int | None:
    """Return the figure, or None if it cannot be read now, so that the other figures are still shown."""
    try:
        return figure()
    except Transient:
        return None


def _new_id(clock: Clock) -> bytes:
    return timed_id(clock.now_ms(), os.urandom(10))


def new_block_id(clock: Clock) -> BlockId:
    """Return a new block id, without regard to placement."""
    return BlockId(_new_id(clock))


def open_system(settings: Settings) -> System:
    """Open an initialised store. Raises ConfigError if it is missing or does not match, Transient if one of its servers
    cannot be reached."""
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
        watch_deaths(settings, metadata, clock, stack)
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
        metadata.on_access_changed(lambda of, name: system.access_records().record(of, name))
        return system


def watch_deaths(settings: Settings, metadata: Survival, clock: Clock, stack: ExitStack) -> None:
    """Count the objects that this process deletes or overwrites, until `stack` is closed. A single stream does not need
    that."""
    if settings.gc.streams > 1:
        deaths = Deaths(metadata, clock)
        metadata.watch_deaths(deaths.died)
        stack.callback(deaths.flush)


def new_survey(settings: Settings, metadata: Survival, clock: Clock, rng: random.Random) -> Survey | None:
    """Return the survey of lifetimes that housekeeping makes; None with a single stream."""
    return Survey(metadata, clock, rng) if settings.gc.streams > 1 else None

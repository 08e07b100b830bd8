"""The adapters of an open store, and what its sides share: leases, landing logs, ids, and checks of the adapters."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import structlog

from nos_ec.composition.backends import settings_named
from nos_ec.composition.log_on_demand import LagProbe, LogOnDemand
from nos_ec.composition.processes import member_name, process_name
from nos_ec.core.errors import Blocklisted, NosError, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, LandingId, timed_id
from nos_ec.engine.figures.events import EventLog
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.log_keeper import LogKeeper
from nos_ec.engine.leases import HeldLease, HeldLeases
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.engine.read_threads import ReadThreads
from nos_ec.engine.space_reserve import PUT_RESERVES
from nos_ec.ports.audit_trail import AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import Metadata
from nos_ec.ports.placement import Placement
from nos_ec.ports.placement_groups import PlacementGroups
from nos_ec.ports.segment_medium import SegmentMedium
from nos_ec.ports.shard_store import ShardStore
from nos_ec.settings import Settings

BATCH_WAIT_MS = 30_000
"""How long a batch waits for an open segment of the log, in milliseconds: the default time limit of Ceph operations."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Adapters:
    """The adapters of an open store. The sides look up a field each time they need it, so that they all see one that is
    replaced."""

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
    locations: LocationCache
    messages: LogOnDemand
    lag_probe: LagProbe
    stack: ExitStack
    """Closes the adapters, and what the sides have made."""
    held: HeldLeases = field(default_factory=HeldLeases)
    """The leases that this process holds."""

    randomness = staticmethod(os.urandom)

    @property
    def geometry(self) -> Geometry:
        """The geometry of the store."""
        return self.blocks.geometry

    # --- checks -----------------------------------------------------------------------------------
    def check_for_daemon(self, *, writes: bool, publishes: bool = True) -> None:
        """Check the configuration. A daemon calls this once before its loop, so that a wrong configuration ends it
        instead of being retried forever. Checks that the message log exists, if the daemon publishes or consumes, and
        that its user may write blocks, if it does. Warns of a missing audit trail.

        Permissions are tested by deleting ids that do not exist. A time-out says nothing about permissions, so it is
        ignored. Free space is queried so that a figure is known before a Ceph monitor may hang.
        Raises ConfigError, Transient (no message log).
        """
        if publishes:
            self.messages.get()
        if not writes:
            return
        if self.settings.audit.is_missing(self.settings.store.backend):
            _log.warning("deletions are not recorded in an audit trail; set audit.folder")
        with settings_named("ceph.user", "ceph.keyring_file"), suppress(Transient):
            self.blocks.delete(self.new_block_id())
            self.landing.delete(self.new_landing_id())
            self.blocks.free_bytes()
            self.landing.free_bytes()

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

    # --- leases and logs --------------------------------------------------------------------------
    def lease(self, name: str, ttl_ms: int) -> HeldLease:
        """Return a lease to hold in a `with` statement."""
        return HeldLease(self.metadata, self.clock, name, ttl_ms, among=self.held)

    def contended_lease(self, name: str) -> HeldLease:
        """Return a lease that several processes may want at once. The error of the losers names the process that holds
        it."""
        ttl_ms = self.settings.store.lease_ttl_ms
        return HeldLease(self.metadata, self.clock, name, ttl_ms, process_name(), self.held)

    def events(self) -> EventLog:
        """Return what records the events of the store on behalf of this process."""
        return EventLog(self.metadata, self.clock, process_name())

    @property
    def put_reserve(self) -> int:
        """Bytes that PUTs leave free."""
        return PUT_RESERVES * self.settings.gc.reserve_bytes

    def landing_log(self, medium: SegmentMedium, open_segments: int) -> LandingLog:
        """Return a landing log of this process, with its keeper. It takes its lease with the first batch."""
        landing, store = self.settings.landing, self.settings.store
        reserve_bytes = self.put_reserve if store.backend == "ceph" else 0  # on Ceph, blocks share its space
        options = LogOptions(open_segments, landing.segment_age_ms, store.lease_ttl_ms, BATCH_WAIT_MS, reserve_bytes)
        keeper = LogKeeper(self.clock, landing.segment_age_ms)
        held, trail, wake = self.held, self.trail, keeper.wake
        log = LandingLog(self.metadata, medium, self.clock, self.randomness, options, held, wake, trail)
        self.stack.callback(keeper.close)  # after the log
        self.stack.callback(log.close)
        return log

    # --- ids --------------------------------------------------------------------------------------
    def new_block_id(self) -> BlockId:
        """Return a new block id, without regard to placement."""
        return new_block_id(self.clock)

    def new_landing_id(self) -> LandingId:
        """Return a new landing id."""
        return LandingId(_new_id(self.clock))

    def member_name(self, service: str) -> str:
        """Return a name for a process of a service, unique forever and readable for operators."""
        return member_name(service, self.randomness(4))


def _new_id(clock: Clock) -> bytes:
    return timed_id(clock.now_ms(), os.urandom(10))


def new_block_id(clock: Clock) -> BlockId:
    """Return a new block id, without regard to placement."""
    return BlockId(_new_id(clock))


def new_store_id() -> str:
    """Return the id of a new store."""
    return os.urandom(16).hex()

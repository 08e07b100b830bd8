"""Assembles the landing of PUTs and the reading of landed bytes: from the landing store, the landing log, or both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from pathlib import Path

from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.core.errors import ConfigError, NoSpace
from nos_ec.core.ids import LandingId
from nos_ec.engine.landing.copy_lander import CopyLander
from nos_ec.engine.landing.lander import Lander
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.layered_landing import LayeredLanding
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.engine.landing.log_keeper import LogKeeper
from nos_ec.engine.leases import HeldLeases
from nos_ec.ports.audit_trail import AuditTrail
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import Metadata
from nos_ec.ports.segment_medium import MediumLimits, SegmentMedium
from nos_ec.settings import Settings
from nos_ec.settings.landing import LandingSettings

APPENDS = 2
"""How many appends run at a time: one is written while the next one is prepared. With more appends, batches are
smaller, and fewer PUTs share an append."""
BYPASS_BYTES = 1 << 20
"""The size from which on an object bypasses the log, because a write of its own costs no more."""
BATCH_WAIT_MS = 30_000
"""How long a batch waits for an open segment of the log, in milliseconds: the default time limit of Ceph operations."""


def bypass_bytes(limits: MediumLimits) -> int:
    """Return the size from which on an object bypasses the log: BYPASS_BYTES, but at most a quarter of a segment."""
    return min(BYPASS_BYTES, limits.segment_bytes // 4)


def log_folder(settings: Settings) -> Path:
    """Return the folder in which the processes of an embedded store share the state of the landing log's devices."""
    return settings.store.root / "landing_log"


def check_devices(settings: Settings, store_id: str | None) -> None:
    """Check the existing devices of an embedded store, and change nothing. `store_id` is None for new metadata, to
    which no device can belong. Raises ConfigError for devices of other stores and for other data, Transient.

    A landing log that was switched off may have left its device in the folder of an existing store. It is not checked
    here, because the metadata may have an older schema, which does not show whether the log still has segments;
    `initialise_devices` checks it in that case."""
    landing = settings.landing
    if settings.store.backend == "local" and (store_id is None or is_configured(landing)):
        paths = landing.paths(settings.store.root)
        DeviceLog.check(log_folder(settings), paths, store_id, slot_bytes=landing.segment_bytes)


def is_configured(landing: LandingSettings) -> bool:
    """Return whether the settings ask for a landing log. If not, a log that was switched off may still exist."""
    return landing.mode == "log" or bool(landing.devices)


def initialise_devices(
    settings: Settings, metadata: Metadata, store_id: str, new_devices: Collection[int] = ()
) -> None:
    """Create the landing log of an embedded store, or check the existing one, if the settings ask for a log or the
    metadata has landing segments. Idempotent.

    new_devices: numbers of devices that are lost for good and must be replaced by blank ones. Raises ConfigError, also
    when the metadata has landing segments and no device exists; NoSpace, Transient.
    """
    landing = settings.landing
    if settings.store.backend != "local":
        if new_devices:
            raise ConfigError("--new-device works only with the embedded store; on Ceph, replace the OSD instead")
        return
    has_segments = any(count for count, _ in metadata.segment_totals().values())
    if not (is_configured(landing) or has_segments):
        if new_devices:
            raise ConfigError("--new-device: this store has no landing log", settings=("landing.mode",))
        return
    try:
        DeviceLog.initialise(
            log_folder(settings),
            landing.paths(settings.store.root),
            store_id,
            slot_bytes=landing.segment_bytes,
            file_bytes=landing.device_bytes,
            new_devices=new_devices,
            devices_min=1 if has_segments else 0,
        )
    except NoSpace as error:
        raise NoSpace(
            f"no space for the landing log ({landing.device_bytes >> 20} MiB for each of its files): add space, or set"
            ' a smaller landing.device_bytes, or landing.mode to "store"'
        ) from error


def open_devices(settings: Settings, stack: ExitStack, store_id: str) -> SegmentMedium | None:
    """Open the landing log of an embedded store; `stack` closes it. Returns None if the store has no landing log.
    Raises ConfigError, Transient."""
    landing = settings.landing
    paths = landing.paths(settings.store.root)
    if not is_configured(landing) and not paths[0].exists():
        return None
    if not landing.devices and not paths[0].exists():
        raise ConfigError(
            f'landing.mode is "log", but {paths[0]} does not exist: if this store never had a landing log, stop its'
            f" processes and run `nos-ec init` to create it ({landing.device_bytes >> 20} MiB), or set landing.mode to"
            ' "store"; otherwise connect it',
            settings=("landing.mode",),
        )
    return stack.enter_context(closing(DeviceLog(log_folder(settings), paths, store_id, copies=landing.copies)))


def open_segments_of(medium: SegmentMedium) -> int:
    """Return how many open segments a log for PUTs has: as many as are needed for APPENDS appends at a time."""
    return max(1, APPENDS // medium.limits.writes_max)


def layered(settings: Settings, store: LandingStore, medium: SegmentMedium | None, metadata: Metadata) -> LandingStore:
    """Return the landing store, together with the landing log if there is one. Raises ConfigError if the metadata has
    segments of a log that does not exist, because their objects would look lost."""
    if medium is not None:
        return LayeredLanding(medium, store, one_pool=settings.store.backend == "ceph")
    segments = sum(count for count, _ in metadata.segment_totals().values())
    if segments:
        raise ConfigError(
            f"the metadata has {segments} segments of the landing log, but the log is missing: set landing.devices as"
            " before, or connect its devices",
            settings=("landing.devices",),
        )
    return store


class Landers:
    """Makes the landers of one process. `randomness` returns a number of random bytes; `stack` closes the landers."""

    def __init__(
        self,
        settings: Settings,
        metadata: Metadata,
        clock: Clock,
        held: HeldLeases,
        new_landing_id: Callable[[], LandingId],
        randomness: Callable[[int], bytes],
        reserve_bytes: int,
        stack: ExitStack,
        trail: AuditTrail,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._clock = clock
        self._held = held
        self._new_landing_id = new_landing_id
        self._randomness = randomness
        self._reserve_bytes = reserve_bytes
        self._stack = stack
        self._trail = trail

    def for_puts(self, store: LandingStore, medium: SegmentMedium | None) -> Lander:
        """Return the lander for PUTs of this process."""
        landing = self._settings.landing
        copies = self.copies(store)
        if medium is None or landing.mode != "log":
            return copies
        bypass = LogBypass(self.log(medium, open_segments_of(medium)), copies, bypass_bytes(medium.limits))
        self._stack.callback(bypass.close)
        return bypass

    def copies(self, store: LandingStore) -> CopyLander:
        """Return a lander that writes each object as a separate copy to the landing store."""
        return CopyLander(
            self._metadata,
            store,
            self._clock,
            self._new_landing_id,
            self._settings.put.reservation_ms,
            self._reserve_bytes,
            self._trail,
        )

    def log(self, medium: SegmentMedium, open_segments: int) -> LandingLog:
        """Return a landing log of this process, with its keeper. It takes its lease with the first batch."""
        landing = self._settings.landing
        shares_pool = self._settings.store.backend == "ceph"
        options = LogOptions(
            open_segments,
            landing.segment_age_ms,
            self._settings.store.lease_ttl_ms,
            BATCH_WAIT_MS,
            reserve_bytes=self._reserve_bytes if shares_pool else 0,
        )
        keeper = LogKeeper(self._clock, landing.segment_age_ms)
        log = LandingLog(
            self._metadata, medium, self._clock, self._randomness, options, self._held, keeper.wake, self._trail
        )
        self._stack.callback(keeper.close)  # after the log
        self._stack.callback(log.close)
        return log

"""Assembles the landing of PUTs and the reading of landed bytes: from the landing store, the landing log, or both."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, closing
from pathlib import Path

from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.core.errors import ConfigError, NoSpace
from nos_ec.engine.landing.layered_landing import LayeredLanding
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

"""The open devices of a landing log: reading, writing, and noticing which devices are lost."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from nos_ec.adapters.local.devices.device_file import DeviceFile, gather, page_buffer
from nos_ec.adapters.local.devices.device_format import PROBE_AT, START, Superblock, owner_of_slot
from nos_ec.adapters.local.devices.device_lives import read_lives
from nos_ec.adapters.local.devices.devices import (
    device_count,
    device_count_now,
    open_device,
    open_devices,
    write_superblock,
)
from nos_ec.adapters.local.devices.slot_table import Place, Slot
from nos_ec.adapters.local.files.durable import translated
from nos_ec.core.errors import ConfigError, Corrupt, Transient
from nos_ec.core.formats.landing_format import first_segment
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import SegmentId
from nos_ec.ports.segment_medium import Buffer

_THREADS = 8
"""The number of threads that write the other copies of a batch. The appending thread writes its first copy."""

_PIECE = 1 << 20
_LOG_WAIT_S = 60.0
"""The minimum time between two log entries about the loss of one device, which may come and go."""
_log = structlog.get_logger(__name__)

_PROBE = b"nos_ec probe".ljust(PAGE, b"\0")


class DeviceSet:
    """The open devices of a log. Safe to call from several threads. Offsets are in bytes from the start of a slot.

    A device is lost from its first failed write until `revive` succeeds with it, or from the start when it cannot be
    opened. Creating the set raises ConfigError, Transient when the devices cannot be opened.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], store_id: bytes) -> None:
        self._paths = tuple(paths)
        self._store_id = store_id
        with translated(f"landing log {folder}"):
            self._lives = read_lives(folder)
        self._devices = open_devices(paths, store_id, self._lives)
        self._lost: dict[int, str] = {}
        self._replaced: list[DeviceFile] = []
        self._logged_s: dict[int, float] = {}
        """When the loss of each device was last logged."""
        self.count = device_count(self._devices)
        if len(self._devices) < self.count:
            _log.warning("devices of the landing log are lost", devices=self.lost())
        self.layout: Superblock = next(iter(self._devices.values())).superblock
        """The superblock of one device. The sizes of slots and of the window are the same on all devices."""
        self.clean = all(device.superblock.clean for device in self._devices.values())
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="landing-log") if self.count > 1 else None

    def close(self) -> None:
        """Close all devices."""
        if self._pool is not None:
            self._pool.shutdown()
        for file in (*(device.file for device in self._devices.values()), *self._replaced):
            file.close()

    # --- devices and slots --------------------------------------------------------------------------
    @property
    def opened(self) -> list[int]:
        """Return the numbers of the devices that could be opened at least once."""
        return list(self._devices)

    @property
    def working(self) -> list[int]:
        """Return the numbers of the devices that are not lost."""
        return [number for number in self._devices if number not in self._lost]

    def is_lost(self, number: int) -> bool:
        """Return whether writes to the device fail."""
        return number in self._lost

    def slots(self, number: int) -> int:
        """Return the number of slots of a device."""
        return self._devices[number].superblock.slots

    def owner(self, place: Place) -> SegmentId | None:
        """Return the segment that owns a slot, from its header; None when the slot is free. Raises Corrupt, OSError."""
        return owner_of_slot(self.read(place, 0, PAGE), self._store_id, place[1])

    def read_slot(self, place: Place, *, was_unreadable: bool = False) -> Slot:
        """Return the state of a slot, from its header or else from its records. With `was_unreadable`, the header could
        not be read before, so zeros in its place do not mean that the slot is free: a disk may have replaced the
        sector. Raises OSError when neither can be read."""
        problem: Exception | None = None
        try:
            owner = self.owner(place)
            if owner is not None or not was_unreadable:
                return Slot(owner)
        except (Corrupt, OSError) as error:
            problem = error
        try:
            segment = first_segment(lambda at, length: self.read(place, at, length), START, self.layout.trailer_at)
        except OSError:
            if isinstance(problem, OSError):
                raise
            segment = None
        return Slot(segment, is_unreadable=True)

    def read_slots(self, number: int, were_unreadable: Container[int]) -> list[Slot]:
        """Return the state of each slot of a device. `were_unreadable` holds the numbers of slots whose headers could
        not be read before. Raises OSError when no slot can be read."""
        found: list[Slot] = []
        errors: list[OSError] = []
        for slot in range(self.slots(number)):
            try:
                found.append(self.read_slot((number, slot), was_unreadable=slot in were_unreadable))
            except OSError as error:
                found.append(Slot(None, is_unreadable=True))
                errors.append(error)
        if len(errors) == len(found):
            raise errors[0]
        return found

    def is_blank(self, place: Place) -> bool:
        """Return whether a slot holds only zeros after its header, because it was never written to. Raises OSError."""
        end = self.layout.slot_bytes
        return not any(any(self.read(place, at, min(_PIECE, end - at))) for at in range(START, end, _PIECE))

    def lost(self) -> list[str]:
        """Return one readable text for each lost device, with its path and the reason."""
        count = self.count - len(self.working)
        known = [*self._lost.values(), *(f"{path} is missing" for path in self._absent())]
        return [*known, *["one is not configured"] * count][:count]

    def losses(self) -> str:
        """Return the texts of `lost` as one."""
        return ", ".join(self.lost())

    def _absent(self) -> list[Path]:
        opened = {device.file.path for device in self._devices.values()}
        return [path for path in self._paths if path not in opened]

    def require(self, copies: int) -> None:
        """Raise Transient when fewer devices work than a segment has copies."""
        if len(self.working) < copies:
            raise Transient(
                f"landing log: {len(self.working)} of {self.count} devices work, and each segment needs {copies}:"
                f" {self.losses()}; connect them again, or replace them"
            )

    def recount(self) -> None:
        """Read how many devices the log has now, because some may have been added since it was opened. They are not
        opened: this process does not know their paths."""
        for number in self.working:
            with suppress(ConfigError, OSError):
                self.count = max(self.count, device_count_now(self._devices[number]))
                return

    def revive(self) -> None:
        """Open lost devices again, and use those that accept a write."""
        for number in list(self._lost):
            self._reopen(self._devices[number].file.path)
        for path in self._absent():
            if len(self._devices) < self.count:
                self._reopen(path)

    def _reopen(self, path: Path) -> None:
        with suppress(ConfigError, Transient):
            device = open_device(path, self._store_id, self._lives)
            if device is None:
                return
            number = device.superblock.device
            before = self._devices.get(number)
            if before is not None:
                if not _takes_writes(device.file):
                    device.file.close()
                    return
                self._replaced.append(before.file)  # another thread may be reading it
            self._devices[number] = device
            was_lost = before is None or self._lost.pop(number, None) is not None
            self.probe(number)
            if was_lost and number not in self._lost:
                _log.info("device of the landing log works again", device=number, path=str(path))

    def probe(self, number: int) -> None:
        """Write and read a page that serves no other purpose."""
        file = self._devices[number].file
        with suppress(OSError), self._noticed(number):
            file.write_page(PROBE_AT, _PROBE)
            file.read(PROBE_AT, PAGE)

    def mark(self, *, clean: bool) -> None:
        """Record in all superblocks whether all segments are sealed; the table of slots must be locked. Raises
        ConfigError when a device lost its superblocks."""
        for number in self.working:
            with suppress(OSError), self._noticed(number):
                self._devices[number] = write_superblock(self._devices[number], clean=clean)

    # --- input and output ---------------------------------------------------------------------------
    def read(self, place: Place, offset: int, length: int) -> bytes:
        """Return the bytes of a range, which need not be aligned. Raises OSError."""
        number, slot = place
        device = self._devices[number]
        return device.file.read(device.superblock.slot_at(slot) + offset, length)

    def write_page(self, place: Place, offset: int, page: bytes) -> None:
        """Write one page, durably. Raises OSError."""
        number, slot = place
        device = self._devices[number]
        at = device.superblock.slot_at(slot) + offset
        with self._noticed(number):
            device.file.write_page(at, page)

    def write(self, places: Sequence[Place], offset: int, batch: Sequence[Buffer], size: int) -> None:
        """Write a batch of whole pages to several places at once, durably. Raises OSError when one of them fails."""
        with page_buffer(size) as buffer:
            gather(buffer, batch)
            if len(places) == 1 or self._pool is None:
                for place in places:
                    self._write(place, offset, buffer)
                return
            others = [self._pool.submit(self._write, place, offset, buffer) for place in places[1:]]
            try:
                self._write(places[0], offset, buffer)
            finally:
                errors = [other.exception() for other in others]
        for error in errors:
            if error is not None:
                raise error

    def _write(self, place: Place, offset: int, buffer: memoryview) -> None:
        number, slot = place
        device = self._devices[number]
        at = device.superblock.slot_at(slot) + offset
        try:
            device.file.write(at, buffer)
        except OSError as error:
            self.lose(number, error)
            raise

    @contextmanager
    def _noticed(self, number: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lose(number, error)
            raise

    def lose(self, number: int, error: OSError) -> None:
        """Stop using a device until `revive` succeeds with it."""
        was_lost = number in self._lost
        self._lost[number] = f"{self._devices[number].file.path}: {error.strerror or error}"
        now_s = time.monotonic()
        if not was_lost and now_s - self._logged_s.get(number, -math.inf) >= _LOG_WAIT_S:
            self._logged_s[number] = now_s
            _log.warning("device of the landing log is lost", device=number, error=self._lost[number])


def _takes_writes(file: DeviceFile) -> bool:
    """Return whether a lost device accepts writes again."""
    try:
        file.write_page(PROBE_AT, _PROBE)
    except OSError:
        return False
    return True

"""Segments of the landing log in slots of raw devices or preallocated files (see docs/FORMAT.md for their bytes).

A segment has a slot on each of `copies` devices, and an append returns when all of them have it. The header of a slot
names its segment; a zeroed header means that the slot is free. All processes that use the devices share a table of the
owners and its locks (slot_table.py), which also fence writers: a writer appends under a shared lock of its segment,
after checking its permission in the table; a process that seals the segment first removes the permission, and then
takes the lock.

A device that fails is lost for this process until a probe of it succeeds. Its segments are read from their other
copies, and new ones are created on the devices that work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import structlog

from nos_ec.adapters.local.devices import devices
from nos_ec.adapters.local.devices.device_format import (
    START,
    TRAILER_SIZE,
    Trailer,
    decode_trailer,
    encode_slot_header,
    encode_trailer,
)
from nos_ec.adapters.local.devices.device_set import DeviceSet
from nos_ec.adapters.local.devices.slot_table import Place, Slot, SlotTable
from nos_ec.adapters.local.files.durable import as_port_error, translated
from nos_ec.core.errors import ConfigError, Conflict, NoSpace, NotFound, Transient
from nos_ec.core.formats.landing_format import TYPE_FOOTER, SegmentHeader, scan
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import SegmentId, record_offset
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.segment_medium import Buffer, DeviceStates, MediumLimits, Seal, UnreadableSlot

WRITES_MAX = 2
_BATCH_BYTES_MAX = 1 << 20
_BATCH_RECORDS_MAX = 256
_log = structlog.get_logger(__name__)


class DeviceLog:
    """A `SegmentMedium` on devices (see nos_ec.ports.segment_medium for the contract).

    `folder` belongs to the store, and its processes share it. `paths` are the devices, in any order. `copies` is the
    number of devices on which each new segment is stored. Opening raises ConfigError when the devices were not
    initialised for this store, Transient.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], store_id: str, *, copies: int = 1) -> None:
        self._store_id = devices.store_id_of(store_id)
        self._devices = DeviceSet(folder, paths, self._store_id)
        self._layout = self._devices.layout
        self._copies = copies
        self._writers: dict[SegmentId, DeviceWriter] = {}
        self._free = (-1, 0)
        self._unreadable_as_of: tuple[int, tuple[UnreadableSlot, ...]] = (-1, ())
        self.was_clean = self._devices.clean
        """True if all segments were sealed when the last process closed the log."""
        try:
            if not 1 <= copies <= self._devices.count:
                count = self._devices.count
                raise ConfigError(f"{copies} copies of each segment need as many devices, and the log has {count}")
            self._table = SlotTable(folder)
        except BaseException:
            self._devices.close()
            raise
        try:
            with self._table.locked():
                if self._table.join():
                    self._table.unclean = not self.was_clean
                self._load()
        except BaseException:
            self._table.close()
            self._devices.close()
            raise

    initialise = staticmethod(devices.initialise)
    check = staticmethod(devices.check)

    @property
    def limits(self) -> MediumLimits:
        """Return the limits: batches of whole pages, of up to 1 MiB."""
        most = min(_BATCH_BYTES_MAX, self._layout.slot_bytes // 4 // PAGE * PAGE)
        return MediumLimits(
            self._layout.trailer_at, START, PAGE, most, _BATCH_RECORDS_MAX, WRITES_MAX, copies=self._copies
        )

    # --- writing ------------------------------------------------------------------------------------
    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> DeviceWriter:
        """Take a free slot on each of `copies` devices, preferring devices with few open segments."""
        with self._locked_table():
            if self._places(segment):
                raise Conflict(f"landing segment {segment.hex()} exists")
            if not self._table.unclean:
                self._devices.mark(clean=False)
                self._table.unclean = True
            places = None
            while places is None:
                places = self._take(self._choose(), segment, epoch, first_lsn)
            writer = DeviceWriter(self._devices, self._table, segment, places, self.seal)
        self._writers[segment] = writer
        return writer

    def _choose(self) -> list[Place]:
        """Return a free slot on each of `copies` devices; the table must be locked. Raises NoSpace, Transient."""
        if len(self._devices.working) < self._copies:
            self._devices.revive()
            self._load()
        self._devices.require(self._copies)
        candidates = []
        for device in self._usable():
            entries = self._table.entries(device, self._devices.slots(device))
            free = [number for number, slot in enumerate(entries) if slot.is_free]
            if free:
                candidates.append((sum(slot.is_writable for slot in entries), -len(free), device, free[0]))
        if len(candidates) < self._copies:
            raise NoSpace(
                f"landing log: no slot is free on {self._copies} of its {self._devices.count} devices: start more"
                " consumers, which pack its objects, or add a device"
            )
        return [(device, number) for _, _, device, number in sorted(candidates)[: self._copies]]

    def _take(self, places: list[Place], segment: SegmentId, epoch: int, first_lsn: int) -> list[Place] | None:
        """Write the headers of a segment; return None when a slot is not free after all, or a device was lost
        meanwhile. The table must be locked."""
        if not all(self._is_free(place) for place in places):
            return None
        with self._table.changing():
            for at, (number, slot) in enumerate(places):
                try:
                    self._devices.write_page((number, slot), 0, self._header(segment, slot, epoch, first_lsn))
                except OSError:
                    self._zero_headers(places[:at])
                    return None
                kill_point("device_log.header_written")
            for place in places:
                self._table.put_slot(place, Slot(segment, is_writable=True))
        return places

    def _header(self, segment: SegmentId, slot: int, epoch: int, first_lsn: int) -> bytes:
        header = SegmentHeader(segment, slot, epoch, first_lsn, self._layout.trailer_at, self._store_id)
        return encode_slot_header(header)

    def _is_free(self, place: Place) -> bool:
        """Check a slot that is free according to the table: its header may have been damaged since."""
        try:
            found = self._devices.read_slot(place)
        except OSError as error:
            self._devices.lose(place[0], error)
            return False
        if not found.is_free:
            _log.error("slot of the landing log is not free", device=place[0], slot=place[1], found=_named(found))
            self._table.enter_slot(place, found)
        return found.is_free

    def _zero_headers(self, places: Sequence[Place]) -> list[Place]:
        """Zero the headers of these slots. Returns the slots that were zeroed."""
        zeroed = []
        for place in places:
            with suppress(OSError):  # then the device is lost
                self._devices.write_page(place, 0, bytes(PAGE))
                zeroed.append(place)
                kill_point("device_log.header_zeroed")
        return zeroed

    # --- reading ------------------------------------------------------------------------------------
    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:
        """Read from one device: the one with the wanted copy, or else the next."""
        places = self._existing(segment)
        turn = copy % len(places)
        error: OSError | None = None
        for place in sorted(places[turn:] + places[:turn], key=lambda place: self._devices.is_lost(place[0])):
            try:
                found = [self._read(place, offset, length) for offset, length in ranges]
            except OSError as failed:
                error = failed
                continue
            if self._table.slot(place).owner != segment:
                raise NotFound(f"landing segment {segment.hex()} was released")
            return found
        assert error is not None
        raise as_port_error(f"landing log: reading segment {segment.hex()}", error) from error

    def _read(self, place: Place, offset: int, length: int) -> bytes:
        length = min(length, self._layout.trailer_at - offset)
        return self._devices.read(place, offset, length) if length > 0 else b""

    def segments(self, *, known_only: bool = False) -> Iterator[SegmentId]:
        """Yields the owners of all slots."""
        with self._locked_table():
            self._require_all_visible(known_only=known_only)
            found = {slot.owner for _, slot in self._slots() if slot.owner is not None}
        yield from found

    # --- sealing and releasing ----------------------------------------------------------------------
    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """Fence the writer, wait for its appends, then write footer and trailer. If the writer is gone, a scan of each
        copy finds the end."""
        sealed = self._trailer(segment, self._existing(segment))
        if sealed is None:
            self._fence(segment)
            with self._table.quiet(segment):
                places = self._existing(segment)
                sealed = self._trailer(segment, places) or self._seal(segment, places, footer, records)
        self._writers.pop(segment, None)
        return sealed.end

    def _fence(self, segment: SegmentId) -> None:
        """Remove the permission to append."""
        with self._locked_table():
            for place in self._places(segment):
                self._table.put_slot(place, self._table.slot(place)._replace(is_writable=False))

    def _seal(
        self, segment: SegmentId, places: Sequence[Place], footer: Sequence[Buffer] | None, records: int
    ) -> Trailer:
        """Write footer and trailer. The writer must be fenced, and none of its appends in flight."""
        writer = self._writers.get(segment)
        length = 0
        if writer is None or writer.end is None:
            end = self._scan(segment, places)
        else:
            end = writer.end
            if footer is not None:
                with suppress(OSError):  # without the footer, readers use the records
                    size = sum(map(len, footer))
                    self._devices.write(places, end, footer, size)
                    length = size
                kill_point("device_log.footer_written")
        trailer = Trailer(self._store_id, segment, end, length, records)
        errors = []
        for place in places:
            try:
                self._devices.write_page(place, self._layout.trailer_at, encode_trailer(trailer))
            except OSError as error:
                errors.append(error)
        if len(errors) == len(places):
            raise as_port_error(f"landing log: sealing segment {segment.hex()}", errors[0]) from errors[0]
        kill_point("device_log.sealed")
        return trailer

    def _trailer(self, segment: SegmentId, places: Sequence[Place]) -> Trailer | None:
        """Return the trailer that any copy has; None if none has one. Raises Transient."""
        errors = []
        for place in places:
            try:
                page = self._devices.read(place, self._layout.trailer_at, TRAILER_SIZE)
            except OSError as error:
                errors.append(error)
                continue
            if (trailer := decode_trailer(page, self._store_id, segment)) is not None:
                return trailer
        if places and len(errors) == len(places):
            raise as_port_error(f"landing log: reading segment {segment.hex()}", errors[0]) from errors[0]
        return None

    def _scan(self, segment: SegmentId, places: Sequence[Place]) -> int:
        """Return the end of the last batch that any copy has. Raises Transient."""
        ends, errors = [], []
        for place in places:
            try:
                ends.append(self._end_of(segment, place))
            except OSError as error:
                errors.append(error)
        if not ends:
            raise as_port_error(f"landing log: scanning segment {segment.hex()}", errors[0]) from errors[0]
        return max(ends)

    def _end_of(self, segment: SegmentId, place: Place) -> int:
        end = START
        size, window = self._layout.trailer_at, self._layout.window
        for found in scan(lambda offset, length: self._read(place, offset, length), segment, START, size, window):
            at = record_offset(found.header.landing_id)
            if found.header.type == TYPE_FOOTER:
                return at
            end = at + found.header.size
        return -(-end // PAGE) * PAGE

    def overwrite(self, segment: SegmentId, offset: int, expected: bytes, new: bytes) -> None:
        """Read the page of each copy, and write it again with the new bytes. The table's lock excludes another process
        that does the same to this page, and the release of the segment. A batch that is being appended occupies other
        pages."""
        first = offset // PAGE * PAGE
        at = offset - first
        self._existing(segment)
        with self._locked_table():
            places = self._places(segment)
            if not places:
                raise NotFound(f"landing segment {segment.hex()} was released")
            errors = []
            for place in places:
                try:
                    page = bytearray(self._devices.read(place, first, PAGE))
                    if page[at : at + len(new)] == expected:
                        page[at : at + len(new)] = new
                        self._devices.write_page(place, first, bytes(page))
                except OSError as error:
                    errors.append(error)
            if errors:
                raise as_port_error(f"landing log: changing segment {segment.hex()}", errors[0]) from errors[0]
            if len(places) < self._copies:
                if self._unseen():
                    raise self._may_have_another_copy(segment)
                self._require_all_known()

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """Zero the headers of each segment's slots, one page per copy. A segment that may have a further copy on a lost
        or missing device counts as failed, even though slots were zeroed: that copy must be deleted, too, when the
        device returns, and nothing else would look for it."""
        failed: dict[SegmentId, Transient] = {}
        for segment in segments:
            beat(0)
            try:
                if self._places(segment):
                    self._fence(segment)
                with self._table.quiet(segment), self._locked_table():
                    self._release(segment, self._places(segment))
            except Transient as error:
                failed[segment] = error
            else:
                self._writers.pop(segment, None)
        return failed

    def _release(self, segment: SegmentId, places: Sequence[Place]) -> None:
        """Zero the headers. The writer must be fenced, none of its appends in flight, and the table locked. Raises
        Transient."""
        with self._table.changing():
            zeroed = self._zero_headers(places)
            for place in zeroed:
                self._table.put_slot(place, Slot(None))
        if len(zeroed) < len(places) or (len(places) < self._copies and self._unseen()):
            raise self._may_have_another_copy(segment)
        if len(places) < self._copies:
            self._require_all_known()

    def settle_slot(self, found: UnreadableSlot, epoch: int | None) -> bool:
        """Read the slot again, under the locks of its segment and of the table, and write its header."""
        place = (found.device, found.slot)
        with self._table.quiet(found.segment) if found.segment else nullcontext(), self._locked_table():
            if place[0] not in self._usable() or self._read_again(place) != Slot(found.segment, is_unreadable=True):
                return False
            page = bytes(PAGE)
            if epoch is not None and found.segment is not None:
                page = self._header(found.segment, found.slot, epoch, 0)
            with translated(f"landing log: slot {found.slot} of device {found.device}"), self._table.changing():
                self._devices.write_page(place, 0, page)
                kill_point("device_log.slot_settled")
                self._table.enter_slot(place, Slot(found.segment if epoch is not None else None))
        return True

    def _read_again(self, place: Place) -> Slot | None:
        with suppress(OSError):
            return self._devices.read_slot(place, was_unreadable=self._table.slot(place).is_unreadable)
        return None

    def _may_have_another_copy(self, segment: SegmentId) -> Transient:
        return Transient(
            f"landing segment {segment.hex()} may have a copy on a device that is lost: {self._devices.losses()};"
            " connect it again, or replace it"
        )

    # --- figures ------------------------------------------------------------------------------------
    def free_bytes(self) -> int:
        """Return the space in the free slots of the devices that work. They are counted again only when the table has
        changed."""
        changes = self._table.changes << 8 | len(self._devices.working)
        if self._free[0] != changes:
            self._free = (changes, self._count_free() * self._layout.trailer_at)
        return self._free[1]

    def _count_free(self) -> int:
        """Return how many further segments find a slot on each of `copies` devices."""
        free = []
        for number in self._usable():
            entries = self._table.entries(number, self._devices.slots(number))
            free.append(sum(slot.is_free for slot in entries))
        segments = sum(free) // self._copies
        while sum(min(segments, each) for each in free) < segments * self._copies:
            segments -= 1
        return segments

    def raw_bytes(self) -> int:
        """Return the size of all used slots, on all devices."""
        return sum(not slot.is_free for _, slot in self._slots()) * self._layout.slot_bytes

    def devices(self) -> DeviceStates:
        """Return the states of all devices that the superblocks count, even if they are not configured."""
        with suppress(Transient):
            self.probe()
        return DeviceStates(len(self._devices.working), tuple(self._devices.lost()), self._unreadable())

    def probe(self) -> None:
        """Write and read a page of each device. A lost device that answers again is used again."""
        with self._locked_table():
            self._devices.revive()
            self._load()
        for number in self._devices.working:
            self._devices.probe(number)
        self._devices.require(self._copies)

    def close(self) -> None:
        """Close the devices. The last process marks them as clean if all segments are sealed."""
        with suppress(Transient, ConfigError), self._locked_table():
            if self._table.unclean and self._table.leave() and self._all_sealed():
                self._devices.mark(clean=True)
                self._table.unclean = False
        for writer in list(self._writers.values()):
            writer.close()
        self._table.close()
        self._devices.close()

    def _all_sealed(self) -> bool:
        owners = {slot.owner for _, slot in self._slots() if slot.owner is not None}
        return all(self._trailer(owner, self._places(owner)) is not None for owner in owners)

    # --- the table ----------------------------------------------------------------------------------
    @contextmanager
    def _locked_table(self) -> Iterator[None]:
        with self._table.locked():
            if self._table.in_doubt:
                self._load(again=True)
            yield

    def _load(self, *, again: bool = False) -> None:
        """Enter the headers of the devices into the table, which must be locked. Raises NoSpace."""
        for number in self._devices.working:
            if again or not self._table.is_loaded(number):
                with suppress(OSError):  # the table keeps the slots of a device that cannot be read
                    self._load_device(number)
        for slot in self._unreadable():
            place = (slot.device, slot.slot)
            if self._devices.is_lost(slot.device) or (found := self._read_again(place)) is None:
                continue
            found = self._cleared(place, found)
            # Perhaps the device was absent for a moment. A segment that is known stays known.
            if not found.is_unreadable or (found.owner is not None and slot.segment is None):
                self._table.enter_slot(place, found)
        self._table.settle()

    def _load_device(self, number: int) -> None:
        """Enter the headers of one device into the table. Raises NoSpace, OSError."""
        slots = self._devices.read_slots(number, {one.slot for one in self._unreadable() if one.device == number})
        for slot, found in enumerate(slots):
            if found.is_unreadable:
                slots[slot] = found = self._cleared((number, slot), found)
            if found.is_unreadable:
                _log.error("slot of the landing log cannot be read", device=number, slot=slot, found=_named(found))
        self._table.load_device(number, slots)

    def _cleared(self, place: Place, found: Slot) -> Slot:
        """Return the slot, freed if it was never written to: then no segment can belong to its damaged header."""
        with suppress(OSError):
            if found.owner is None and self._devices.is_blank(place) and self._zero_headers([place]):
                return Slot(None)
        return found

    def _visible(self) -> list[int]:
        """Return the devices whose slots are in the table."""
        return [number for number in self._devices.opened if self._table.is_loaded(number)]

    def _usable(self) -> list[int]:
        return [number for number in self._visible() if not self._devices.is_lost(number)]

    def _slots(self) -> Iterator[tuple[Place, Slot]]:
        for device in self._visible():
            for number, slot in enumerate(self._table.entries(device, self._devices.slots(device))):
                yield (device, number), slot

    def _unreadable(self) -> tuple[UnreadableSlot, ...]:
        """Return the slots whose headers cannot be read. The search is repeated only when the table has changed,
        because a large device has thousands of slots."""
        changes = self._table.changes << 8 | len(self._visible())
        if self._unreadable_as_of[0] != changes:
            found = (UnreadableSlot(*place, slot.owner) for place, slot in self._slots() if slot.is_unreadable)
            self._unreadable_as_of = (changes, tuple(found))
        return self._unreadable_as_of[1]

    def _places(self, segment: SegmentId) -> list[Place]:
        found = [self._table.find_segment(segment, number, self._devices.slots(number)) for number in self._visible()]
        return [place for place in found if place is not None]

    def _existing(self, segment: SegmentId) -> list[Place]:
        """Return the places of a segment, at least one. Raises NotFound, Transient."""
        places = self._places(segment)
        if not places:
            with self._locked_table():  # another process may be writing its entry now
                places = self._places(segment)
                if not places:
                    self._require_all_visible()
                    raise NotFound(f"landing segment {segment.hex()} does not exist")
        return places

    def _require_all_visible(self, *, known_only: bool = False) -> None:
        """Raise Transient when a segment may exist only on devices that cannot be read or, unless `known_only`, in
        slots whose owners are unknown."""
        unseen = self._unseen()
        if unseen >= self._copies:
            raise Transient(
                f"landing log: {unseen} of {self._devices.count} devices cannot be read: {self._devices.losses()};"
                " connect them"
            )
        if not known_only:
            self._require_all_known()

    def _require_all_known(self) -> None:
        """Raise Transient when a segment may exist in a slot whose owner is unknown."""
        unknown = sum(slot.segment is None for slot in self._unreadable())
        if unknown:
            raise Transient(f"landing log: {unknown} slots cannot be read; `nos-ec check` shows what to do about them")

    def _unseen(self) -> int:
        """Return the number of the log's devices whose slots are not in the table."""
        self._devices.recount()
        return self._devices.count - len(self._visible())


def _named(slot: Slot) -> str:
    return "no record" if slot.owner is None else f"records of segment {slot.owner.hex()}"


class DeviceWriter:
    """Appends to one segment of a `DeviceLog`. `end` is the end of the last batch, or None after a failure, when it is
    unknown. `seal` is the log's method."""

    def __init__(
        self,
        devices: DeviceSet,
        table: SlotTable,
        segment: SegmentId,
        places: Sequence[Place],
        seal: Callable[[SegmentId, Sequence[Buffer], int], int],
    ) -> None:
        self._devices = devices
        self._table = table
        self._segment = segment
        self._places = places
        self._seal = seal
        self._append_lock = table.append_lock(segment)
        self._lock = threading.Lock()
        self._in_flight = 0
        self._is_closed = False
        self.end: int | None = START

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        """Write the batch to all copies at once, under the lock for which a process that seals the segment waits. The
        seal is written after the batch."""
        size, layout = sum(map(len, batch)), self._devices.layout
        if offset % PAGE or size % PAGE or not START <= offset < offset + size <= layout.trailer_at:
            raise ValueError(f"batch of {size} bytes at {offset}: whole pages between {START} and {layout.trailer_at}")
        if size > layout.window - PAGE:
            raise ValueError(f"batch of {size} bytes: too large for the window of scans, {layout.window} bytes")
        self._begin()
        try:
            if not all(self._table.may_append(place, self._segment) for place in self._places):
                raise Conflict(f"landing segment {self._segment.hex()} is sealed")
            self._devices.write(self._places, offset, batch, size)
        except OSError as error:
            self._finish(None)
            raise as_port_error(f"landing log: appending to segment {self._segment.hex()}", error) from error
        except BaseException:
            self._finish(None)
            raise
        kill_point("device_log.appended")
        self._finish(offset + size)
        if seal is not None:
            self._seal(self._segment, seal.footer, seal.records)

    def _begin(self) -> None:
        with self._lock:
            if self._is_closed:
                raise ValueError(f"the writer of segment {self._segment.hex()} is closed")
            if not self._in_flight:
                self._append_lock.take()
            self._in_flight += 1

    def _finish(self, end: int | None) -> None:
        with self._lock:
            self.end = None if end is None or self.end is None else max(end, self.end)
            self._in_flight -= 1
            if not self._in_flight:
                self._append_lock.drop()

    def close(self) -> None:
        """Release the lock."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._append_lock.close()

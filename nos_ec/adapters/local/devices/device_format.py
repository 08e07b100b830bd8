"""The bytes of a device of the landing log, version 1 (see docs/FORMAT.md): superblocks, places of slots, trailers.

    offset            size        content
    0, 4096           72          superblocks, written in turn: generation g lies at (g modulo 2) x 4096
    8192              4096        the data of the last probe
    1 MiB + n x slot  slot_bytes  slot n: header page (4 KiB), batches, footer, trailer (the last 4 KiB)

    header page
    0     64  header of the segment (nos_ec.core.formats.landing_format)
    2048  64  the same again; zeros in older releases

    superblock                                  trailer
    0   4   magic, b"NLD1"                      0   4   magic, b"NLT1"
    4   4   crc32c of bytes 8 to 71             4   4   crc32c of bytes 8 to 55
    8   16  store id                            8   16  store id
    24  2   format version, 1                   24  8   segment id, big-endian as everywhere
    26  2   number of this device               32  8   end of the last batch
    28  2   number of devices                   40  8   length of the footer, which begins there; 0: none
    30  2   flags: 1 all segments are sealed    48  8   records, as the writer counted them
    32  4   slots
    36  4   life of this device
    40  8   bytes of a slot
    48  8   capacity in bytes
    56  8   window in bytes
    64  8   generation

All integers are little-endian, and offsets in a trailer count from the start of the slot. A slot is free if and only if
its header page is zeros. A page that is neither zeros nor has an intact header of this store for this slot is damaged:
it does not show whether the slot is free, so the slot is never taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.landing_format import SegmentHeader, decode_segment_header, encode_segment_header
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import SegmentId

VERSION = 1
SUPERBLOCKS = (0, PAGE)
PROBE_AT = 2 * PAGE
SLOTS_AT = 1 << 20
SLOT_BYTES_MIN = 16 * PAGE
SLOTS_MAX = 1 << 16
"""The maximum number of slots of a device. A larger device needs larger slots."""
DEVICES_MAX = 64

START = PAGE
"""The offset of the first batch in a slot, after the header."""
TRAILER_SIZE = PAGE
HEADER_COPY_AT = 2048
"""The offset of the second copy of the header in its page. It lies in another sector, whatever the sector size is."""

_HEAD = struct.Struct("<4sI")
_SUPERBLOCK = struct.Struct("<16sHHHHIIQQQQ")
_TRAILER = struct.Struct("<16s8sQQQ")
SUPERBLOCK_MAGIC = b"NLD1"
_TRAILER_MAGIC = b"NLT1"
_CLEAN = 1


@dataclass(frozen=True, slots=True)
class Superblock:
    """The description that a device has of itself. Sizes are in bytes; only `devices`, `clean` and `generation` ever
    change.

    `devices` is the number of devices of the log. `clean` means that no segment is open. `window` bounds scans: a scan
    that found no record in this many bytes has passed everything that a writer had in flight. `life` is the number of
    earlier devices with this device's number.
    """

    store_id: bytes
    device: int
    devices: int
    slots: int
    slot_bytes: int
    capacity: int
    window: int
    generation: int
    clean: bool
    life: int = 0

    def slot_at(self, slot: int) -> int:
        """Return the offset of a slot on the device."""
        return SLOTS_AT + slot * self.slot_bytes

    @property
    def trailer_at(self) -> int:
        """Return the offset of the trailer in a slot, which is the size of a segment."""
        return self.slot_bytes - TRAILER_SIZE


@dataclass(frozen=True, slots=True)
class Trailer:
    """The end of a sealed segment: the end of its last batch, then the length of its footer (0: none). Sizes are in
    bytes."""

    store_id: bytes
    segment: SegmentId
    end: int
    footer_length: int
    records: int


def encode_superblock(block: Superblock) -> bytes:
    """Return the superblock as one page."""
    rest = _SUPERBLOCK.pack(
        block.store_id,
        VERSION,
        block.device,
        block.devices,
        _CLEAN if block.clean else 0,
        block.slots,
        block.life,
        block.slot_bytes,
        block.capacity,
        block.window,
        block.generation,
    )
    return _page(SUPERBLOCK_MAGIC, rest)


def decode_superblock(page: bytes) -> Superblock:
    """Decode a page. Raises Corrupt unless it begins with an intact superblock of this version."""
    rest = _checked(page, SUPERBLOCK_MAGIC, _SUPERBLOCK.size, "superblock")
    fields = _SUPERBLOCK.unpack(rest)
    store_id, version, device, devices, flags, slots, life, slot_bytes, capacity, window, generation = fields
    if version != VERSION:
        raise Corrupt(f"superblock: format version {version}, not {VERSION}: use the release that wrote it")
    return Superblock(
        store_id, device, devices, slots, slot_bytes, capacity, window, generation, bool(flags & _CLEAN), life
    )


def encode_trailer(trailer: Trailer) -> bytes:
    """Return the trailer as one page."""
    fields = (trailer.store_id, trailer.segment, trailer.end, trailer.footer_length, trailer.records)
    return _page(_TRAILER_MAGIC, _TRAILER.pack(*fields))


def decode_trailer(page: bytes, store_id: bytes, segment: SegmentId) -> Trailer | None:
    """Return the trailer of this segment; None when the page does not hold it, because the segment was not sealed."""
    try:
        trailer = Trailer(*_TRAILER.unpack(_checked(page, _TRAILER_MAGIC, _TRAILER.size, "trailer")))
    except Corrupt:
        return None
    return trailer if (trailer.store_id, trailer.segment) == (store_id, segment) else None


def encode_slot_header(header: SegmentHeader) -> bytes:
    """Return the header, twice, as one page."""
    half = encode_segment_header(header).ljust(HEADER_COPY_AT, b"\0")
    return half + half


def owner_of_slot(page: bytes, store_id: bytes, slot: int) -> SegmentId | None:
    """Return the segment that owns the slot which begins with this page; None when the slot is free. Raises Corrupt
    when the page does not show it."""
    if len(page) == PAGE and not any(page):
        return None
    owners, reasons = set(), []
    for at in (0, HEADER_COPY_AT):
        try:
            header = decode_segment_header(page[at:])
        except Corrupt as error:
            reasons.append(str(error))
            continue
        if (header.store_id, header.slot) != (store_id, slot):
            raise Corrupt(f"slot {slot}: it has the header of slot {header.slot} of store {header.store_id.hex()}")
        owners.add(header.segment)
    if len(owners) != 1:
        raise Corrupt(f"slot {slot}: {'; '.join(reasons) or 'its two headers name different segments'}")
    return owners.pop()


def _page(magic: bytes, rest: bytes) -> bytes:
    data = _HEAD.pack(magic, google_crc32c.value(rest)) + rest
    return data + bytes(PAGE - len(data))


def _checked(page: bytes, magic: bytes, size: int, what: str) -> bytes:
    if len(page) < _HEAD.size + size:
        raise Corrupt(f"{what}: cut short to {len(page)} bytes")
    found, crc32c = _HEAD.unpack_from(page)
    rest = bytes(page[_HEAD.size : _HEAD.size + size])
    if found != magic:
        raise Corrupt(f"{what}: no magic")
    if google_crc32c.value(rest) != crc32c:
        raise Corrupt(f"{what}: checksum does not match")
    return rest

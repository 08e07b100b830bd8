"""Segments of the landing log, on-disk format version 1 (see docs/FORMAT.md): their header, records, footers, and the
scan that finds records without a footer.

Integers are little-endian, except in ids. A record is its header, the data, zeros to a multiple of 8, and its names. A
batch is a sequence of records and zeros up to the alignment of the medium.

    offset  size  record header
         0     4  magic, b"NLR1"
         4     4  crc32c of bytes 8 to 63
         8     4  crc32c of the data
        12     4  length of the data, at least 1
        16    16  landing id, which contains the place of the record
        32     6  lsn: number of the record among those of one lease of the log
        38     2  length of the names / 8
        40     6  time of the PUT, Unix milliseconds
        46     1  type: 1 a PUT, 2 a footer
        47     1  flags, 0
        48    16  MD5 of bucket/name; zeros in a footer

    offset  size  names
         0     4  crc32c of the rest, padding included; its complement in a record that is void
         4     4  length of the attributes
         8        a name record (see nos_ec.core.formats.header), the attributes, zeros to a multiple of 8

    offset  size  segment header              offset  size  entry of a footer, in order of offset
         0     4  magic, b"NLS1"                   0     4  offset of the record in the segment / 8
         4     4  crc32c of bytes 8 to 63          4     4  length of the data
         8     8  segment id                       8     4  crc32c of the data
        16     4  slot                            12     4  nonce: the last 4 bytes of the landing id
        20     4  epoch of the log's lease        16     8  lsn
        24     8  lsn: none before it             24    16  MD5 of bucket/name
        32     8  bytes of the segment at most
        40    16  store id
        56     8  zero

The data follows the header, not the names, so that a reader that knows the size of an object reads it with one
operation. Encoders and decoders share one definition of a valid header, `_defect`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import NameRecord, decode_name, encode_name
from nos_ec.core.ids import RECORD_ALIGN, LandingId, ObjectKey, SegmentId, record_id, record_offset, segment_of

Buffer = bytes | bytearray | memoryview

SEGMENT_MAGIC = b"NLS1"
RECORD_MAGIC = b"NLR1"
SEGMENT_HEADER_SIZE = 64
RECORD_HEADER_SIZE = 64
FOOTER_ENTRY_SIZE = 40
NONCE_SIZE = 4
DATA_SIZE_MAX = (1 << 32) - 1
NAMES_SIZE_MAX = ((1 << 16) - 1) * RECORD_ALIGN
"""Bytes of bucket, name and attributes together, plus 12 bytes."""

TYPE_PUT = 1
TYPE_FOOTER = 2

_CHECKED_FROM = 8
"""The CRC of a header covers the bytes from here."""
_RECORD = struct.Struct("<4sIII16sQQ16s")
_RECORD_REST = struct.Struct("<II16sQQ16s")
_SEGMENT = struct.Struct("<4sI8sIIQQ16s8s")
_SEGMENT_REST = struct.Struct("<8sIIQQ16s8s")
_HEAD = struct.Struct("<4sI")
_NAMES = struct.Struct("<II")
_CRC_SIZE = 4
_ENTRY = struct.Struct("<II4s4sQ16s")
_CRC = struct.Struct("<I")
_SIX_BYTES = (1 << 48) - 1
_NO_KEY = bytes(16)

_SCAN_READ = 4 << 20
_SCAN_STEP = 1 << 20

assert _RECORD.size == _HEAD.size + _RECORD_REST.size == RECORD_HEADER_SIZE
assert _SEGMENT.size == _HEAD.size + _SEGMENT_REST.size == SEGMENT_HEADER_SIZE
assert _ENTRY.size == FOOTER_ENTRY_SIZE


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A header that a medium may write before the first batch. `slot` is its place on a device. No record has an lsn
    below `first_lsn`. The segment has at most `segment_bytes` bytes."""

    segment: SegmentId
    slot: int
    epoch: int
    first_lsn: int
    segment_bytes: int
    store_id: bytes


class RecordHeader(NamedTuple):
    """The header of a record. Lengths in bytes."""

    landing_id: LandingId
    lsn: int
    put_ms: int
    type: int
    data_length: int
    data_crc32c: int
    names_length: int
    key_md5: bytes

    @property
    def size(self) -> int:
        """Return the bytes of the whole record, a multiple of RECORD_ALIGN."""
        return RECORD_HEADER_SIZE + _aligned(self.data_length, RECORD_ALIGN) + self.names_length


class NewRecord(NamedTuple):
    """A record without a place, made by `new_record`. `names` holds the encoded names. `size` is the length of the
    whole record in bytes, a multiple of RECORD_ALIGN. `put_ms` is the time of the PUT, or None for a PUT that lands
    now."""

    data: bytes
    crc32c: int
    key_md5: bytes
    names: bytes
    size: int
    put_ms: int | None = None


class RecordNames(NamedTuple):
    """The names of a record."""

    bucket: str
    name: str
    attributes: bytes


class LaidBatch(NamedTuple):
    """A batch with a place: its `size` bytes, in order, as several buffers, the ids of its records, and their entries
    in the footer."""

    buffers: list[Buffer]
    size: int
    ids: list[LandingId]
    entries: bytes


class Voiding(NamedTuple):
    """The overwrite that makes a record void: at `offset` in its segment, `expected` is replaced by `new`."""

    offset: int
    expected: bytes
    new: bytes


class FooterEntry(NamedTuple):
    """The entry of one record in a footer. `length` of its data in bytes."""

    landing_id: LandingId
    length: int
    crc32c: int
    lsn: int
    key_md5: bytes


class FoundRecord(NamedTuple):
    """A record that a scan found, with the bytes after its header. Decode `names` with `decode_names`."""

    header: RecordHeader
    data: bytes
    names: bytes


# --- segments -----------------------------------------------------------------------------------------


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the 64 bytes of a segment header. Raise ValueError if a field does not fit."""
    if len(header.segment) != 8 or len(header.store_id) != 16:
        raise ValueError(f"segment {header.segment.hex()} of store {header.store_id.hex()}: ids of 8 and 16 bytes")
    try:
        rest = _SEGMENT_REST.pack(
            header.segment,
            header.slot,
            header.epoch,
            header.first_lsn,
            header.segment_bytes,
            header.store_id,
            bytes(8),
        )
    except struct.error as error:
        raise ValueError(f"segment {header.segment.hex()}: a field does not fit its bytes ({error})") from error
    return _HEAD.pack(SEGMENT_MAGIC, google_crc32c.value(rest)) + rest


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Return the segment header at the start of `data`. Raise Corrupt, and nothing else, for any invalid bytes."""
    rest = _checked_rest(data, SEGMENT_MAGIC, SEGMENT_HEADER_SIZE, "segment header")
    segment, slot, epoch, first_lsn, segment_bytes, store_id, reserved = _SEGMENT_REST.unpack(rest)
    if any(reserved):
        raise Corrupt("segment header: reserved bytes are not zero")
    return SegmentHeader(SegmentId(segment), slot, epoch, first_lsn, segment_bytes, store_id)


# --- records ------------------------------------------------------------------------------------------


def new_record(
    key: ObjectKey, data: bytes, crc32c: int, attributes: bytes = b"", put_ms: int | None = None
) -> NewRecord:
    """Return the record of a PUT. `crc32c` is that of the data; see NewRecord for `put_ms`. Raise ValueError if
    something does not fit the format."""
    length = len(data)
    if not 1 <= length <= DATA_SIZE_MAX:
        raise ValueError(f"record of {key}: {length} bytes of data; 1 to {DATA_SIZE_MAX} are possible")
    names = encode_names(RecordNames(key.bucket, key.name, attributes))
    size = RECORD_HEADER_SIZE + _aligned(length, RECORD_ALIGN) + len(names)
    return NewRecord(data, crc32c, key.md5, names, size, put_ms)


def batch_size(records: Sequence[NewRecord], align: int) -> int:
    """Return the bytes of a batch of these records, padded to a multiple of `align`."""
    return _aligned(sum([record.size for record in records]), align)


def lay_out(
    segment: SegmentId,
    offset: int,
    first_lsn: int,
    put_ms: int,
    records: Sequence[NewRecord],
    nonces: bytes,
    align: int,
) -> LaidBatch:
    """Return the batch of these records at `offset`, which is a multiple of `align`. No data is copied.

    `put_ms` is now. `nonces` has NONCE_SIZE random bytes for each record. Raise ValueError if something does not fit
    the format.
    """
    size = batch_size(records, align)
    buffers: list[Buffer] = []
    ids: list[LandingId] = []
    entries = bytearray()
    between = b""  # the bytes between two pieces of data
    at = offset
    for number, (data, crc32c, key_md5, names, record_size, own_put_ms) in enumerate(records):
        nonce = nonces[number * NONCE_SIZE : (number + 1) * NONCE_SIZE]
        landing_id, lsn = record_id(segment, at, nonce), first_lsn + number
        header = RecordHeader(landing_id, lsn, own_put_ms or put_ms, TYPE_PUT, len(data), crc32c, len(names), key_md5)
        buffers += (between + _encode_record_header(header), data)
        between = bytes(-len(data) % RECORD_ALIGN) + names
        entries += _ENTRY.pack(at // RECORD_ALIGN, len(data), _CRC.pack(crc32c), nonce, lsn, key_md5)
        ids.append(landing_id)
        at += record_size
    buffers.append(between + bytes(offset + size - at))
    return LaidBatch(buffers, size, ids, bytes(entries))


def decode_record_header(data: bytes, landing_id: LandingId) -> RecordHeader:
    """Return the header of this record, at the start of `data`, which was read at its place.

    Raise Corrupt, and nothing else, also for an intact header of another record. The caller checks the CRC of the data.
    """
    header = _decode_record_header(data)
    if header.landing_id != landing_id:
        raise Corrupt(f"landing record {landing_id.hex()}: record {header.landing_id.hex()} is in its place")
    return header


def voiding(landing_id: LandingId, data_length: int, names: bytes) -> Voiding:
    """Return the overwrite that makes a record void, so that no rebuild of the metadata adopts it: the CRC of its names
    is complemented. These 4 bytes are in one sector, so they change as a whole. Header and data stay, so the record can
    still be read, and a scan can skip it."""
    offset = record_offset(landing_id) + RECORD_HEADER_SIZE + _aligned(data_length, RECORD_ALIGN)
    return Voiding(offset, bytes(names[:_CRC_SIZE]), _complement(names[:_CRC_SIZE]))


def is_void(names: bytes) -> bool:
    """Return whether these are the names of a void record: its PUT was refused, or was never recorded."""
    return len(names) >= _NAMES.size and _CRC.pack(google_crc32c.value(bytes(names[_CRC_SIZE:]))) == _complement(
        names[:_CRC_SIZE]
    )


def _complement(crc32c: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in crc32c)


def segment_found(data: bytes) -> SegmentId | None:
    """Return the segment of the record at the start of `data`, or None without an intact header."""
    try:
        return segment_of(_decode_record_header(data).landing_id)
    except Corrupt:
        return None


def encode_names(names: RecordNames) -> bytes:
    """Return the names of a record, a multiple of RECORD_ALIGN bytes. Raise ValueError if they do not fit."""
    record = encode_name(NameRecord(names.bucket, names.name))
    rest = len(names.attributes).to_bytes(_CRC_SIZE, "little") + record + names.attributes
    rest += bytes(-(_CRC_SIZE + len(rest)) % RECORD_ALIGN)
    if _CRC_SIZE + len(rest) > NAMES_SIZE_MAX:
        raise ValueError(f"names of {_CRC_SIZE + len(rest)} bytes; the maximum is {NAMES_SIZE_MAX}")
    return _CRC.pack(google_crc32c.value(rest)) + rest


def decode_names(data: bytes) -> RecordNames:
    """Return the names that `encode_names` took. `data` has exactly the header's `names_length` bytes.

    Raise Corrupt, and nothing else, for any invalid bytes. Do not check today's rules for buckets and names, because
    the format outlives the rules.
    """
    data = bytes(data)
    if len(data) < _NAMES.size:
        raise Corrupt(f"names of a record: cut short to {len(data)} bytes")
    crc32c, attributes_length = _NAMES.unpack_from(data)
    if google_crc32c.value(data[_CRC_SIZE:]) != crc32c:
        raise Corrupt("names of a record: checksum does not match")
    record, at = decode_name(data, _NAMES.size)
    end = at + attributes_length
    if record.segment is not None or record.attributes or len(data) != _aligned(end, RECORD_ALIGN) or any(data[end:]):
        raise Corrupt("names of a record: impossible kind, length or padding")
    return RecordNames(record.bucket, record.name, data[at:end])


# --- footers ------------------------------------------------------------------------------------------


def footer_size(records: int, align: int) -> int:
    """Return the bytes of the footer of a segment with that many records, padded to a multiple of `align`."""
    return _aligned(RECORD_HEADER_SIZE + FOOTER_ENTRY_SIZE * records, align)


def lay_out_footer(
    segment: SegmentId, offset: int, lsn: int, now_ms: int, entries: bytes, nonce: bytes, align: int
) -> list[Buffer]:
    """Return the footer at `offset`. `entries` holds the entries of all batches, at least one, in order of offset."""
    if not entries or len(entries) % FOOTER_ENTRY_SIZE:
        raise ValueError(f"footer of {len(entries)} bytes")
    landing_id, crc32c = record_id(segment, offset, nonce), google_crc32c.value(entries)
    header = RecordHeader(landing_id, lsn, now_ms, TYPE_FOOTER, len(entries), crc32c, 0, _NO_KEY)
    padding = footer_size(len(entries) // FOOTER_ENTRY_SIZE, align) - RECORD_HEADER_SIZE - len(entries)
    return [_encode_record_header(header), entries, bytes(padding)]


def decode_footer(data: bytes, segment: SegmentId, offset: int) -> list[FooterEntry]:
    """Return the entries of the footer at the start of `data`, which was read at `offset`. Raise Corrupt, and nothing
    else."""
    header = _decode_record_header(data)
    if header.type != TYPE_FOOTER or _place(header.landing_id) != (segment, offset):
        raise Corrupt(f"segment {segment.hex()}: no footer at {offset}")
    entries = bytes(data[RECORD_HEADER_SIZE : RECORD_HEADER_SIZE + header.data_length])
    if len(entries) != header.data_length or google_crc32c.value(entries) != header.data_crc32c:
        raise Corrupt(f"segment {segment.hex()}: its footer is cut short, or its checksum does not match")
    found = []
    before = 0
    for place, length, crc32c, nonce, lsn, key_md5 in _ENTRY.iter_unpack(entries):
        at = place * RECORD_ALIGN
        if not (before <= at and length and at + RECORD_HEADER_SIZE + length <= offset):
            raise Corrupt(f"segment {segment.hex()}: its footer has a record of {length} bytes at {at}")
        before = at + RECORD_HEADER_SIZE + length
        landing_id = record_id(segment, at, nonce)
        found.append(FooterEntry(landing_id, length, _CRC.unpack(crc32c)[0], lsn, key_md5))
    return found


# --- scan ---------------------------------------------------------------------------------------------


def scan(
    read: Callable[[int, int], bytes], segment: SegmentId, start: int, end: int, window: int | None = None
) -> Iterator[FoundRecord]:
    """Yield the intact records of a segment between `start` and `end`, in order, across holes and damage.

    `read` returns the bytes of (offset, length), fewer at the end of the segment. `start` is a multiple of
    RECORD_ALIGN. The scan ends early after `window` bytes without a record, if given: the bytes of all writes that one
    writer may have had under way. A record left by an earlier segment in this place has that segment in its id, and is
    skipped. Raises what `read` raises.
    """
    pieces = _Pieces(read, end)
    at, limit = start, end if window is None else min(end, start + window)
    while (at := pieces.find(RECORD_MAGIC, at, limit)) >= 0:
        header = None if at % RECORD_ALIGN else _header_at(pieces, segment, at, end)
        if header is None:
            at += 1
            continue
        rest = pieces.get(at + RECORD_HEADER_SIZE, header.size - RECORD_HEADER_SIZE)
        at += header.size  # also if the data is damaged: the header has its length
        data = rest[: header.data_length]
        names_at = len(data) + -len(data) % RECORD_ALIGN
        if google_crc32c.value(data) == header.data_crc32c and len(rest) == names_at + header.names_length:
            yield FoundRecord(header, data, rest[names_at:])
            limit = end if window is None else min(end, at + window)


def first_segment(read: Callable[[int, int], bytes], start: int, end: int) -> SegmentId | None:
    """Return the segment of the first intact record between `start` and `end`, or None if there is no such record.
    Batches are written from the front, so this is the last segment that had this place, unless it holds no record.
    Arguments as in `scan`. Raises what `read` raises."""
    pieces = _Pieces(read, end)
    at = start
    while (at := pieces.find(RECORD_MAGIC, at, end)) >= 0:
        try:
            landing_id = _decode_record_header(pieces.get(at, RECORD_HEADER_SIZE)).landing_id
        except Corrupt:
            landing_id = None
        if landing_id is not None and record_offset(landing_id) == at:
            return segment_of(landing_id)
        at += 1
    return None


class _Pieces:
    """Reads the bytes of a segment in pieces, and keeps the last piece in memory."""

    def __init__(self, read: Callable[[int, int], bytes], end: int) -> None:
        self._read = read
        self._end = end
        self._piece = b""
        self._start = 0

    def get(self, at: int, length: int) -> bytes:
        """Return the bytes from `at`; fewer than `length` at the end."""
        first = self._place(at, length)
        return self._piece[first : first + length]

    def find(self, what: bytes, at: int, limit: int) -> int:
        """Return where `what` begins between `at` and `limit`; -1 if it is not there."""
        while at < limit:
            length = min(_SCAN_STEP, limit - at + len(what) - 1, self._end - at)
            kept = self._start + len(self._piece) - at
            if self._start <= at and kept >= len(what):
                length = min(length, kept)  # the kept bytes are searched before more are read
            first = self._place(at, length)
            found = self._piece.find(what, first, first + length)
            if found >= 0:
                return self._start + found
            if len(self._piece) - first < length or length < len(what):
                return -1
            at += length - len(what) + 1
        return -1

    def _place(self, at: int, length: int) -> int:
        """Return where these bytes begin in the kept piece. If they are not in it, read them first."""
        if not self._start <= at <= at + length <= self._start + len(self._piece):
            self._start = at
            self._piece = self._read(at, min(max(length, _SCAN_READ), self._end - at))
        return at - self._start


def _header_at(pieces: _Pieces, segment: SegmentId, at: int, end: int) -> RecordHeader | None:
    try:
        header = _decode_record_header(pieces.get(at, RECORD_HEADER_SIZE))
    except Corrupt:
        return None
    return header if _place(header.landing_id) == (segment, at) and at + header.size <= end else None


# --- headers ------------------------------------------------------------------------------------------


def _encode_record_header(header: RecordHeader) -> bytes:
    reason = _defect(header)
    if reason:
        raise ValueError(f"landing record {header.landing_id.hex()}: {reason}")
    landing_id, lsn, put_ms, kind, data_length, data_crc32c, names_length, key_md5 = header
    numbers, times = lsn | names_length // RECORD_ALIGN << 48, put_ms | kind << 48
    try:
        rest = _RECORD_REST.pack(data_crc32c, data_length, landing_id, numbers, times, key_md5)
    except struct.error as error:
        raise ValueError(f"landing record {landing_id.hex()}: a field does not fit its bytes ({error})") from error
    return _HEAD.pack(RECORD_MAGIC, google_crc32c.value(rest)) + rest


def _decode_record_header(data: bytes) -> RecordHeader:
    rest = _checked_rest(data, RECORD_MAGIC, RECORD_HEADER_SIZE, "landing record")
    data_crc32c, data_length, landing_id, numbers, times, key_md5 = _RECORD_REST.unpack(rest)
    header = RecordHeader(
        LandingId(landing_id),
        numbers & _SIX_BYTES,
        times & _SIX_BYTES,
        times >> 48 & 0xFF,
        data_length,
        data_crc32c,
        (numbers >> 48) * RECORD_ALIGN,
        key_md5,
    )
    reason = f"flags {times >> 56:#04x} are not known" if times >> 56 else _defect(header)
    if reason:
        raise Corrupt(f"landing record {header.landing_id.hex()}: {reason}")
    return header


def _defect(header: RecordHeader) -> str | None:
    """Return why no record can have this header; None if it is valid. Used by both the encoder and the decoder."""
    landing_id, lsn, put_ms, kind, data_length, _, names_length, key_md5 = header
    if len(landing_id) != 16 or len(key_md5) != 16:
        return f"its id has {len(landing_id)} bytes, and the MD5 of its key {len(key_md5)}"
    if not (0 <= lsn <= _SIX_BYTES and 0 <= put_ms <= _SIX_BYTES):
        return f"number {lsn} or time {put_ms} does not fit 6 bytes"
    if names_length % RECORD_ALIGN or names_length > NAMES_SIZE_MAX:
        return f"names of {names_length} bytes"
    if kind == TYPE_PUT:
        if not data_length or not names_length:
            return f"{data_length} bytes of data and {names_length} of names"
    elif kind == TYPE_FOOTER:
        if not data_length or data_length % FOOTER_ENTRY_SIZE or names_length or key_md5 != _NO_KEY:
            return f"a footer of {data_length} bytes with {names_length} bytes of names"
    else:
        return f"type {kind} is not known"
    return None


def _checked_rest(data: bytes, magic: bytes, size: int, what: str) -> bytes:
    """Return the bytes of a header that its CRC covers. Raise Corrupt."""
    if len(data) < size:
        raise Corrupt(f"{what}: cut short to {len(data)} bytes")
    found, crc32c = _HEAD.unpack_from(data)
    if found != magic:
        raise Corrupt(f"{what}: no magic")
    rest = bytes(data[_CHECKED_FROM:size])
    if google_crc32c.value(rest) != crc32c:
        raise Corrupt(f"{what}: checksum of the header does not match")
    return rest


def _place(landing_id: LandingId) -> tuple[SegmentId, int]:
    return segment_of(landing_id), record_offset(landing_id)


def _aligned(size: int, align: int) -> int:
    return -(-size // align) * align

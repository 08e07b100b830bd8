"""Header of a stripe group, on-disk format version 1, and the names after it, version 2 (see docs/FORMAT.md).

A header is the preamble, the entries, then zeros up to a multiple of PAGE. Integers are little-endian.

    offset  size  preamble
         0     4  magic, b"NSEC"
         4     2  version, 1
         6     2  flags; bit 0: names present, the others zero
         8     4  header_length, bytes
        12     4  stripe_count
        16     4  entry_count
        20     4  data_length, bytes: the sum of the entries' lengths
        24    12  names_offset (from the group's start), names_length, names_crc32c; zero when there are none
        36    16  block_id [1]
        52     4  first_stripe: number of the group's first stripe in its block
        56     8  writer_epoch
        64     8  written_at_ms, Unix time
        72     8  chunk_size (u32), k (u16), m (u16)
        80    12  reserved, zero
        92     4  header_crc32c over the whole header with this field zero

    offset  size  entry
         0    16  keymd5high, keymd5low [2]
        16     8  object_version
        24     4  offset, from the group's start
        28     4  length, at least 1
        32     4  crc32c of the object's bytes

    offset  size  name record; the names are the zlib stream of one record per entry, in the entries' order
         0     1  bytes of the bucket's name
         1     2  bytes of the object's name
         3     1  kind; bit 0: a segment of a large object; bit 1: attributes; the others zero [4]
         4    16  for a segment only: its offset in the object (u64), size of the object (u64) [3]
               2  with attributes only: their bytes, at least 1
                  then bucket and name, UTF-8, then the attributes

[1] Together with first_stripe it exposes bytes copied from elsewhere and user data that imitates a header.
[2] The first and the last 8 bytes of the digest, each read as a big-endian number and stored little-endian.
[3] 0 in all segments but the last: the size of a byte stream is known only at its end.
[4] Version 1 of the names had no bit 1. So names without attributes are valid in both versions (docs/adr/0023).

Invariants kept here (numbers of docs/INVARIANTS.md):
  7  whatever `encode_header` and `encode_names` accept, the decoders return unchanged; for any other input
     they raise Corrupt. Encoder and decoder share one definition of a valid header: `_defect`.
"""

from __future__ import annotations

import struct
import zlib
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import google_crc32c

from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX
from nos_ec.core.errors import Corrupt
from nos_ec.core.geometry import BLOCK_SIZE_MAX, K_MAX, M_MAX, PAGE, STRIPES_PER_BLOCK_MAX, is_chunk_size
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, BlockId

MAGIC = b"NSEC"
VERSION = 1
PREAMBLE_SIZE = 96
ENTRY_SIZE = 36
NAME_RECORD_FIXED = 4
"""Bytes of a name record without the bucket's and the name's own bytes."""
SEGMENT_RECORD_FIXED = 20
"""The same for a segment of a large object."""
ATTRIBUTES_FIXED = 2
"""Bytes that attributes add to a record in addition to their own bytes."""
NAME_RECORD_BYTES_MAX = (
    SEGMENT_RECORD_FIXED + ATTRIBUTES_FIXED + BUCKET_BYTES_MAX + NAME_BYTES_MAX + ATTRIBUTES_SIZE_MAX
)

_FLAG_NAMES = 1
_KIND_SEGMENT = 1
_KIND_ATTRIBUTES = 2
_NO_CRC = bytes(4)

_PREAMBLE = struct.Struct("<4sHHIIIIIII16sIQQIHH12sI")
_ENTRY = struct.Struct("<QQQIII")
_MD5_HALVES = struct.Struct(">QQ")
_CRC = struct.Struct("<I")
_CRC_OFFSET = PREAMBLE_SIZE - _CRC.size
_NAME = struct.Struct("<BHB")
_SEGMENT = struct.Struct("<QQ")
_ATTRIBUTES = struct.Struct("<H")

assert _PREAMBLE.size == PREAMBLE_SIZE
assert _ENTRY.size == ENTRY_SIZE
assert _NAME.size == NAME_RECORD_FIXED
assert _NAME.size + _SEGMENT.size == SEGMENT_RECORD_FIXED
assert _ATTRIBUTES.size == ATTRIBUTES_FIXED
assert ATTRIBUTES_SIZE_MAX < 1 << 16
assert BUCKET_BYTES_MAX < 1 << 8
assert NAME_BYTES_MAX < 1 << 16


class Entry(NamedTuple):
    """One object of a group. `key_md5`: 16 bytes. `offset` from the group's start and `length` in bytes."""

    key_md5: bytes
    object_version: int
    offset: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """The header of a group. Sizes and offsets are in bytes, offsets from the group's start.

    In a group without names, names_offset, names_length and names_crc32c are 0.
    """

    block_id: BlockId
    first_stripe: int
    stripe_count: int
    writer_epoch: int
    written_at_ms: int
    chunk_size: int
    k: int
    m: int
    data_length: int
    entries: tuple[Entry, ...]
    names_offset: int
    names_length: int
    names_crc32c: int

    @property
    def header_length(self) -> int:
        """Return the bytes of the encoded header."""
        return header_length(len(self.entries))

    @property
    def group_size(self) -> int:
        """Return the bytes of the whole group: its stripes, without coding chunks."""
        return self.stripe_count * self.k * self.chunk_size


class NameRecord(NamedTuple):
    """The name of one entry. For a segment of a large object, `segment` is (offset of this segment in the object, size
    of the whole object), in bytes, with size 0 in all segments but the last. For a whole object it is None.
    `attributes` are opaque bytes; the last segment of a large object has them."""

    bucket: str
    name: str
    segment: tuple[int, int] | None = None
    attributes: bytes = b""


def header_length(entry_count: int) -> int:
    """Return the bytes of the header of a group with that many entries: a multiple of PAGE."""
    return -(-(PREAMBLE_SIZE + ENTRY_SIZE * entry_count) // PAGE) * PAGE


def names_size_max(name_records_size: int) -> int:
    """Return the most bytes that zlib makes of that many bytes of name records (zlib's own compressBound)."""
    n = name_records_size
    return n + (n >> 12) + (n >> 14) + (n >> 25) + 13


# --- the header ---------------------------------------------------------------------------------------


def encode_header(header: GroupHeader) -> bytes:
    """Encode to `header.header_length` bytes. Raise ValueError for a header that `decode_header` would refuse."""
    reason = _defect(header)
    if reason:
        raise ValueError(f"header of group {header.first_stripe}: {reason}")
    try:
        encoded = bytearray(_pack_preamble(header))
        for key_md5, version, offset, length, crc32c in header.entries:
            high, low = _MD5_HALVES.unpack(key_md5)
            encoded += _ENTRY.pack(high, low, version, offset, length, crc32c)
    except struct.error as error:
        raise ValueError(f"header of group {header.first_stripe}: a field does not fit its bytes ({error})") from error
    encoded.extend(bytes(header.header_length - len(encoded)))
    _CRC.pack_into(encoded, _CRC_OFFSET, google_crc32c.value(bytes(encoded)))
    return bytes(encoded)


def decode_header(data: bytes, block_id: BlockId, first_stripe: int) -> GroupHeader:
    """Return the header at the start of `data`; bytes after the header are ignored.

    The bytes were found at `first_stripe` (stripe number) of block `block_id`. Raise Corrupt, and nothing else, for any
    invalid bytes.
    """
    length = peek_length(data, block_id, first_stripe)
    if len(data) < length:
        raise Corrupt(f"header cut short: {len(data)} bytes of {length}")
    data = bytes(data[:length])
    fields = _PREAMBLE.unpack_from(data)
    if google_crc32c.value(data[:_CRC_OFFSET] + _NO_CRC + data[PREAMBLE_SIZE:]) != fields[-1]:
        raise Corrupt("header checksum does not match")
    entries_end = PREAMBLE_SIZE + ENTRY_SIZE * fields[5]
    if data.count(0, entries_end) != length - entries_end:
        raise Corrupt("header padding is not zero")
    header = _build(fields, data[PREAMBLE_SIZE:entries_end])
    reason = _defect(header)
    if reason:
        raise Corrupt(f"header: {reason}")
    return header


def peek_length(first_page: bytes, block_id: BlockId, first_stripe: int) -> int:
    """Return the length of the whole header, taken from its first PAGE bytes, so that a reader knows how much more to
    read.

    Check the preamble except its CRC, which covers bytes not read yet. Raise Corrupt.
    """
    if len(first_page) < PAGE:
        raise Corrupt(f"header cut short: {len(first_page)} bytes; the minimum is {PAGE}")
    fields = _PREAMBLE.unpack_from(first_page)
    entry_count = fields[5]
    reason = _foreign(fields, block_id, first_stripe) or _preamble_defect(_build(fields, b""), entry_count)
    if reason:
        raise Corrupt(f"header: {reason}")
    return header_length(entry_count)


def _pack_preamble(header: GroupHeader) -> bytes:
    return _PREAMBLE.pack(
        MAGIC,
        VERSION,
        _FLAG_NAMES if header.names_length else 0,
        header.header_length,
        header.stripe_count,
        len(header.entries),
        header.data_length,
        header.names_offset,
        header.names_length,
        header.names_crc32c,
        header.block_id,
        header.first_stripe,
        header.writer_epoch,
        header.written_at_ms,
        header.chunk_size,
        header.k,
        header.m,
        bytes(12),
        0,
    )


def _build(fields: tuple[Any, ...], entries: bytes) -> GroupHeader:
    """Return a header from unpacked preamble fields and the bytes of its entries, unchecked."""
    _, _, _, _, stripe_count, _, data_length, names_offset, names_length, names_crc32c, *rest = fields
    block_id, first_stripe, writer_epoch, written_at_ms, chunk_size, k, m, _, _ = rest
    join = _MD5_HALVES.pack
    return GroupHeader(
        block_id=BlockId(bytes(block_id)),
        first_stripe=first_stripe,
        stripe_count=stripe_count,
        writer_epoch=writer_epoch,
        written_at_ms=written_at_ms,
        chunk_size=chunk_size,
        k=k,
        m=m,
        data_length=data_length,
        entries=tuple(
            Entry(join(high, low), version, offset, length, crc32c)
            for high, low, version, offset, length, crc32c in _ENTRY.iter_unpack(entries)
        ),
        names_offset=names_offset,
        names_length=names_length,
        names_crc32c=names_crc32c,
    )


def _foreign(fields: tuple[Any, ...], block_id: BlockId, first_stripe: int) -> str | None:
    """Return why these preamble fields are not of version 1, or belong to another place; None if they are right."""
    magic, version, flags, length, _, entry_count, _, _, names_length, _, found_id, found_index, *_, reserved, _ = (
        fields
    )
    if magic != MAGIC:
        return "no magic"
    if version != VERSION:
        return f"version {version} is not known"
    if flags != (_FLAG_NAMES if names_length else 0):
        return f"flags {flags:#06x} do not fit names of {names_length} bytes"
    if any(reserved):
        return "reserved bytes are not zero"
    if found_id != block_id:
        return f"it belongs to block {found_id.hex()}"
    if found_index != first_stripe:
        return f"it belongs to stripe {found_index}, not {first_stripe}"
    if length != header_length(entry_count):
        return f"length {length} does not match {entry_count} entries"
    return None


def _defect(header: GroupHeader) -> str | None:
    """Return why no group can have this header; None if it is valid. Used by both the encoder and the decoder."""
    return _preamble_defect(header, len(header.entries)) or _entries_defect(header)


def _preamble_defect(header: GroupHeader, entry_count: int) -> str | None:
    """Return the defects that can be found without entries."""
    if len(header.block_id) != 16:
        return f"block id is {len(header.block_id)} bytes, not 16"
    if not (1 <= header.k <= K_MAX and 1 <= header.m <= M_MAX):
        return f"geometry {header.k}+{header.m} is out of bounds"
    if not is_chunk_size(header.chunk_size):
        return f"chunk size {header.chunk_size} is out of bounds"
    if not (header.stripe_count >= 1 and 0 <= header.first_stripe <= STRIPES_PER_BLOCK_MAX - header.stripe_count):
        return f"{header.stripe_count} stripes at stripe {header.first_stripe} are out of bounds"
    if header.group_size > BLOCK_SIZE_MAX:
        return f"group of {header.group_size} bytes is too large"
    if header_length(entry_count) > header.group_size:
        return f"{entry_count} entries do not fit the group"
    if not header.names_length:
        return "offset or checksum of absent names is set" if header.names_offset or header.names_crc32c else None
    if not header_length(entry_count) <= header.names_offset <= header.group_size - header.names_length:
        return f"names at {header.names_offset}, {header.names_length} bytes, are not inside the group"
    return None


def _entries_defect(header: GroupHeader) -> str | None:
    """Return the error in the positions of the entries and the names. The entries may be in any order."""
    spans = sorted([(offset, offset + length) for _, _, offset, length, _ in header.entries])
    if sum([end - start for start, end in spans]) != header.data_length:
        return f"data length {header.data_length} is not the sum of the entries"
    if any(start >= end for start, end in spans):
        return "an entry has no length"
    if header.names_length:
        insort(spans, (header.names_offset, header.names_offset + header.names_length))
    if spans and not (header.header_length <= spans[0][0] and spans[-1][1] <= header.group_size):
        return "an entry is not inside the group, after the header"
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        return "entries or names overlap"
    return None


# --- the names ----------------------------------------------------------------------------------------


def name_record_size(bucket: str, name: str, segment: tuple[int, int] | None = None, attributes: bytes = b"") -> int:
    """Return the bytes of one name record before compression."""
    fixed = NAME_RECORD_FIXED if segment is None else SEGMENT_RECORD_FIXED
    size = fixed + len(bucket.encode()) + len(name.encode())
    return size + ATTRIBUTES_FIXED + len(attributes) if attributes else size


def encode_names(records: Sequence[NameRecord]) -> bytes:
    """Return the names of a group, one record per entry in the entries' order, compressed.

    Raise ValueError for a record that `decode_names` would refuse.
    """
    return zlib.compress(b"".join([encode_name(record) for record in records]))


def decode_names(data: bytes, crc32c: int, entry_count: int) -> list[NameRecord]:
    """Return the records that `encode_names` took. `crc32c` and `entry_count` are from the header.

    Raise Corrupt, and nothing else, for any invalid bytes. Do not check today's rules for buckets and names, because
    the format outlives the rules.
    """
    data = bytes(data)
    if google_crc32c.value(data) != crc32c:
        raise Corrupt("names: checksum does not match")
    records = []
    raw = _decompress(data, entry_count * NAME_RECORD_BYTES_MAX)
    position = 0
    for _ in range(entry_count):
        record, position = decode_name(raw, position)
        records.append(record)
    if position != len(raw):
        raise Corrupt(f"names: {len(raw) - position} bytes after the last of {entry_count} records")
    return records


def encode_name(record: NameRecord) -> bytes:
    """Return one record, not compressed. Raise ValueError for a record that `decode_name` would refuse."""
    bucket, name = record.bucket.encode(), record.name.encode()
    if not (1 <= len(bucket) <= BUCKET_BYTES_MAX and 1 <= len(name) <= NAME_BYTES_MAX):
        raise ValueError(f"name record: bucket of {len(bucket)} bytes or name of {len(name)} bytes is out of bounds")
    if record.segment is None and not record.attributes:
        return _NAME.pack(len(bucket), len(name), 0) + bucket + name
    return _encode_more(record, bucket, name)


def _encode_more(record: NameRecord, bucket: bytes, name: bytes) -> bytes:
    """Return a record of another kind than 0."""
    kind, more, attributes = 0, b"", record.attributes
    if record.segment is not None:
        offset, object_size = record.segment
        if not (0 <= offset < 1 << 64 and (object_size == 0 or offset < object_size < 1 << 64)):
            raise ValueError(f"name record: an object of {object_size} bytes has no segment at {offset}")
        kind, more = _KIND_SEGMENT, _SEGMENT.pack(offset, object_size)
    if attributes:
        if len(attributes) > ATTRIBUTES_SIZE_MAX:
            raise ValueError(
                f"name record: attributes of {len(attributes)} bytes; the maximum is {ATTRIBUTES_SIZE_MAX}"
            )
        kind |= _KIND_ATTRIBUTES
        more += _ATTRIBUTES.pack(len(attributes))
    return _NAME.pack(len(bucket), len(name), kind) + more + bucket + name + attributes


def decode_name(raw: bytes, position: int) -> tuple[NameRecord, int]:
    """Return the record at `position`, and the position after it. Raise Corrupt."""
    segment, attributes_length = None, 0
    try:
        bucket_length, name_length, kind = _NAME.unpack_from(raw, position)
        position += _NAME.size
        if kind:
            segment, attributes_length, position = _decode_more(raw, position, kind)
    except struct.error as error:
        raise Corrupt("names: record cut short") from error
    middle = position + bucket_length
    names_end = middle + name_length
    end = names_end + attributes_length
    if not (bucket_length and 1 <= name_length <= NAME_BYTES_MAX and end <= len(raw)):
        raise Corrupt("names: record with an impossible length")
    try:
        bucket, name = raw[position:middle].decode(), raw[middle:names_end].decode()
    except UnicodeDecodeError as error:
        raise Corrupt("names: not UTF-8") from error
    return NameRecord(bucket, name, segment, raw[names_end:end] if attributes_length else b""), end


def _decode_more(raw: bytes, position: int, kind: int) -> tuple[tuple[int, int] | None, int, int]:
    """Return, for a record of another kind than 0, its segment, the bytes of its attributes, and the position after
    both."""
    segment, attributes_length = None, 0
    if kind & _KIND_SEGMENT:
        segment = _SEGMENT.unpack_from(raw, position)
        position += _SEGMENT.size
    if kind & _KIND_ATTRIBUTES:
        (attributes_length,) = _ATTRIBUTES.unpack_from(raw, position)
        position += _ATTRIBUTES.size
        if not 1 <= attributes_length <= ATTRIBUTES_SIZE_MAX:
            raise Corrupt(f"names: attributes of {attributes_length} bytes")
    if kind & ~(_KIND_SEGMENT | _KIND_ATTRIBUTES) or (segment and 0 < segment[1] <= segment[0]):
        raise Corrupt(f"names: unknown kind of record, or impossible segment (kind {kind})")
    return segment, attributes_length, position


def _decompress(data: bytes, size_max: int) -> bytes:
    """Decompress the names. Refuse a stream that would expand to more than `size_max` bytes before it does."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, size_max + 1)
    except zlib.error as error:
        raise Corrupt(f"names: {error}") from error
    if len(raw) > size_max or not stream.eof or stream.unused_data:
        raise Corrupt("names: compressed stream is cut short, too large or followed by other bytes")
    return raw

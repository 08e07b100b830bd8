"""Labels of landing copies: descriptions from which copies can be adopted when the rows are lost.

A record of the landing log has its label in its header and names (nos_ec.core.formats.landing_format). A copy of the
landing store has these bytes in addition to its own; integers are little-endian.

    offset  size  label
         0     4  magic, b"NLL1"
         4     4  crc32c of the landing id and all bytes after this field
         8     8  time of the PUT, Unix milliseconds
        16     4  length of the data
        20     4  crc32c of the data
        24        a name record of a whole object (see nos_ec.core.formats.header), with the attributes
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import NameRecord, decode_name, encode_name
from nos_ec.core.formats.landing_format import FoundRecord, decode_names
from nos_ec.core.ids import LandingId

MAGIC = b"NLL1"

_HEAD = struct.Struct("<4sIQII")
_CRC = struct.Struct("<I")
_CHECKED_FROM = 8


class CopyLabel(NamedTuple):
    """The label of a copy: the object's key and attributes (see nos_ec.core.attributes), size and CRC32C of the data,
    and the time of the PUT. The version of the object is put_ms x 1000 or more: it is chosen when the row is recorded,
    after the copy has landed."""

    bucket: str
    name: str
    put_ms: int
    size: int
    crc32c: int
    attributes: bytes


def encode_label(landing_id: LandingId, label: CopyLabel) -> bytes:
    """Return the label of this copy as bytes. Raise ValueError for a label that `decode_label` would refuse."""
    try:
        head = _HEAD.pack(MAGIC, 0, label.put_ms, label.size, label.crc32c)
    except struct.error as error:
        raise ValueError(f"label of {landing_id.hex()}: a field does not fit its bytes ({error})") from error
    rest = head[_CHECKED_FROM:] + encode_name(NameRecord(label.bucket, label.name, None, label.attributes))
    return MAGIC + _CRC.pack(google_crc32c.value(landing_id + rest)) + rest


def decode_label(landing_id: LandingId, data: bytes) -> CopyLabel:
    """Return the label that `encode_label` took for this copy. Raise Corrupt, and nothing else, for any other bytes."""
    data = bytes(data)
    if len(data) < _HEAD.size:
        raise Corrupt(f"label of {landing_id.hex()}: cut short to {len(data)} bytes")
    magic, crc32c, put_ms, size, data_crc32c = _HEAD.unpack_from(data)
    if magic != MAGIC or google_crc32c.value(landing_id + data[_CHECKED_FROM:]) != crc32c:
        raise Corrupt(f"label of {landing_id.hex()}: no magic, or the checksum does not match")
    record, end = decode_name(data, _HEAD.size)
    if record.segment is not None or end != len(data):
        raise Corrupt(f"label of {landing_id.hex()}: impossible kind, or {len(data) - end} bytes after it")
    return CopyLabel(record.bucket, record.name, put_ms, size, data_crc32c, record.attributes)


def label_of_record(found: FoundRecord) -> CopyLabel:
    """Return the label of a record of the landing log. Raise Corrupt if its names are damaged."""
    names = decode_names(found.names)
    header = found.header
    return CopyLabel(names.bucket, names.name, header.put_ms, header.data_length, header.data_crc32c, names.attributes)

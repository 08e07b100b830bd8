"""The footer of a landing copy's file: the label of the copy, then a tail that serves to find it.

    offset  size  tail, the last bytes of the file; integers are little-endian
         0     4  length of the label, at least 1
         4     4  crc32c of the landing id, the label and its length
         8     4  magic, b"NLF1"

A file with any other end holds the data alone. The author of the data could not know the id, which is random, so data
is never mistaken for a footer.
"""

from __future__ import annotations

import os
import struct

import google_crc32c

from nos_ec.adapters.local.files.durable import read_at
from nos_ec.core.ids import LandingId
from nos_ec.ports.landing_store import LABEL_SIZE_MAX

MAGIC = b"NLF1"

_TAIL = struct.Struct("<II4s")
_LENGTH = struct.Struct("<I")


def footer_of(landing_id: LandingId, label: bytes) -> bytes:
    """Return the bytes that follow the data of a copy with this label; empty without a label. Raises ValueError for a
    label that is too long."""
    if not label:
        return b""
    if len(label) > LABEL_SIZE_MAX:
        raise ValueError(f"landing copy {landing_id.hex()}: label of {len(label)} bytes")
    return label + _TAIL.pack(len(label), _checksum(landing_id, label), MAGIC)


def find_label(fd: int, landing_id: LandingId) -> tuple[int, bytes]:
    """Return the size of the data in a copy's open file, and the label, empty if there is none. Raises OSError."""
    size = os.fstat(fd).st_size
    if size < _TAIL.size:
        return size, b""
    length, crc32c, magic = _TAIL.unpack(read_at(fd, _TAIL.size, size - _TAIL.size))
    data_length = size - _TAIL.size - length
    if magic != MAGIC or not 1 <= length <= LABEL_SIZE_MAX or data_length < 0:
        return size, b""
    label = read_at(fd, length, data_length)
    return (data_length, label) if _checksum(landing_id, label) == crc32c else (size, b"")


def _checksum(landing_id: LandingId, label: bytes) -> int:
    return int(google_crc32c.value(landing_id + label + _LENGTH.pack(len(label))))

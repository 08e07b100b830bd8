"""Counts the bytes of a stripe group that hold no object, by place. Pure.

| front: header, names, rest | objects and gaps, up to a chunk's border | end: chunks without an object |
"""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.formats.header import GroupHeader
from nos_ec.core.geometry import Geometry
from nos_ec.core.sums import Summed


@dataclass(frozen=True, slots=True)
class EmptyBytes(Summed):
    """Bytes without an object: before the first object (`front`); between objects, and up to the end of the chunk of
    the last object's end (`gap`); and in the chunks after that one (`end`)."""

    front: int = 0
    gap: int = 0
    end: int = 0


def empty_bytes(
    geometry: Geometry, stripe_count: int, first_offset: int, last_end: int, data_length: int
) -> EmptyBytes:
    """Return the empty bytes of a group. Its first object begins at first_offset, its last one ends at last_end, both
    in bytes from its start, and its objects have data_length bytes in all."""
    border = -(-last_end // geometry.chunk_size) * geometry.chunk_size
    return EmptyBytes(first_offset, border - first_offset - data_length, stripe_count * geometry.stripe_size - border)


def empty_in(geometry: Geometry, header: GroupHeader) -> EmptyBytes:
    """Return the empty bytes of a group according to its header, which also names objects that died since."""
    first_offset = min((entry.offset for entry in header.entries), default=0)
    last_end = max((entry.offset + entry.length for entry in header.entries), default=0)
    return empty_bytes(geometry, header.stripe_count, first_offset, last_end, header.data_length)

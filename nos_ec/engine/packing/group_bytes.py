"""The bytes of one stripe group: header, names, data and padding, all inside its stripes.

A long group is written in windows, so that only a part of it is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import google_crc32c

from nos_ec.core.formats.header import Entry, GroupHeader, NameRecord, encode_header, encode_names, header_length
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, ObjectKey


@dataclass(frozen=True, slots=True)
class GroupItem:
    """An object, or a segment of a large one, to place in a group: `length` bytes, `offset` bytes from the group's
    start."""

    key: ObjectKey
    version: int
    offset: int
    length: int
    crc32c: int
    segment: tuple[int, int] | None = None
    """For a segment of a large object: its offset in the object, and the size of the object."""
    attributes: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a group is written, when, and by which writer."""

    block_id: BlockId
    at_stripe: int
    stripe_count: int
    writer_epoch: int
    written_at_ms: int


def assemble(geometry: Geometry, place: GroupPlace, items: Sequence[GroupItem], data: Sequence[bytes]) -> bytes:
    """Return the stripe_count x stripe_size bytes of a group, copied once. `data` has the bytes of each item. Raise
    ValueError if items overlap the header, the names or each other, or do not fit into the group (a bug)."""
    front = header_and_names(geometry, place, items)
    buffers = [front]
    end = len(front)
    for item, its_data in sorted(zip(items, data, strict=True), key=lambda one: one[0].offset):
        buffers += (_padding(end, item.offset), its_data)
        end = item.offset + len(its_data)
    buffers.append(_padding(end, place.stripe_count * geometry.stripe_size))
    return b"".join(buffers)


def window_bytes(start: int, end: int, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the bytes of a group from `start` to `end`, copied once: the parts of the pieces in this range, and zeros
    between them. `pieces` has the offset of each piece from the group's start and its bytes, in order of offset. Raise
    ValueError if they overlap there (a bug)."""
    buffers: list[bytes | memoryview] = []
    filled = start
    for offset, data in pieces:
        first, last = max(start, offset), min(end, offset + len(data))
        if first < last:
            buffers += (_padding(filled, first), memoryview(data)[first - offset : last - offset])
            filled = last
    buffers.append(_padding(filled, end))
    return b"".join(buffers)


def header_and_names(geometry: Geometry, place: GroupPlace, items: Sequence[GroupItem]) -> bytes:
    """Return the bytes at the start of a group. Raise ValueError if they overlap the first item (a bug)."""
    front = header_length(len(items))
    names = encode_names([NameRecord(item.key.bucket, item.key.name, item.segment, item.attributes) for item in items])
    if items and front + len(names) > min(item.offset for item in items):
        raise ValueError(f"header and names take {front + len(names)} bytes and overlap the first object")
    header = GroupHeader(
        block_id=place.block_id,
        first_stripe=place.at_stripe,
        stripe_count=place.stripe_count,
        writer_epoch=place.writer_epoch,
        written_at_ms=place.written_at_ms,
        chunk_size=geometry.chunk_size,
        k=geometry.k,
        m=geometry.m,
        data_length=sum(item.length for item in items),
        entries=tuple(Entry(item.key.md5, item.version, item.offset, item.length, item.crc32c) for item in items),
        names_offset=front,
        names_length=len(names),
        names_crc32c=google_crc32c.value(names),
    )
    return encode_header(header) + names


def _padding(start: int, end: int) -> bytes:
    if start > end:
        raise ValueError(
            f"the object that ends at byte {start} overlaps the next object or the end of the group at byte {end}"
        )
    return bytes(end - start)

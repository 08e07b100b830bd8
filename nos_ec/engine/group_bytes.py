"""The bytes of one stripe group: header, names, data and padding, all inside its stripes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c

from nos_ec.core.geometry import Geometry
from nos_ec.core.header import Entry, GroupHeader, NameRecord, encode_header, encode_names, header_length
from nos_ec.core.ids import BlockId, ObjectKey


@dataclass(frozen=True, slots=True)
class GroupItem:
    """One object (or segment of a large one) to place in a group, `offset` bytes from the group's start."""

    key: ObjectKey
    version: int
    offset: int
    data: bytes | memoryview
    crc32c: int
    segment: tuple[int, int] | None = None
    """(offset in the object, size of the object) for a segment of a large object."""
    attributes: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a group is written, when, and by which writer."""

    block_id: BlockId
    at_stripe: int
    stripe_count: int
    writer_epoch: int
    written_at_ms: int


def assemble(geometry: Geometry, place: GroupPlace, items: Sequence[GroupItem]) -> bytes:
    """Returns the stripe_count x stripe_size bytes of a group, copied once. Raises ValueError when items overlap the
    header, the names or each other, or do not fit into the group (a bug)."""
    front = header_and_names(geometry, place, items)
    buffers: list[bytes | memoryview] = [front]
    end = len(front)
    for item in sorted(items, key=lambda item: item.offset):
        buffers += (_padding(end, item.offset), item.data)
        end = item.offset + len(item.data)
    buffers.append(_padding(end, place.stripe_count * geometry.stripe_size))
    return b"".join(buffers)


def header_and_names(geometry: Geometry, place: GroupPlace, items: Sequence[GroupItem]) -> bytes:
    """What a group begins with. Raises ValueError when it overlaps the first item (a bug)."""
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
        data_length=sum(len(item.data) for item in items),
        entries=tuple(Entry(item.key.md5, item.version, item.offset, len(item.data), item.crc32c) for item in items),
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

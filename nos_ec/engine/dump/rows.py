"""Converts rows of the metadata to pages of a dump, and back.

A page names all its columns. For a column that older dumps lack, `tuples` gets a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from itertools import compress
from operator import attrgetter
from typing import TypeVar

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.formats.dump_format import DumpPage
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey, SegmentId
from nos_ec.core.states import BlockKind, BlockState, ObjectEvent, ObjectState, SegmentState, advance_object
from nos_ec.ports.metadata import BlockRow, ObjectColumns, ObjectRow, QueueEntry, Rebuilt, Segment, SegmentRow

OBJECTS = "objects"
BLOCKS = "blocks"
DELETIONS = "landing_deletions"
LANDING_SEGMENTS = "landing_segments"

_W = TypeVar("_W", bound=StrEnum)
_LANDED = advance_object(None, ObjectEvent.LAND)


def word(words: type[_W], value: str) -> _W:
    """Return the member of an enumeration that a dump has as text. Raises Corrupt."""
    try:
        return words(value)
    except ValueError:
        raise Corrupt(f"dump: {value!r} is not a valid {words.__name__}; was it made by a newer version?") from None


def rows_page(table: str, rows: Sequence[object], *columns: str) -> DumpPage:
    """Return a page of rows. `columns` are paths of attributes of a row, such as key.bucket; the last name is the name
    of the column, or the one before `.value`."""
    names = (path.removesuffix(".value").rpartition(".")[2] for path in columns)
    return DumpPage(table, {name: list(map(attrgetter(path), rows)) for name, path in zip(names, columns, strict=True)})


def landing_segments_page(rows: Sequence[SegmentRow]) -> DumpPage:
    """Return a page of landing segments."""
    return DumpPage(
        LANDING_SEGMENTS,
        {
            "segment_id": [row.segment for row in rows],
            "state": [row.state.value for row in rows],
            "epoch": [row.epoch for row in rows],
            "opened_ms": [row.opened_ms for row in rows],
            "sealed_ms": [row.sealed_ms for row in rows],
            "end_bytes": [row.end for row in rows],
            "records": [row.records for row in rows],
        },
    )


def landing_segments_of(page: DumpPage) -> Iterator[SegmentRow]:
    """Yield the rows of such a page. Raises Corrupt."""
    columns = page.tuples(
        segment_id=..., state=..., epoch=..., opened_ms=..., sealed_ms=..., end_bytes=..., records=...
    )
    for segment, state, *rest in columns:
        yield SegmentRow(SegmentId(segment), word(SegmentState, state), *rest)


_COUNTS_OF_BLOCK = ("epoch", "stripes", "live_bytes", "dead_bytes", "overhead_bytes", "live_objects", "created_ms")


def blocks_page(rows: Sequence[BlockRow]) -> DumpPage:
    """Return a page of blocks."""
    first, last = ("block_id", "kind.value", "state.value", "writer"), ("delete_after_ms", "gc_failures")
    return rows_page(BLOCKS, rows, *first, *_COUNTS_OF_BLOCK, *last)


def blocks_of(page: DumpPage) -> Iterator[BlockRow]:
    """Yield the rows of such a page. Raises Corrupt."""
    counts = dict.fromkeys(_COUNTS_OF_BLOCK, ...)
    columns = page.tuples(block_id=..., kind=..., state=..., writer=..., **counts, delete_after_ms=..., gc_failures=0)
    for block_id, kind, state, *rest in columns:
        yield BlockRow(BlockId(block_id), word(BlockKind, kind), word(BlockState, state), *rest)


def columns_page(objects: ObjectColumns) -> DumpPage:
    """Return a page of objects that are not large."""
    return DumpPage(
        OBJECTS,
        {field.name: getattr(objects, field.name) for field in fields(objects)}
        | {"is_noncurrent": list(map(int, objects.is_noncurrent)), "parts": [None] * len(objects.object_id)},
    )


def objects_page(rows: Sequence[Rebuilt]) -> DumpPage:
    """Return a page of objects. The row of a large object has block, offset, length and CRC32C of its segments."""
    page = columns_page(ObjectColumns.of([one.row for one in rows]))
    page.columns["parts"] = [
        [(p.extent.block_id, p.extent.offset, p.extent.length, p.crc32c) for p in one.parts] or None for one in rows
    ]
    return page


def objects_of(page: DumpPage) -> Iterator[Rebuilt]:
    """Yield the rows of such a page. Noncurrent versions are returned like rows in the trash without times. A QUEUED
    object is returned as LANDED, since its event may be lost. Raises Corrupt."""
    columns = page.tuples(
        object_id=...,
        bucket=...,
        name=...,
        version=...,
        size=...,
        crc32c=...,
        md5=...,
        state=...,
        landing_id=...,
        block_id=...,
        block_offset=...,
        created_ms=...,
        attributes=None,
        parts=None,
        trash_until_ms=None,
        trashed_ms=None,
        is_noncurrent=0,
    )
    for object_id, bucket, name, version, size, crc32c, md5, text, landing_id, block_id, offset, made, *more in columns:
        attributes, parts, trash_until_ms, trashed_ms, is_noncurrent = more
        state = word(ObjectState, text)
        try:
            key = ObjectKey(bucket, name)
        except InvalidInput as error:
            raise Corrupt(f"dump: object {object_id}: {error}") from error
        row = ObjectRow(
            object_id=object_id,
            key=key,
            version=version,
            size=size,
            crc32c=crc32c,
            md5=md5,
            state=_LANDED if state is ObjectState.QUEUED else state,
            landing_id=None if landing_id is None else LandingId(landing_id),
            extent=None if block_id is None else Extent(BlockId(block_id), offset, size),
            created_ms=made,
            attributes=attributes or b"",
            trash_until_ms=0 if is_noncurrent else trash_until_ms,
            trashed_ms=trashed_ms,
            is_noncurrent=bool(is_noncurrent),
        )
        yield Rebuilt(row, [Segment(Extent(BlockId(part[0]), part[1], part[2]), part[3]) for part in parts or ()])


def trashed_of(page: DumpPage, least_ms: int) -> Iterator[ObjectRow]:
    """Yield the rows of a page that are in the trash, each kept there at least until `least_ms` (Unix milliseconds).
    Raises Corrupt."""
    trashed = (until_ms is not None for until_ms in page.columns.get("trash_until_ms", ()))
    for one in objects_of(selected(page, trashed)):
        if one.row.trash_until_ms is not None and not one.row.is_noncurrent:
            yield replace(one.row, trash_until_ms=max(one.row.trash_until_ms, least_ms))


def noncurrent_of(page: DumpPage) -> Iterator[ObjectRow]:
    """Yield the noncurrent versions of a page. Raises Corrupt."""
    return (one.row for one in objects_of(selected(page, page.columns.get("is_noncurrent", ()))))


def selected(page: DumpPage, selectors: Iterable[object]) -> DumpPage:
    """Return the rows of a page for which the selectors are true; none without selectors."""
    chosen = list(selectors)
    return DumpPage(page.table, {name: list(compress(values, chosen)) for name, values in page.columns.items()})


def deletions_page(rows: Sequence[QueueEntry]) -> DumpPage:
    """Return a page of the deletion queue."""
    return rows_page(DELETIONS, rows, "landing_id", "object_id", "version", "not_before_ms", "doomed")


def deletions_of(page: DumpPage) -> Iterator[QueueEntry]:
    """Yield the rows of such a page. Raises Corrupt."""
    columns = page.tuples(landing_id=..., object_id=..., version=..., not_before_ms=..., doomed=...)
    for landing_id, *rest in columns:
        yield QueueEntry(LandingId(landing_id), *rest)


def rebuilt_block(
    block_id: BlockId, kind: BlockKind, state: BlockState, dumped: BlockRow | None, delete_after_ms: int | None = None
) -> BlockRow:
    """Return the row of a block as if nothing had been written to it. `dumped` is its row in the dump, if any."""
    return BlockRow(
        block_id=block_id,
        kind=kind,
        state=state,
        writer="rebuilt" if dumped is None else dumped.writer,
        epoch=0 if dumped is None else dumped.epoch,
        stripes=0,
        live_bytes=0,
        dead_bytes=0,
        overhead_bytes=0,
        live_objects=0,
        created_ms=0 if dumped is None else dumped.created_ms,
        delete_after_ms=delete_after_ms,
        gc_failures=0 if dumped is None else dumped.gc_failures,
    )

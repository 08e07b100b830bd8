"""Reads all rows, in pages, while the store works.

Pages of objects are read as columns, because that takes a third of the time (docs/adr/0055); only large objects become
rows. Each page is consistent; a rebuild resolves changes between two pages (docs/adr/0024). It relies on the order of
the tables:

  - The number of the next object of the journal comes before all that it tells about: the dump has all changes that
    earlier objects name.
  - Blocks come before objects. So the rows of objects, which are read later, know everything that was committed to a
    block by the time its row was read (all of a SEALED block, the first stripes of an open one): an object in it has a
    row, or was dead by then.
  - Landing segments come before objects as well, for the same reason: no record is added to a SEALED segment.
  - Moves of buckets to this cell come before objects. So the dump has all copies of a move that it has.
  - Buckets and access keys come after objects: they contain each change whose record was read as an object.
  - Delete markers come after objects: a version that was read as noncurrent, and has no newer version, has its marker
    by then, unless it became current meanwhile. Floors of version numbers come after both: the floor covers the number
    of each version or marker that was removed before it could be read.
  - The deletion queue comes after objects. The entry of a record in an OPEN landing segment is never removed. So a
    record in such a segment that neither belongs to an object nor is queued was written after the dump began. A segment
    may be sealed, and its entries removed, before the dump reads them. So the queue is read at the beginning as well.

9  one page of rows is in memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from nos_ec.core.formats.dump_format import DumpPage, PackedPage
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.states import ObjectState
from nos_ec.engine.dump import bucket_rows, journal, rows, upload_rows, version_rows
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.ports.metadata import Metadata, ObjectColumns, QueueEntry, Rebuilt, Segment

PAGE_ROWS = 2000
RANGE_PAGES = 5
PAGE_PARTS = 100_000
"""The most segments of large objects in a page: about 5 MB."""
READ_TRIES = 10
"""How often a large object is read until its row and its segments are of the same version."""

Tick = Callable[[int], None]
"""Takes the number of objects read so far."""


Ranges = Iterable[tuple[int, int]]
"""Ranges of ids of objects, in their order: each has the ids above its first number and up to its second one."""


def dump_pages(
    metadata: Metadata,
    tick: Tick = lambda _: None,
    objects: Callable[[Ranges], Iterator[PackedPage]] | None = None,
) -> Iterator[DumpPage | PackedPage]:
    """Yield all rows that a rebuild needs. It creates leases, totals and waiting entries anew. Raises Transient.

    `objects` returns the packed pages of `object_pages` for these ranges, in their order; None: this process reads
    them. The pages are the same either way, unless objects are deleted meanwhile."""
    for queued in _queued_pages(metadata):
        # Left out: reservations and copies in quarantine, which may be claimed or released before the dump ends.
        yield rows.deletions_page([entry for entry in queued if entry.object_id is not None])
    yield journal.number_page(metadata)
    yield from bucket_rows.move_pages(metadata)
    yield from upload_rows.upload_pages(metadata)
    for segments in segment_pages(metadata):
        yield rows.landing_segments_page(segments)
    after_block: BlockId | None = None
    while blocks := metadata.list_blocks(after_block, PAGE_ROWS):
        yield rows.blocks_page(blocks)
        after_block = blocks[-1].block_id
    done = 0
    for page in object_pages(metadata) if objects is None else objects(object_ranges(metadata)):
        yield page
        done += page.rows
        tick(done)
    yield from bucket_rows.bucket_pages(metadata)
    yield from bucket_rows.access_key_pages(metadata)
    yield from version_rows.marker_pages(metadata)
    yield from version_rows.floor_pages(metadata)
    for queued in _queued_pages(metadata):
        yield rows.deletions_page(queued)


def object_ranges(metadata: Metadata) -> Ranges:
    """Yield ranges that together have all objects. Each has RANGE_PAGES pages, except the last one. Raises
    Transient."""
    after = 0
    while (last := metadata.last_id_of_page(after, RANGE_PAGES * PAGE_ROWS)) is not None:
        yield after, last
        after = last


def object_pages(metadata: Metadata, after: int = 0, last: int | None = None) -> Iterator[DumpPage]:
    """Yield the objects whose ids are above `after` and at most `last` (None: all of these). Raises Transient."""
    while (last is None or after < last) and (ids := (page := _page_up_to(metadata, after, last)).object_id):
        small = page.without(ObjectState.LARGE)
        if small.object_id:
            yield rows.columns_page(small)
        if small is not page:
            for some in _split_page(_with_parts(metadata, sorted(set(ids).difference(small.object_id)))):
                yield rows.objects_page(some)
        after = ids[-1]


def _page_up_to(metadata: Metadata, after: int, last: int | None) -> ObjectColumns:
    page = metadata.columns_after(after, PAGE_ROWS)
    return page if last is None else page.up_to(last)


def _queued_pages(metadata: Metadata) -> Iterator[list[QueueEntry]]:
    after: LandingId | None = None
    while queued := metadata.deletions_after(after, PAGE_ROWS):
        yield queued
        after = queued[-1].landing_id


def _split_page(page: Sequence[Rebuilt]) -> Iterator[list[Rebuilt]]:
    """Yield the rows in pages of at most PAGE_PARTS segments, or of one object."""
    some: list[Rebuilt] = []
    parts = 0
    for one in page:
        if some and parts + len(one.parts) > PAGE_PARTS:
            yield some
            some, parts = [], 0
        some.append(one)
        parts += len(one.parts)
    if some:
        yield some


def _with_parts(metadata: Metadata, object_ids: Sequence[int]) -> list[Rebuilt]:
    """Return the rows of large objects with their segments. One that is overwritten or deleted meanwhile is read
    again."""
    found: list[Rebuilt] = []
    for _ in range(READ_TRIES):
        if not object_ids:
            break
        large = []
        for row in metadata.objects_with(object_ids).values():
            if row.state is ObjectState.LARGE:
                large.append(row)
            else:
                found.append(Rebuilt(row))
        parts = metadata.segments_of([row.object_id for row in large])
        again = []
        for row in large:
            own: list[Segment] = [part for version, part in parts.get(row.object_id, ()) if version == row.version]
            if own:
                found.append(Rebuilt(row, own))
            else:
                again.append(row.object_id)
        object_ids = again
    return found

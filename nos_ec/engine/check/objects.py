"""Checks rows of objects: their columns, the segments and tails of large objects, whether a look-up of their keys finds
them, whether the table of waiting objects has those that have landed, and whether all listed noncurrent versions have
objects. blocks.py compares rows with block headers.

Segments here are those of large objects, not of the landing log. What seems wrong is checked a second time, because an
operation may have been under way (second_look.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress

from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import TAILS_BUCKET, block_of_tail, is_tail, tail_place
from nos_ec.engine.check import uploads
from nos_ec.engine.check.second_look import SecondLook, compare_steadily
from nos_ec.engine.packable import combine_crc32c
from nos_ec.engine.texts import count_text
from nos_ec.ports.metadata import Metadata, ObjectColumns, ObjectRow, Segment

PAGE_ROWS = 1000
RANGE_PAGES = 10
_Listed = tuple[ObjectKey, int, int | None]
"""The key and version of a noncurrent version, and its object id (None: it is a delete marker)."""
_SegmentsById = Mapping[int, Sequence[tuple[int, Segment]]]
"""By object id, the segments of an object in order, each with the version that it belongs to."""


@dataclass(frozen=True, slots=True)
class PageLook:
    """What a look at a page of rows has found. objects: how many objects the page has, not counting tails. doubtful:
    the ids of the objects that seem wrong. unknown: blocks that the rows name, and that have no row."""

    objects: int
    doubtful: Sequence[int]
    unknown: Sequence[BlockId]


Ranges = Iterable[tuple[int, int]]
"""Ranges of ids of objects, in their order: each has the ids above its first number and up to its second one."""


class ObjectLook:
    """Looks at rows of objects, in the order of their ids. Several processes may look at a part of them each.

    read_manifest: returns the manifest of a composed object, as `uploads.manifest_of` does.
    """

    def __init__(self, metadata: Metadata, read_manifest: uploads.ReadManifest) -> None:
        self._metadata = metadata
        self._read_manifest = read_manifest

    def pages_between(self, after: int, last: int) -> Iterator[PageLook]:
        """Look at the rows whose ids are above `after` and at most `last`. Raises Transient."""
        while after < last and (ids := (page := self._metadata.columns_after(after, PAGE_ROWS).up_to(last)).object_id):
            yield self._look(page, after)
            after = ids[-1]

    def _look(self, page: ObjectColumns, after: int) -> PageLook:
        """Look at a page of rows, the first above the id `after`. Nearly all rows are ordinary, which the columns show;
        the others are read again as rows."""
        tails = sum(bucket.startswith(TAILS_BUCKET) for bucket in page.bucket)
        ids = self._unusual(page, after)
        rows = list(self._metadata.objects_with(ids).values())
        segments = self._segments_of_large(rows)
        checked = self._findings_of_rows(rows, segments) if rows else ()
        doubtful = sorted({row.object_id for row, found in checked if found})
        named = {block_id for block_id in page.block_id if block_id is not None}
        unknown = sorted(self._blocks_without_row(named, rows, segments))
        return PageLook(len(page.object_id) - tails, doubtful, unknown)

    def _unusual(self, page: ObjectColumns, after: int) -> Collection[int]:
        """Return the ids of all rows for which `_findings_of_rows` may find something, or that need more than columns:
        large, composed and noncurrent objects, and those of hidden buckets."""
        if not self._metadata.keys_lead_to(after, page.object_id[-1]):
            return page.object_id
        waiting = self._metadata.waiting_with({copy for copy in page.landing_id if copy is not None})
        unusual = page.uncommon()
        if any(page.is_noncurrent):
            unusual.update(compress(page.object_id, page.is_noncurrent))
        values = zip(page.object_id, page.state, page.size, page.version, page.landing_id, page.block_id, strict=True)
        for object_id, state, size, version, landing_id, block_id in values:
            if state is ObjectState.PACKED:
                is_right = size > 0 and block_id is not None
            elif state is ObjectState.EMPTY:
                is_right = size == 0
            else:
                is_right = size > 0 and landing_id in waiting
            if not is_right or version < 1:
                unusual.add(object_id)
        return unusual

    def check_object(self, object_id: int) -> list[Finding]:
        """Check one object. An object that keeps changing is in use, and yields no findings."""

        def compare(row: ObjectRow) -> Iterator[Finding]:
            for _, found in self._findings_of_rows([row], self._segments_of_large([row])):
                yield from found

        return (
            compare_steadily(_row_of(object_id, self._metadata), lambda: _row_of(object_id, self._metadata), compare)
            or []
        )

    def _segments_of_large(self, page: Sequence[ObjectRow]) -> _SegmentsById:
        """Return the segments of the large objects of a page, of all their versions."""
        return self._metadata.segments_of([row.object_id for row in page if row.state is ObjectState.LARGE])

    def _findings_of_rows(
        self, page: Sequence[ObjectRow], segments: _SegmentsById
    ) -> Iterator[tuple[ObjectRow, list[Finding]]]:
        """Yield each row of a page with what is wrong with it."""
        waiting = self._metadata.waiting_with([row.landing_id for row in page if row.landing_id is not None])
        by_key = self._metadata.rows_of([row.key for row in page if _is_current(row)])
        noncurrent = self._metadata.listed_as_noncurrent([row for row in page if row.is_noncurrent])
        uploads_by_id = uploads.uploads_of(page, self._metadata)
        tails = self._tails_of_large(page, segments)
        stray_tails = self._stray_tails(page)
        for row in page:
            found = [_finding(FindingKind.ROW_INVALID, row, error=error) for error in _column_errors(row)]
            if row.state is ObjectState.LARGE:
                errors = _segment_errors(row, _own_segments(row, segments), tails)
                found += [_finding(FindingKind.PARTS_WRONG, row, error=error) for error in errors]
            if row.key in stray_tails:
                found.append(_finding(FindingKind.TAIL_WITHOUT_BLOCK, row))
            if row.landing_id is not None and row.landing_id not in waiting:
                found.append(_finding(FindingKind.NOT_WAITING, row, landing=row.landing_id.hex()))
            if row.is_noncurrent and row.object_id not in noncurrent:
                found.append(_finding(FindingKind.KEY_NOT_FOUND, row, found="noncurrent, and not listed as such"))
            if _is_current(row) and _object_id(by_key.get(row.key)) != row.object_id:
                found.append(_finding(FindingKind.KEY_NOT_FOUND, row, found=_object_id(by_key.get(row.key))))
            wrong = uploads.composition_wrong(row, uploads_by_id, self._metadata, self._read_manifest)
            if wrong is not None:
                found.append(_finding(FindingKind.COMPOSITION_WRONG, row, error=wrong))
            if uploads.is_stray_part(row, uploads_by_id):
                found.append(_finding(FindingKind.PART_WITHOUT_UPLOAD, row))
            yield row, found

    def _tails_of_large(self, page: Sequence[ObjectRow], segments: _SegmentsById) -> dict[ObjectKey, ObjectRow]:
        """Return the rows of the tails of the large objects of a page, by the key of the tail."""
        places = [_tail_place(row, _own_segments(row, segments)) for row in page if row.state is ObjectState.LARGE]
        keys = [place[0] for place in places if place is not None]
        return self._metadata.rows_of(keys) if keys else {}

    def _stray_tails(self, page: Sequence[ObjectRow]) -> Collection[ObjectKey]:
        """Return the keys of the tails of a page whose block has no row. GC would never delete them."""
        tails = {row.key: block_of_tail(row.key) for row in page if is_tail(row.key)}
        known = self._metadata.blocks_known({block_id for block_id in tails.values() if block_id is not None})
        return {key for key, block_id in tails.items() if block_id not in known}

    def _blocks_without_row(
        self, named: Collection[BlockId], rows: Sequence[ObjectRow], segments: _SegmentsById
    ) -> Collection[BlockId]:
        """Return the blocks among those named, and among those of the segments of the rows, that have no row now."""
        of_segments = {segment.extent.block_id for row in rows for segment in _own_segments(row, segments)}
        of_segments.update(named)
        return of_segments - self._metadata.blocks_known(of_segments)


class ObjectCheck:
    """Checks all rows of objects.

    look_at: returns the pages that `ObjectLook.pages_between` yields for these ranges.
    check_unknown_block: called with each block that objects name and that has no row; returns its findings.
    """

    def __init__(
        self,
        metadata: Metadata,
        look: ObjectLook,
        look_at: Callable[[Ranges], Iterator[PageLook]],
        second_look: SecondLook,
        check_unknown_block: Callable[[BlockId], Iterable[Finding]],
    ) -> None:
        self._metadata = metadata
        self._look = look
        self._look_at = look_at
        self._second_look = second_look
        self._check_unknown_block = check_unknown_block
        self.objects = 0
        """How many objects were checked, not counting tails."""

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong. Raises Transient."""
        # 1. Rows, and the blocks and segments that they name.
        for page in self._look_at(self._ranges()):
            self.objects += page.objects
            for object_id in page.doubtful:
                yield from self._second_look.doubt(partial(self._look.check_object, object_id))
            for block_id in page.unknown:
                yield from self._check_unknown_block(block_id)
        # 2. Segments, and the rows that they belong to.
        after = 0
        while owners := self._metadata.owners_after(after, PAGE_ROWS):
            after = owners[-1]
            for object_id in self._with_stray_segments(owners):
                yield from self._second_look.doubt(partial(self._check_stray_segments, object_id))
        # 3. Noncurrent versions and uploads without an object.
        yield from _versions_without_object(self._metadata, self._second_look)
        yield from self._second_look.settle()
        for upload in uploads.uploads_without_object(self._metadata):
            yield Finding(
                FindingKind.UPLOAD_WITHOUT_OBJECT,
                f"upload {upload.upload_id.hex()} of {upload.key}",
                {"since_ms": upload.since_ms},
            )

    def _ranges(self) -> Ranges:
        after = 0
        while (last := self._metadata.last_id_of_page(after, RANGE_PAGES * PAGE_ROWS)) is not None:
            yield after, last
            after = last

    # --- segments without an object -------------------------------------------------------------------
    def _with_stray_segments(self, object_ids: Sequence[int]) -> list[int]:
        """Return the ids of the objects that have a segment of another version than their row has. A version and its
        segments are removed together. So if it is removed between the two statements, it is found here, but the second
        look finds neither."""
        segments = self._metadata.segments_of(object_ids)
        rows = self._metadata.objects_with(object_ids)
        return [
            object_id
            for object_id in sorted(segments)
            if any(version != _large_version(rows.get(object_id)) for version, _ in segments[object_id])
        ]

    def _check_stray_segments(self, object_id: int) -> Iterator[Finding]:
        """Yield a finding for each version that has segments but no row. Yields nothing if the row changes
        meanwhile."""
        if not self._with_stray_segments([object_id]):
            return
        row = _row_of(object_id, self._metadata)
        segments = self._metadata.segments_of([object_id]).get(object_id, [])
        if row != _row_of(object_id, self._metadata):
            return
        for version in sorted({version for version, _ in segments} - {_large_version(row)}):
            extents = [segment.extent for of_version, segment in segments if of_version == version]
            yield Finding(
                FindingKind.PARTS_WITHOUT_OBJECT,
                f"segments of object {object_id}, version {version}",
                {
                    "key": None if row is None else str(row.key),
                    "bytes": sum(extent.length for extent in extents),
                    "blocks": sorted({extent.block_id.hex() for extent in extents}),
                },
            )


def _row_of(object_id: int, metadata: Metadata) -> ObjectRow | None:
    return metadata.objects_with([object_id]).get(object_id)


def _is_current(row: ObjectRow) -> bool:
    return row.trash_until_ms is None and not row.is_noncurrent


def _object_id(row: ObjectRow | None) -> int | None:
    return None if row is None else row.object_id


def _large_version(row: ObjectRow | None) -> int | None:
    """Return the version of a large object, the only one that may have segments; None for any other row."""
    return row.version if row is not None and row.state is ObjectState.LARGE else None


def _own_segments(row: ObjectRow, segments: _SegmentsById) -> list[Segment]:
    """Return the segments of this version of the object."""
    return [segment for version, segment in segments.get(row.object_id, ()) if version == row.version]


def _finding(kind: FindingKind, row: ObjectRow, **evidence: object) -> Finding:
    seen = {"state": row.state.value, "version": row.version, "size": row.size, "crc32c": row.crc32c}
    return Finding(kind, f"object {row.key}", seen | {"object_id": row.object_id} | evidence)


def _column_errors(row: ObjectRow) -> Iterable[str]:
    """Yield what contradicts itself in the columns of a row."""
    if row.state.in_landing and row.landing_id is None:
        yield f"a {row.state.value} object without a landing copy"
    if row.state is ObjectState.PACKED and row.extent is None:
        yield "a packed object without a place in a block"
    if (row.state is ObjectState.EMPTY) != (row.size == 0):
        yield f"a {row.state.value} object of {row.size} bytes"
    if row.size < 0 or row.version < 1:
        yield f"size {row.size}, version {row.version}"


def _tail_place(row: ObjectRow, segments: Sequence[Segment]) -> tuple[ObjectKey, int] | None:
    return tail_place(row.size, [(segment.extent.block_id, segment.extent.length) for segment in segments])


def _segment_errors(row: ObjectRow, segments: Sequence[Segment], tails: Mapping[ObjectKey, ObjectRow]) -> Iterable[str]:
    """Yield an error unless the segments of a large object and its tail together have its size and its CRC32C."""
    size = sum(segment.extent.length for segment in segments)
    place = _tail_place(row, segments)
    tail = None if place is None else tails.get(place[0])
    pieces = count_text(len(segments), "segment") + ("" if tail is None else " and a tail")
    size += 0 if tail is None else tail.size
    if size != row.size or any(segment.extent.length < 0 for segment in segments):
        yield f"{pieces} of {count_text(size, 'byte')} in all"
        return
    crc32c = 0
    for segment in segments:
        crc32c = combine_crc32c(crc32c, segment.crc32c, segment.extent.length)
    if tail is not None:
        crc32c = combine_crc32c(crc32c, tail.crc32c, tail.size)
    if crc32c != row.crc32c:
        yield f"the CRC32Cs of {pieces}, combined in order, give {crc32c}"


def _versions_without_object(metadata: Metadata, second: SecondLook) -> Iterator[Finding]:
    """Yield the noncurrent versions without an object. Raises Transient."""
    after: tuple[ObjectKey, int] | None = None
    while page := metadata.noncurrent_after(after, PAGE_ROWS):
        after = page[-1][0], page[-1][1]
        for one in _wrong_versions(page, metadata):
            yield from second.doubt(partial(_wrong_version, one, metadata))


def _wrong_versions(page: Sequence[_Listed], metadata: Metadata) -> list[_Listed]:
    ids = [object_id for *_, object_id in page if object_id is not None]
    rows = metadata.objects_with(ids)
    return [one for one in page if one[2] is not None and not _is_version(one, rows.get(one[2]))]


def _is_version(listed: _Listed, row: ObjectRow | None) -> bool:
    return row is not None and row.is_noncurrent and (row.key, row.version) == listed[:2]


def _wrong_version(listed: _Listed, metadata: Metadata) -> Iterator[Finding]:
    """Report a version that is still listed, and still has no object."""
    key, version, object_id = listed
    if listed not in metadata.noncurrent_after((key, version + 1), 1):
        return
    if _wrong_versions([listed], metadata):
        yield Finding(FindingKind.VERSION_WITHOUT_OBJECT, f"version {version} of {key}", {"object_id": object_id})

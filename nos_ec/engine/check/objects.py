"""Checks rows of objects: their columns, the segments and tails of large objects, whether their keys lead to them, and
whether the table of waiting objects has the landed ones. blocks.py compares the contents of blocks with headers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from anycrc import Model

from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import block_of_tail, is_tail, tail_place
from nos_ec.engine.check import uploads, versions
from nos_ec.engine.check.second_look import SecondLook, compare_steadily
from nos_ec.ports.metadata import Metadata, ObjectRow, Segment

_CRC32C = Model("CRC32C")
PAGE_ROWS = 1000


class ObjectCheck:
    """Checks all rows of objects, in the order of their ids. `unknown` is called with each block that objects name and
    that has no row, and returns its findings. `read` returns a manifest: see `uploads.manifest_of`."""

    def __init__(
        self,
        metadata: Metadata,
        second: SecondLook,
        unknown: Callable[[BlockId], Iterable[Finding]],
        read: uploads.ReadManifest,
    ) -> None:
        self._metadata = metadata
        self._read = read
        self._second = second
        self._unknown = unknown
        self.objects = 0

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong. Raises Transient."""
        after = 0
        while page := self._metadata.objects_after(after, PAGE_ROWS):
            after = page[-1].object_id
            self.objects += sum(not is_tail(row.key) for row in page)
            parts = self._parts(page)
            doubtful = self._look(page, parts)
            for object_id in sorted({row.object_id for row, found in doubtful if found}):
                yield from self._second.doubt(partial(self._again, object_id))
            for block_id in sorted(self._without_row(page, parts)):
                yield from self._unknown(block_id)
        after = 0
        while owners := self._metadata.owners_after(after, PAGE_ROWS):
            after = owners[-1]
            for object_id in self._stray(owners):
                yield from self._second.doubt(partial(self._strays, object_id))
        yield from versions.without_object(self._metadata, self._second)
        yield from self._second.settle()
        for upload in uploads.uploads_without_object(self._metadata):
            yield Finding(
                FindingKind.UPLOAD_WITHOUT_OBJECT,
                f"upload {upload.upload_id.hex()} of {upload.key}",
                {"since_ms": upload.since_ms},
            )

    # --- rows -----------------------------------------------------------------------------------------
    def _again(self, object_id: int) -> list[Finding]:
        """Compare one object again. An object that keeps changing is in use."""

        def compare(row: ObjectRow) -> Iterator[Finding]:
            for _, found in self._look([row], self._parts([row])):
                yield from found

        return compare_steadily(self._row(object_id), lambda: self._row(object_id), compare) or []

    def _row(self, object_id: int) -> ObjectRow | None:
        return self._metadata.objects_with([object_id]).get(object_id)

    def _parts(self, page: Sequence[ObjectRow]) -> dict[int, list[tuple[int, Segment]]]:
        return self._metadata.segments_of([row.object_id for row in page if row.state is ObjectState.LARGE])

    def _look(
        self, page: Sequence[ObjectRow], parts: dict[int, list[tuple[int, Segment]]]
    ) -> Iterator[tuple[ObjectRow, list[Finding]]]:
        waiting = self._metadata.waiting_with([row.landing_id for row in page if row.landing_id is not None])
        by_key = self._metadata.rows_of([row.key for row in page if _is_current(row)])
        noncurrent = self._metadata.listed_as_noncurrent([row for row in page if row.is_noncurrent])
        known = uploads.uploads_of(page, self._metadata)
        tails = self._tails(page, parts)
        stray = self._stray_tails(page)
        for row in page:
            found = [_finding(FindingKind.ROW_INVALID, row, error=error) for error in _contradictions(row)]
            if row.state is ObjectState.LARGE:
                gaps = _gaps(row, _own(row, parts), tails)
                found += [_finding(FindingKind.PARTS_WRONG, row, error=error) for error in gaps]
            if row.key in stray:
                found.append(_finding(FindingKind.TAIL_WITHOUT_BLOCK, row))
            if row.landing_id is not None and row.landing_id not in waiting:
                found.append(_finding(FindingKind.NOT_WAITING, row, landing=row.landing_id.hex()))
            if row.is_noncurrent and row.object_id not in noncurrent:
                found.append(_finding(FindingKind.KEY_NOT_FOUND, row, found="noncurrent, and not listed as such"))
            if _is_current(row) and _id_of(by_key.get(row.key)) != row.object_id:
                found.append(_finding(FindingKind.KEY_NOT_FOUND, row, found=_id_of(by_key.get(row.key))))
            wrong = uploads.composition_wrong(row, known, self._metadata, self._read)
            if wrong is not None:
                found.append(_finding(FindingKind.COMPOSITION_WRONG, row, error=wrong))
            if uploads.is_stray_part(row, known):
                found.append(_finding(FindingKind.PART_WITHOUT_UPLOAD, row))
            yield row, found

    def _tails(
        self, page: Sequence[ObjectRow], parts: dict[int, list[tuple[int, Segment]]]
    ) -> dict[ObjectKey, ObjectRow]:
        """Return the rows of the tails of the large objects of a page."""
        places = [_tail_place(row, _own(row, parts)) for row in page if row.state is ObjectState.LARGE]
        keys = [place[0] for place in places if place is not None]
        return self._metadata.rows_of(keys) if keys else {}

    def _stray_tails(self, page: Sequence[ObjectRow]) -> Collection[ObjectKey]:
        """Return the tails of a page whose block has no row: they would never be deleted."""
        tails = {row.key: block_of_tail(row.key) for row in page if is_tail(row.key)}
        known = self._metadata.blocks_known({block_id for block_id in tails.values() if block_id is not None})
        return {key for key, block_id in tails.items() if block_id not in known}

    def _without_row(
        self, page: Sequence[ObjectRow], parts: dict[int, list[tuple[int, Segment]]]
    ) -> Collection[BlockId]:
        """Return the blocks that a page names and that have no row now."""
        named = {row.extent.block_id for row in page if row.extent is not None}
        named |= {part.extent.block_id for row in page for part in _own(row, parts)}
        return named - self._metadata.blocks_known(named)

    # --- segments without an object -------------------------------------------------------------------
    def _stray(self, object_ids: Sequence[int]) -> list[int]:
        """Return the objects that have a segment of another version than their row. A version and its segments are
        removed together: if the row is gone when it is read, a second look does not find the segments either."""
        parts = self._metadata.segments_of(object_ids)
        rows = self._metadata.objects_with(object_ids)
        return [one for one in sorted(parts) if any(version != _large(rows.get(one)) for version, _ in parts[one])]

    def _strays(self, object_id: int) -> Iterator[Finding]:
        if not self._stray([object_id]):
            return
        row = self._row(object_id)
        parts = self._metadata.segments_of([object_id]).get(object_id, [])
        if row != self._row(object_id):
            return
        for version in sorted({version for version, _ in parts} - {_large(row)}):
            own = [part.extent for of_version, part in parts if of_version == version]
            seen = {"key": None if row is None else str(row.key), "bytes": sum(part.length for part in own)}
            blocks = sorted({part.block_id.hex() for part in own})
            yield Finding(
                FindingKind.PARTS_WITHOUT_OBJECT,
                f"segments of object {object_id}, version {version}",
                seen | {"blocks": blocks},
            )


def _is_current(row: ObjectRow) -> bool:
    return row.trash_until_ms is None and not row.is_noncurrent


def _id_of(row: ObjectRow | None) -> int | None:
    return None if row is None else row.object_id


def _large(row: ObjectRow | None) -> int | None:
    """Return the version that may have segments."""
    return row.version if row is not None and row.state is ObjectState.LARGE else None


def _own(row: ObjectRow, parts: dict[int, list[tuple[int, Segment]]]) -> list[Segment]:
    return [segment for version, segment in parts.get(row.object_id, ()) if version == row.version]


def _finding(kind: FindingKind, row: ObjectRow, **evidence: object) -> Finding:
    seen = {"state": row.state.value, "version": row.version, "size": row.size, "crc32c": row.crc32c}
    return Finding(kind, f"object {row.key}", seen | {"object_id": row.object_id} | evidence)


def _contradictions(row: ObjectRow) -> Iterable[str]:
    if row.state.in_landing and row.landing_id is None:
        yield f"a {row.state.value} object without a landing copy"
    if row.state is ObjectState.PACKED and row.extent is None:
        yield "a packed object without a place in a block"
    if (row.state is ObjectState.EMPTY) != (row.size == 0):
        yield f"a {row.state.value} object of {row.size} bytes"
    if row.size < 0 or row.version < 1:
        yield f"size {row.size}, version {row.version}"


def _tail_place(row: ObjectRow, parts: Sequence[Segment]) -> tuple[ObjectKey, int] | None:
    return tail_place(row.size, [(part.extent.block_id, part.extent.length) for part in parts])


def _gaps(row: ObjectRow, parts: Sequence[Segment], tails: Mapping[ObjectKey, ObjectRow]) -> Iterable[str]:
    size = sum(part.extent.length for part in parts)
    place = _tail_place(row, parts)
    tail = None if place is None else tails.get(place[0])
    what = f"{len(parts)} segments" if tail is None else f"{len(parts)} segments and a tail"
    size += 0 if tail is None else tail.size
    if size != row.size or any(part.extent.length < 0 for part in parts):
        yield f"{what} of {size} bytes in all"
        return
    crc32c = 0
    for part in parts:
        crc32c = _CRC32C.combine(crc32c, part.crc32c, part.extent.length)
    if tail is not None:
        crc32c = _CRC32C.combine(crc32c, tail.crc32c, tail.size)
    if crc32c != row.crc32c:
        yield f"the CRC32Cs of {what} make {crc32c} in their order"

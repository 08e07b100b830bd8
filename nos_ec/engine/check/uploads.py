"""Checks the rows of composed objects and of their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.parts import (
    Composition,
    Manifest,
    ManifestPart,
    UploadId,
    is_parts_bucket,
    part_number,
    parts_bucket,
    parts_prefix,
    upload_of_part,
)
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.engine.objects.composed import manifest_in, part_of
from nos_ec.engine.packable import combine_crc32c
from nos_ec.engine.texts import count_text
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import Metadata, ObjectRow, TrashMark, UploadRow, UploadState

PAGE_PARTS = 1000
ReadManifest = Callable[[ObjectRow], Manifest | None]
"""Returns the manifest of a composed object, as `manifest_of` does."""


def uploads_of(page: Sequence[ObjectRow], metadata: Metadata) -> dict[UploadId, UploadRow]:
    """Return the rows of the uploads that these objects are composed of or belong to. Runs at most one statement."""
    ids = [found for row in page if (found := _upload_of(row)) is not None]
    return metadata.uploads_by_id(ids) if ids else {}


def composition_wrong(
    row: ObjectRow, uploads: Mapping[UploadId, UploadRow], metadata: Metadata, read: ReadManifest
) -> str | None:
    """Return what is wrong with the parts of a composed object; None if they are right or the object is not composed.
    The manifest is read only if the parts that exist differ from those that the attributes of the object describe."""
    try:
        composition = row.composition
    except Corrupt as error:
        return str(error)
    if composition is None:
        return None
    upload = uploads.get(composition.upload_id)
    if upload is None or upload.state is not UploadState.COMPLETED:
        state = "has no row" if upload is None else f"is {upload.state.value}"
        return f"its upload {composition.upload_id.hex()} {state}"
    there = _there(row, composition, metadata)
    count, size = len(there), sum(part.size for part in there)
    if count < composition.parts or size < composition.size:
        found = f"{count_text(count, 'part')} of {count_text(size, 'byte')}"
        return f"of {composition.parts} parts of {composition.size} bytes in all, only {found} can be found"
    if (count, size, _joined(there)) == (composition.parts, composition.size, composition.crc32c):
        return None
    # Parts that were left out of the object still exist for a while; they must not hide a lost part.
    manifest = read(row)
    lost = [] if manifest is None else sorted(set(manifest.parts) - set(there), key=lambda part: part.number)
    if not lost:
        return None
    return f"{len(lost)} of {composition.parts} parts are missing or differ: the first is part {lost[0].number}"


def manifest_of(row: ObjectRow, blocks: BlockStore, landing: LandingStore) -> Manifest | None:
    """Read the manifest of a composed object from the location in its row. Returns None if it is missing or damaged,
    which other findings report, and for an object with blocks of its own. Raises Transient."""
    composition = row.composition
    try:
        if row.extent is not None:
            data = blocks.read(row.extent.block_id, row.extent.offset, row.extent.length)
        elif row.landing_id is not None:
            data = landing.read_range(row.landing_id, 0, row.size)
        else:
            return None
        return None if composition is None else manifest_in(data, row, composition)
    except (Corrupt, NotFound):
        return None


def is_stray_part(row: ObjectRow, uploads: Mapping[UploadId, UploadRow]) -> bool:
    """Return whether the object is a part of an upload that has no row."""
    return is_parts_bucket(row.key.bucket) and _upload_of(row) not in uploads


def uploads_without_object(metadata: Metadata) -> Iterator[UploadRow]:
    """Yield the COMPLETED uploads whose parts belong to no version of an object, including versions in the trash.
    Searches the trash once for each page that has uploads without a current or noncurrent version."""
    after: UploadId | None = None
    while page := metadata.uploads_after(after, PAGE_PARTS):
        after = page[-1].upload_id
        left = {row.upload_id: row for row in page if row.state is UploadState.COMPLETED}
        current = metadata.rows_of([row.key for row in left.values()]) if left else {}
        _drop(left, current.values())
        _drop_noncurrent(left, metadata)
        before: TrashMark | None = None
        while left:
            trashed = metadata.trash_page(before, PAGE_PARTS)
            _drop(left, trashed.rows)
            before = trashed.before
            if before is None:
                break
        still = metadata.uploads_by_id(list(left)) if left else {}
        yield from (row for row in still.values() if row == left[row.upload_id])


def _drop_noncurrent(left: dict[UploadId, UploadRow], metadata: Metadata) -> None:
    for key in {row.key for row in left.values()}:
        for rows in noncurrent_of(key, metadata):
            _drop(left, rows)
            if all(row.key != key for row in left.values()):
                break


def _drop(uploads: dict[UploadId, UploadRow], rows: Iterable[ObjectRow]) -> None:
    """Remove the uploads that these objects are composed of from the dict."""
    for row in rows:
        upload_id = _upload_of(row)
        if upload_id is not None:
            uploads.pop(upload_id, None)


def _there(row: ObjectRow, composition: Composition, metadata: Metadata) -> list[ManifestPart]:
    """Return the existing parts of an upload, in order of their numbers. They include parts that were left out of the
    object."""
    found: list[ManifestPart] = []
    after, prefix = "", parts_prefix(composition.upload_id)
    while page := metadata.list_objects(parts_bucket(row.key.bucket), prefix, after, PAGE_PARTS):
        after = page[-1].key.name
        found += map(_part_of, page)
    return found


def _part_of(row: ObjectRow) -> ManifestPart:
    try:
        return part_of(row)
    except Corrupt:  # it differs from any part of a manifest of encrypted ones
        return ManifestPart(part_number(row.key), row.size, row.crc32c)


def _joined(parts: Iterable[ManifestPart]) -> int:
    crc32c = 0
    for part in parts:
        crc32c = combine_crc32c(crc32c, part.crc32c, part.size)
    return crc32c


def _upload_of(row: ObjectRow) -> UploadId | None:
    """Return the upload that an object is composed of, or is a part of; None if there is none."""
    if is_parts_bucket(row.key.bucket):
        return upload_of_part(row.key)
    try:
        composition = row.composition
    except Corrupt:
        return None
    return None if composition is None else composition.upload_id

"""Checks the rows of objects that are composed of parts, and of the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nos_ec.core.errors import Corrupt
from nos_ec.core.parts import Composition, UploadId, is_parts_bucket, parts_bucket, parts_prefix
from nos_ec.ports.metadata import Metadata, ObjectRow, UploadRow, UploadState

PAGE_PARTS = 1000


def uploads_of(page: Sequence[ObjectRow], metadata: Metadata) -> dict[UploadId, UploadRow]:
    """The rows of all uploads that these objects are composed of, or are parts of. One statement, or none."""
    ids = [found for row in page if (found := _upload_of(row)) is not None]
    return metadata.uploads_with(ids) if ids else {}


def composition_wrong(row: ObjectRow, uploads: Mapping[UploadId, UploadRow], metadata: Metadata) -> str | None:
    """What is wrong with the parts of a composed object; None for nothing, and for one that is not composed."""
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
    count, size = _there(row, composition, metadata)
    if count < composition.parts or size < composition.size:
        return f"{count} parts of {size} bytes are there, of {composition.parts} parts of {composition.size} bytes"
    return None


def is_stray_part(row: ObjectRow, uploads: Mapping[UploadId, UploadRow]) -> bool:
    """Whether it is a part of an upload that has no row."""
    return is_parts_bucket(row.key.bucket) and _upload_of(row) not in uploads


def _there(row: ObjectRow, composition: Composition, metadata: Metadata) -> tuple[int, int]:
    """Parts of an upload that are there, and their bytes. Parts that were left out may be among them for a moment."""
    count = size = 0
    after, prefix = "", parts_prefix(composition.upload_id)
    while page := metadata.list_objects(parts_bucket(row.key.bucket), prefix, after, PAGE_PARTS):
        after = page[-1].key.name
        count += len(page)
        size += sum(part.size for part in page)
    return count, size


def _upload_of(row: ObjectRow) -> UploadId | None:
    """The upload that an object is composed of, or is a part of."""
    if is_parts_bucket(row.key.bucket):
        try:
            return UploadId(bytes.fromhex(row.key.name.partition("/")[0]))
        except ValueError:
            return None
    try:
        composition = row.composition
    except Corrupt:
        return None
    return None if composition is None else composition.upload_id

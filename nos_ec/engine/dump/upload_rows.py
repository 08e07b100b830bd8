"""Converts uploads to pages of a dump and back, and restores their states in a rebuild.

The dump may be older than the contents of the store. So an upload is COMPLETED if an object is composed of it, and
parts without an upload are kept for a week.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.formats.dump_format import DumpPage
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import (
    PARTS_BUCKET,
    Composition,
    Manifest,
    UploadId,
    part_key,
    parts_bucket,
    parts_prefix,
    upload_of_part,
)
from nos_ec.engine.dump.rebuild_input import RebuildInput, batches
from nos_ec.engine.dump.rows import rows_page, word
from nos_ec.engine.objects.composed import manifest_in
from nos_ec.ports.metadata import Metadata, ObjectRow, UploadRow, Uploads, UploadState

UPLOADS = "uploads"
PAGE_ROWS = 500
REPLACED_AT_A_TIME = 100_000
"""Replaced parts in memory at a time. All rows are read for each batch of them."""
KEPT_MS = 7 * 86_400_000
"""How long parts to which nothing refers are kept after a rebuild, in milliseconds."""


def upload_pages(metadata: Uploads) -> Iterator[DumpPage]:
    """Yield all uploads. Raises Transient."""
    after: UploadId | None = None
    while page := metadata.uploads_after(after, PAGE_ROWS):
        names = ("upload_id", "key.bucket", "key.name", "state.value", "since_ms", "revision", "owner", "attributes")
        yield rows_page(UPLOADS, page, *names)
        after = page[-1].upload_id


def uploads_of(page: DumpPage) -> Iterator[UploadRow]:
    """Yield the uploads of such a page. Raises Corrupt."""
    columns = page.tuples(
        upload_id=..., bucket=..., name=..., state=..., since_ms=..., revision=0, owner="", attributes=b""
    )
    for upload_id, bucket, name, state, since_ms, revision, owner, attributes in columns:
        key = ObjectKey(bucket, name)
        yield UploadRow(UploadId(upload_id), key, word(UploadState, state), since_ms, revision, owner, attributes)


def load_page(page: DumpPage, metadata: Uploads) -> None:
    """Load a page of uploads; ignore any other page. Running it again changes nothing. Raises Corrupt, Transient."""
    if page.table == UPLOADS:
        metadata.restore_uploads(list(uploads_of(page)))


def complete_uploads_of(page: Sequence[ObjectRow], metadata: Metadata, now_ms: int) -> None:
    """Make the uploads of the composed objects among these COMPLETED since `now_ms`. Raises Transient."""
    found: dict[UploadId, ObjectRow] = {}
    for row in page:
        try:
            composition = row.composition
        except Corrupt:
            continue
        if composition is not None:
            found[composition.upload_id] = row
    metadata.restore_uploads(
        [UploadRow(upload_id, row.key, UploadState.COMPLETED, now_ms) for upload_id, row in found.items()]
    )


def choose_parts(stores: RebuildInput, exchange: Callable[[ObjectRow | None, ObjectRow], ObjectRow | None]) -> None:
    """Give each composed object the parts that its manifest lists: if the current version of a part has another size or
    CRC32C, exchange it for a version in the trash that fits, if there is one. The greater version number does not
    decide for a part: it may belong to a PUT that came too late, or to one whose clock was ahead. The trash times are
    not settled yet.

    Manifests in the trash are followed first, so that the manifest of the current object decides in the end.

    `exchange` takes the current version of a part and the version to replace it with, and returns the row that the
    former gets in the trash. Raises Transient."""
    rows = chain.from_iterable(stores.uncommon_objects())
    replaced = (row for row in rows if row.trash_until_ms is not None and upload_of_part(row.key) is not None)
    for some in batches(replaced, REPLACED_AT_A_TIME):
        others: dict[ObjectKey, list[ObjectRow]] = {}
        for row in sorted(some, key=lambda row: row.version, reverse=True):
            others.setdefault(row.key, []).append(row)
        uploads = {upload_of_part(key) for key in others}
        for in_trash in (True, False):
            for row in chain.from_iterable(stores.uncommon_objects()):
                if (row.trash_until_ms is not None) is not in_trash:
                    continue
                with suppress(Corrupt, NotFound):
                    composition = row.composition
                    if composition is not None and composition.upload_id in uploads:
                        manifest = manifest_in(stores.bytes_of(row), row, composition)
                        _choose_of(row.key.bucket, manifest, others, stores.metadata, exchange)


def _choose_of(
    bucket: str,
    manifest: Manifest,
    others: Mapping[ObjectKey, list[ObjectRow]],
    metadata: Metadata,
    exchange: Callable[[ObjectRow | None, ObjectRow], ObjectRow | None],
) -> None:
    listed = {part_key(bucket, manifest.upload_id, part.number): part for part in manifest.parts}
    keys = listed.keys() & others.keys()
    current = metadata.rows_of(keys)
    for key in keys:
        wanted, row = (listed[key].size, listed[key].crc32c), current.get(key)
        chosen = next((one for one in (row, *others[key]) if one and (one.size, one.crc32c) == wanted), None)
        if chosen is not None and chosen is not row:
            trashed = exchange(row, chosen)
            others[key].remove(chosen)
            others[key] += [] if trashed is None else [trashed]


def missing_empty_parts(
    page: Sequence[ObjectRow], metadata: Metadata, read: Callable[[ObjectRow], bytes]
) -> dict[ObjectKey, ObjectRow]:
    """Return the keys of empty parts that have no row, each with the composed object among these whose manifest lists
    it. Only the manifest records such a part. `read` returns the bytes of an object. Manifests that cannot be read are
    skipped. Raises Transient."""
    missing: dict[ObjectKey, ObjectRow] = {}
    for row in page:
        with suppress(Corrupt, NotFound):
            composition = row.composition
            if composition is None or _has_all_parts(row.key.bucket, composition, metadata):
                continue
            empty = [part for part in manifest_in(read(row), row, composition).parts if not part.size]
            keys = [part_key(row.key.bucket, composition.upload_id, part.number) for part in empty]
            there = metadata.rows_of(keys)
            missing |= {key: row for key in keys if key not in there}
    return missing


def _has_all_parts(bucket: str, composition: Composition, metadata: Metadata) -> bool:
    prefix = parts_prefix(composition.upload_id)
    names = metadata.list_names(parts_bucket(bucket), prefix, "", composition.parts)
    return len(names) >= composition.parts


def doom_uploads_without_object(metadata: Metadata, now_ms: int) -> None:
    """Doom the uploads that are COMPLETED, but not since `now_ms`: no object is composed of them. Raises Transient."""
    after: UploadId | None = None
    while page := metadata.uploads_after(after, PAGE_ROWS):
        after = page[-1].upload_id
        gone = [row for row in page if row.state is UploadState.COMPLETED and row.since_ms != now_ms]
        metadata.restore_uploads([replace(row, state=UploadState.DOOMED, since_ms=now_ms + KEPT_MS) for row in gone])


def doom_parts_without_upload(page: Sequence[ObjectRow], metadata: Metadata, now_ms: int) -> None:
    """Write a DOOMED upload for each part among these whose upload has no row. Raises Transient."""
    found: dict[UploadId, str] = {}
    for row in page:
        upload_id = upload_of_part(row.key)
        if upload_id is not None:
            found[upload_id] = row.key.bucket.removeprefix(PARTS_BUCKET)
    known = metadata.uploads_by_id(list(found))
    metadata.restore_uploads(
        [
            UploadRow(upload_id, ObjectKey(bucket, upload_id.hex()), UploadState.DOOMED, now_ms + KEPT_MS)
            for upload_id, bucket in found.items()
            if upload_id not in known
        ]
    )

"""The parts of the port that gateways and operators' commands use, method by method, each one transaction: buckets,
access keys, uploads, versions, inspection, repairs, explanations, scrubbing, rebuilding. metadata.py has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nos_ec.adapters.sql.buckets import access_keys, bucket_rows
from nos_ec.adapters.sql.objects import floors, uploads, versions
from nos_ec.adapters.sql.objects.entries import end_of
from nos_ec.adapters.sql.operator import explanations, inspection, notes, rebuilding, repairs, scrubbing
from nos_ec.adapters.sql.tables.base import SqlPart
from nos_ec.core.errors import NosError
from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.core.parts import UploadId
from nos_ec.ports.metadata import (
    AccessKey,
    AccessOf,
    BlockFacts,
    BlockRow,
    BucketRecord,
    BucketRow,
    CannedAcl,
    DocumentKind,
    KeyState,
    MarkerRow,
    ObjectFacts,
    ObjectRow,
    QueueEntry,
    Rebuilt,
    Rights,
    ScrubState,
    Segment,
    SegmentRow,
    UploadRow,
    VersionDeletion,
    VersionEntry,
    VersionPage,
    WaitingRow,
)


class SqlBuckets(SqlPart):
    """`Buckets` and `AccessChanges` of the port."""

    def on_access_changed(self, call: Callable[[AccessOf, str], object]) -> None:
        """See the port."""
        self._access_changed = call

    def create_bucket(self, name: str, owner: str, acl: CannedAcl, now_ms: int) -> bool:
        """See the port."""
        done = self._write(bucket_rows.create, name, owner, acl, now_ms)
        self._access_changed(AccessOf.BUCKET, name)
        return done

    def bucket(self, name: str) -> BucketRow | None:
        """See the port."""
        return self._read(bucket_rows.find, name)

    def delete_bucket(self, name: str, now_ms: int) -> bool:
        """See the port."""
        done = self._write(bucket_rows.remove, name, now_ms)
        self._access_changed(AccessOf.BUCKET, name)
        return done

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """See the port."""
        return self._read(bucket_rows.owned, owner, after, limit)

    def set_bucket_owner(self, name: str, owner: str, now_ms: int) -> bool:
        """See the port."""
        done = self._write(bucket_rows.set_owner, name, owner, now_ms)
        self._access_changed(AccessOf.BUCKET, name)
        return done

    def set_bucket_acl(self, name: str, acl: CannedAcl, now_ms: int, grants: bytes | None = None) -> bool:
        """See the port."""
        done = self._write(bucket_rows.set_acl, name, acl, now_ms, grants)
        self._access_changed(AccessOf.BUCKET, name)
        return done

    def bucket_document(self, name: str, kind: DocumentKind) -> bytes | None:
        """See the port."""
        return self._read(bucket_rows.document, name, kind)

    def bucket_documents(self, name: str, kinds: Collection[DocumentKind]) -> dict[DocumentKind, bytes]:
        """See the port."""
        return self._read(bucket_rows.documents, name, kinds)

    def set_bucket_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> bool:
        """See the port."""
        done = self._write(bucket_rows.set_document, name, kind, body, now_ms)
        self._access_changed(AccessOf.BUCKET, name)
        return done

    def documents_of(self, kind: DocumentKind, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See the port."""
        return self._read(bucket_rows.documents_of, kind, after, limit)

    def grant(self, name: str, account: str, rights: Rights, now_ms: int) -> bool:
        """See the port."""
        done = self._write(bucket_rows.grant, name, account, rights, now_ms)
        self._access_changed(AccessOf.BUCKET, name)
        return done

    def grants(self, name: str) -> dict[str, Rights]:
        """See the port."""
        return self._read(bucket_rows.grants, name)

    def bucket_records(self, after: str, limit: int) -> list[BucketRecord]:
        """See the port."""
        return self._read(bucket_rows.records, after, limit)

    def restore_buckets(self, records: Sequence[BucketRecord]) -> None:
        """See the port."""
        if records:
            self._write(bucket_rows.restore, records)


class SqlAccessKeys(SqlPart):
    """`AccessKeys` of the port."""

    def add_access_key(self, key: AccessKey) -> None:
        """See the port."""
        self._write(access_keys.add, key)
        self._access_changed(AccessOf.KEY, key.access_key)

    def access_key(self, access_key: str) -> AccessKey | None:
        """See the port."""
        return self._read(access_keys.find, access_key)

    def access_keys(self, after: str, limit: int) -> list[AccessKey]:
        """See the port."""
        return self._read(access_keys.page, after, limit)

    def change_access_key(self, access_key: str, state: KeyState, secret: bytes | None = None) -> bool:
        """See the port."""
        done = self._write(access_keys.change, access_key, state, secret)
        self._access_changed(AccessOf.KEY, access_key)
        return done

    def remove_access_key(self, access_key: str) -> bool:
        """See the port."""
        done = self._write(access_keys.remove, access_key)
        self._access_changed(AccessOf.KEY, access_key)
        return done


class SqlUploads(SqlPart):
    """`Uploads` of the port."""

    def create_upload(self, new: UploadRow) -> None:
        """See the port."""
        self._write(uploads.create, new)

    def upload(self, upload_id: UploadId) -> UploadRow | None:
        """See the port."""
        return self._read(uploads.find, upload_id)

    def list_uploads(self, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int) -> list[UploadRow]:
        """See the port."""
        return self._read(uploads.in_bucket, bucket, prefix, after, limit)

    def abort_upload(self, upload_id: UploadId, now_ms: int) -> bool:
        """See the port."""
        return self._write(uploads.abort, upload_id, now_ms)

    def abort_uploads(self, bucket: str, limit: int, now_ms: int) -> int:
        """See the port."""
        return self._write(uploads.abort_in, bucket, limit, now_ms)

    def old_uploads(self, before_ms: int, limit: int) -> list[UploadRow]:
        """See the port."""
        return self._read(uploads.old, before_ms, limit)

    def doomed_uploads(self, now_ms: int, limit: int, after: tuple[int, UploadId] | None = None) -> list[UploadRow]:
        """See the port."""
        return self._read(uploads.doomed, now_ms, limit, after)

    def forget_upload(self, upload_id: UploadId) -> None:
        """See the port."""
        self._write(uploads.forget, upload_id)

    def uploads_after(self, after: UploadId | None, limit: int) -> list[UploadRow]:
        """See the port."""
        return self._read(uploads.page, after, limit)

    def uploads_with(self, upload_ids: Sequence[UploadId]) -> dict[UploadId, UploadRow]:
        """See the port."""
        return self._read(uploads.listed, upload_ids)

    def restore_uploads(self, rows: Sequence[UploadRow]) -> None:
        """See the port."""
        if rows:
            self._write(uploads.restore, rows)


class SqlVersions(SqlPart):
    """`Versions` of the port."""

    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        """See the port."""
        return self._read(versions.find, key, version)

    def latest_marker(self, key: ObjectKey) -> VersionEntry | None:
        """See the port."""
        return self._read(versions.latest_marker, key)

    def same_version(self, row: ObjectRow) -> ObjectRow | None:
        """See the port."""
        return self._read(versions.same, row)

    def list_versions(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, int | None], limit: int, budget_ms: int
    ) -> VersionPage:
        """See the port."""
        end_s = end_of(budget_ms)
        return self._read(versions.list_versions, bucket, prefix, delimiter, after, limit, end_s)

    def delete_versions(
        self, deletions: Sequence[VersionDeletion], now_ms: int, until_ms: int | None = None
    ) -> list[VersionEntry | NosError | None]:
        """See the port."""
        return self._write_again(versions.delete_all, deletions, now_ms, until_ms) if deletions else []

    def markers_after(self, after: tuple[ObjectKey, int] | None, limit: int) -> list[MarkerRow]:
        """See the port."""
        return self._read(versions.markers, after, limit)

    def restore_markers(self, rows: Sequence[MarkerRow]) -> None:
        """See the port."""
        if rows:
            self._write(versions.restore_markers, rows)

    def floors_after(self, after: ObjectKey | None, limit: int) -> list[tuple[ObjectKey, int]]:
        """See the port."""
        return self._read(floors.page, after, limit)

    def restore_floors(self, found: Sequence[tuple[ObjectKey, int]]) -> None:
        """See the port."""
        if found:
            self._write(floors.restore, found)

    def forget_floors(self, now_ms: int, limit: int) -> int:
        """See the port."""
        return self._write(floors.forget, now_ms, limit)

    def settle_versions(self, rows: Sequence[ObjectRow]) -> None:
        """See the port."""
        if rows:
            self._write(versions.settle, rows)

    def order_versions(self, keys: Sequence[ObjectKey], now_ms: int, until_ms: int) -> None:
        """See the port."""
        self._write_again(versions.order, keys, now_ms, until_ms)

    def listed_as_noncurrent(self, rows: Sequence[ObjectRow]) -> frozenset[int]:
        """See the port."""
        return self._read(versions.listed, rows) if rows else frozenset()

    def noncurrent_after(
        self, after: tuple[ObjectKey, int] | None, limit: int
    ) -> list[tuple[ObjectKey, int, int | None]]:
        """See the port."""
        return self._read(versions.page, after, limit)


class SqlInspection(SqlPart):
    """`Inspection` of the port."""

    def objects_after(self, object_id: int, limit: int) -> list[ObjectRow]:
        """See the port."""
        return self._read(inspection.objects_after, object_id, limit)

    def objects_with(self, object_ids: Collection[int]) -> dict[int, ObjectRow]:
        """See the port."""
        return self._read(inspection.objects_with, object_ids) if object_ids else {}

    def segments_of(self, object_ids: Collection[int]) -> dict[int, list[tuple[int, Segment]]]:
        """See the port."""
        return self._read(inspection.segments_of, object_ids) if object_ids else {}

    def owners_after(self, object_id: int, limit: int) -> list[int]:
        """See the port."""
        return self._read(inspection.owners_after, object_id, limit)

    def blocks_known(self, block_ids: Collection[BlockId]) -> frozenset[BlockId]:
        """See the port."""
        return self._read(inspection.blocks_known, block_ids) if block_ids else frozenset()

    def waiting_after(self, landing_id: LandingId | None, limit: int) -> list[WaitingRow]:
        """See the port."""
        return self._read(inspection.waiting_after, landing_id, limit)

    def waiting_with(self, landing_ids: Collection[LandingId]) -> dict[LandingId, WaitingRow]:
        """See the port."""
        return self._read(inspection.waiting_with, landing_ids) if landing_ids else {}

    def deletions_after(self, landing_id: LandingId | None, limit: int) -> list[QueueEntry]:
        """See the port."""
        return self._read(inspection.deletions_after, landing_id, limit)


class SqlRepairs(SqlPart):
    """`Repairs` of the port."""

    def recount_block(self, row: BlockRow, account: BlockAccount) -> bool:
        """See the port."""
        return self._write(repairs.recount_block, row, account)

    def wait_again(self, row: ObjectRow, now_ms: int) -> bool:
        """See the port."""
        return self._write(repairs.wait_again, row, now_ms)

    def stop_waiting(self, landing_id: LandingId, now_ms: int) -> bool:
        """See the port."""
        return self._write(repairs.stop_waiting, landing_id, now_ms)

    def unqueue_copy(self, landing_id: LandingId) -> bool:
        """See the port."""
        return self._write(repairs.unqueue_copy, landing_id)

    def quarantine_block(
        self, block_id: BlockId, stripes: int, account: BlockAccount, now_ms: int, delete_after_ms: int
    ) -> bool:
        """See the port."""
        return self._write(repairs.quarantine_block, block_id, stripes, account, now_ms, delete_after_ms)

    def quarantine_copy(self, landing_id: LandingId, not_before_ms: int) -> bool:
        """See the port."""
        return self._write(repairs.quarantine_copy, landing_id, not_before_ms)

    def end_quarantine(self, block_id: BlockId, delete_after_ms: int) -> bool:
        """See the port."""
        return self._write(repairs.end_quarantine, block_id, delete_after_ms)

    def release_block(self, block_id: BlockId) -> bool:
        """See the port."""
        return self._write(repairs.release_block, block_id)

    def release_copy(self, landing_id: LandingId) -> bool:
        """See the port."""
        return self._write(repairs.release_copy, landing_id)


class SqlExplanations(SqlPart):
    """`Explanations` of the port."""

    def object_facts(self, key: ObjectKey) -> ObjectFacts:
        """See the port."""
        return self._read(explanations.object_facts, key)

    def find_queued_copy(self, row: ObjectRow, first: LandingId, last: LandingId) -> QueueEntry | None:
        """See the port."""
        return self._read(explanations.find_queued_copy, row, first, last)

    def block_facts(self, block_id: BlockId, waste_ratio_min: float, now_ms: int, cool_down_ms_max: int) -> BlockFacts:
        """See the port."""
        return self._read(explanations.block_facts, block_id, waste_ratio_min, now_ms, cool_down_ms_max)


class SqlScrubbing(SqlPart):
    """`Scrubbing` of the port."""

    def scrub_state(self) -> ScrubState | None:
        """See the port."""
        return self._read(scrubbing.stored)

    def store_scrub_state(self, new: ScrubState, expected: ScrubState | None) -> bool:
        """See the port."""
        return self._write(scrubbing.store, new, expected)


class SqlNotes(SqlPart):
    """`Notes` of the port."""

    def note(self, name: str) -> str | None:
        """See the port."""
        return self._read(notes.find, name)

    def store_note(self, name: str, text: str, expected: str | None) -> bool:
        """See the port."""
        return self._write(notes.store, name, text, expected)


class SqlRebuilding(SqlPart):
    """`Rebuilding` of the port."""

    def rebuild_state(self) -> str | None:
        """See the port."""
        return self._read(rebuilding.state)

    def begin_rebuild(self, state: str) -> None:
        """See the port."""
        self._write(rebuilding.begin, state)

    def load(self, objects: Sequence[Rebuilt], deletions: Sequence[QueueEntry], state: str) -> None:
        """See the port."""
        self._write(rebuilding.load, objects, deletions, state)

    def rows_of(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
        """See the port."""
        return self._read(rebuilding.rows_of, keys) if keys else {}

    def trash_of(self, named: Collection[tuple[ObjectKey, int]]) -> dict[tuple[ObjectKey, int], ObjectRow]:
        """See the port."""
        return self._read(rebuilding.trash_of, named) if named else {}

    def settle_trash(self, rows: Sequence[ObjectRow]) -> None:
        """See the port."""
        if rows:
            self._write(rebuilding.settle_trash, rows)

    def last_object_id(self) -> int:
        """See the port."""
        return self._read(rebuilding.last_object_id)

    def place(self, rebuilt: Sequence[Rebuilt], now_ms: int) -> None:
        """See the port."""
        if rebuilt:
            self._write(rebuilding.place, rebuilt, now_ms)

    def remove(self, rows: Sequence[ObjectRow], now_ms: int | None = None) -> None:
        """See the port."""
        if rows:
            self._write(rebuilding.remove, rows, now_ms)

    def enter_blocks(self, blocks: Sequence[BlockRow]) -> None:
        """See the port."""
        if blocks:
            self._write(rebuilding.enter_blocks, blocks)

    def enter_segments(self, segments: Sequence[SegmentRow]) -> None:
        """See the port."""
        if segments:
            self._write(rebuilding.enter_segments, segments)

    def finish_rebuild(self, geometry: Geometry, epoch_min: int) -> None:
        """See the port."""
        self._write(rebuilding.finish, geometry, epoch_min)
        self._geometry = geometry

"""The parts of the port that gateways and operators' commands use, method by method, each one transaction: buckets,
access keys, uploads, versions, inspection, repairs, explanations, scrubbing, rebuilding. metadata.py has the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from nos_ec.adapters.sql.objects import floors, uploads, versions
from nos_ec.adapters.sql.objects.entries import end_of
from nos_ec.adapters.sql.tables.base import SqlPart
from nos_ec.core.errors import NosError
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import UploadId
from nos_ec.ports.metadata import (
    MarkerRow,
    ObjectRow,
    UploadRow,
    VersionDeletion,
    VersionEntry,
    VersionPage,
)


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

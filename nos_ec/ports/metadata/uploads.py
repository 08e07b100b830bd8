"""Rows of multipart uploads (docs/adr/0032).

An upload has a row from its beginning until its last part is deleted. It is OPEN while parts are stored, COMPLETED
while the composed object exists, also in the trash, and DOOMED when its parts are to be deleted. In a cell to which its
bucket is moved, it is OPEN while parts are copied, whatever it was before (`Moves.open_copied_upload`).

In a cell, whatever changes an upload raises Moved if the cell does not let its bucket change (`Moves.obey_moves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import UploadId


class UploadState(StrEnum):
    """The state of an upload."""

    OPEN = "open"
    COMPLETED = "completed"
    DOOMED = "doomed"


@dataclass(frozen=True, slots=True)
class UploadRow:
    """A multipart upload. `owner` is the account that began it. `since_ms` is when it became OPEN or COMPLETED; for a
    DOOMED upload, the time from which its parts are to be deleted. `revision` counts the parts that were stored.
    `attributes` belong to the object that the upload will create (see core.attributes)."""

    upload_id: UploadId
    key: ObjectKey
    state: UploadState
    since_ms: int
    revision: int = 0
    owner: str = ""
    attributes: bytes = b""


@dataclass(frozen=True, slots=True)
class PartOf:
    """An upload step: the object to be recorded is a part of this upload. The upload must be OPEN."""

    upload_id: UploadId


@dataclass(frozen=True, slots=True)
class CompletionOf:
    """An upload step: the object to be recorded is composed of the parts of this upload. The upload must be OPEN and
    still have the revision with which its parts were read, so that no part was stored since."""

    upload_id: UploadId
    revision: int


UploadStep = PartOf | CompletionOf
"""What recording an object does to the row of an upload."""


class Uploads(Protocol):
    """Rows of uploads. See the package docstring. Safe to call from several threads.

    Methods of other protocols change these rows, too: `record_puts` and `record_large` take the upload steps of the
    objects that they record, and every method that releases a composed object dooms its upload.
    """

    def create_upload(self, new: UploadRow) -> None:
        """Add the row of a new upload, which is OPEN. Calling it again with the same row changes nothing."""

    def upload(self, upload_id: UploadId, bucket: str | None = None) -> UploadRow | None:
        """Return the row of an upload; None if there is none. With `bucket`, raises Moved if this cell does not serve
        this bucket, in which the upload should be."""

    def list_uploads(self, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int) -> list[UploadRow]:
        """Return one page of the OPEN uploads to a bucket, in the order of object name and upload id. The names begin
        with `prefix`. The page begins after the name and id of `after`, or with the first upload for None."""

    def abort_upload(self, upload_id: UploadId, now_ms: int) -> bool:
        """Doom an OPEN upload: from `now_ms` on its parts are to be deleted, and no further part is recorded. Returns
        False if there is no such upload, or if it is not OPEN."""

    def abort_uploads(self, bucket: str, limit: int, now_ms: int) -> int:
        """Doom up to `limit` OPEN uploads to a bucket. Returns how many it found; fewer than `limit` when none
        remain."""

    def old_uploads(self, before_ms: int, limit: int) -> list[UploadRow]:
        """Return OPEN uploads that were begun before `before_ms`, oldest first. Those are left out whose bucket takes
        no changes in this cell, because it is being moved, or was."""

    def doomed_uploads(self, now_ms: int, limit: int, after: tuple[int, UploadId] | None = None) -> list[UploadRow]:
        """Return one page of the DOOMED uploads whose parts are to be deleted by `now_ms`, in the order of time and id.
        The page begins after the time and id of `after`. A time that is more than WAIT_MS_MAX ahead counts as over:
        only a wrong clock can have set it."""

    def forget_upload(self, doomed: UploadRow) -> None:
        """Remove the row of an upload after its last part was deleted. Does nothing unless the upload is DOOMED, and
        since the same time."""

    def uploads_after(self, after: UploadId | None, limit: int) -> list[UploadRow]:
        """Return one page of all rows, in the order of their ids, after the id `after`."""

    def uploads_by_id(self, upload_ids: Sequence[UploadId]) -> dict[UploadId, UploadRow]:
        """Return the rows of these uploads. Uploads without a row are left out."""

    def restore_uploads(self, rows: Sequence[UploadRow]) -> None:
        """Write these rows, in place of existing rows with the same ids."""

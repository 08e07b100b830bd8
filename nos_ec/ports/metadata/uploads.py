"""Rows of multipart uploads (docs/adr/0032).

An upload has a row from its beginning until its last part is deleted: OPEN while parts are stored, COMPLETED while the
object that is composed of them exists (in the trash, too), DOOMED when the parts are to be deleted.
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
    """A multipart upload. `owner` is the account that began it. `since_ms` is the time when it was begun or completed;
    for a DOOMED upload, the time from which its parts are to be deleted. `revision` rises with each part that is
    stored. `attributes` belong to the object that the upload will create (see core.attributes)."""

    upload_id: UploadId
    key: ObjectKey
    state: UploadState
    since_ms: int
    revision: int = 0
    owner: str = ""
    attributes: bytes = b""


@dataclass(frozen=True, slots=True)
class PartOf:
    """An upload step: the object to be recorded is a part of this upload, which must be OPEN."""

    upload_id: UploadId


@dataclass(frozen=True, slots=True)
class Completes:
    """An upload step: the object to be recorded is composed of the parts of this upload, which must be OPEN and have
    this revision, so that no part was stored since its parts were read."""

    upload_id: UploadId
    revision: int


UploadStep = PartOf | Completes


class Uploads(Protocol):
    """Rows of uploads. See the package docstring. Safe to call from several threads.

    `record_puts` and `record_large` take steps of uploads together with objects, and whatever releases a composed
    object dooms its upload.
    """

    def create_upload(self, new: UploadRow) -> None:
        """Add the row of a new upload, which is OPEN. Calling it again with the same row changes nothing."""
        ...

    def upload(self, upload_id: UploadId) -> UploadRow | None:
        """Return the row of an upload; None if it has none."""
        ...

    def list_uploads(self, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int) -> list[UploadRow]:
        """Return OPEN uploads into a bucket whose names begin with `prefix`, in the order of name and id, after this
        name and id."""
        ...

    def abort_upload(self, upload_id: UploadId, now_ms: int) -> bool:
        """Doom an OPEN upload: its parts are to be deleted from now on, and no further part is recorded. Returns False
        if there is no such upload, or if it is not OPEN."""
        ...

    def abort_uploads(self, bucket: str, limit: int, now_ms: int) -> int:
        """Doom up to `limit` OPEN uploads into a bucket. Returns how many; fewer than `limit` when none remain."""
        ...

    def old_uploads(self, before_ms: int, limit: int) -> list[UploadRow]:
        """Return OPEN uploads that were begun before that time, oldest first."""
        ...

    def doomed_uploads(self, now_ms: int, limit: int, after: tuple[int, UploadId] | None = None) -> list[UploadRow]:
        """Return DOOMED uploads whose parts are to be deleted by now, in the order of time and id, after this time and
        id. A time that is more than WAIT_MS_MAX ahead counts as over: only a wrong clock can have set it."""
        ...

    def forget_upload(self, upload_id: UploadId) -> None:
        """Remove the row of a DOOMED upload, whose parts are deleted."""
        ...

    def uploads_after(self, after: UploadId | None, limit: int) -> list[UploadRow]:
        """Return one page of all rows, in the order of their ids."""
        ...

    def uploads_with(self, upload_ids: Sequence[UploadId]) -> dict[UploadId, UploadRow]:
        """Return the rows of those of these uploads that have one."""
        ...

    def restore_uploads(self, rows: Sequence[UploadRow]) -> None:
        """Write these rows, in place of existing rows with their ids."""
        ...

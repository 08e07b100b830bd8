"""Deletes the parts of uploads that were aborted, or whose object is gone, and aborts those that nobody completes.

9  a page of rows is in memory
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from threading import Event

import structlog

from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import UploadId, parts_bucket, parts_prefix
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.metadata import Metadata, ObjectRow, UploadRow

PAGE_ROWS = 1000
"""Uploads that are looked at, or parts that one transaction deletes."""
FAILURES_MAX = 3

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReapedUploads:
    """aborted: uploads that were too old. uploads, parts, bytes: of those whose parts were deleted."""

    aborted: int = 0
    uploads: int = 0
    parts: int = 0
    bytes: int = 0

    def __add__(self, other: ReapedUploads) -> ReapedUploads:
        return ReapedUploads(
            self.aborted + other.aborted,
            self.uploads + other.uploads,
            self.parts + other.parts,
            self.bytes + other.bytes,
        )


class UploadReaper:
    """Safe to run in several processes at once."""

    def __init__(self, metadata: Metadata, clock: Clock, abort_after_ms: int) -> None:
        """abort_after_ms: how old an OPEN upload may become; 0 for no limit."""
        self._metadata = metadata
        self._clock = clock
        self._abort_after_ms = abort_after_ms

    def run_once(self, beat: Beat = unwatched, stop: Event | None = None) -> ReapedUploads:
        """Do all that is due. `stop` ends it early. An upload that fails is logged and passed over. Raises what
        FAILURES_MAX uploads in succession failed with, such as Transient; the next run continues from there."""
        total = self._abort_old(beat, stop)
        after: tuple[int, UploadId] | None = None
        failures = 0
        while page := self._metadata.doomed_uploads(self._clock.now_ms(), PAGE_ROWS, after):
            after = (page[-1].since_ms, page[-1].upload_id)
            for row in page:
                if stop is not None and stop.is_set():
                    return total
                try:
                    total += self._reap(row, beat, stop)
                    failures = 0
                except Exception as error:
                    failures += 1
                    if failures == FAILURES_MAX:
                        raise
                    say = _log.warning if isinstance(error, NosError) else _log.exception
                    say("parts not deleted", upload=row.upload_id.hex(), key=str(row.key), error=str(error))
        return total

    def _abort_old(self, beat: Beat, stop: Event | None) -> ReapedUploads:
        aborted = 0
        if not self._abort_after_ms:
            return ReapedUploads()
        while page := self._metadata.old_uploads(self._clock.now_ms() - self._abort_after_ms, PAGE_ROWS):
            for row in page:
                beat(0)
                if stop is not None and stop.is_set():
                    return ReapedUploads(aborted)
                aborted += self._metadata.abort_upload(row.upload_id, self._clock.now_ms())
        return ReapedUploads(aborted)

    def _reap(self, row: UploadRow, beat: Beat, stop: Event | None) -> ReapedUploads:
        if self._is_used(row):
            _log.error("metadata damaged: an upload is doomed, but its object exists", key=str(row.key))
            return ReapedUploads()
        total = ReapedUploads()
        bucket, prefix = parts_bucket(row.key.bucket), parts_prefix(row.upload_id)
        while parts := self._metadata.list_objects(bucket, prefix, "", PAGE_ROWS):
            beat(0)
            if stop is not None and stop.is_set():
                return total
            gone = self._metadata.delete_many([part.key for part in parts], self._clock.now_ms())
            kill_point("upload.parts_deleted")
            total += ReapedUploads(parts=len(gone), bytes=sum(part.size for part in gone))
        self._metadata.forget_upload(row.upload_id)
        kill_point("upload.forgotten")
        return total + ReapedUploads(uploads=1)

    def _is_used(self, row: UploadRow) -> bool:
        """Whether a version of its key is composed of it. None ever is, unless rows are damaged."""
        with suppress(NotFound):
            if _is_of(self._metadata.get(row.key), row):
                return True
        return any(_is_of(one, row) for page in noncurrent_of(row.key, self._metadata) for one in page)


def _is_of(version: ObjectRow, upload: UploadRow) -> bool:
    composition = version.composition
    return composition is not None and composition.upload_id == upload.upload_id

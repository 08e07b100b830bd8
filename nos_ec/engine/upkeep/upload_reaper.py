"""Deletes the parts of uploads that were aborted, or whose object is gone, and aborts uploads that are too old.

9  memory holds one page of rows
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from threading import Event

import structlog

from nos_ec.core.errors import Moved, NosError
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import UploadId, parts_bucket, parts_prefix
from nos_ec.core.sums import Summed
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.metadata import Metadata, ObjectRow, UploadRow

PAGE_ROWS = 1000
"""The most uploads that one query reads, and the most parts that one transaction deletes."""
FAILURES_MAX = 3

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReapedUploads(Summed):
    """Counts of one run."""

    aborted: int = 0
    """Uploads that were too old."""
    uploads: int = 0
    """Uploads whose parts were all deleted."""
    parts: int = 0
    bytes: int = 0


class UploadReaper:
    """Aborts old uploads and deletes parts. Several processes may run it at once."""

    def __init__(self, metadata: Metadata, clock: Clock, abort_after_ms: int) -> None:
        """abort_after_ms: the age at which an OPEN upload is aborted; 0 for never."""
        self._metadata = metadata
        self._clock = clock
        self._abort_after_ms = abort_after_ms

    def run_once(self, beat: Beat = unwatched, stop: Event | None = None) -> ReapedUploads:
        """Do all work that is due. `stop` ends it early. An upload that fails is logged and skipped.

        When FAILURES_MAX uploads in a row fail, raises the last failure, such as Transient. The next run continues from
        there.
        """
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
                    log = _log.warning if isinstance(error, NosError) else _log.exception
                    log("parts not deleted", upload=row.upload_id.hex(), key=str(row.key), error=str(error))
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
                with suppress(Moved):  # the next page does not have it
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
            gone = self._metadata.delete_parts(row, [part.key for part in parts], self._clock.now_ms())
            if gone is None:
                return total  # a mover has brought the bucket back, with these parts
            kill_point("upload.parts_deleted")
            total += ReapedUploads(parts=len(gone), bytes=sum(part.size for part in gone))
        self._metadata.forget_upload(row)
        kill_point("upload.forgotten")
        return total + ReapedUploads(uploads=1)

    def _is_used(self, row: UploadRow) -> bool:
        """Return whether a version of its key is composed of the upload. That happens only if rows are damaged. The
        bucket may have been moved to another cell."""
        current = self._metadata.rows_of([row.key]).values()
        older = (one for page in noncurrent_of(row.key, self._metadata) for one in page)
        return any(_is_of(one, row) for one in chain(current, older))


def _is_of(version: ObjectRow, upload: UploadRow) -> bool:
    composition = version.composition
    return composition is not None and composition.upload_id == upload.upload_id

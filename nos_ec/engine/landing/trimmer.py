"""Releases segments of the landing log to which nothing refers any more.

    2  an entry of the deletion queue is removed only when its packed bytes were verified, or its version is gone; so
       a segment without entries and rows holds nothing that is needed

Order: doom (one transaction, which looks for rows and entries) -> record it in the audit trail -> release on the medium
-> forget the row. After a crash anywhere in between, the next run completes the work: releasing a DOOMED segment twice
is not an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nos_ec.core.errors import Transient
from nos_ec.core.ids import SegmentId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import SegmentState
from nos_ec.core.sums import Summed
from nos_ec.engine.audit_entries import segments_released
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.metadata import LandingSegments, SegmentRow
from nos_ec.ports.segment_medium import SegmentMedium

BACK_OFF = BackOff(first_ms=10_000, max_ms=600_000)
"""Waits between the tries of a segment that could not be doomed or released."""
PARKED_MAX = 10_000
SEGMENTS_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class TrimResult(Summed):
    """Segments released by one run, their bytes, and segments that failed and are parked."""

    released: int = 0
    released_bytes: int = 0
    failed: int = 0


class Trimmer:
    """Releases segments. Several may run at once: they repeat some of each other's work, but do no harm. Each belongs
    to one thread."""

    def __init__(
        self, metadata: LandingSegments, medium: SegmentMedium, clock: Clock, trail: AuditTrail = NO_TRAIL
    ) -> None:
        self._metadata = metadata
        self._medium = medium
        self._trail = trail
        self.parked: RetryQueue[SegmentId] = RetryQueue("landing segment", bytes.hex, clock, BACK_OFF, PARKED_MAX)
        """Segments that could not be released, until their next try."""

    def run_once(self, beat: Beat = unwatched) -> TrimResult:
        """Release every segment that can go. Raise Transient; the next run continues from there.

        Call `beat` for every segment that is checked or released.
        """
        total = TrimResult()
        found: set[SegmentId] = set()
        for page in segment_pages(self._metadata, SEGMENTS_PER_PAGE):
            found.update(row.segment for row in page)
            total += self._trim(page, beat)
        for segment, _ in self.parked:
            if segment not in found:
                self.parked.release(segment)  # another process has released it
        return total

    def _trim(self, page: Sequence[SegmentRow], beat: Beat) -> TrimResult:
        ends = {
            row.segment: row.end
            for row in page
            if row.state is not SegmentState.OPEN and not self.parked.waits(row.segment)
        }
        beat(0)
        releasable = self._metadata.releasable_segments(list(ends)) if ends else frozenset()
        doomed: list[SegmentId] = []
        failed = 0
        for segment in sorted(releasable):
            beat(0)
            try:
                if self._metadata.doom_segment(segment):
                    doomed.append(segment)
            except Transient as error:
                self.parked.park(segment, error)
                failed += 1
        if not doomed:
            return TrimResult(failed=failed)
        kill_point("trimmer.doomed")
        rows = {row.segment: row for row in page}
        self._trail.record(segments_released(doomed, rows, "no object and no queued copy refers to a record of them"))
        not_released = self._medium.release(doomed, beat)
        kill_point("trimmer.released")
        released = [segment for segment in doomed if segment not in not_released]
        if released:
            self._metadata.forget_segments(released)
            kill_point("trimmer.forgotten")
        for segment, reason in not_released.items():
            self.parked.park(segment, reason)
        for segment in released:
            self.parked.release(segment)
        return TrimResult(len(released), sum(ends[segment] for segment in released), failed + len(not_released))

"""Releases segments of the landing log that the metadata does not know, on media that create them ahead of need.

A row is created before its segment and deleted after it. So a segment without a row was created late: its log was
stopped between the two steps, for so long that others fenced it, sealed the row and forgot it. When the log continues,
it finds that its lease is lost, and releases the segment; but it may be killed before. Nothing was ever appended to
such a segment.

A segment without a row that holds records is newer than the backup from which the metadata was restored. It is kept and
reported: its records show which objects they belong to.

A slot whose header cannot be read, but which belongs to a segment with a row, gets its header again.

8  a segment that the metadata does not know is sealed before its content is checked
"""

from __future__ import annotations

from contextlib import suppress

import structlog

from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE, segment_found
from nos_ec.core.ids import SegmentId
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.audit_entries import segments_released
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.engine.landing.unreadable_slots import restore, unreadable_slots
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.metadata import LandingSegments
from nos_ec.ports.segment_medium import SegmentMedium

_log = structlog.get_logger(__name__)

LOOK_MS = 600_000
"""Time between checks."""


class UnknownSegments:
    """Releases unknown segments. Several may run at once. Each belongs to one thread. For media that list their
    segments at no cost."""

    def __init__(
        self, metadata: LandingSegments, medium: SegmentMedium, clock: Clock, trail: AuditTrail = NO_TRAIL
    ) -> None:
        self._metadata = metadata
        self._medium = medium
        self._clock = clock
        self._trail = trail
        self._look_ms = 0
        self._kept: set[SegmentId] = set()
        """Segments with records, which were reported."""

    def run_once(self, beat: Beat = unwatched) -> int:
        """Release empty segments, if the next check is due. Return how many were released. Segments that the medium
        cannot read or release now are left to a later check. Raise Transient."""
        now_ms = self._clock.now_ms()
        if waits(self._look_ms, now_ms, LOOK_MS):
            return 0
        self._look_ms = now_ms + LOOK_MS
        self._restore_headers()
        try:
            there = set(self._medium.segments())
        except Transient:
            return 0  # while a device is away
        if not there:
            return 0
        known = {row.segment for page in segment_pages(self._metadata) for row in page}  # read after the segments
        unknown = there - known
        self._kept &= unknown
        empty = [segment for segment in sorted(unknown - self._kept) if self._is_empty(segment, beat)]
        if not empty:
            return 0
        self._trail.record(segments_released(empty, {}, "they are empty, and have no row"))
        failed = self._medium.release(empty, beat)
        kill_point("recovery.unknown_released")
        released = [segment for segment in empty if segment not in failed]
        _log.info("released empty landing segments without a row", segments=[each.hex() for each in released])
        return len(released)

    def _restore_headers(self) -> None:
        for slot in unreadable_slots(self._medium):
            with suppress(Transient):  # left to a later check
                if restore(self._metadata, self._medium, slot):
                    _log.warning("wrote the header of a landing segment again", slot=slot.slot, device=slot.device)

    def _is_empty(self, segment: SegmentId, beat: Beat) -> bool:
        beat(0)
        try:
            end = self._medium.seal(segment, None, 0)
            is_empty = end <= self._medium.limits.start and self._is_blank(segment)
        except (NotFound, Transient):
            return False
        if not is_empty:
            self._kept.add(segment)
            _log.error("landing segment has records, but no row; is the metadata older?", segment=segment.hex())
        return is_empty

    def _is_blank(self, segment: SegmentId) -> bool:
        """Return whether nothing was appended to a segment without an intact record: its first bytes are zeros, or a
        record that an earlier segment left there. Anything else may be a damaged record."""
        (head,) = self._medium.read(segment, [(self._medium.limits.start, RECORD_HEADER_SIZE)])
        return not any(head) or segment_found(head) is not None

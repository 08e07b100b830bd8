"""Makes the segments of a landing log: first the row, then the segment in the medium.

8  a row is inserted under the lease of the log, so that a process that fences it finds the segment
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import structlog

from nos_ec.core.errors import Conflict, LeaseLost, NosError, NoSpace, Transient
from nos_ec.core.ids import SegmentId, new_segment_id
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.landing.landed_in_log import as_transient
from nos_ec.engine.landing.log_segment import RETRY_WAIT_MS, RETRY_WAIT_MS_MAX, LogSegment
from nos_ec.engine.landing.segment_sealer import SegmentSealer
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import Lease
from nos_ec.ports.metadata.landing_segments import LandingSegments
from nos_ec.ports.segment_medium import SegmentMedium, SegmentWriter

_log = structlog.get_logger(__name__)

ID_TRIES = 16
"""Ids that are tried for a new segment. An id is taken only if the clock was set back."""
LEFT_MAX = 64
"""If this many segments wait to be sealed, no new one is made, so that PUTs are refused when sealing keeps failing."""
WARN_WAIT_MS = 60_000
"""A log that gets one slot back is full again soon. The same warning is logged at most once in this time."""


class SegmentMaker:
    """Makes the segments of one log: one at a time, on a thread that does not hold the lock of the log.

    `sealer` gets segments whose creation failed half-way. `reserve_bytes` of the medium's free space are left to
    packing and GC.
    """

    def __init__(
        self,
        metadata: LandingSegments,
        medium: SegmentMedium,
        clock: Clock,
        reserve_bytes: int,
        sealer: SegmentSealer,
    ) -> None:
        self._metadata = metadata
        self._medium = medium
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._sealer = sealer
        self._last_opened_ms = 0
        self._obstacle: NosError = Transient("")
        self._retry_ms = 0
        self._retry_wait_ms = 0
        """`_obstacle` is the reason why the last try failed, `_retry_ms` the time of the next one; 0: at once."""
        self._warned = ""
        self._warn_ms = 0

    def may_try(self) -> bool:
        """Return whether `make_segment` would do more than refuse at once."""
        waiting = waits(self._retry_ms, self._clock.now_ms(), self._retry_wait_ms)
        return not waiting and len(self._sealer.left) < LEFT_MAX

    def make_segment(self, take_lease: Callable[[], tuple[Lease, int]], first_lsn: int) -> LogSegment:
        """Make a segment of the log with that lease and number. After a failure, refuse further calls for a while.
        Raise LeaseLost, NoSpace, Transient."""
        now_ms = self._clock.now_ms()
        if waits(self._retry_ms, now_ms, self._retry_wait_ms):
            raise type(self._obstacle)(f"{self._obstacle}; trying again in {self._retry_ms - now_ms} ms")
        try:
            segment = self._make(*take_lease(), first_lsn)
        except LeaseLost:
            raise
        except NosError as error:
            self._warn(error)
            self._retry_wait_ms = min(2 * self._retry_wait_ms or RETRY_WAIT_MS, RETRY_WAIT_MS_MAX)
            self._retry_ms = self._clock.now_ms() + self._retry_wait_ms
            self._obstacle = as_transient(error)
            raise
        self._retry_ms = self._retry_wait_ms = 0
        return segment

    def _make(self, lease: Lease, number: int, first_lsn: int) -> LogSegment:
        """Insert the row of a segment, then create it in the medium. A segment that fails half-way is left to be
        sealed."""
        limits = self._medium.limits
        if len(self._sealer.left) >= LEFT_MAX:
            raise Transient(f"landing log: {LEFT_MAX} segments wait to be sealed; see the log for the reason")
        if self._medium.free_bytes() < limits.segment_bytes + self._reserve_bytes:
            raise NoSpace("landing log: no room for another segment; let consumers pack landed objects, or add space")
        for _ in range(ID_TRIES):
            now_ms = self._clock.now_ms()
            self._last_opened_ms = max(now_ms, self._last_opened_ms + 1)
            segment = new_segment_id(self._last_opened_ms, number, lease.epoch)
            try:
                self._metadata.open_segment(segment, lease, now_ms)
            except LeaseLost:
                raise
            except Conflict:
                continue
            except NosError:
                self._to_seal(segment, begun=False)  # the row may exist
                raise
            kill_point("landing_log.segment_opened")
            try:
                writer = self._medium.create(segment, lease.epoch, first_lsn)
            except Conflict:
                self._to_seal(segment)
                continue
            except NosError:
                self._to_seal(segment)
                raise
            kill_point("landing_log.segment_created")
            if not limits.appends_create_and_seal:
                self._confirm(segment, writer, lease, now_ms)
            return LogSegment(segment, writer, limits, lease.epoch)
        raise Transient(f"landing log: {ID_TRIES} segment ids are already in use; was the clock set back?")

    def _confirm(self, segment: SegmentId, writer: SegmentWriter, lease: Lease, now_ms: int) -> None:
        """Make sure that the row is still there, which changes nothing. If this process was stopped for long before it
        created the segment, others have sealed and forgotten the row. Raise LeaseLost, Transient."""
        try:
            self._metadata.open_segment(segment, lease, now_ms)
        except LeaseLost:
            writer.close()
            with suppress(NosError):
                self._medium.release([segment])  # nothing was ever written to it
            raise
        except NosError:
            writer.close()
            self._to_seal(segment)
            raise

    def _warn(self, error: NosError) -> None:
        now_ms, text = self._clock.now_ms(), str(error)
        if text != self._warned or not waits(self._warn_ms, now_ms, WARN_WAIT_MS):
            self._warned, self._warn_ms = text, now_ms + WARN_WAIT_MS
            _log.warning("could not open a landing segment", error=text)

    def _to_seal(self, segment: SegmentId, *, begun: bool = True) -> None:
        """Leave a segment to the sealer. `begun`: it may be in the medium; no other process creates it there."""
        left = LogSegment(segment, None, self._medium.limits)
        if not begun:
            left.sealed(0)
        self._sealer.add_left([left])

"""Makes the segments of a landing log: first the row, then the segment in the medium.

8  a row is inserted under the lease of the log, so that whoever fences it finds the segment
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
"""Ids that are tried for a new segment. An id is taken only when the clock was set back."""
LEFT_MAX = 64
"""Segments that wait to be sealed. Beyond this no new one is made, so that a failure to seal ends in a refusal."""
WARN_WAIT_MS = 60_000
"""A log that gets a slot back is full again soon. The same warning comes at most once in this time."""


class SegmentMaker:
    """Belongs to one log, of which one thread at a time makes a segment, without the lock of the log.

    sealer: gets what is made only half. reserve_bytes: free space of the medium that is left to packing and GC.
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
        """Why no segment could be made when it was last tried, and when to try again; 0: at once."""
        self._warned = ""
        self._warn_ms = 0

    def may_try(self) -> bool:
        """Whether `make` would not refuse at once."""
        waiting = waits(self._retry_ms, self._clock.now_ms(), self._retry_wait_ms)
        return not waiting and len(self._sealer.left) < LEFT_MAX

    def make(self, take_lease: Callable[[], tuple[Lease, int]], first_lsn: int) -> LogSegment:
        """Make a segment of the log with that lease and number. After a failure refuses for a while, at once. Raises
        LeaseLost, NoSpace, Transient."""
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
        """Insert the row of a segment, then create it in the medium. What fails half-way is left to be sealed."""
        limits = self._medium.limits
        if len(self._sealer.left) >= LEFT_MAX:
            raise Transient(f"landing log: {LEFT_MAX} segments wait to be sealed; see the log for why they are not")
        if self._medium.free_bytes() < limits.segment_bytes + self._reserve_bytes:
            raise NoSpace("landing log: no room for another segment; let consumers pack what landed, or add space")
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
                self._to_seal(segment, begun=False)  # the row may be there
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
            if not limits.ends_in_appends:
                self._confirm(segment, writer, lease, now_ms)
            return LogSegment(segment, writer, limits, lease.epoch)
        raise Transient(f"landing log: {ID_TRIES} ids of segments were taken; was the clock set back?")

    def _confirm(self, segment: SegmentId, writer: SegmentWriter, lease: Lease, now_ms: int) -> None:
        """Make sure that the row is still there, which changes nothing. If this process was stopped for long before it
        created the segment, others have sealed and forgotten the row. Raises LeaseLost, Transient."""
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
            _log.warning("no landing segment made", error=text)

    def _to_seal(self, segment: SegmentId, *, begun: bool = True) -> None:
        """Let the sealer seal it. begun: whether it may be in the medium; nobody else puts it there."""
        left = LogSegment(segment, None, self._medium.limits)
        if not begun:
            left.sealed(0)
        self._sealer.add([left])

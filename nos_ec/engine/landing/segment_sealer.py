"""Seals the segments that a landing log has closed for batches: first in the medium, then in the metadata.

L  a row is sealed only when every batch in its segment is settled, because PUTs can be recorded only in OPEN segments

When the lease of the log is lost, other processes seal its segments. With some media, the first append to a segment can
still succeed after others have sealed the segment, released it and forgotten it. None of its PUTs is acknowledged,
because the row is not OPEN. The log that appended releases the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Condition

import structlog

from nos_ec.core.errors import NosError
from nos_ec.core.formats.landing_format import NONCE_SIZE
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.landing.log_segment import LogSegment
from nos_ec.engine.landing.segment_seal import SealMetadata, SegmentSeal
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.segment_medium import SegmentMedium

_log = structlog.get_logger(__name__)


class SegmentSealer:
    """Seals the segments of one log, whose lock guards them. One thread at a time calls `seal`, without the lock.

    `randomness` returns the requested number of random bytes. `take_lsns` reserves the requested number of record
    numbers of the log and returns the first one; it is called with the lock.
    """

    def __init__(
        self,
        metadata: SealMetadata,
        medium: SegmentMedium,
        clock: Clock,
        randomness: Callable[[int], bytes],
        take_lsns: Callable[[int], int],
        lock: Condition,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._metadata = metadata
        self._in_medium = SegmentSeal(metadata, medium, trail)
        self._clock = clock
        self._randomness = randomness
        self._take_lsns = take_lsns
        self._lock = lock
        self.left: list[LogSegment] = []
        """Segments that take no more batches and are not yet sealed in the metadata."""
        self._given_up: list[LogSegment] = []
        """Segments of a lost lease, until it is certain that the metadata knows them or that they are gone."""

    def add_left(self, segments: Iterable[LogSegment]) -> None:
        """Add segments to be sealed."""
        with self._lock:
            self.left += segments

    def give_up(self, segments: Iterable[LogSegment]) -> None:
        """Leave these segments to other processes, which seal them. The caller holds the lock."""
        for segment in segments:
            segment.healthy = False
            segment.close()
            segment.retry_ms = segment.retry_wait_ms = 0
            if segment.first_put_ms is not None:
                self._given_up.append(segment)

    def is_due(self) -> bool:
        """Return whether `seal` or `release_late` has something to do. The caller holds the lock."""
        now_ms = self._clock.now_ms()
        if any(_is_idle(segment, now_ms) for segment in self._given_up):
            return True
        return any(_is_due(segment, now_ms) and not (segment.is_sealed and segment.unsettled) for segment in self.left)

    def seal(self, go_on: Callable[[], bool]) -> int:
        """Seal all segments that can be sealed: in the medium if no append is under way, in the metadata if all batches
        are settled. Then make the records without a row void; recovery does that if it fails, or if this process dies.
        `go_on` is called before each segment, and False ends the call. Return how many rows were sealed. Never raises a
        NosError."""
        now_ms = self._clock.now_ms()
        with self._lock:
            due = [segment for segment in self.left if _is_due(segment, now_ms)]
        for segment in due:
            if not segment.is_sealed:
                if not go_on():
                    break
                self._seal_in_medium(segment, now_ms)
        with self._lock:
            done = [segment for segment in due if segment.is_sealed and not segment.unsettled]
        if not done:
            return 0
        recorded = [segment for segment in done if not segment.has_unrecorded]
        unrecorded = [segment for segment in done if segment.has_unrecorded]
        try:
            for of, at_ms in ((recorded, now_ms), (unrecorded, None)):
                self._metadata.seal_segments([(one.id, one.end, one.records) for one in of], at_ms)
        except NosError as error:
            _log.warning("landing segments not sealed in the metadata; trying again", error=str(error))
            with self._lock:
                for segment in done:
                    segment.seal_failed(now_ms)
            return 0
        kill_point("landing_log.sealed")
        with self._lock:
            self.left = [segment for segment in self.left if segment not in done]
        for one in unrecorded:
            try:
                self._in_medium.void_unrecorded(one.id, one.end, one.records, self._clock, go_on)
            except NosError as error:
                _log.warning("unrecorded PUTs not voided; left to recovery", segment=one.id.hex(), error=str(error))
        return len(done)

    def _seal_in_medium(self, segment: LogSegment, now_ms: int) -> None:
        with self._lock:
            footer = segment.footer(self._take_lsns(1), now_ms, self._randomness(NONCE_SIZE))
        try:
            end = 0 if self._is_gone(segment) else self._in_medium.seal(segment.id, footer, segment.records)
        except NosError as error:
            _log.warning("landing segment not sealed; trying again", segment=segment.id.hex(), error=str(error))
            with self._lock:
                segment.seal_failed(self._clock.now_ms())
            return
        kill_point("landing_log.sealed_in_medium")
        with self._lock:
            segment.sealed(end)

    def _is_gone(self, segment: LogSegment) -> bool:
        """Return whether others have released a segment in which nothing has landed. Sealing it might create it again,
        and if the metadata failed then, no process would release it. Raise Transient, ConfigError."""
        return not segment.records and self._in_medium.release_unless_known(segment.id)

    def release_late(self) -> None:
        """Release segments of a lost lease that were created too late: those without a row and without an acknowledged
        PUT. Never raises a NosError."""
        now_ms = self._clock.now_ms()
        with self._lock:
            due = [segment for segment in self._given_up if _is_idle(segment, now_ms)]
        for segment in due:
            try:
                if not segment.acknowledged:
                    self._in_medium.release_unless_known(segment.id)
            except NosError as error:
                _log.warning("landing segment of a lost lease not checked; trying again", error=str(error))
                with self._lock:
                    segment.seal_failed(self._clock.now_ms())
                continue
            with self._lock:
                self._given_up.remove(segment)


def _is_idle(segment: LogSegment, now_ms: int) -> bool:
    return not segment.unsettled and _is_due(segment, now_ms)


def _is_due(segment: LogSegment, now_ms: int) -> bool:
    return not segment.under_way and not waits(segment.retry_ms, now_ms, segment.retry_wait_ms)

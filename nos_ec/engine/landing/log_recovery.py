"""Seals the segments that logs of dead processes left open.

A log may append to its segments, and record PUTs in them, only while it holds the lease under whose epoch it opened
them. So a segment whose log no longer has that lease is an orphan. It is sealed first on the medium, which stops a
writer that is not dead after all, and then in the metadata, which stops PUTs from being recorded in it. Then its
records without a row are made void. Until that is done, the row of the segment shows that it is still to do, because a
log or another recovery may die or fail in between.

8  a process never appends to a segment of another process; it seals it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import SegmentId, log_of
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.log_lease import LEASE_PREFIX
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.engine.landing.segment_seal import SealMetadata, SegmentSeal
from nos_ec.engine.landing.unknown_segments import UnknownSegments
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Beat, Clock, waits
from nos_ec.ports.metadata import Leases, SegmentRow
from nos_ec.ports.segment_medium import SegmentMedium

_log = structlog.get_logger(__name__)

LOOK_MS = 60_000
"""Time between checks for orphans when no lease was fenced: a process may have died between fencing and sealing."""
BACK_OFF = BackOff(first_ms=10_000, max_ms=600_000)
PARKED_MAX = 10_000


class LogRecoveryMetadata(SealMetadata, Leases, Protocol):
    """The parts of the metadata that recovery of logs uses."""


class LogRecovery:
    """Seals orphaned segments. Several may run at once. Each belongs to one thread."""

    def __init__(
        self,
        metadata: LogRecoveryMetadata,
        medium: SegmentMedium,
        clock: Clock,
        unknown: UnknownSegments | None = None,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        """`unknown` releases segments without a row; None if listing them would cost too much."""
        self._metadata = metadata
        self._unknown = unknown
        self._in_medium = SegmentSeal(metadata, medium, trail)
        self._clock = clock
        self._look_ms = 0
        self.parked: RetryQueue[SegmentId] = RetryQueue(
            "orphaned landing segment", bytes.hex, clock, BACK_OFF, PARKED_MAX
        )
        """Segments that could not be sealed, or whose records could not be made void, until their next try."""

    def run_once(self, beat: Beat, *, fenced: bool) -> int:
        """Seal the orphans, and make the records without a row in sealed segments void. This runs only if the next
        check or a retry is due, or a lease of a log was just fenced. Return how many segments were sealed. Raise
        Transient; the next run then checks again."""
        now_ms = self._clock.now_ms()
        is_due = fenced or any(not self.parked.waits(segment) for segment, _ in self.parked)
        if not is_due and waits(self._look_ms, now_ms, LOOK_MS):
            return 0
        self._look_ms = 0
        if self._unknown is not None:
            self._unknown.run_once(beat)
        orphans, to_void = self._look()
        left = {*orphans, *(segment for segment, _, _ in to_void)}
        for segment, _ in self.parked:
            if segment not in left:
                self.parked.release(segment)  # another process has done it
        sealed = 0
        for segment in orphans:
            if not self.parked.waits(segment):
                beat(0)
                end = self._seal(segment)
                if end is not None:
                    sealed += 1
                    to_void.append((segment, end, 0))
        self._void(to_void, beat)
        self._look_ms = now_ms + LOOK_MS
        return sealed

    def _void(self, to_void: Iterable[tuple[SegmentId, int, int]], beat: Beat) -> None:
        def go_on() -> bool:
            beat(0)
            return True

        for segment, end, records in to_void:
            if self.parked.waits(segment):
                continue
            try:
                self._in_medium.void_unrecorded(segment, end, records, self._clock, go_on)
            except NosError as error:
                self.parked.park(segment, error)
            else:
                self.parked.release(segment)

    def _look(self) -> tuple[list[SegmentId], list[tuple[SegmentId, int, int]]]:
        """Return the OPEN segments whose logs do not have the lease of their epoch, and the SEALED ones in which
        records are to be made void, with their ends and numbers of records.

        Leases are looked up after the segments: a segment is opened only under a lease that is held, and an epoch that
        is gone never comes back.
        """
        open_ones: list[SegmentRow] = []
        to_void: list[tuple[SegmentId, int, int]] = []
        for page in segment_pages(self._metadata):
            open_ones += [row for row in page if row.state is SegmentState.OPEN]
            to_void += [
                (row.segment, row.end, row.records)
                for row in page
                if row.state is SegmentState.SEALED and row.sealed_ms is None
            ]
        if not open_ones:
            return [], to_void
        held = {(lease.name, lease.epoch) for lease in self._metadata.list_leases(LEASE_PREFIX)}
        orphans = [row for row in open_ones if (f"{LEASE_PREFIX}{log_of(row.segment)}", row.epoch) not in held]
        return [row.segment for row in orphans], to_void

    def _seal(self, segment: SegmentId) -> int | None:
        """Return the end of the segment's batches, or None if it is not sealed now."""
        if not self._is_open(segment):
            self.parked.release(segment)
            return None
        try:
            end = self._in_medium.seal(segment)
        except Transient as error:
            self.parked.park(segment, error)
            return None
        kill_point("recovery.segment_sealed")
        try:
            self._metadata.seal_segments([(segment, end, 0)], None)
        except Transient as error:
            # Its log may be stopped in the middle of a transaction that records PUTs in it, and keep its row locked
            # until it continues. A parked segment does not fail the next run, which does the rest.
            self.parked.park(segment, error)
            raise
        kill_point("recovery.segment_recorded")
        self.parked.release(segment)
        _log.info("landing segment of a dead process sealed", segment=segment.hex(), end=end)
        return end

    def _is_open(self, segment: SegmentId) -> bool:
        """Return whether the segment still waits for its seal. If others have sealed, released and forgotten it
        meanwhile, a seal might create it again, and if the metadata failed then, no process would release it."""
        try:
            row = self._metadata.landing_segment(segment)
        except Transient as error:
            self.parked.park(segment, error)
            raise
        return row is not None and row.state is SegmentState.OPEN

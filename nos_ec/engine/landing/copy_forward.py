"""Moves the last live records out of nearly empty segments of the landing log, so that the segments can be released.

An object that is packed late keeps its whole segment. That is harmless while there are few: nothing is copied until
sealed segments hold more than twice their live bytes plus an allowance. Then the segments with the smallest live share
are copied, and only those that are less than a quarter live. Objects in them that still wait for their packing age are
not copied at once: they are made due, so that they may be packed before they have to be copied.

Order: read and check -> land in a segment of a log used only for such copies -> record it in the audit trail -> move
(compare-and-set of the landing id in the row, or in the queue entry that has replaced it). After a crash before the
move, no row refers to the new records, and they are freed with their segment. The trimmer releases emptied segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE
from nos_ec.core.ids import LandingId, SegmentId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import ObjectState, SegmentState
from nos_ec.core.sums import Summed
from nos_ec.core.versions import put_ms_of
from nos_ec.engine.audit_entries import copies_moved
from nos_ec.engine.landing.lander import Lander, NewCopy
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.engine.packable import crc_checked
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.metadata import LandedMove, LandingSegments, ObjectRow, SegmentRow

LOOK_MS = 60_000
"""Time between checks; each queries the live objects of every old segment."""
LIVE_SHARE_MAX = 4
"""Segments are copied if less than one part in this many is live."""
DUE_MS = 3 * LOOK_MS
"""How long a segment is skipped after objects in it were made due: in that time they are published, and packed unless
the consumers lag or their stripes do not fill."""
ROWS_PER_PAGE = 500
BACK_OFF = BackOff(first_ms=60_000, max_ms=3_600_000)
PARKED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """Segments that were sealed less than `age_ms` ago are skipped. Segments may hold `allowance_bytes` beyond twice
    their live bytes."""

    age_ms: int
    allowance_bytes: int


@dataclass(frozen=True, slots=True)
class ForwardResult(Summed):
    """Objects copied by one run, their bytes, the segments that they left, and segments that failed and are parked."""

    objects: int = 0
    bytes: int = 0
    segments: int = 0
    failed: int = 0


def record_bytes(row: ObjectRow) -> int:
    """Return about how many bytes the record of an object takes. The header counts, so that a segment full of tiny
    objects does not look sparse."""
    return (
        RECORD_HEADER_SIZE + len(row.key.bucket.encode()) + len(row.key.name.encode()) + len(row.attributes) + row.size
    )


class RecordReader(Protocol):
    """Reads records of the landing log."""

    def read_records(self, wanted: Sequence[tuple[LandingId, int]]) -> list[bytes | NosError]:
        """Return, for each (id, size in bytes), the data or the error of reading it."""


@dataclass(frozen=True, slots=True)
class _Sparse:
    """A segment and the bytes of its live objects; counting stops at half of the segment."""

    row: SegmentRow
    live_bytes: int

    @property
    def excess_bytes(self) -> int:
        """Return the bytes that the segment holds beyond twice its live bytes."""
        return max(0, self.row.end - 2 * self.live_bytes)


class CopyForward:
    """Copies live records out of sparse segments. Several may run at once: they repeat some of each other's work, but
    do no harm. Each belongs to one thread.

    `lander` is a log used only for these copies, so that they are not mixed with fresh records.
    """

    def __init__(
        self,
        metadata: LandingSegments,
        reader: RecordReader,
        lander: Lander,
        clock: Clock,
        options: ForwardOptions,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._metadata = metadata
        self._reader = reader
        self._lander = lander
        self._clock = clock
        self._options = options
        self._trail = trail
        self._look_ms = 0
        self._hastened: dict[SegmentId, int] = {}
        """Sparse segments whose objects were made due, each with the time until which it is skipped."""
        self.parked: RetryQueue[SegmentId] = RetryQueue(
            "sparse landing segment", bytes.hex, clock, BACK_OFF, PARKED_MAX
        )
        """Segments with objects that could not be copied, until their next try."""

    def run_once(self, beat: Beat = unwatched) -> ForwardResult:
        """Copy as much as the allowance requires, if the next check is due. Raise Transient. Call `beat` for every
        segment and batch."""
        now_ms = self._clock.now_ms()
        if waits(self._look_ms, now_ms, LOOK_MS):
            return ForwardResult()
        self._look_ms = now_ms + LOOK_MS
        _, sealed_bytes = self._metadata.segment_totals().get(SegmentState.SEALED, (0, 0))
        if sealed_bytes <= self._options.allowance_bytes:
            return ForwardResult()
        sparse = [one for row in self._old(now_ms) if (one := self._look_at(row, beat)).live_bytes]
        excess = sum(one.excess_bytes for one in sparse)
        found = {one.row.segment for one in sparse}
        self._hastened = {segment: until for segment, until in self._hastened.items() if segment in found}
        total = ForwardResult()
        for one in sorted(sparse, key=lambda one: one.live_bytes / one.row.end):
            if excess <= self._options.allowance_bytes or LIVE_SHARE_MAX * one.live_bytes >= one.row.end:
                break
            if self.parked.waits(one.row.segment):
                continue
            if not self._is_hastened(one.row.segment, now_ms, beat):
                total += self._copy(one.row.segment, beat)
            excess -= one.excess_bytes
        return total

    def _is_hastened(self, segment: SegmentId, now_ms: int, beat: Beat) -> bool:
        """Make the objects due that wait in a segment for their age, once for each segment. Return whether this may
        still empty it."""
        if segment not in self._hastened:
            made = 0
            for page in self._live_pages(segment):
                beat(0)
                made += self._metadata.make_due([row for row in page if row.state is ObjectState.LANDED], now_ms)
                kill_point("copy_forward.made_due")
            self._hastened[segment] = now_ms + (DUE_MS if made else 0)
        return waits(self._hastened[segment], now_ms, DUE_MS)

    def _old(self, now_ms: int) -> Iterator[SegmentRow]:
        """Yield the SEALED segments that are old enough and not empty. The trimmer releases the DOOMED ones."""
        for page in segment_pages(self._metadata):
            for row in page:
                is_old = now_ms - (row.sealed_ms or row.opened_ms) >= self._options.age_ms
                if row.state is SegmentState.SEALED and row.end and is_old:
                    yield row

    def _look_at(self, row: SegmentRow, beat: Beat) -> _Sparse:
        beat(0)
        live_bytes = 0
        for page in self._live_pages(row.segment):
            live_bytes += sum(map(record_bytes, page))
            if 2 * live_bytes >= row.end:
                break
        return _Sparse(row, live_bytes)

    def _live_pages(self, segment: SegmentId) -> Iterator[list[ObjectRow]]:
        """Yield the objects whose copies are in the segment. Moving a page does not affect the pages after it."""
        after: LandingId | None = None
        while page := self._metadata.objects_in_segment(segment, after, ROWS_PER_PAGE):
            yield page
            after = page[-1].landing_id

    def _copy(self, segment: SegmentId, beat: Beat) -> ForwardResult:
        """Copy the live objects of a segment. Park it if some of them could not be copied."""
        total = ForwardResult()
        failure: NosError | None = None
        for page in self._live_pages(segment):
            for batch in self._batches(page):
                beat(0)
                try:
                    copied, error = self._copy_batch(batch)
                except Transient as refusal:
                    copied, error = ForwardResult(), refusal
                total += copied
                failure = failure or error
                if isinstance(error, Transient):
                    break  # the log is full, or a store does not answer
            if isinstance(failure, Transient):
                break
        if failure is not None:
            self.parked.park(segment, failure)
            return total + ForwardResult(failed=1)
        self.parked.release(segment)
        return total + ForwardResult(segments=1)

    def _batches(self, rows: Sequence[ObjectRow]) -> Iterator[list[ObjectRow]]:
        batch: list[ObjectRow] = []
        size = 0
        for row in rows:
            full = len(batch) >= self._lander.batch_objects_max or size + row.size > self._lander.batch_bytes_max
            if batch and full:
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += row.size
        if batch:
            yield batch

    def _copy_batch(self, rows: Sequence[ObjectRow]) -> tuple[ForwardResult, NosError | None]:
        """Copy some objects. Return what was copied, and the first error of the others."""
        sources = [row.landing_id for row in rows if row.landing_id is not None]
        found = self._reader.read_records([(source, row.size) for source, row in zip(sources, rows, strict=True)])
        failure: NosError | None = None
        good: list[tuple[ObjectRow, LandingId, NewCopy]] = []
        for row, source, data in zip(rows, sources, found, strict=True):
            try:
                if isinstance(data, NosError):
                    raise data
                crc_checked(data, row.size, row.crc32c, row.key, f"landing copy of {row.key} v{row.version}")
            except NosError as error:
                failure = failure or error
            else:
                again = NewCopy(row.key, data, row.crc32c, row.attributes, put_ms_of(row.version))
                good.append((row, source, again))
        if not good:
            return ForwardResult(), failure
        landed = self._lander.land([copy for _, _, copy in good])
        kill_point("copy_forward.landed")
        moves: list[LandedMove] = []
        sizes: dict[LandingId, int] = {}
        for (row, source, _), outcome in zip(good, landed.outcomes, strict=True):
            if isinstance(outcome, NosError):
                failure = failure or outcome
            else:
                moves.append(LandedMove(row.object_id, row.version, source, outcome))
                sizes[outcome] = row.size
        moved: frozenset[LandingId] = frozenset()
        try:
            self._trail.record(copies_moved(rows, {one.object_id: one for one in moves}))
            moved = self._metadata.move_landed(moves)
            kill_point("copy_forward.moved")
            landed.void(sizes.keys() - moved)
        finally:
            landed.settle(sizes.keys() - moved)
        return ForwardResult(len(moved), sum(sizes[target] for target in moved)), failure

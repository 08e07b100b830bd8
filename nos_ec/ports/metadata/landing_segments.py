"""Segments of the landing log, which replace a reservation for each copy.

A log is a lease named `landing-log-NUMBER`. A PUT whose record is in a segment can be committed to the metadata only
while the segment is OPEN. The log seals its segment after the last of these PUTs is recorded or given up; if the log is
fenced, the process that fences it seals the segment. Therefore an entry of the deletion queue that belongs to an OPEN
segment is never forgotten (a PUT whose outcome is unknown finds there that it was recorded), and a segment that is not
OPEN is released as soon as nothing refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.ids import LandingId, SegmentId
from nos_ec.core.states import SegmentState
from nos_ec.ports.metadata.leases import Lease
from nos_ec.ports.metadata.objects import ObjectRow


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment of the landing log. `sealed_ms` is in Unix milliseconds; it is None while the segment is OPEN, and
    while it is SEALED with records of unrecorded PUTs that are still to be made void. `end` is the end of the last
    batch in bytes, and `records` the number of records; both are 0 while the segment is OPEN."""

    segment: SegmentId
    state: SegmentState
    epoch: int
    opened_ms: int
    sealed_ms: int | None
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class LandedMove:
    """A landed copy that was written again: this version of an object is to move from one record to another."""

    object_id: int
    version: int
    source: LandingId
    target: LandingId


class LandingSegments(Protocol):
    """Rows of segments. See the module docstring. Safe to call from several threads."""

    # --- the log that owns them -------------------------------------------------------------------
    def open_segment(self, segment: SegmentId, lease: Lease, now_ms: int) -> None:
        """Insert an OPEN segment, before the medium creates it. Raises LeaseLost unless the lease is held, Conflict
        when the segment exists under another epoch. Calling it again with the same arguments changes nothing."""
        ...

    def seal_segments(self, ends: Sequence[tuple[SegmentId, int, int]], now_ms: int | None) -> None:
        """Move segments from OPEN to SEALED, each with its end in bytes and its number of records. Waits for
        transactions that record PUTs in them. `now_ms` is None if records in them are still to be made void; a second
        call with the time marks that as done. Otherwise, segments that are sealed or gone stay as they are."""
        ...

    # --- recovery ---------------------------------------------------------------------------------
    def segments_of_log(self, log: int, epoch_max: int) -> list[SegmentRow]:
        """Return the OPEN segments of a log whose epoch is at most `epoch_max`: a dead process left them, and they must
        be sealed."""
        ...

    def landing_segment(self, segment: SegmentId) -> SegmentRow | None:
        """Return a segment; None when it has been released."""
        ...

    # --- trim -------------------------------------------------------------------------------------
    def list_segments(self, after: SegmentId | None, limit: int) -> list[SegmentRow]:
        """Return one page of all segments in order of id, after the segment `after` (None: from the start)."""
        ...

    def releasable_segments(self, segments: Sequence[SegmentId]) -> frozenset[SegmentId]:
        """Return those of these segments that are DOOMED, or are SEALED without any row or queue entry that refers to
        one of their records. Takes two index look-ups for each, without locks; `doom_segment` makes the final
        decision."""
        ...

    def doom_segment(self, segment: SegmentId) -> bool:
        """Move a segment from SEALED to DOOMED if nothing refers to a record of it; locks the segment. Returns True
        also when it was DOOMED before; False when it is OPEN, absent, or still referred to."""
        ...

    def forget_segments(self, segments: Sequence[SegmentId]) -> None:
        """Remove rows of DOOMED segments, after their space was released. Idempotent."""
        ...

    # --- stragglers -------------------------------------------------------------------------------
    def live_in(self, segment: SegmentId, after: LandingId | None, limit: int) -> list[ObjectRow]:
        """Return objects whose landing copy is a record of this segment, in order of landing id, after the id
        `after`."""
        ...

    def make_due(self, rows: Sequence[ObjectRow], now_ms: int) -> int:
        """Make LANDED rows that wait for their age due at `now_ms`. Changes only rows that still have that version;
        rows that are due, or QUEUED, stay as they are. Returns how many it changed."""
        ...

    def move_landed(self, moves: Sequence[LandedMove]) -> frozenset[LandingId]:
        """Exchange landing ids, each by compare-and-set: in the row that still has this version and this landing copy,
        and in an undoomed queue entry of it. Returns the targets that are referred to now. Raises Transient, and
        changes nothing, when a target is in a segment that is not OPEN; ValueError when a source is in an OPEN segment
        (its PUT may still be recorded by its id), or a target is not in any segment."""
        ...

    # --- figures ----------------------------------------------------------------------------------
    def segment_totals(self) -> dict[SegmentState, tuple[int, int]]:
        """Return the number of segments in each state, and the sum of their `end` in bytes. Takes one statement; the
        number of segments is bounded by the size of the log."""
        ...

"""Segments of the landing log, in place of a reservation for each copy.

A log is a lease named `landing-log-NUMBER`. A PUT that lies in a segment can be recorded only while the segment is
OPEN. Its log seals it after the last of these PUTs is recorded or given up, and whoever fences the log seals it in its
place. Therefore an entry of the deletion queue that belongs to an OPEN segment is never forgotten (a PUT whose outcome
is unknown finds there that it was recorded), and a segment that is not OPEN is released as soon as nothing refers to
it.
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
    """A segment of the landing log. sealed_ms: Unix milliseconds; None while it is OPEN, and while it is SEALED with
    records of PUTs that were not recorded and are still to be made void. end: the end of its last batch in bytes, and
    `records` how many it holds; both are 0 while it is OPEN."""

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
    """Rows of segments. See the package docstring. Safe to call from several threads."""

    # --- the log that owns them -------------------------------------------------------------------
    def open_segment(self, segment: SegmentId, lease: Lease, now_ms: int) -> None:
        """Insert an OPEN segment, before the medium creates it. Raises LeaseLost unless the lease is held, Conflict
        when the segment exists under another epoch. Called again with the same arguments it changes nothing."""
        ...

    def seal_segments(self, ends: Sequence[tuple[SegmentId, int, int]], now_ms: int | None) -> None:
        """OPEN -> SEALED, each with its end in bytes and its number of records. Waits for transactions that record PUTs
        in them. now_ms: None if records in them are still to be made void; calling again with the time says that they
        are. Otherwise, segments that are sealed or gone stay as they are."""
        ...

    # --- recovery ---------------------------------------------------------------------------------
    def segments_of_log(self, log: int, epoch_max: int) -> list[SegmentRow]:
        """The OPEN segments of a log whose epoch is at most `epoch_max`: what a dead process left to be sealed."""
        ...

    def landing_segment(self, segment: SegmentId) -> SegmentRow | None:
        """A segment; None when it was given back."""
        ...

    # --- trim -------------------------------------------------------------------------------------
    def list_segments(self, after: SegmentId | None, limit: int) -> list[SegmentRow]:
        """One page of all segments in order of id, after the segment `after` (None: from the start)."""
        ...

    def releasable_segments(self, segments: Sequence[SegmentId]) -> frozenset[SegmentId]:
        """Those of these segments that are DOOMED, or SEALED with no row and no queue entry that refers to a record of
        them: two index look-ups for each, without locks. `doom_segment` decides."""
        ...

    def doom_segment(self, segment: SegmentId) -> bool:
        """SEALED -> DOOMED if nothing refers to a record of it; locks the segment. True also when it was DOOMED
        before; False when it is OPEN, absent, or still referred to."""
        ...

    def forget_segments(self, segments: Sequence[SegmentId]) -> None:
        """Remove rows of DOOMED segments, after their space was released. Idempotent."""
        ...

    # --- stragglers -------------------------------------------------------------------------------
    def live_in(self, segment: SegmentId, after: LandingId | None, limit: int) -> list[ObjectRow]:
        """Objects whose landing copy is a record of this segment, in order of landing id, after the id `after`."""
        ...

    def make_due(self, rows: Sequence[ObjectRow], now_ms: int) -> int:
        """Make LANDED rows that wait for their age due at `now_ms`. Changes only rows that still have that version;
        those that are due, or QUEUED, stay as they are. Returns how many it changed."""
        ...

    def move_landed(self, moves: Sequence[LandedMove]) -> frozenset[LandingId]:
        """Exchange landing ids, each by compare-and-set: in the row that still has this version and this landing copy,
        and in an undoomed queue entry of it. Returns the targets that are referred to now. Raises Transient, and
        changes nothing, when a target lies in a segment that is not OPEN; ValueError when a source lies in one that is
        (its PUT may still be recorded by its id), or a target in none."""
        ...

    # --- figures ----------------------------------------------------------------------------------
    def segment_totals(self) -> dict[SegmentState, tuple[int, int]]:
        """How many segments there are in each state, and the sum of their `end` in bytes. One statement; the number of
        segments is bounded by the size of the log."""
        ...

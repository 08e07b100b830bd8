"""Rows of the segments of landing logs.

A PUT that writes a copy to the landing store first reserves its id in the deletion queue. In the landing log, the row
of the segment serves as the reservation of all records in it (docs/adr/0021-segments-instead-of-reservations.md).

A landing log has a number, and belongs to the process that holds the lease `landing-log-NUMBER`. A PUT whose bytes are
a record of a segment can be committed to the metadata only while the segment is OPEN. The log seals a segment after the
last of these PUTs was committed or given up. If its process dies, the process that fences its lease seals the segment.
Two rules follow:

- While a segment is OPEN, its entries in the deletion queue are kept. A PUT that does not know whether it was committed
  may be committed again, and such an entry shows that it was.
- Otherwise, a segment is released as soon as nothing refers to a record of it.
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
    """A segment of a landing log. `opened_ms` and `sealed_ms` are in Unix milliseconds. `sealed_ms` is None while the
    segment is OPEN, and after it was SEALED, until the records of PUTs that were never committed have been made void.
    `end` is the offset in bytes at which the last batch ends, and `records` the number of records; both are 0 while the
    segment is OPEN."""

    segment: SegmentId
    state: SegmentState
    epoch: int
    opened_ms: int
    sealed_ms: int | None
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class LandedMove:
    """A record that was copied to another segment: the row of this version is to refer to `target` instead of
    `source`."""

    object_id: int
    version: int
    source: LandingId
    target: LandingId


class LandingSegments(Protocol):
    """Changes and reads rows of segments. See the module docstring. Safe to call from several threads."""

    # --- the log that owns the segments -----------------------------------------------------------
    def open_segment(self, segment: SegmentId, lease: Lease, now_ms: int) -> None:
        """Insert an OPEN segment, before the medium creates it. Raises LeaseLost unless the lease is held, Conflict
        when the segment exists under another epoch. Calling it again with the same arguments changes nothing."""

    def seal_segments(self, ends: Sequence[tuple[SegmentId, int, int]], now_ms: int | None) -> None:
        """Move segments from OPEN to SEALED. `ends` has the id, the end in bytes and the number of records of each.
        Waits for transactions that record PUTs in the segments.

        `now_ms` becomes the segments' `sealed_ms`. It is None if some of their records must still be made void. Then a
        second call with the time reports that this is done. Apart from that, segments that are sealed or gone stay as
        they are."""

    # --- recovery ---------------------------------------------------------------------------------
    def open_segments_of_log(self, log: int, epoch_max: int) -> list[SegmentRow]:
        """Return the OPEN segments of the log with number `log` that have an epoch of at most `epoch_max`. With the
        epoch of an ended lease, these are the segments that a dead process left unsealed."""

    def landing_segment(self, segment: SegmentId) -> SegmentRow | None:
        """Return the row of a segment; None when it has been released."""

    # --- trim -------------------------------------------------------------------------------------
    def list_segments(self, after: SegmentId | None, limit: int) -> list[SegmentRow]:
        """Return one page of all segments in order of id, after the segment `after` (None: from the start)."""

    def releasable_segments(self, segments: Sequence[SegmentId]) -> frozenset[SegmentId]:
        """Return which of these segments are DOOMED, or SEALED while no object row or queue entry refers to one of
        their records. Takes two index look-ups for each, without locks; `doom_segment` makes the final decision."""

    def doom_segment(self, segment: SegmentId) -> bool:
        """Move a segment from SEALED to DOOMED if nothing refers to a record of it; locks the segment. Returns whether
        it is DOOMED now: False when it is OPEN, absent, or still referred to."""

    def forget_segments(self, segments: Sequence[SegmentId]) -> None:
        """Remove rows of DOOMED segments, after their space was released. Idempotent."""

    # --- copy forward (engine/landing/copy_forward.py) --------------------------------------------
    def objects_in_segment(self, segment: SegmentId, after: LandingId | None, limit: int) -> list[ObjectRow]:
        """Return at most `limit` objects whose landing copy is a record of this segment, in order of landing id, from
        the first one after `after` (None: from the start)."""

    def make_due(self, rows: Sequence[ObjectRow], now_ms: int) -> int:
        """Let LANDED rows be published from `now_ms` on, although they are not old enough. Changes only rows that still
        have that version; rows that are due already, or QUEUED, stay as they are. Returns how many it changed."""

    def move_landed(self, moves: Sequence[LandedMove]) -> frozenset[LandingId]:
        """Replace the landing id `source` with `target`, by compare-and-set: in the object row, if it still has this
        version and this landing copy, and in the queue entry of the copy, unless that is doomed. Returns the targets
        that are referred to now. Raises Transient, and changes nothing, when a target is in a segment that is not OPEN;
        ValueError when a source is in an OPEN segment (its PUT may still be committed with that id), or a target is not
        in any segment."""

    # --- figures ----------------------------------------------------------------------------------
    def segment_totals(self) -> dict[SegmentState, tuple[int, int]]:
        """Return the number of segments in each state, and the sum of their `end` in bytes. Takes one statement; the
        number of segments is bounded by the size of the log."""

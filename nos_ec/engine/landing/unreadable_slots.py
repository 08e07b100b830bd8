"""Slots of the landing log whose headers cannot be read: finds their owners through the rows of landing segments.

Ids of segments are never used again, and the row of a segment outlives its slot. So a slot that holds records of a
segment whose row is OPEN or SEALED belongs to that segment. Without a row, the records may be newer than the backup
from which the metadata was restored, so they are kept for a day after the last PUT among them.

2  a slot is freed only when no row refers to anything that may be in it
"""

from __future__ import annotations

from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.formats.copy_label import CopyLabel
from nos_ec.core.ids import LandingId, SegmentId
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.landing_labels import labels_in_segment
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.ports.metadata import LandingSegments, SegmentRow
from nos_ec.ports.segment_medium import SegmentMedium, UnreadableSlot


def unreadable_slots(medium: SegmentMedium) -> tuple[UnreadableSlot, ...]:
    """Return all such slots, as far as the devices can be reached."""
    states = medium.devices()
    return () if states is None else states.unreadable


def row_of(metadata: LandingSegments, slot: UnreadableSlot) -> SegmentRow | None:
    """Return the row that proves who owns the slot, or None if there is none. Raise Transient."""
    row = None if slot.segment is None else metadata.landing_segment(slot.segment)
    return None if row is None or row.state is SegmentState.DOOMED else row


def restore(metadata: LandingSegments, medium: SegmentMedium, slot: UnreadableSlot) -> bool:
    """Write the header of a slot again if a row proves who owns it. Return whether it was written. Raise Transient."""
    row = row_of(metadata, slot)
    return row is not None and medium.settle_slot(slot, row.epoch)


def labels_in(medium: SegmentMedium, slot: UnreadableSlot) -> dict[LandingId, CopyLabel | None]:
    """Return the intact records of a slot, each with its label, or None if its names are damaged. Raise Transient."""
    try:
        return {} if slot.segment is None else labels_in_segment(medium, slot.segment)
    except NotFound:
        return {}


def may_be_freed(metadata: LandingSegments, medium: SegmentMedium, slot: UnreadableSlot, now_ms: int) -> bool:
    """Return whether no row refers to anything that may be in a slot. Raise Transient."""
    if slot.segment is not None and metadata.landing_segment(slot.segment) is not None:
        return False  # the header is written again, or the trimmer frees the slot
    put_ms = max((label.put_ms for label in labels_in(medium, slot).values() if label is not None), default=0)
    if now_ms - put_ms < QUARANTINE_MS:
        return False
    rows = (row for page in segment_pages(metadata) for row in page)
    return all(row.state is SegmentState.DOOMED or _is_elsewhere(medium, row.segment) for row in rows)


def _is_elsewhere(medium: SegmentMedium, segment: SegmentId) -> bool:
    try:
        medium.read(segment, [(medium.limits.start, 1)])
    except (NotFound, Transient):
        return False
    return True

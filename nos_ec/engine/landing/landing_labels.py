"""Reads the labels of landing copies, which describe their objects without any row: for a rebuild of lost rows.

They include copies of objects that were deleted or overwritten since, until these copies are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.copy_label import CopyLabel, decode_label, label_of_record
from nos_ec.core.formats.landing_format import TYPE_PUT, FoundRecord, is_void, scan
from nos_ec.core.ids import LandingId, SegmentId
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.segment_medium import SegmentMedium


def labels_of(landing: LandingStore, landing_ids: Sequence[LandingId]) -> dict[LandingId, CopyLabel]:
    """Return the labels of those copies of the landing store that have a readable label, in the order of `landing_ids`.
    Raise Transient."""
    found = landing.labels(landing_ids)
    decoded = {one: _decoded(one, found[one]) for one in landing_ids if one in found}
    return {landing_id: label for landing_id, label in decoded.items() if label is not None}


def labels_in_segment(medium: SegmentMedium, segment: SegmentId) -> dict[LandingId, CopyLabel | None]:
    """Return every intact record of a landing segment that is not void, with its label; None if its names are damaged.
    This reads the whole segment and checks the CRC of the data. Raise NotFound, Transient."""
    found: dict[LandingId, CopyLabel | None] = {}
    for record in puts_in_segment(medium, segment, medium.limits.segment_bytes):
        landing_id = record.header.landing_id
        if is_void(record.names) or found.get(landing_id) is not None:
            continue
        try:
            found[landing_id] = label_of_record(record)
        except Corrupt:
            found[landing_id] = None
    return found


def puts_in_segment(medium: SegmentMedium, segment: SegmentId, end: int) -> Iterator[FoundRecord]:
    """Yield the intact records of PUTs in a landing segment that lie before `end`, in order, first of one copy of the
    segment, then of the next: a record is yielded once for each copy that has it. Raise NotFound, Transient."""
    for copy in range(medium.limits.copies):
        read = partial(_read, medium, segment, copy)
        for record in scan(read, segment, medium.limits.start, end):
            if record.header.type == TYPE_PUT:
                yield record


def _decoded(landing_id: LandingId, label: bytes) -> CopyLabel | None:
    try:
        return decode_label(landing_id, label)
    except Corrupt:
        return None


def _read(medium: SegmentMedium, segment: SegmentId, copy: int, offset: int, length: int) -> bytes:
    return medium.read(segment, [(offset, length)], copy)[0]

"""What landing copies say of themselves, without any row: for a rebuild of lost rows.

Copies of objects that were deleted or overwritten since are among them, as long as nobody has deleted these copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.copy_label import CopyLabel, decode_label, label_of_record
from nos_ec.core.formats.landing_format import TYPE_PUT, FoundRecord, is_void, scan
from nos_ec.core.ids import LandingId, SegmentId
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.segment_medium import SegmentMedium

PAGE_COPIES = 1000


def labels_in_store(landing: LandingStore) -> Iterator[tuple[LandingId, CopyLabel | None]]:
    """Every copy of the landing store, page by page, with its label; None if it has none that can be read, because an
    older release put it, for example. The data is not read. Raises Transient."""
    ids = landing.list_ids()
    while page := list(islice(ids, PAGE_COPIES)):
        for landing_id, label in landing.labels(page).items():
            yield landing_id, _decoded(landing_id, label)


def labels_of(landing: LandingStore, landing_ids: Sequence[LandingId]) -> dict[LandingId, CopyLabel]:
    """The labels of those copies of the landing store that have one that can be read, in the order of `landing_ids`.
    Raises Transient."""
    found = landing.labels(landing_ids)
    decoded = {one: _decoded(one, found[one]) for one in landing_ids if one in found}
    return {landing_id: label for landing_id, label in decoded.items() if label is not None}


def labels_in_segment(medium: SegmentMedium, segment: SegmentId) -> dict[LandingId, CopyLabel | None]:
    """Every intact record of a landing segment that is not void, with its label; None if its names are damaged. Reads
    all of the segment, and checks the CRC of the data. Raises NotFound, Transient."""
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
    """Yield the intact records of PUTs in a landing segment that lie before `end`, in order, of one copy of the segment
    after the other: so a record is yielded once for each copy that has it. Raises NotFound, Transient."""
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

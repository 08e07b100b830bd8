"""Compares the rows of landing segments with the landing log, the leases of its writers, and the objects that wait.

9  the number of landing segments is limited by the size of the log
"""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.core.errors import NotFound
from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.ids import SegmentId, log_of, record_offset
from nos_ec.core.states import SegmentState
from nos_ec.engine.check.blocks import NAMED_MAX
from nos_ec.engine.check.second_look import SecondLook
from nos_ec.engine.landing import log_lease
from nos_ec.engine.landing.landing_labels import labels_in_segment
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.engine.landing.unreadable_slots import labels_in, may_be_freed, row_of, unreadable_slots
from nos_ec.ports.metadata import Metadata, SegmentRow
from nos_ec.ports.segment_medium import SegmentMedium, UnreadableSlot

PAGE_ROWS = 1000


class LogCheck:
    """Checks all landing segments."""

    def __init__(self, metadata: Metadata, medium: SegmentMedium, second: SecondLook, now_ms: int) -> None:
        self._metadata = metadata
        self._now_ms = now_ms
        self._medium = medium
        self._second = second
        self.segments = 0

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong. Raises Transient."""
        yield from self._second.doubt(self._slot_findings)
        yield from self._second.settle()  # must come first: a slot without records can make the listing below fail
        yield from self._second.doubt(self._compare)
        yield from self._second.settle()

    def _slot_findings(self) -> list[Finding]:
        return [self._slot_finding(slot) for slot in unreadable_slots(self._medium)]

    def _slot_finding(self, slot: UnreadableSlot) -> Finding:
        row = row_of(self._metadata, slot)
        seen: dict[str, object] = {"device": slot.device, "slot": slot.slot, "segment": None, "state": None}
        if slot.segment is not None:
            seen["segment"] = slot.segment.hex()
        if row is not None:
            waiting = self._metadata.objects_in_segment(row.segment, None, NAMED_MAX)
            seen |= {"state": row.state.value, "named": [str(one.key) for one in waiting]}
        else:
            labels = labels_in(self._medium, slot)
            named = sorted({f"{one.bucket}/{one.name}" for one in labels.values() if one is not None})
            seen |= {"records": len(labels), "named": named[:NAMED_MAX]}
            seen["is_unused"] = may_be_freed(self._metadata, self._medium, slot, self._now_ms)
        return Finding(FindingKind.LANDING_SLOT_UNREADABLE, str(slot), seen)

    def _compare(self) -> list[Finding]:
        """Compare the landing log with its rows, each read before and after. A row is written before its landing
        segment and removed after it, and is OPEN only while the lease of its log is held."""
        stored_before, rows_before = set(self._medium.segments()), self._rows()
        held = {(lease.name, lease.epoch) for lease in self._metadata.list_leases(log_lease.LEASE_PREFIX)}
        stored, rows = set(self._medium.segments()), self._rows()
        self.segments = len(rows)
        doubtful = {slot.segment for slot in unreadable_slots(self._medium)}  # these are reported as slots
        without_row = sorted((stored_before & stored) - rows_before.keys() - rows.keys() - doubtful)
        found = [one for segment in without_row for one in self._without_row(segment)]
        for row in rows.values():
            if rows_before.get(row.segment) == row:
                found += self._check_row(row, stored, held)
        return found

    def _without_row(self, segment: SegmentId) -> Iterator[Finding]:
        """Report a landing segment without a row, and the objects in it. Reads the whole segment."""
        try:
            labels = labels_in_segment(self._medium, segment)
        except NotFound:
            return
        named = sorted({f"{one.bucket}/{one.name}" for one in labels.values() if one is not None})
        seen = {"records": len(labels), "named": named[:NAMED_MAX]}
        yield _finding(FindingKind.LANDING_SEGMENT_WITHOUT_ROW, segment, **seen)

    def _rows(self) -> dict[SegmentId, SegmentRow]:
        return {row.segment: row for page in segment_pages(self._metadata) for row in page}

    def _check_row(self, row: SegmentRow, stored: set[SegmentId], held: set[tuple[str, int]]) -> Iterator[Finding]:
        lease = f"{log_lease.LEASE_PREFIX}{log_of(row.segment)}"
        if row.state is SegmentState.OPEN:
            if (lease, row.epoch) not in held:
                yield _finding(FindingKind.LANDING_SEGMENT_WITHOUT_WRITER, row.segment, lease=lease, epoch=row.epoch)
        elif row.state is SegmentState.DOOMED:
            waiting = self._metadata.objects_in_segment(row.segment, None, NAMED_MAX)
            if waiting:
                named = [str(one.key) for one in waiting]
                yield _finding(FindingKind.LANDING_SEGMENT_DOOMED, row.segment, named=named)
        elif row.end and row.segment not in stored:
            yield _finding(FindingKind.LANDING_SEGMENT_MISSING, row.segment, bytes=row.end)
        else:
            yield from self._check_end(row)

    def _check_end(self, row: SegmentRow) -> Iterator[Finding]:
        beyond = 0
        named: list[str] = []
        after = None
        while page := self._metadata.objects_in_segment(row.segment, after, PAGE_ROWS):
            after = page[-1].landing_id
            late = [str(one.key) for one in page if one.landing_id and record_offset(one.landing_id) >= row.end]
            beyond += len(late)
            named += late[: NAMED_MAX - len(named)]
        if beyond:
            yield _finding(FindingKind.LANDING_SEGMENT_END, row.segment, end=row.end, objects=beyond, named=named)


def _finding(kind: FindingKind, segment: SegmentId, **evidence: object) -> Finding:
    return Finding(kind, f"landing segment {segment.hex()}", evidence)

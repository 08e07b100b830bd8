"""Compares the table of waiting objects with rows of objects, landing copies and the deletion queue, in both
directions.

9  about IDS_MAX ids of copies are in memory: both listings are read in as many passes as that takes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from nos_ec.core.errors import Corrupt, InvalidInput, NotFound
from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.formats.copy_label import CopyLabel
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId, in_log, record_offset, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.check.blocks import ReadShare
from nos_ec.engine.check.second_look import SecondLook, compare_steadily
from nos_ec.engine.landing.landing_labels import labels_of
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import Metadata, ObjectRow, Objects, QueueEntry, SegmentRow, WaitingRow
from nos_ec.ports.segment_medium import SegmentMedium

PAGE_ROWS = 1000
IDS_MAX = 250_000


class CopyCheck:
    """Checks all landing copies of the landing store, all waiting objects, and the deletion queue."""

    def __init__(
        self,
        metadata: Metadata,
        landing: LandingStore,
        medium: SegmentMedium | None,
        second: SecondLook,
        read: ReadShare,
        now_ms: int,
        ids_max: int = IDS_MAX,
    ) -> None:
        """Take the medium of the landing log (None for a store without one), and about how many ids of copies to hold
        in memory."""
        self._metadata = metadata
        self._landing = landing
        self._medium = medium
        self._second = second
        self._read = read
        self._now_ms = now_ms
        self._ids_max = ids_max
        self.copies = self.waiting = self.queued = self.due = self.data_bytes = 0

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong. Raises Transient."""
        yield from self._check_queue()
        totals = self._metadata.totals()
        parts = 1 + (totals.landed_objects + totals.queued_objects) // self._ids_max
        for part in range(parts):
            present = set[LandingId]()
            for page in _pages(self._landing.list_ids()):
                if part == 0:
                    yield from self._check_owners(page)
                present.update(copy for copy in page if copy[-1] % parts == part)
            yield from self._check_waiting(part, parts, present)
        yield from self._second.settle()

    # --- copies ---------------------------------------------------------------------------------------
    def _check_owners(self, page: Sequence[LandingId]) -> Iterator[Finding]:
        self.copies += len(page)
        known = self._metadata.landing_known(page)
        for copy in page:
            if copy not in known:
                yield from self._second.doubt(partial(self._without_owner, copy))

    def _without_owner(self, copy: LandingId) -> Iterable[Finding]:
        """Report a copy that neither the metadata nor an object refers to. The metadata knows an id before its copy
        exists, until after the copy is gone. If an object has the copy but is not among the waiting objects, objects.py
        reports it."""
        if copy in self._metadata.landing_known([copy]):
            return
        try:
            size = len(self._landing.read(copy))
        except NotFound:
            return
        label = labels_of(self._landing, [copy]).get(copy)
        if label is not None and has_copy(self._metadata, label, copy):
            return
        seen = {"landing": copy.hex(), "bytes": size, "object": label and f"{label.bucket}/{label.name}"}
        yield Finding(FindingKind.COPY_WITHOUT_OWNER, f"landing copy {copy.hex()}", seen)

    # --- waiting objects ------------------------------------------------------------------------------
    def _check_waiting(self, part: int, parts: int, present: set[LandingId]) -> Iterator[Finding]:
        segments = self._segments()
        after: LandingId | None = None
        while page := self._metadata.waiting_after(after, PAGE_ROWS):
            after = page[-1].landing_id
            own = [one for one in page if one.landing_id[-1] % parts == part]
            self.waiting += len(own)
            rows = self._metadata.objects_with({one.object_id for one in own})
            for one in own:
                copy, row = one.landing_id, rows.get(one.object_id)
                there = _in_segment(copy, segments) if in_log(copy) else copy in present
                if row is None or not _fits(one, row) or not there or self._read.selects(copy):
                    yield from self._second.doubt(partial(self._again, copy))

    def _segments(self) -> Mapping[SegmentId, SegmentRow]:
        """Return the rows of the landing segments that exist. Their number is limited by the size of the log."""
        rows = {row.segment: row for page in segment_pages(self._metadata) for row in page}
        stored = set(self._medium.segments()) if self._medium is not None else frozenset[SegmentId]()
        return {segment: row for segment, row in rows.items() if segment in stored}

    def _again(self, copy: LandingId) -> list[Finding]:
        """Compare a waiting object again. Its row changes with the object. If it keeps changing, it is in use."""
        return compare_steadily(self._entry(copy), lambda: self._entry(copy), self._compare) or []

    def _entry(self, copy: LandingId) -> WaitingRow | None:
        return self._metadata.waiting_with([copy]).get(copy)

    def _compare(self, one: WaitingRow) -> Iterable[Finding]:
        copy = one.landing_id
        row = self._metadata.objects_with([one.object_id]).get(one.object_id)
        seen: dict[str, object] = {
            "landing": copy.hex(),
            "state": one.state.value,
            "size": one.size,
            "object_id": one.object_id,
        }
        if row is None or not _fits(one, row):
            now = None if row is None else _seen(row)
            yield Finding(FindingKind.WAITS_FOR_NOTHING, f"landing copy {copy.hex()}", seen | {"row": now})
            return
        try:
            data = self._landing.read_range(copy, 0, row.size)
            self.data_bytes += len(data)
            crc_checked(data, row.size, row.crc32c, row.key, f"landing copy of {row.key}")
        except NotFound:
            yield Finding(FindingKind.COPY_MISSING, f"object {row.key}", seen | _seen(row))
        except Corrupt as error:
            yield Finding(FindingKind.COPY_DAMAGED, f"object {row.key}", seen | _seen(row) | {"error": str(error)})

    # --- the deletion queue ---------------------------------------------------------------------------
    def _check_queue(self) -> Iterator[Finding]:
        """Yield the copies that are queued for deletion although an object waits with them. Entries whose copy is gone
        are normal: the copy was deleted."""
        after: LandingId | None = None
        while page := self._metadata.deletions_after(after, PAGE_ROWS):
            after = page[-1].landing_id
            self.queued += len(page)
            self.due += sum(entry.not_before_ms <= self._now_ms for entry in page)
            for copy in sorted(self._metadata.waiting_with([entry.landing_id for entry in page])):
                yield from self._second.doubt(partial(self._check_queued, copy))

    def _check_queued(self, copy: LandingId) -> Iterable[Finding]:
        before = self._entry(copy)
        entry = self._queue_entry(copy)
        if before is not None and entry is not None and self._entry(copy) == before:
            seen = {
                "landing": copy.hex(),
                "object_id": before.object_id,
                "not_before_ms": entry.not_before_ms,
                "doomed": entry.doomed,
            }
            yield Finding(FindingKind.COPY_QUEUED, f"landing copy {copy.hex()}", seen)

    def _queue_entry(self, copy: LandingId) -> QueueEntry | None:
        number = int.from_bytes(copy, "big")
        before = LandingId((number - 1).to_bytes(len(copy), "big")) if number else None
        page = self._metadata.deletions_after(before, 1)
        return page[0] if page and page[0].landing_id == copy else None


def _fits(one: WaitingRow, row: ObjectRow) -> bool:
    return (one.landing_id, one.state, one.size) == (row.landing_id, row.state, row.size)


def _in_segment(copy: LandingId, segments: Mapping[SegmentId, SegmentRow]) -> bool:
    """Return whether, according to rows and the landing log, the record lies in a landing segment that can be read."""
    row = segments.get(segment_of(copy))
    if row is None or row.state is SegmentState.DOOMED:
        return False
    return row.state is SegmentState.OPEN or record_offset(copy) < row.end


def has_copy(metadata: Objects, label: CopyLabel, copy: LandingId) -> bool:
    """Return whether the object that the label names has this copy now."""
    try:
        return metadata.get(ObjectKey(label.bucket, label.name)).landing_id == copy
    except (InvalidInput, NotFound):
        return False


def _seen(row: ObjectRow) -> dict[str, object]:
    return {"object": str(row.key), "version": row.version, "row_state": row.state.value, "crc32c": row.crc32c}


def _pages(ids: Iterator[LandingId]) -> Iterator[list[LandingId]]:
    while page := list(islice(ids, PAGE_ROWS)):
        yield page

"""Writes the journal of deletes into the store, and reads it for a rebuild of the metadata (docs/adr/0065).

A dump is hours old when the database is lost. Without the journal, a rebuild would bring back what was deleted since,
if its bytes still exist. So each transaction that deletes adds a row to a table, if the settings ask for a journal, and
GC writes these rows into the store each minute: as small objects of a hidden bucket, whose names are ascending numbers.
They are landed, packed and recovered like all other objects.

An object is put only if none has its number. Then its rows are removed, and the next number rises, in one transaction.
If a process is killed in between, or another one ships at the same time, the object exists already, and the process
that finds it completes that step. So each row is in an object before it is removed from the table, and
the objects have the rows of a key in their order.

9  the rows of one object are in memory
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from threading import Event
from typing import Protocol

import structlog

from nos_ec.core.conditions import ABSENT
from nos_ec.core.errors import Corrupt, NosError, NotFound, PreconditionFailed
from nos_ec.core.formats.dump_format import DumpPage
from nos_ec.core.formats.journal import (
    JournalEntry,
    encode_object,
    entries_of,
    gap_row,
    ids_of,
    journal_key,
    number_of,
)
from nos_ec.core.ids import JOURNAL_BUCKET
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.dump import rows
from nos_ec.engine.dump.rebuild_input import PAGE_ROWS, DumpSource, RebuildInput
from nos_ec.engine.objects.store import Store
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.metadata import Journal, Metadata, Objects, PutRequest

_log = structlog.get_logger(__name__)

SHIP_MS = 60_000
"""How often the daemon of GC ships, in milliseconds: what a lost database can cost."""
OBJECT_BYTES_MAX = 512 << 10
"""The size of the rows of an object, before compression."""
NUMBER = "journal_number"
"""The table of a dump with the number of the first object of the journal that the dump may lack."""
_ROWS_AT_A_TIME = 500
_ROW_BYTES = 16
"""The most that a row adds to an object, besides its body."""


class JournalMetadata(Journal, Objects, Protocol):
    """The table of the journal, and the objects that hold what it had."""


class JournalShipper:
    """Writes the rows of the journal into the store. Several processes may do so at the same time."""

    def __init__(self, store: Store, metadata: JournalMetadata, clock: Clock) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock

    def ship(self) -> int:
        """Write all rows into the store, and remove them from the table. Returns the number of rows. Raises NoSpace,
        Transient; Corrupt if an object that a killed process has put cannot be read."""
        shipped = 0
        while True:
            rows = self._next_rows()
            gap_ms = 0 if rows else self._metadata.journal_gap_ms()
            if gap_ms:
                # A transaction that has seen the table full may end a little later.
                rows = [gap_row(gap_ms, self._clock.now_ms() + SHIP_MS)]
            if not rows:
                return shipped
            number = self._metadata.journal_number()
            key = journal_key(number)
            ids = [one for one, _ in rows]
            try:
                self._store.put_record(PutRequest(key, condition=ABSENT), BytesIO(encode_object(rows)))
                kill_point("journal.shipped")
            except PreconditionFailed:
                try:
                    data = self._store.get(key)
                except NotFound:
                    continue  # another process has completed it, and a dump covers it already
                ids, gap_ms = ids_of(data), next((one.created_ms for one in entries_of(data) if one.is_gap), 0)
            self._metadata.forget_journal(number, ids, gap_ms)
            kill_point("journal.forgotten")
            shipped += 0 if gap_ms else len(ids)

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Ship every SHIP_MS, and once more at the end, until `stop` is set. A failure is logged, and the next turn
        tries again."""
        while True:
            beat(0)
            ends = stop.is_set()
            try:
                self.ship()
            except NosError as error:
                _log.warning("journal of deletes not written into the store; trying again", error=str(error))
            if ends:
                return
            beat(SHIP_MS)
            self._clock.wait(stop, SHIP_MS)

    def prune(self, number: int) -> int:
        """Delete the objects before this number, because all dumps have what they tell. Returns how many were deleted.
        Raises Transient."""
        gone, after = 0, ""
        while page := self._metadata.list_objects(JOURNAL_BUCKET, "", after, PAGE_ROWS):
            after = page[-1].key.name
            old = [row for row in page if (own := number_of(row.key)) is not None and own < number]
            if old:
                gone += len(self._metadata.delete_unchanged(old, self._clock.now_ms()))
                kill_point("journal.pruned")
            if len(old) < len(page):
                break
        return gone

    def _next_rows(self) -> list[tuple[int, bytes]]:
        """Return the oldest rows, as many as fit into an object that is packed with others."""
        bytes_max = min(OBJECT_BYTES_MAX, self._store.record_bytes_max)
        found: list[tuple[int, bytes]] = []
        size = after = 0
        while page := self._metadata.journal_after(after, _ROWS_AT_A_TIME):
            for one, body in page:
                size += len(body) + _ROW_BYTES
                if found and size > bytes_max:
                    return found
                found.append((one, body))
            after = page[-1][0]
        return found


# --- for a rebuild ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class JournalObject:
    """An object of the journal as a rebuild finds it: its number, when it was put (Unix milliseconds), and its entries,
    in the order in which they were shipped. `entries` is None if it cannot be read, and for objects that are missing
    before a later one: then `number` is the last that is missing, and the later one was put at `put_ms`. `gap`: between
    which times (Unix milliseconds) entries were left out, because the journal was full."""

    number: int
    put_ms: int
    entries: list[JournalEntry] | None
    gap: tuple[int, int] | None = None


def number_page(metadata: Journal) -> DumpPage:
    """Return the page of a dump with the number of the next object of the journal. Raises Transient."""
    return DumpPage(NUMBER, {"number": [metadata.journal_number()]})


def first_number(source: DumpSource | None) -> int:
    """Return the number of the first object of the journal that a dump may lack: 1 without a dump, and for one of an
    earlier release. Raises Corrupt."""
    for page in () if source is None else source.pages():
        if page.table == NUMBER:
            return max((number for (number,) in page.tuples(number=...)), default=1)
        if page.table != rows.DELETIONS:
            break
    return 1


def journal_since(stores: RebuildInput, first: int) -> Iterator[JournalObject]:
    """Yield the objects of the journal from this number on, and those that are missing between them, in the order of
    their numbers. Call this when the rows of objects are known. Raises Transient."""
    expected, after = first, journal_key(first - 1).name
    while page := stores.metadata.list_objects(JOURNAL_BUCKET, "", after, PAGE_ROWS):
        after = page[-1].key.name
        for row in page:
            number = number_of(row.key)
            if number is None:
                continue
            if number > expected:
                yield JournalObject(number - 1, row.created_ms, None)
            expected = number + 1
            entries: list[JournalEntry] | None = None
            try:
                entries = entries_of(stores.bytes_of(row))
            except (Corrupt, NotFound) as error:
                _log.error("a part of the journal of deletes cannot be read", part=str(row.key), error=str(error))
            gap = next(((one.created_ms, one.at_ms) for one in entries or () if one.is_gap), None)
            yield JournalObject(number, row.created_ms, [] if gap else entries, gap)


def next_number(metadata: Metadata, first: int) -> int:
    """Return a number above those of all objects of the journal, and at least `first`. Raises Transient."""
    greatest, after = first - 1, journal_key(first - 1).name
    while page := metadata.list_names(JOURNAL_BUCKET, "", after, PAGE_ROWS):
        after = page[-1]
        greatest = max(greatest, *(int(name) for name in page if name.isdigit()))
    return greatest + 1

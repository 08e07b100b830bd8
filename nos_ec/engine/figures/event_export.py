"""Exports the events recorded in a store's metadata, for `nos-ec simulate gc --events` (core/gc/gc_events.py).

Only objects that exist or are in the trash have rows: a deleted object leaves no row, and an overwritten object only
the row of its newest version. The export therefore includes the survival table, which holds the lifetimes of objects,
and the times at which lifecycle rules will delete objects. A noncurrent version is exported as an object with a name of
its own, which no later line replaces.

9  memory holds one page of rows, and the survival table
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nos_ec.core.gc.gc_events import Event, ExportBegun, KnownSurvival, Names, PutEvent
from nos_ec.core.packing.lifetimes import OTHERS, Counts
from nos_ec.engine.expiry.known_expiry import KnownExpiry
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Metadata, ObjectRow, VersionEntry

PAGE_ROWS = 1000
_PAGE_MS = 10_000
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Which objects to export."""

    bucket: str = ""
    """Only this bucket; "" for all buckets."""
    since_ms: int | None = None
    """Only objects stored since this time; None for all objects."""
    one_in: int = 1
    """Only one in this many objects, chosen by their keys."""


def exported_events(
    metadata: Metadata, clock: Clock, names: Names, options: ExportOptions, known: KnownExpiry
) -> Iterator[Event]:
    """Yield the events. Objects that are stored or deleted meanwhile may be missing. Raises Transient and Corrupt.

    For all buckets, reads all rows in the order of their ids. For one bucket, reads its versions, then the trash. Each
    page is one seek in an index.
    """
    now_ms = clock.now_ms()
    yield ExportBegun(now_ms, options.since_ms, options.one_in)
    yield from _survival(metadata, now_ms, names, options.bucket)
    pages = _pages_of(metadata, clock, options.bucket) if options.bucket else _pages(metadata)
    for page in pages:
        for row in page:
            if _is_wanted(row, options):
                yield _event(row, names, known, now_ms)


def _survival(metadata: Metadata, now_ms: int, names: Names, only: str) -> Iterator[KnownSurvival]:
    """Yield the rows of the survival table. With one bucket, the rows of the others are added up for the prior."""
    others = Counts()
    for bucket, counted_ms, counts in metadata.survival():
        counts.decay((now_ms - counted_ms) / _DAY_MS)
        if bucket == OTHERS or (only and bucket != only):
            others.add(counts)
        else:
            yield KnownSurvival(names.bucket(bucket), counts)
    if others.weight:
        yield KnownSurvival(OTHERS, others)


def _pages(metadata: Metadata) -> Iterator[Sequence[ObjectRow]]:
    after = 0
    while page := metadata.objects_after(after, PAGE_ROWS):
        yield page
        after = page[-1].object_id


def _pages_of(metadata: Metadata, clock: Clock, bucket: str) -> Iterator[Sequence[ObjectRow]]:
    after: tuple[str, int | None] | None = ("", None)
    while after is not None:
        page = metadata.list_versions(bucket, "", "", after, PAGE_ROWS, _PAGE_MS)
        yield [one.row for one in page.entries if isinstance(one, VersionEntry) and one.row is not None]
        after = page.next_after
    yield from TrashCan(metadata, clock).pages(bucket)


def _is_wanted(row: ObjectRow, options: ExportOptions) -> bool:
    if not row.size or (options.since_ms is not None and row.created_ms < options.since_ms):
        return False
    return int.from_bytes(row.key.md5[:8], "big") % options.one_in == 0


def _event(row: ObjectRow, names: Names, known: KnownExpiry, now_ms: int) -> PutEvent:
    """Return the event of a row. A version in the trash is deleted when its time there is over. An object that should
    have expired already expires now."""
    until_ms, name = row.trash_until_ms, names.name(row.key)
    expires_ms = None
    if row.is_noncurrent:
        name = f"{name}?{row.version}"
    elif until_ms is None:
        expires_ms = known.expires_ms(row, row.created_ms, now_ms)
    return PutEvent(
        time_ms=row.created_ms,
        bucket=names.bucket(row.key.bucket),
        name=name,
        size=row.size,
        expires_ms=None if expires_ms is None else max(expires_ms, now_ms, row.created_ms),
        deleted_ms=None if until_ms is None or row.is_noncurrent else max(until_ms, row.created_ms),
    )

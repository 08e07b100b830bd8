"""Lists what a rebuild cannot know, so that an operator can look at it.

9  in memory: a page of objects, and the names of all buckets
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from nos_ec.core.ids import ACCESS_BUCKET, JOURNAL_BUCKET, LOCKS_BUCKET, RESERVED_BUCKET, BlockId, ObjectKey, in_log
from nos_ec.core.locking.lock_note import note_number
from nos_ec.core.parts import upload_of_part
from nos_ec.core.tails import is_tail
from nos_ec.engine.check.quarantine import HeldKind, held
from nos_ec.engine.dump import rows
from nos_ec.engine.dump.bucket_rows import records_since
from nos_ec.engine.dump.journal import first_number, journal_since
from nos_ec.engine.dump.lock_rows import unreadable_notes
from nos_ec.engine.dump.rebuild_input import PAGE_ROWS, DumpSource, RebuildInput, batches
from nos_ec.engine.dump.rebuild_reads import compared_page
from nos_ec.engine.dump.rebuilder import NEW_IDS
from nos_ec.engine.dump.row_rebuilder import is_in_doubt
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.engine.landing.unreadable_slots import unreadable_slots
from nos_ec.ports.metadata import QUARANTINE, ROOT_ACCOUNT, AccessOf, Metadata, ObjectRow

KINDS = ("gone", "since", "replaced", "doubt", "trash", "copy", "held", "block", "segment", "lock", "access", "journal")


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Something that an operator should look at. `about` is the key of the object, the id, the place of the slot, or
    what is unknown about the bucket or access key. `what` is one of:

    - `gone`: an object of the dump whose bytes do not exist.
    - `since`: an object that was put or overwritten since the dump, and may have been deleted after that.
    - `replaced`: a version in the trash. Only its version number shows that another version came later.
    - `doubt`: an object that replaces such a version, and whose PUT may have been refused because of that version.
    - `trash`: an object that was in the trash when the dump was made, and may have been undeleted or removed since.
    - `copy`: a landing copy that does not show which object it belongs to. It is kept and not used.
    - `held`: a landing copy in quarantine, which a later version has replaced.
    - `block`: a block that cannot be read completely, or ends with an unfinished group whose objects exist nowhere
      else, or is in quarantine.
    - `segment`: a landing segment that cannot be read completely, or a slot of the landing log whose owner is unknown.
    - `lock`: a note about the lock of a version that cannot be read. The version has an earlier lock. Its key is not
      known; `version` was its number when it was locked.
    - `journal`: a part of the journal of deletes that is missing or cannot be read: what it names may have come back.
    - `access`: a bucket or an access key, if it is unknown who may use it.
    """

    what: str
    about: str
    version: int | None = None
    size: int | None = None


def uncertain(stores: RebuildInput, source: DumpSource | None) -> Iterator[Uncertain]:
    """Yield everything uncertain after a finished rebuild, whether it took one run or more; not the dumps in the store.
    Raises Transient."""
    metadata, now_ms = stores.metadata, stores.clock.now_ms()
    # 1. Compare the objects of the dump with the rows: those that were in the trash first, then the others.
    after, buckets = 0, {RESERVED_BUCKET}
    for page in () if source is None else stores.in_order(compared_page, source.payloads()):
        if page is None:
            continue
        after = max(after, page.last_id // NEW_IDS * NEW_IDS + NEW_IDS - 1)
        buckets |= page.buckets
        if page.changed is None:
            continue
        page_of_dump = list(rows.objects_of(page.changed))
        dumped = [one for one in page_of_dump if one.row.trash_until_ms is None]
        kept = [one.row for one in page_of_dump if (one.row.trash_until_ms or 0) > now_ms]
        there = metadata.objects_with([row.object_id for row in kept])
        for dumped_row in kept:
            what = "trash" if dumped_row.object_id in there else "gone"
            yield Uncertain(what, str(dumped_row.key), dumped_row.version, dumped_row.size)
        found = metadata.rows_of([one.row.key for one in dumped])
        now = metadata.objects_with([one.row.object_id for one in dumped])
        yield from _in_doubt(now.values(), metadata)
        for one in dumped:
            row = found.get(one.row.key)
            own = now.get(one.row.object_id)
            if is_tail(one.row.key) or one.row.key.bucket.startswith((ACCESS_BUCKET, JOURNAL_BUCKET, LOCKS_BUCKET)):
                continue  # reported with its object, or its bucket or access key
            if own is not None and own.trash_until_ms is not None and own.key.bucket != RESERVED_BUCKET:
                yield Uncertain("replaced", str(own.key), own.version, own.size)
            if one.row.key.bucket == RESERVED_BUCKET or (row is not None and row.object_id != one.row.object_id):
                continue  # deleted and stored again while the dump was made, so the dump has the key twice
            if row is None:
                yield Uncertain("gone", str(one.row.key), one.row.version, one.row.size)
            elif row.version != one.row.version:
                yield Uncertain("since", str(row.key), row.version, row.size)
    # 2. All rows with greater ids are newer than the dump (`rebuilder.NEW_IDS`).
    while newer := metadata.objects_after(after, PAGE_ROWS):
        yield from _in_doubt(newer, metadata)
        for row in newer:
            if _is_of_users(row.key):
                what = "since" if row.trash_until_ms is None else "replaced"
                yield Uncertain(what, str(row.key), row.version, row.size)
        after = newer[-1].object_id
    # 3. Landing copies without a row, blocks and copies in quarantine, landing segments, locks, access.
    for copies in batches(stores.landing.list_ids(), PAGE_ROWS):
        known = metadata.landing_known([copy for copy in copies if not in_log(copy)])
        for copy in copies:
            if not in_log(copy) and copy not in known:
                yield Uncertain("copy", copy.hex())
    yield from _held(stores.metadata)
    yield from _segments_without_rows(stores)
    for row in unreadable_notes(stores):
        yield Uncertain("lock", str(row.key), note_number(row.key), row.size)
    yield from _access(stores, source, buckets)
    yield from _journal(stores, source)


def _in_doubt(page: Iterable[ObjectRow], metadata: Metadata) -> Iterator[Uncertain]:
    """Yield the objects of these replaced versions, if the PUT of the current version may have been refused because of
    one of them. Parts are left out, because manifests decide which versions of them are right."""
    replaced = [row for row in page if row.is_noncurrent or row.trash_until_ms is not None]
    keys = {row.key for row in replaced if _is_of_users(row.key) and upload_of_part(row.key) is None}
    found = metadata.rows_of(keys)
    doubted = {row.key for row in replaced if row.key in found and is_in_doubt(row, found[row.key])}
    for key in sorted(doubted, key=str):
        yield Uncertain("doubt", str(key), found[key].version, found[key].size)


def _is_of_users(key: ObjectKey) -> bool:
    is_record = key.bucket in (RESERVED_BUCKET, ACCESS_BUCKET, JOURNAL_BUCKET) or key.bucket.startswith(LOCKS_BUCKET)
    return not is_record and not is_tail(key)


def _access(stores: RebuildInput, source: DumpSource | None, dumped: Collection[str]) -> Iterator[Uncertain]:
    """Yield records that cannot be read or applied, and buckets whose owner is not known. `dumped` has the names of the
    buckets of the objects of the dump."""
    for record in records_since(stores, source):
        if record.page is None:
            yield Uncertain("access", f"{record}: it was changed since the dump, and its record cannot be read")
        elif record.of is AccessOf.BUCKET and not record.page.rows and stores.metadata.bucket(record.name) is not None:
            yield Uncertain("access", f"{record}: it was deleted since the dump, and holds objects again")
    known = set(dumped)
    after = ""
    while records := stores.metadata.bucket_records(after, PAGE_ROWS):
        after = records[-1].row.name
        known |= {record.row.name for record in records}
    after = ""
    while names := stores.metadata.list_buckets(after, PAGE_ROWS):
        after = names[-1]
        for name in names:
            if name not in known:
                yield Uncertain("access", f"bucket {name}: its owner is unknown, so it belongs to {ROOT_ACCOUNT}")


def _journal(stores: RebuildInput, source: DumpSource | None) -> Iterator[Uncertain]:
    """Yield the parts of the journal of deletes that were not applied, and when it was full."""
    expected = first_number(source)
    for part in journal_since(stores, expected):
        if part.entries is None:
            about = f"part {part.number}" if part.number == expected else f"parts {expected} to {part.number}"
            yield Uncertain("journal", f"{about}, from before {_time(part.put_ms)}")
        if part.gap is not None:
            since_ms, until_ms = part.gap
            yield Uncertain("journal", f"entries left out from {_time(since_ms)} to {_time(until_ms)}: it was full")
        expected = part.number + 1


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _held(metadata: Metadata) -> Iterator[Uncertain]:
    after: BlockId | None = None
    while page := metadata.list_blocks(after, PAGE_ROWS):
        after = page[-1].block_id
        for row in page:
            if row.writer == QUARANTINE:
                yield Uncertain("block", row.block_id.hex())
    for one in held(metadata):
        if one.kind is HeldKind.COPY:
            yield Uncertain("held", one.id.hex())


def _segments_without_rows(stores: RebuildInput) -> Iterator[Uncertain]:
    if stores.medium is not None:
        known = {row.segment for page in segment_pages(stores.metadata) for row in page}
        for segment in stores.medium.segments(known_only=True):
            if segment not in known:
                yield Uncertain("segment", segment.hex())
        for slot in unreadable_slots(stores.medium):
            if slot.segment is None:
                yield Uncertain("segment", str(slot))

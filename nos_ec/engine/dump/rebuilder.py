"""Rebuilds the rows of a store whose metadata was lost, from a dump and from the data that was written since it
(docs/adr/0024).

If a run was killed, run it again: pages of the dump are loaded once; everything else is repeated with the same result.
The store cannot be opened before the end, so no other process works on it. Blocks and landing segments that a process
may still have open are sealed before they are read.

1  an object whose bytes exist, and that is not known to have been deleted, can be read afterwards
3  a row gets an extent whose header names its version; objects that were put since the dump are read, and their CRCs
   compared
6  counters are counted from rows and headers at the end
8  epochs begin after all epochs that were ever seen
9  in memory: the rows of blocks and landing segments, a page of objects, the segments of large objects that were
   written since the dump, and IDS_MAX ids of landing copies, or COPIES_AT_A_TIME with their MD5s, or replaced parts
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, tee

import google_crc32c
import msgspec

from nos_ec.core.deadlines import EMPTY_COPY_MS, QUARANTINE_MS
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, InvalidInput, NotFound
from nos_ec.core.formats.dump_format import DumpPage, decode_payload
from nos_ec.core.ids import BlockId, LandingId, ObjectKey, SegmentId, in_log, record_offset, segment_of, time_of
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import (
    BlockEvent,
    BlockKind,
    BlockState,
    ObjectEvent,
    ObjectState,
    SegmentEvent,
    SegmentState,
    advance_block,
    advance_object,
    advance_segment,
)
from nos_ec.engine.dump import bucket_rows, journal_rows, lock_rows, rows, tail_rows, upload_rows, version_rows
from nos_ec.engine.dump.counters import count_blocks
from nos_ec.engine.dump.journal import first_number, journal_since, next_number
from nos_ec.engine.dump.rebuild_input import PAGE_ROWS, PUT_MS_MAX, DumpSource, RebuildInput, batches, prefetched
from nos_ec.engine.dump.rebuild_reads import (
    BLOCKS_AT_A_TIME,
    BlockToRead,
    PageToLoad,
    page_to_load,
    places_of_range,
    recovered_block,
    recovered_blocks,
    settled_rows,
)
from nos_ec.engine.dump.recovered_entries import (
    RecoveredBlock,
    RecoveredEntry,
    maybe_committed,
    recover_copies,
    recover_segment,
)
from nos_ec.engine.dump.row_rebuilder import RowFigures, RowRebuilder
from nos_ec.engine.landing.landing_labels import labels_of
from nos_ec.engine.landing.segment_pages import segment_pages
from nos_ec.ports.metadata import QUARANTINE, BlockRow, ObjectRow, PreparedRows, QueueEntry, Rebuilt, Replay, SegmentRow
from nos_ec.ports.metadata.rebuilding import UNSETTLED_MS

IDS_MAX = 250_000
"""About how many ids of landing copies are in memory at a time."""
RECORDS_AT_A_TIME = 500
LABELS_AT_A_TIME = 500
COPIES_READ_AT_A_TIME = 8
"""Copies of the landing store in memory, each at most as large as the largest small object."""
COPIES_AT_A_TIME = 100_000
"""Landing copies whose rows are searched at a time. All rows are read for each batch of copies."""
NEW_IDS = 1 << 32
"""Ids of objects that were put since the dump begin at a multiple of this, above all ids that events may contain."""
EPOCHS_LEFT_OUT = 1 << 20
"""How many leases may have been handed out since the dump without leaving a trace."""

TRASHED_MS_MIN = 7 * 86_400_000
"""Versions that a rebuild puts back into the trash stay there at least this many milliseconds, because they may have
been undeleted since the dump."""

_SEALED = advance_block(BlockState.FENCED, BlockEvent.SEAL)
_CONDEMNED = advance_block(_SEALED, BlockEvent.CONDEMN)
_LANDED = advance_object(ObjectState.PACKED, ObjectEvent.REVERT)
_SEGMENT_SEALED = advance_segment(SegmentState.OPEN, SegmentEvent.SEAL)
Tick = Callable[[str, int, int | None], None]
"""Takes (part of the rebuild, how much of it is done, total if known)."""


@dataclass(slots=True)
class RebuildFigures:
    """Counts what a rebuild has read and written.

    loaded: objects of the dump. blocks: existing blocks; blocks_read: blocks whose headers were read; unread_blocks:
    blocks that cannot be read completely; unfinished_blocks: blocks that end with an unfinished group. nameless:
    entries of headers whose names cannot be read. partial: incomplete large objects that were put since the dump.
    copies_read: landing copies that nothing refers to. returned: objects that were set back to their landing copies,
    because their blocks do not exist. gone: removed rows of the dump. deleted: versions that were deleted again because
    the journal names them; markers: delete markers that were added again; attributes: versions that got the attributes
    in the journal; journal_ms: when the last part of the journal
    was written (Unix milliseconds). access_records: buckets and access keys that were
    changed since the dump. locks: versions that got the lock in their note. placed: see RowFigures.
    """

    loaded: int = 0
    blocks: int = 0
    blocks_read: int = 0
    unread_blocks: int = 0
    unfinished_blocks: int = 0
    header_bytes: int = 0
    nameless: int = 0
    partial: int = 0
    landing_segments: int = 0
    copies_read: int = 0
    returned: int = 0
    gone: int = 0
    access_records: int = 0
    locks: int = 0
    deleted: int = 0
    markers: int = 0
    attributes: int = 0
    journal_ms: int | None = None
    placed: RowFigures | None = None


class _State(msgspec.Struct):
    """The saved state of a rebuild. dump: the dump that it loads. pages: how many pages are loaded. new_ids: the first
    id for an object that the dump lacks. placed: whether everything recovered from blocks and landing segments has its
    rows. Rows that are removed after that must not be replaced with older versions of their objects. removed_to,
    replayed_to: the last object of the journal whose entries `remove_deleted` and `replay_versions` have applied.
    is_settled: whether the rows in the trash have their times."""

    dump: str
    pages: int = 0
    new_ids: int = 1
    placed: bool = False
    removed_to: int = 0
    is_settled: bool = False
    replayed_to: int = 0


class Rebuilder:
    """One run of a rebuild. `figures` count the work of this run: a resumed run loads fewer pages."""

    def __init__(self, stores: RebuildInput, source: DumpSource | None, tick: Tick) -> None:
        self._stores = stores
        self._metadata = stores.metadata
        self._blocks = stores.blocks
        self._source = source
        self._tick = tick
        self._now_ms = stores.clock.now_ms()
        self._dumped: dict[BlockId, BlockRow] = {}
        self._segments: dict[SegmentId, SegmentRow] = {}
        self._there: set[BlockId] = set()
        """Blocks that exist and are not half deleted."""
        self._ends: dict[SegmentId, int] = {}
        self._is_log_whole = True
        """Whether the whole landing log could be listed. Only then is a segment gone if it is not listed."""
        self._parts: dict[tuple[ObjectKey, int, int | None], list[RecoveredEntry]] = {}
        """Segments of large objects by key, version, and epoch of their writer: two processes may take one version."""
        self._epoch = 0
        self._journal_number = 1
        self._unread_segments = 0
        self._unread: list[BlockId] = []
        """Blocks that cannot be read completely."""
        self._unfinished: list[BlockId] = []
        """Blocks that end with an unfinished group."""
        self._read: dict[BlockId, BlockRow] = {}
        """Blocks that exist and are not half deleted, with their rows."""
        self.figures = RebuildFigures()
        self.unreadable: Sequence[str] = ()

    def run(self) -> None:
        """Write all rows. Raises Conflict (the database is not empty, or another dump is being loaded), and Transient,
        after which it can be called again."""
        state = self._begin()
        self._load_dump(state)
        if any(row.state is not SegmentState.DOOMED for row in self._segments.values()):
            self._require_log()
        kill_point("rebuild.loaded")
        keep = self._source is not None  # without a dump, every version that was ever overwritten would be kept
        row_rebuilder = RowRebuilder(self._stores, self._now_ms, state.new_ids, keep_replaced=keep)
        self.figures.placed = row_rebuilder.figures
        self.unreadable = row_rebuilder.unreadable
        self._read_blocks(None if state.placed else row_rebuilder)
        kill_point("rebuild.blocks_read")
        self._read_segments(None if state.placed else row_rebuilder, state)
        if not state.placed:
            self._adopt_copies(row_rebuilder, state)
            self._place_large(row_rebuilder, tails=True)
            self._set_aside_unread(maybe_committed(self._stores, self._unfinished))
        state.placed = True
        self._metadata.load((), (), _encoded(state))
        kill_point("rebuild.segments_read")
        self._return_to_copies()
        kill_point("rebuild.returned_to_copies")
        self._remove_gone()
        kill_point("rebuild.gone_removed")
        self._claim_copies(state)
        kill_point("rebuild.copies_claimed")
        self._set_aside_copies()
        kill_point("rebuild.copies_set_aside")
        self._settle_tails()
        kill_point("rebuild.tails_settled")
        upload_rows.choose_parts(self._stores, row_rebuilder.exchange)
        kill_point("rebuild.parts_chosen")
        first = first_number(self._source)
        self._remove_deleted(first, state)
        kill_point("rebuild.deleted_removed")
        if not state.is_settled:
            self._settle_trash()
        state.is_settled = True
        self._metadata.load((), (), _encoded(state))
        kill_point("rebuild.trash_settled")
        self._replay_versions(first, state)
        kill_point("rebuild.versions_replayed")
        version_rows.order_all(self._metadata, self._now_ms, self._now_ms + TRASHED_MS_MIN)
        kill_point("rebuild.versions_ordered")
        for part in journal_since(self._stores, first):
            self.figures.attributes += journal_rows.restore_attributes(part.entries or (), self._metadata)
        kill_point("rebuild.attributes_restored")
        self.figures.locks = lock_rows.apply_notes(self._stores)
        kill_point("rebuild.locks_applied")
        self._settle_uploads(row_rebuilder)
        kill_point("rebuild.uploads_settled")
        self.figures.access_records = bucket_rows.load_records(self._stores, self._source, self._now_ms)
        kill_point("rebuild.access_loaded")
        self._metadata.add_gaps(self._now_ms)  # events that waited are not in dumps
        kill_point("rebuild.gaps_added")
        stripe_size, blocks = self._blocks.geometry.stripe_size, self.figures.blocks
        count_blocks(
            self._metadata, self._unread, stripe_size, self._now_ms, lambda done: self._tick("counters", done, blocks)
        )
        self._journal_number = next_number(self._metadata, first)
        kill_point("rebuild.counted")

    def finish(self) -> None:
        """End the rebuild: the store can be opened again."""
        self._metadata.finish_rebuild(self._blocks.geometry, self._epoch + EPOCHS_LEFT_OUT, self._journal_number)
        kill_point("rebuild.finished")

    # --- the dump -------------------------------------------------------------------------------------
    def _begin(self) -> _State:
        name = "none" if self._source is None else f"{self._source.head.begun_ms} {sum(self._source.rows.values())}"
        found = self._metadata.rebuild_state()
        if found is None:
            state = _State(name)
            self._metadata.begin_rebuild(_encoded(state))
            return state
        state = msgspec.json.decode(found, type=_State)
        if state.dump != name:
            raise Conflict(
                "a rebuild from another dump has begun in this database: name that dump with --from, or start over in"
                " an empty database"
            )
        return state

    def _load_dump(self, state: _State) -> None:
        if self._source is None:
            return
        in_all = self._source.rows.get(rows.OBJECTS, 0)
        done = 0
        kept_ms = self._source.head.begun_ms + EMPTY_COPY_MS // 2
        until_ms: int | None = None
        loaded = state.pages
        payloads, again = tee(self._source.payloads())
        numbered = ((payload, number > loaded) for number, payload in enumerate(payloads, 1))
        pages = self._stores.in_order(page_to_load, numbered)
        for number, (found, payload) in enumerate(zip(pages, again, strict=True), 1):
            if found.table != rows.DELETIONS:
                until_ms = kept_ms  # later pages of the deletion queue are from its second reading
            if found.table == rows.OBJECTS:
                done += found.rows
            if found.page is not None and found.table == rows.BLOCKS:
                self._dumped |= {row.block_id: row for row in rows.blocks_of(found.page)}
            elif found.page is not None and found.table == rows.LANDING_SEGMENTS:
                self._segments |= {row.segment: row for row in rows.landing_segments_of(found.page)}
            elif number > loaded:
                state.pages = number
                if found.page is not None:
                    self._load_page(found.page, state, until_ms)
                elif found.prepared is not None:
                    self._load_objects(found, found.prepared, payload, state)
                kill_point("rebuild.page_loaded")
                self._tick("objects of the dump", done, in_all)
        epochs = [row.epoch for row in self._dumped.values()] + [row.epoch for row in self._segments.values()]
        self._epoch = max(epochs, default=0)

    def _load_objects(self, found: PageToLoad, prepared: PreparedRows, payload: bytes, state: _State) -> None:
        """Load a page of objects, and save the state with it."""
        # A page of large objects follows the small ones of the same page of rows, so the ids do not only rise.
        state.new_ids = max(state.new_ids, (found.last_id // NEW_IDS + 1) * NEW_IDS)
        self.figures.loaded += found.rows
        if not self._metadata.load_prepared(prepared, _encoded(state)):
            self._metadata.load(list(rows.objects_of(decode_payload(payload))), (), _encoded(state))

    def _load_page(self, page: DumpPage, state: _State, kept_ms: int | None) -> None:
        """Load a page without objects, such as one of the deletion queue, and save the state with it.

        Reservations in the queue are left out unless they are doomed: a PUT may have claimed the copy since. Copies in
        quarantine have version 0. They may have been released since, so their quarantine begins anew.

        kept_ms: entries of copies that are due later are left out, such as the copies of empty objects. The first
        reading of the queue had them, or their objects were put after it. The dump may lack the rows of the latter
        objects, so they are recovered from the labels of the copies."""
        queued = list(rows.deletions_of(page)) if page.table == rows.DELETIONS else []
        until_ms = self._now_ms + QUARANTINE_MS
        claimed = [
            replace(one, not_before_ms=max(one.not_before_ms, until_ms), doomed=False) if one.version == 0 else one
            for one in queued
            if one.version == 0
            or one.doomed
            or (one.object_id is not None and (kept_ms is None or one.not_before_ms < kept_ms))
        ]
        bucket_rows.load_page(page, self._metadata)
        upload_rows.load_page(page, self._metadata)
        version_rows.load_page(page, self._metadata)
        self._metadata.load((), claimed, _encoded(state))

    # --- blocks ---------------------------------------------------------------------------------------
    def _read_blocks(self, row_rebuilder: RowRebuilder | None) -> None:
        listed = sorted(self._blocks.list_blocks())
        self.figures.blocks = len(listed)
        entered: list[BlockRow] = []
        unread = self._unread_before()
        for done, (block_id, recovered) in enumerate(self._recovered(listed), 1):
            entered.append(self._row_of(block_id, recovered))
            if recovered is not None:
                self._there.add(block_id)
                self._read[block_id] = entered[-1]
                if not recovered.is_read:
                    unread.add(block_id)
                if row_rebuilder is not None:
                    self._place_block(recovered, row_rebuilder)
            if len(entered) >= PAGE_ROWS:
                self._metadata.enter_blocks(entered)
                entered = []
            self._tick("blocks", done, len(listed))
        self._metadata.enter_blocks(entered)
        self._set_aside_unread(unread)
        if row_rebuilder is not None:
            self._place_large(row_rebuilder, tails=False)

    def _place_large(self, row_rebuilder: RowRebuilder, *, tails: bool) -> None:
        """Place the large objects without tails, or, once the landing copies are known, those with tails."""
        partial: set[BlockId] = set()
        for (key, version, _), parts in self._parts.items():
            if tail_rows.has_tail(parts) is not tails:
                continue
            if not row_rebuilder.place_large(key, version, parts, self._there):
                self.figures.partial += 1
                partial |= {part.extent.block_id for part in parts}
        unread = row_rebuilder.unread.union(self._unread)
        if unread or self._unread_segments:  # they may hold the missing segments of a large object
            unread |= partial
        self._set_aside_unread(unread)

    def _set_aside_unread(self, unread: set[BlockId]) -> None:
        """Put these blocks into quarantine, except those that already are."""
        added = sorted(unread.difference(self._unread).intersection(self._read))
        self._unread += added
        self.figures.unread_blocks = len(self._unread)
        for some in batches(added, PAGE_ROWS):
            self._metadata.enter_blocks([replace(self._read[block_id], writer=QUARANTINE) for block_id in some])

    def _unread_before(self) -> set[BlockId]:
        """Return the blocks that an earlier run could not read completely."""
        found: set[BlockId] = set()
        after: BlockId | None = None
        while page := self._metadata.list_blocks(after, PAGE_ROWS):
            after = page[-1].block_id
            found |= {row.block_id for row in page if row.writer == QUARANTINE}
        return {one for one in found if one not in self._dumped or self._dumped[one].writer != QUARANTINE}

    def _place_block(self, recovered: RecoveredBlock, row_rebuilder: RowRebuilder) -> None:
        for some in batches((entry for entry in recovered.entries if entry.part is None), PAGE_ROWS):
            row_rebuilder.place_small(some, recovered.last_at)
        for entry in recovered.entries:
            if entry.part is not None:
                self._parts.setdefault((entry.key, entry.version, recovered.epoch), []).append(entry)

    def _recovered(self, listed: Sequence[BlockId]) -> Iterator[tuple[BlockId, RecoveredBlock | None]]:
        """Yield each block, in order, with what was recovered from it; None if it is half deleted. Raises Transient."""
        if self._stores.share is None:
            return prefetched(self._recover_block, listed)
        sealed = (block for _, block in prefetched(self._seal_block, listed))
        found = self._stores.in_order(recovered_blocks, batches(sealed, BLOCKS_AT_A_TIME))
        return zip(listed, chain.from_iterable(found), strict=True)

    def _recover_block(self, block_id: BlockId) -> RecoveredBlock | None:
        """Seal and recover a block. Runs in several threads."""
        block = self._seal_block(block_id)
        return None if block is None else recovered_block(self._stores, block)

    def _seal_block(self, block_id: BlockId) -> BlockToRead | None:
        """Seal a block, unless it is SEALED in the dump: then it cannot have changed, and is not read. Returns None if
        it is half deleted. Runs in several threads."""
        row = self._dumped.get(block_id)
        stripes, data_bytes = (0, 0) if row is None else (row.stripes, row.live_bytes + row.dead_bytes)
        if row is not None and row.state is BlockState.CONDEMNED:
            return None
        if row is not None and row.state is BlockState.SEALED:
            return BlockToRead(block_id, stripes, stripes, data_bytes, is_known=True)
        try:
            # Acknowledged stripes that the block store has lost still count, as in recovery: rows of the dump may point
            # there.
            there = max(self._blocks.seal(block_id), stripes)
        except NotFound:
            return None
        except Corrupt:
            return BlockToRead(block_id, stripes, stripes, data_bytes, is_read=False)
        return BlockToRead(block_id, there, stripes, data_bytes)

    def _row_of(self, block_id: BlockId, recovered: RecoveredBlock | None) -> BlockRow:
        """Return the row of a block as if nothing in it were live; `count_blocks` corrects the counters later."""
        dumped = self._dumped.get(block_id)
        if recovered is None:
            # GC completes a deletion that was begun.
            delete_ms = self._now_ms if dumped is None or dumped.delete_after_ms is None else dumped.delete_after_ms
            if dumped is not None and dumped.writer == QUARANTINE:
                delete_ms = self._now_ms + QUARANTINE_MS  # it may have been released since
            kind = BlockKind.FRESH if dumped is None else dumped.kind
            return rows.rebuilt_block(block_id, kind, _CONDEMNED, dumped, delete_after_ms=delete_ms)
        self._epoch = max(self._epoch, recovered.epoch or 0)
        if dumped is None or dumped.state is not BlockState.SEALED:
            self.figures.blocks_read += 1
            self.figures.header_bytes += recovered.header_bytes
            self.figures.nameless += recovered.nameless
            if recovered.unfinished:
                self._unfinished.append(block_id)
                self.figures.unfinished_blocks += 1
        kind = BlockKind.FRESH if dumped is None else dumped.kind
        if any(entry.part is not None for entry in recovered.entries):
            kind = BlockKind.LARGE
        row = rows.rebuilt_block(block_id, kind, _SEALED, dumped)
        return replace(
            row,
            epoch=row.epoch or recovered.epoch or 0,
            created_ms=row.created_ms or recovered.written_ms or self._now_ms,
            stripes=recovered.stripes,
            dead_bytes=recovered.data_bytes,
            overhead_bytes=recovered.stripes * self._blocks.geometry.stripe_size - recovered.data_bytes,
        )

    # --- landing segments -----------------------------------------------------------------------------
    def _read_segments(self, row_rebuilder: RowRebuilder | None, state: _State) -> None:
        """Read the landing segments, except those that are SEALED in the dump, which has all their records. All
        segments are sealed before the first is read, because only then is it known which exist. `row_rebuilder` is None
        if an earlier run has placed their records; the segments that it could not read have no rows."""
        medium = self._stores.medium
        if medium is None:
            return
        unread = set[SegmentId]()
        for segment in sorted(medium.segments(known_only=True)):
            try:
                self._ends[segment] = medium.seal(segment, None, 0)
            except NotFound:
                continue
            except Corrupt:
                self._ends[segment] = medium.limits.segment_bytes
                unread.add(segment)
        if row_rebuilder is None:
            known = {row.segment for page in segment_pages(self._metadata) for row in page}
            unread |= {one for one in self._ends if one not in known and not self._is_sealed_in_dump(one)}
        for done, (segment, end) in enumerate(self._ends.items(), 1):
            dumped = self._segments.get(segment)
            records = 0 if dumped is None else dumped.records
            if row_rebuilder is not None and not self._is_sealed_in_dump(segment):
                records = 0
                damaged = set[LandingId]()
                try:
                    for batch in batches(recover_segment(medium, segment, end, damaged), RECORDS_AT_A_TIME):
                        records += len(batch)
                        second = row_rebuilder.place_landed(batch, self._ends)
                        if second:
                            self._metadata.load((), second, _encoded(state))
                except Corrupt:
                    unread.add(segment)
                if damaged:
                    unread.add(segment)
            if segment in unread:
                self._unread_segments += 1
                continue  # a segment without a row is never given back, and `check` reports it
            epoch = 0 if dumped is None else dumped.epoch
            # A row that is SEALED in the dump may still have records to make void, so its sealed_ms is kept.
            sealed_ms = self._now_ms if dumped is None or dumped.state is SegmentState.OPEN else dumped.sealed_ms
            row = SegmentRow(segment, _SEGMENT_SEALED, epoch, time_of(segment), sealed_ms, end, records)
            self._metadata.enter_segments([row])
            self._tick("landing segments", done, len(self._ends))
        self.figures.landing_segments = len(self._ends)
        states = medium.devices()
        if states is not None:
            self._is_log_whole = not (states.lost or states.unreadable)
            self._unread_segments += sum(slot.segment is None for slot in states.unreadable)

    def _is_sealed_in_dump(self, segment: SegmentId) -> bool:
        row = self._segments.get(segment)
        return row is not None and row.state is not SegmentState.OPEN

    def _require_log(self) -> None:
        """Raise ConfigError if the store has no landing log: the objects in it would seem to be gone."""
        if self._stores.medium is None:
            raise ConfigError(
                "objects of the dump are in the landing log, which is missing: connect its devices, and set"
                " landing.mode and landing.devices as before; then run the rebuild again",
                settings=("landing.mode", "landing.devices"),
            )

    # --- the landing store ----------------------------------------------------------------------------
    def _adopt_copies(self, row_rebuilder: RowRebuilder, state: _State) -> None:
        """Write rows for the copies whose labels are newer than the rows of their objects."""
        for copies in batches(self._unclaimed(), LABELS_AT_A_TIME):
            for batch in batches(recover_copies(self._stores.landing, copies), COPIES_READ_AT_A_TIME):
                if queued := row_rebuilder.place_landed(batch, self._ends):
                    self._metadata.load((), queued, _encoded(state))

    def _set_aside_copies(self) -> None:
        """Put into quarantine the copies that later versions have replaced. Only their labels show this, because packed
        objects were not read."""
        for copies in batches(self._unclaimed(), LABELS_AT_A_TIME):
            labels = labels_of(self._stores.landing, copies)
            keys: dict[LandingId, ObjectKey] = {}
            for copy, label in labels.items():
                with suppress(InvalidInput):
                    keys[copy] = ObjectKey(label.bucket, label.name)
            found = self._metadata.rows_of(set(keys.values()))
            for copy, key in keys.items():
                if key in found and found[key].version >= labels[copy].put_ms * 1000:
                    self._metadata.quarantine_copy(copy, self._now_ms + QUARANTINE_MS)

    def _return_to_copies(self) -> None:
        """Set objects whose blocks do not exist back to their landing copies in the deletion queue: the reaper may have
        done the same since the dump."""
        after: LandingId | None = None
        while page := self._metadata.deletions_after(after, PAGE_ROWS):
            after = page[-1].landing_id
            queued = [(one, one.object_id) for one in page if one.object_id is not None and not one.doomed]
            found = self._metadata.objects_with([object_id for _, object_id in queued])
            returned: dict[int, Rebuilt] = {}
            for entry, object_id in queued:
                row = found.get(object_id)
                if row is None or row.version != entry.version or object_id in returned:
                    continue
                is_gone = row.extent is not None and row.extent.block_id not in self._there
                if is_gone and self._stores.is_intact(entry.landing_id, row):
                    landed = replace(row, state=_LANDED, landing_id=entry.landing_id, extent=None)
                    returned[object_id] = Rebuilt(landed, instead_of=row)
            self._metadata.place(list(returned.values()), self._now_ms)
            self.figures.returned += len(returned)

    # --- what is gone ---------------------------------------------------------------------------------
    def _remove_gone(self) -> None:
        """Remove the rows of the dump whose bytes do not exist: the objects were deleted or overwritten since, or are
        lost."""
        landed = 0
        for found in self._stores.in_order(places_of_range, self._stores.id_ranges()):
            landed += found.landed
            if lost := found.blocks - self._there:
                for page in self._stores.columns_between(found.after, found.last):
                    places = zip(page.object_id, page.block_id, strict=True)
                    gone = [object_id for object_id, block_id in places if block_id in lost]
                    self._remove(list(self._metadata.objects_with(gone).values()))
            for large in batches(found.large, PAGE_ROWS):
                rows_of_large = list(self._metadata.objects_with(large).values())
                self._remove(tail_rows.without_parts(rows_of_large, self._metadata, self._there))
        parts = 1 + landed // IDS_MAX
        for part in range(parts):
            self._remove_landed(part, parts)

    def _remove_landed(self, part: int, parts: int) -> None:
        present = {copy for copy in self._stores.landing.list_ids() if copy[-1] % parts == part}
        after: LandingId | None = None
        while page := self._metadata.waiting_after(after, PAGE_ROWS):
            after = page[-1].landing_id
            if any(in_log(one.landing_id) for one in page):
                self._require_log()
            mine = (one for one in page if one.landing_id[-1] % parts == part)
            gone = [one.object_id for one in mine if not self._copy_exists(one.landing_id, present)]
            self._remove(list(self._metadata.objects_with(gone).values()))

    def _copy_exists(self, copy: LandingId, present: set[LandingId]) -> bool:
        if in_log(copy):
            end = self._ends.get(segment_of(copy))
            return not self._is_log_whole if end is None else record_offset(copy) < end
        return copy in present

    def _remove(self, gone: Sequence[ObjectRow]) -> None:
        self._metadata.remove(gone)
        self.figures.gone += len(gone)

    # --- copies of packed objects ---------------------------------------------------------------------
    def _claim_copies(self, state: _State) -> None:
        """Queue for deletion the landing copies of objects that were put and packed since the dump. The reaper deletes
        a copy once it has read back the packed bytes. A copy belongs to a row with the same bytes whose version is from
        the time of the copy."""
        for copies in batches(self._unclaimed(), COPIES_AT_A_TIME):
            by_bytes: dict[tuple[int, int, bytes], list[LandingId]] = {}
            for copy in copies:
                self._tick("landing copies", self.figures.copies_read, None)
                try:
                    data = self._stores.landing.read(copy)
                except NotFound:
                    continue
                self.figures.copies_read += 1
                md5 = hashlib.md5(data, usedforsecurity=False).digest()
                by_bytes.setdefault((len(data), google_crc32c.value(data), md5), []).append(copy)
            after = 0
            while by_bytes and (page := self._metadata.objects_after(after, PAGE_ROWS)):
                after = page[-1].object_id
                claimed = [entry for row in page for entry in self._claimed(row, by_bytes)]
                if claimed:
                    self._metadata.load((), claimed, _encoded(state))

    def _unclaimed(self) -> Iterator[LandingId]:
        for copies in batches(self._stores.landing.list_ids(), PAGE_ROWS):
            own = [copy for copy in copies if not in_log(copy)]
            known = self._metadata.landing_known(own)
            yield from (copy for copy in own if copy not in known)

    def _claimed(self, row: ObjectRow, by_bytes: dict[tuple[int, int, bytes], list[LandingId]]) -> Iterator[QueueEntry]:
        copies = by_bytes.get((row.size, row.crc32c, row.md5), [])
        for copy in copies:
            if row.state is ObjectState.PACKED and 0 <= row.version // 1000 - time_of(copy) <= PUT_MS_MAX:
                copies.remove(copy)
                yield QueueEntry(copy, row.object_id, row.version, self._now_ms, False)
                return

    # --- the journal of deletes -----------------------------------------------------------------------
    def _remove_deleted(self, first: int, state: _State) -> None:
        for one in journal_since(self._stores, max(first, state.removed_to + 1)):
            changes = journal_rows.remove_deleted(one.entries or (), self._metadata)
            state.removed_to = one.number
            self._replay(changes, state)
            self.figures.journal_ms = one.put_ms

    def _replay_versions(self, first: int, state: _State) -> None:
        until_ms = self._now_ms + TRASHED_MS_MIN
        for one in journal_since(self._stores, max(first, state.replayed_to + 1)):
            changes = journal_rows.replay_versions(one.entries or (), self._metadata, self._now_ms, until_ms)
            state.replayed_to = one.number
            self._replay(changes, state)

    def _replay(self, changes: Replay, state: _State) -> None:
        self._metadata.replay(changes, self._now_ms, _encoded(state))
        self.figures.deleted += len(changes.removed) + len(changes.trashed)
        self.figures.markers += len(changes.markers)
        kill_point("rebuild.journal_applied")

    # --- the trash ------------------------------------------------------------------------------------
    def _settle_trash(self) -> None:
        """Set the times of rows in the trash, after the last search for versions there: first of rows that were in the
        trash when the dump was made, then of versions that later ones have replaced. Versions that must stay become
        noncurrent."""
        until_ms = self._now_ms + TRASHED_MS_MIN
        if self._source is not None:
            payloads = ((payload, until_ms) for payload in self._source.payloads())
            for trashed, noncurrent in self._stores.in_order(settled_rows, payloads):
                self._metadata.settle_trash(trashed)
                self._metadata.settle_versions(noncurrent)
        while replaced := self._rows_without_times():
            rest = version_rows.without_noncurrent(replaced, self._metadata, self._now_ms)
            self._metadata.settle_trash(
                [replace(row, trash_until_ms=until_ms, trashed_ms=self._now_ms) for row in rest]
            )

    # --- tails ----------------------------------------------------------------------------------------
    def _settle_tails(self) -> None:
        """Remove the tails whose block does not exist: the large object was deleted and collected. Remove large objects
        whose tail does not exist, unless some data could not be read: it may hold the tail, and `check` reports these
        objects."""
        for page in self._stores.uncommon_objects():
            self._metadata.remove(tail_rows.stray_tails(page, self._there), self._now_ms)
            if not self._is_any_unread():
                self._remove(tail_rows.without_tail(page, self._metadata))

    # --- uploads --------------------------------------------------------------------------------------
    def _settle_uploads(self, row_rebuilder: RowRebuilder) -> None:
        """Restore the states of uploads, when all objects are known: first of uploads with a composed object, then of
        uploads and parts without one. If some data could not be read, it may hold their composed objects, so they
        stay, and `check` reports them."""
        for page in self._stores.uncommon_objects():
            upload_rows.complete_uploads_of(page, self._metadata, self._now_ms)
            row_rebuilder.place_empty(upload_rows.missing_empty_parts(page, self._metadata, self._stores.bytes_of))
        if self._is_any_unread():
            return
        upload_rows.doom_uploads_without_object(self._metadata, self._now_ms)
        for page in self._stores.uncommon_objects():
            upload_rows.doom_parts_without_upload(page, self._metadata, self._now_ms)

    def _is_any_unread(self) -> bool:
        return bool(self.figures.unread_blocks or self.figures.nameless or self._unread_segments)

    def _rows_without_times(self) -> list[ObjectRow]:
        """Return some rows of the trash without times; empty if none are left. They come first in the trash."""
        page = self._metadata.trash_page(None, PAGE_ROWS)
        return [row for row in page.rows if row.trash_until_ms == UNSETTLED_MS]


def _encoded(state: _State) -> str:
    return msgspec.json.encode(state).decode()

"""Contract of `Rebuilding`: rows are written again as they were, each at once and any number of times."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from nos_ec.core.deadlines import EMPTY_COPY_MS, QUARANTINE_MS
from nos_ec.core.errors import Conflict
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey, new_segment_id
from nos_ec.core.states import BlockKind, BlockState, ObjectState, SegmentState
from nos_ec.ports.metadata import BlockRow, Metadata, ObjectRow, QueueEntry, Rebuilt, Segment, SegmentRow
from tests.rig.fakes.metadata_bench import GEOMETRY, MetadataBench, new_block_id, new_landing_id

NOW_MS = 1_700_000_000_000


def row_of(
    number: int, state: ObjectState, *, landing: LandingId | None = None, block: BlockId | None = None
) -> Rebuilt:
    """A row of 10 bytes, or of two segments of 10 bytes in that block."""
    row = ObjectRow(
        object_id=number,
        key=ObjectKey("bucket", f"name-{number}"),
        version=NOW_MS * 1000 + number,
        size=0 if state is ObjectState.EMPTY else 10,
        crc32c=number,
        md5=number.to_bytes(16),
        state=state,
        landing_id=landing,
        extent=Extent(block, 4096, 10) if block is not None and state is ObjectState.PACKED else None,
        created_ms=NOW_MS,
    )
    if block is None or state is not ObjectState.LARGE:
        return Rebuilt(row)
    return Rebuilt(replace(row, size=20), [Segment(Extent(block, at, 10), at) for at in (4096, 8192)])


def block_of(block_id: BlockId, state: BlockState = BlockState.SEALED) -> BlockRow:
    """A block of one stripe of GEOMETRY, all dead."""
    size = GEOMETRY.stripe_size
    return BlockRow(block_id, BlockKind.FRESH, state, "rebuilt", 7, 1, 0, 100, size - 100, 0, NOW_MS, None)


class RebuildContract:
    """All of `Rebuilding`, on metadata without a geometry."""

    def test_rows_are_as_they_were(self, metadata: Metadata) -> None:
        block, landing, queued = new_block_id(), new_landing_id(), new_landing_id()
        rebuilt = [
            row_of(3, ObjectState.LANDED, landing=landing),
            row_of(5, ObjectState.PACKED, block=block),
            row_of(7, ObjectState.LARGE, block=block),
            row_of(9, ObjectState.EMPTY),
        ]
        assert metadata.rebuild_state() is None
        metadata.begin_rebuild("begun")
        entry = QueueEntry(queued, 5, 1, NOW_MS, False)
        metadata.load(rebuilt, [entry], "loaded")
        metadata.load([], [entry], "loaded twice")
        assert metadata.rebuild_state() == "loaded twice"
        assert metadata.objects_after(0, 10) == [one.row for one in rebuilt]
        assert [part for _, part in metadata.segments_of([7])[7]] == rebuilt[2].parts
        assert [(one.landing_id, one.object_id) for one in metadata.waiting_after(None, 10)] == [(landing, 3)]
        assert metadata.deletions_after(None, 10) == [entry]
        assert metadata.rows_of([one.row.key for one in rebuilt]) == {one.row.key: one.row for one in rebuilt}
        assert metadata.last_object_id() == 9

    def test_a_row_is_replaced_with_all_that_belongs_to_it(self, metadata: Metadata) -> None:
        block, landing, newer = new_block_id(), new_landing_id(), new_landing_id()
        landed, large = row_of(3, ObjectState.LANDED, landing=landing), row_of(7, ObjectState.LARGE, block=block)
        metadata.begin_rebuild("begun")
        metadata.load([landed, large], [], "loaded")
        packed = replace(landed.row, state=ObjectState.PACKED, landing_id=None, extent=Extent(block, 0, 10))
        small = replace(large.row, state=ObjectState.LANDED, version=large.row.version + 1, landing_id=newer, size=4)
        metadata.place([Rebuilt(packed, (), landed.row), Rebuilt(small, (), large.row)], NOW_MS)
        assert metadata.objects_after(0, 10) == [packed, small]
        assert metadata.segments_of([7]) == {}
        assert [one.landing_id for one in metadata.waiting_after(None, 10)] == [newer]
        assert metadata.deletions_after(None, 10) == [QueueEntry(landing, 3, landed.row.version, NOW_MS, False)]
        metadata.remove([packed])
        metadata.remove([small], NOW_MS)
        assert (metadata.objects_after(0, 10), metadata.waiting_after(None, 10)) == ([], [])
        held = QueueEntry(newer, None, 0, NOW_MS + QUARANTINE_MS, False)
        assert sorted(metadata.deletions_after(None, 10), key=lambda one: one.landing_id == newer)[1:] == [held]

    def test_the_later_row_of_a_key_is_loaded(self, metadata: Metadata) -> None:
        """A key that was deleted and stored again while a dump was made has two ids, and so two rows in the dump."""
        block, landing = new_block_id(), new_landing_id()
        first, again = row_of(7, ObjectState.LARGE, block=block), row_of(900, ObjectState.LANDED, landing=landing)
        other = row_of(8, ObjectState.LANDED, landing=new_landing_id())
        metadata.begin_rebuild("begun")
        metadata.load([first, other], [], "loaded")
        again = Rebuilt(replace(again.row, key=first.row.key))
        third = Rebuilt(replace(row_of(901, ObjectState.EMPTY).row, key=other.row.key))
        metadata.load([again, third], [], "loaded the next")
        assert metadata.objects_after(0, 10) == [again.row, third.row]
        assert metadata.segments_of([7]) == {}
        assert [one.landing_id for one in metadata.waiting_after(None, 10)] == [landing]
        both = [Rebuilt(replace(third.row, version=version)) for version in (third.row.version + 1, third.row.version)]
        metadata.load([Rebuilt(replace(both[0].row, object_id=902)), both[1]], [], "both in one page")
        assert [row.object_id for row in metadata.objects_after(0, 10)] == [900, 902]

    def test_prepared_rows_are_loaded_as_others_are(self, metadata: Metadata) -> None:
        block, copies = new_block_id(), [new_landing_id() for _ in range(2)]
        first = [row_of(3, ObjectState.LANDED, landing=copies[0]), row_of(7, ObjectState.LARGE, block=block)]
        second = [row_of(8, ObjectState.PACKED, block=block), row_of(9, ObjectState.LANDED, landing=copies[1])]
        metadata.begin_rebuild("begun")
        metadata.load([], [QueueEntry(copy, 5, 1, NOW_MS, False) for copy in copies], "queued")
        assert metadata.load_prepared(pickle.loads(pickle.dumps(metadata.prepare(first))), "loaded")
        again = Rebuilt(replace(second[0].row, object_id=900, key=first[0].row.key))
        refused = metadata.prepare([*second, again])
        assert not metadata.load_prepared(refused, "loaded the next")
        assert metadata.rebuild_state() == "loaded"
        assert metadata.objects_after(0, 10) == [one.row for one in first]
        assert [one.landing_id for one in metadata.deletions_after(None, 10)] == [copies[1]]
        metadata.load([*second, again], [], "loaded the next")
        assert metadata.objects_after(0, 10) == [first[1].row, *[one.row for one in second], again.row]
        assert [part for _, part in metadata.segments_of([7])[7]] == first[1].parts
        assert [one.landing_id for one in metadata.waiting_after(None, 10)] == [copies[1]]

    def test_a_copy_that_a_row_has_is_not_queued(self, metadata: Metadata) -> None:
        """An entry may have been read before the row, or after it."""
        block, copies = new_block_id(), [new_landing_id() for _ in range(4)]
        early, late, packed, moved = (
            row_of(3, ObjectState.LANDED, landing=copies[0]),
            row_of(4, ObjectState.LANDED, landing=copies[1]),
            row_of(5, ObjectState.PACKED, block=block),
            row_of(6, ObjectState.LANDED, landing=copies[3]),
        )
        entries = [
            QueueEntry(copy, one.row.object_id, one.row.version, NOW_MS, False)
            for copy, one in zip(copies, (early, late, packed), strict=False)
        ]
        metadata.begin_rebuild("begun")
        metadata.load([], entries[:1], "loaded")
        metadata.load([early, late, packed, moved], [], "loaded")
        metadata.load([], entries[1:], "loaded")
        assert {one.landing_id for one in metadata.deletions_after(None, 10)} == {copies[2]}
        landed = replace(packed.row, state=ObjectState.LANDED, landing_id=copies[2], extent=None)
        elsewhere = replace(moved.row, landing_id=(copy := new_landing_id()))
        metadata.place([Rebuilt(landed, (), packed.row), Rebuilt(elsewhere, (), moved.row)], NOW_MS)
        assert metadata.deletions_after(None, 10) == []
        assert {one.landing_id for one in metadata.waiting_after(None, 10)} == {*copies[:3], copy}

    def test_what_was_in_the_trash_is_there_again(self, metadata: Metadata) -> None:
        """Found by key and version until its times are settled, whatever else has the key."""
        block, landing = new_block_id(), new_landing_id()
        live = row_of(9, ObjectState.EMPTY).row
        packed, landed = (
            row_of(3, ObjectState.PACKED, block=block).row,
            row_of(5, ObjectState.LANDED, landing=landing).row,
        )
        thrown = [
            replace(packed, key=live.key, trash_until_ms=NOW_MS + 5),
            replace(landed, key=live.key, trash_until_ms=NOW_MS + 3),
        ]
        metadata.begin_rebuild("begun")
        for _ in range(2):
            metadata.load([Rebuilt(row) for row in [live, *thrown]], [], "loaded")
        assert metadata.rows_of([live.key]) == {live.key: live}
        named = {(row.key, row.version): row for row in thrown}
        assert metadata.trash_of([*named, (live.key, live.version), (packed.key, packed.version)]) == named
        assert metadata.trash_of([]) == {}
        assert metadata.expired_trash(NOW_MS + 9, 9) == []
        found = metadata.trash_of(list(named))[live.key, packed.version]
        moved = replace(found, extent=Extent(block, 8192, 10))
        metadata.place([Rebuilt(moved, (), found)], NOW_MS)
        assert metadata.trash_of([(live.key, packed.version)]) == {(live.key, packed.version): moved}
        for _ in range(2):
            metadata.settle_trash([*thrown, replace(live, trash_until_ms=1)])
        assert metadata.trash_of(list(named)) == {}
        assert metadata.rows_of([live.key]) == {live.key: live}
        page = metadata.trash_page(None, 9)
        assert [(row, row.trash_until_ms) for row in page.rows] == [(moved, NOW_MS + 5), (thrown[1], NOW_MS + 3)]
        assert [one.landing_id for one in metadata.waiting_after(None, 10)] == [landing]

    def test_blocks_and_landing_segments_replace_their_rows(self, metadata: Metadata) -> None:
        blocks = [block_of(new_block_id()), block_of(new_block_id(), BlockState.CONDEMNED)]
        segments = [SegmentRow(new_segment_id(NOW_MS, 3), SegmentState.SEALED, 2, NOW_MS, NOW_MS, 8192, 5)]
        metadata.begin_rebuild("begun")
        for _ in range(2):
            metadata.enter_blocks(blocks)
            metadata.enter_segments(segments)
        assert metadata.list_blocks(None, 10) == sorted(blocks, key=lambda row: row.block_id)
        assert metadata.list_segments(None, 10) == segments

    def test_it_begins_only_in_empty_tables(self, metadata: Metadata) -> None:
        metadata.begin_rebuild("begun")
        metadata.load([row_of(1, ObjectState.EMPTY)], [], "loaded")
        with pytest.raises(Conflict, match="objects"):
            metadata.begin_rebuild("again")

    def test_at_the_end_it_can_be_used_and_epochs_are_new(self, metadata: Metadata) -> None:
        metadata.begin_rebuild("begun")
        assert metadata.is_new()
        metadata.finish_rebuild(GEOMETRY, 500, 3)
        assert (metadata.is_new(), metadata.rebuild_state()) == (False, None)
        assert metadata.acquire_lease("writer", NOW_MS, 1000).epoch > 500

    def test_the_copy_of_an_empty_object_is_kept_for_a_while(self, bench: MetadataBench) -> None:
        for name in ("new", "new", "other"):
            new = replace(bench.new(name), size=0, crc32c=0)
            assert new.landing_id is not None
            (row,) = bench.metadata.record_puts([new], bench.now_ms)
            assert isinstance(row, ObjectRow)
            assert (row.state, row.landing_id) == (ObjectState.EMPTY, None)
            assert bench.metadata.record_puts([new], bench.now_ms) == [row], "again, as after an answer that was lost"
            (entry,) = [one for one in bench.metadata.deletions_after(None, 9) if one.landing_id == new.landing_id]
            assert (entry.object_id, entry.version) == (row.object_id, row.version)
            assert entry.not_before_ms == bench.now_ms + EMPTY_COPY_MS
            bench.now_ms += 1
        assert bench.metadata.due_deletions(bench.now_ms + EMPTY_COPY_MS - 4, 9) == []
        due = bench.metadata.due_deletions(bench.now_ms + EMPTY_COPY_MS, 9)
        assert [one.row and one.row.key.name for one in due] == [None, "new", "other"]
        doomed = bench.metadata.doom_landing({one.landing_id: None for one in due})
        assert doomed == {one.landing_id for one in due}
        bench.check_counters()

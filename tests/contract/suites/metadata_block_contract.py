"""The part of the metadata contract about blocks. `testing/metadata_contract.py` has the whole contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import Conflict, LeaseLost, NotFound
from nos_ec.core.gc.gc_policy import SealedBlock, StoredBytes
from nos_ec.core.gc.share import WHOLE, Share
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.header_scan import live_entries
from nos_ec.ports.metadata import BlockFigures, BlockRow, Lease, SpaceUse, WaitReason
from tests.rig.fakes.metadata_bench import GEOMETRY, TTL_MS, MetadataBench, new_block_id

SIZE = GEOMETRY.stripe_size
COOL_DOWN_MS_MAX = 1000


def _candidates(bench: MetadataBench, waste_ratio_min: float, limit: int = 9) -> list[BlockRow]:
    return bench.metadata.gc_candidates(waste_ratio_min, bench.now_ms, COOL_DOWN_MS_MAX, limit)


class BlockContract:
    """Blocks (invariants 4, 6, 8)."""

    def test_allocating(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        block_id = bench.block(lease, BlockKind.SURVIVOR)
        block = bench.metadata.block(block_id)
        assert (block.kind, block.state, block.writer) == (BlockKind.SURVIVOR, BlockState.OPEN, lease.name)
        assert (block.epoch, block.stripes, block.created_ms) == (lease.epoch, 0, bench.now_ms)
        assert (block.live_bytes, block.dead_bytes, block.overhead_bytes, block.delete_after_ms) == (0, 0, 0, None)
        assert block.hole_ratio == 1.0
        bench.metadata.allocate_block(lease, block_id, BlockKind.SURVIVOR, bench.now_ms)
        with pytest.raises(Conflict):
            bench.metadata.allocate_block(bench.lease(), block_id, BlockKind.SURVIVOR, bench.now_ms)
        bench.metadata.release_lease(lease)
        with pytest.raises(LeaseLost):
            bench.metadata.allocate_block(lease, new_block_id(), BlockKind.FRESH, 1)

    def test_sealing(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        block_id, fenced = bench.block(lease), bench.block(lease)
        for _ in range(2):
            bench.metadata.seal_block(lease, block_id, 5)
        assert bench.metadata.block(block_id).state is BlockState.SEALED
        bench.metadata.fence_block(lease, fenced)
        with pytest.raises(LeaseLost):
            bench.metadata.seal_block(lease, fenced, 5)
        with pytest.raises(LeaseLost):
            bench.metadata.seal_block(bench.lease(), block_id, 5)
        bench.metadata.release_lease(lease)
        with pytest.raises(LeaseLost):
            bench.metadata.seal_block(lease, block_id, 5)

    def test_fencing_a_block(self, bench: MetadataBench) -> None:
        lease, stranger = bench.lease(), bench.lease()
        block_id, sealed = bench.block(lease), bench.block(lease)
        bench.metadata.fence_block(stranger, block_id)
        assert bench.metadata.fenced_blocks(9) == []
        bench.metadata.seal_block(lease, sealed, 5)
        for _ in range(2):
            bench.metadata.fence_block(lease, block_id)
            bench.metadata.fence_block(lease, sealed)
        assert [block.block_id for block in bench.metadata.fenced_blocks(9)] == [block_id]

    def test_forgetting_a_block_that_was_never_written(self, bench: MetadataBench) -> None:
        lease, stranger = bench.lease(), bench.lease()
        block_id, fenced, sealed = (bench.block(lease) for _ in range(3))
        written = bench.pack([bench.put("a", 100)], seal=False)
        bench.metadata.fence_block(lease, fenced)
        bench.metadata.seal_block(lease, sealed, 5)
        for kept in (fenced, sealed):
            assert not bench.metadata.forget_unwritten(lease, kept)
        assert not bench.metadata.forget_unwritten(stranger, block_id)
        assert not bench.metadata.forget_unwritten(self._writer_of(bench, written), written)
        assert bench.metadata.forget_unwritten(lease, block_id)
        assert not bench.metadata.forget_unwritten(lease, block_id)
        with pytest.raises(NotFound):
            bench.metadata.block(block_id)
        left = {block.block_id for block in bench.metadata.list_blocks(None, 9)}
        assert left == {fenced, sealed, written}
        bench.check_counters()

    @pytest.mark.invariant(6)
    def test_reconciling(self, bench: MetadataBench) -> None:
        rows = [bench.put(name, 100) for name in "abc"]
        block_id = bench.pack(rows, seal=False)
        bench.metadata.fence_block(self._writer_of(bench, block_id), block_id)
        assert not bench.metadata.seal_reconciled(block_id, 3, 299, 50, 3, 7)
        bench.delete("a")
        assert not bench.metadata.seal_reconciled(block_id, 3, 300, 50, 3, 7), "an object was deleted meanwhile"
        assert bench.metadata.block(block_id).state is BlockState.FENCED
        with pytest.raises(ValueError, match="do not fit"):
            bench.metadata.seal_reconciled(block_id, 0, 200, 150, 2, 7)
        assert bench.metadata.seal_reconciled(block_id, 3, 200, 150, 2, 7)
        block = bench.metadata.block(block_id)
        assert (block.state, block.stripes, block.dead_bytes) == (BlockState.SEALED, 3, 150)
        assert block.overhead_bytes == 3 * SIZE - 350
        assert not bench.metadata.seal_reconciled(block_id, 3, 200, 150, 2, 7)
        bench.check_counters()

    @staticmethod
    def _writer_of(bench: MetadataBench, block_id: BlockId) -> Lease:
        block = bench.metadata.block(block_id)
        return Lease(block.writer, block.epoch, 0)

    def test_blocks_are_listed_in_pages(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        ids = sorted(bench.block(lease) for _ in range(5))
        assert [block.block_id for block in bench.metadata.list_blocks(None, 3)] == ids[:3]
        assert [block.block_id for block in bench.metadata.list_blocks(ids[2], 3)] == ids[3:]
        with pytest.raises(NotFound):
            bench.metadata.block(new_block_id())

    def test_the_figures_of_all_blocks_are_listed_in_pages(self, bench: MetadataBench) -> None:
        lease, sealed_ms = bench.lease(), bench.now_ms + 7
        still_open = bench.block(lease, BlockKind.SURVIVOR)
        sealed = bench.pack([bench.put("a", 70), bench.put("b", 30)], seal=False)
        bench.metadata.seal_block(self._writer_of(bench, sealed), sealed, sealed_ms)
        bench.delete("b")
        expected = [
            BlockFigures(still_open, BlockKind.SURVIVOR, BlockState.OPEN, 0, 0, bench.now_ms),
            BlockFigures(sealed, BlockKind.FRESH, BlockState.SEALED, 70, 30, sealed_ms),
        ]
        first, second = sorted(expected)
        assert bench.metadata.list_block_figures(None, 9) == [first, second]
        assert bench.metadata.list_block_figures(None, 1) == [first]
        assert bench.metadata.list_block_figures(first.block_id, 9) == [second]
        assert bench.metadata.list_block_figures(second.block_id, 9) == []
        assert {type(number) for one in expected for number in one[3:]} == {int}

    def test_the_objects_placed_in_a_block(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        rows = [bench.put(name, 100) for name in "abc"]
        block_id = bench.block(lease)
        commit = bench.group(lease, block_id, rows[::-1])
        bench.metadata.commit_group(commit)
        placed = bench.metadata.placed_in(block_id)
        assert sorted(bench.metadata.live_in(block_id)) == sorted(live_entries(placed))
        assert bench.metadata.live_bytes_in(block_id) == (3, sum(one.extent.length for one in placed))
        assert [one.key.name for one in placed] == ["c", "b", "a"]
        assert [one.extent.offset for one in placed] == [move.offset for move in commit.moves]
        assert [(one.object_id, one.version, one.crc32c) for one in placed] == [
            (row.object_id, row.version, row.crc32c) for row in rows[::-1]
        ]
        new = bench.large("l", lease)
        bench.metadata.record_large(new, lease, 5)
        (part,) = bench.metadata.placed_in(new.segments[1].extent.block_id)
        assert bench.metadata.live_in(new.segments[1].extent.block_id) == live_entries([part])
        assert (part.key, part.version, part.extent, part.crc32c) == (new.key, new.version, new.segments[1].extent, 2)
        assert bench.metadata.live_bytes_in(part.extent.block_id) == (1, part.extent.length)
        assert bench.metadata.placed_in(new_block_id()) == []
        assert bench.metadata.live_in(new_block_id()) == []
        for one in (*placed, part):
            numbers = (one.extent.offset, one.extent.length, one.crc32c, one.version)
            assert {type(number) for number in numbers} == {int}, "no Decimal, which nothing can read bytes with"

    def test_candidates_are_sealed_and_most_wasteful_first(self, bench: MetadataBench) -> None:
        # A stripe of 32 KiB has four objects of 4 KiB, or only one and no holes: padding is waste, too.
        blocks = []
        for deleted in range(4):
            names = [f"{deleted}-{i}" for i in range(4)]
            blocks.append(bench.pack([bench.put(name, SIZE // 8) for name in names]))
            for name in names[:deleted]:
                bench.delete(name)
        padded = bench.pack([bench.put("padded", SIZE // 16)])
        bench.block(bench.lease())
        found = _candidates(bench, 0.75)
        assert [block.block_id for block in found] == [padded, blocks[3], blocks[2]]
        assert [block.waste_ratio for block in found] == [0.9375, 0.875, 0.75]
        assert [block.hole_ratio for block in found] == [0.0, 0.75, 0.5]
        assert [block.block_id for block in _candidates(bench, 0.75, limit=1)] == [padded]
        assert len(_candidates(bench, 0.0)) == 5
        assert len(_candidates(bench, 0.7500001)) == 2

    def test_candidates_of_which_much_is_padding(self, bench: MetadataBench) -> None:
        holes = bench.pack([bench.put(f"holes-{number}", SIZE // 4) for number in range(3)])
        for number in range(2):
            bench.delete(f"holes-{number}")
        padded = bench.pack([bench.put("padded", SIZE // 16)])
        assert [block.block_id for block in _candidates(bench, 0.75)] == [padded, holes]
        found = bench.metadata.gc_candidates(0.75, bench.now_ms, COOL_DOWN_MS_MAX, 9, overhead_ratio_min=0.75)
        assert [block.block_id for block in found] == [padded]

    def test_blocks_with_holes_come_in_pages(self, bench: MetadataBench) -> None:
        lease, day_ms = bench.lease(), 86_400_000
        holes = {}
        for number in range(5):
            holes[bench.pack([bench.put(f"{number}-live", 70), bench.put(f"{number}-dead", 30 + number)])] = number
            bench.delete(f"{number}-dead")
        bench.pack([bench.put("full")])
        bench.pack([bench.put("dead")])
        bench.delete("dead")
        still_open = bench.block(lease)
        bench.metadata.commit_group(bench.group(lease, still_open, [bench.put("a", 5), bench.put("b", 7)]))
        bench.delete("a")
        large = bench.large("l", lease)
        bench.metadata.record_large(large, lease, 5)

        def pages(now_ms: int, limit: int) -> list[SealedBlock]:
            found: list[SealedBlock] = []
            while page := bench.metadata.blocks_with_holes(
                found[-1].block_id if found else None, now_ms, COOL_DOWN_MS_MAX, limit
            ):
                assert len(page) <= limit
                found += page
            return found

        sealed_ms = bench.now_ms
        for limit in (1, 2, 5, 99):
            found = pages(sealed_ms + 3 * day_ms, limit)
            assert [one.block_id for one in found] == sorted(holes)
            assert all((one.live_bytes, one.dead_bytes) == (70, 30 + holes[one.block_id]) for one in found)
            assert all(2.9 < one.age_days <= 3.1 for one in found)
        cooling, dense, *_ = holes
        bench.metadata.cool_down_block(cooling, sealed_ms + 500, failed=True)
        bench.metadata.cool_down_block(dense, sealed_ms + 500, failed=False)
        assert {one.block_id for one in pages(sealed_ms, 2)} == holes.keys() - {cooling}
        assert {one.block_id for one in pages(sealed_ms + 500, 2)} == holes.keys()

    def test_blocks_of_which_much_is_padding(self, bench: MetadataBench) -> None:
        day_ms = 86_400_000
        blocks = [bench.pack([bench.put(f"live-{eighths}", eighths * SIZE // 8)]) for eighths in range(1, 8)]
        holes = bench.pack([bench.put("live", 7 * SIZE // 16), bench.put("dead", 7 * SIZE // 16)])
        bench.delete("dead")
        bench.block(bench.lease())
        created_ms = bench.now_ms

        def padded(overhead_ratio_min: float, price_days: float, days: float, limit: int = 99) -> list[BlockId]:
            now_ms = created_ms + round(days * day_ms)
            found = bench.metadata.padded_blocks(overhead_ratio_min, price_days, now_ms, COOL_DOWN_MS_MAX, limit)
            return [block.block_id for block in found]

        assert padded(0.0, 0.0, 0) == [*blocks[:3], holes, *blocks[3:]]
        assert padded(0.25, 0.0, 0) == blocks[:6], "an eighth is too little, and dead bytes do not count"
        assert padded(0.25, 0.0, 0, limit=2) == blocks[:2]
        assert padded(0.25, 3.0, 2.99) == blocks[:3], "half of one of which half is padding: 3 days"
        assert padded(0.25, 3.0, 3.01) == blocks[:4]
        assert padded(0.25, 3.0, -1) == [], "the clock was set back"
        assert padded(0.25, 3.0, 5_000_000) == blocks[:6], "bytes times milliseconds exceed 63 bits"
        bench.metadata.cool_down_block(blocks[0], created_ms + 500, failed=False)
        bench.metadata.cool_down_block(blocks[1], created_ms + 500, failed=True)
        assert padded(0.25, 0.0, 0) == blocks[2:6]
        assert padded(0.25, 0.0, 1) == blocks[:6]
        bench.delete("live-1")
        assert padded(0.25, 0.0, 1) == blocks[1:6], "nothing lives in it"

    def test_space_in_use(self, bench: MetadataBench) -> None:
        assert bench.metadata.space_use() == SpaceUse(0, 0, 0)
        lease = bench.lease()
        bench.pack([bench.put("a", 70), bench.put("b", 30)])
        bench.delete("b")
        still_open = bench.block(lease)
        bench.metadata.commit_group(bench.group(lease, still_open, [bench.put("c", 5), bench.put("d", 7)]))
        bench.delete("d")
        assert bench.metadata.space_use() == SpaceUse(112, 75, 0)
        empty = bench.pack([bench.put("e", 11)])
        bench.delete("e")
        use = bench.metadata.space_use()
        assert use == SpaceUse(123, 75, 11)
        assert (use.with_empty, use.without_empty) == (StoredBytes(123, 75), StoredBytes(112, 75))
        large = bench.large("l", lease)
        bench.metadata.record_large(large, lease, 5)
        size = sum(segment.extent.length for segment in large.segments)
        assert bench.metadata.space_use() == SpaceUse(123 + size, 75 + size, 11)
        assert bench.metadata.condemn_block(empty, 50)
        assert bench.metadata.space_use() == SpaceUse(112 + size, 75 + size, 0)

    def test_blocks_without_live_objects_are_not_rewritten(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        dead, live = bench.pack([bench.put("dead")]), bench.pack([bench.put("live", 1)])
        bench.delete("dead")
        never_written = bench.block(lease)
        assert {block.block_id for block in bench.metadata.empty_blocks(9)} == {dead}, "an open block is not sealed"
        bench.metadata.seal_block(lease, never_written, 5)
        bench.metadata.cool_down_block(dead, bench.now_ms + 999, failed=True)
        assert {block.block_id for block in bench.metadata.empty_blocks(9)} == {dead, never_written}
        assert len(bench.metadata.empty_blocks(1)) == 1
        assert [block.block_id for block in _candidates(bench, 0.0)] == [live]

    def test_each_block_is_in_the_share_of_one_worker(self, bench: MetadataBench) -> None:
        shares = [Share(worker, 3) for worker in range(3)]
        dead = {bench.pack([bench.put(f"dead-{number}", 1)]) for number in range(12)}
        live = {bench.pack([bench.put(f"live-{number}", 1)]) for number in range(12)}
        for number in range(12):
            bench.delete(f"dead-{number}")
        now_ms = bench.now_ms

        def candidates(share: Share) -> list[BlockRow]:
            return bench.metadata.gc_candidates(0.5, now_ms, COOL_DOWN_MS_MAX, 99, share)

        def padded(share: Share) -> list[BlockRow]:
            return bench.metadata.padded_blocks(0.5, 0.0, now_ms, COOL_DOWN_MS_MAX, 99, share)

        def empty(share: Share) -> list[BlockRow]:
            return bench.metadata.empty_blocks(99, share)

        def condemned(share: Share) -> list[BlockRow]:
            return bench.metadata.condemned_blocks(50, 99, share)

        def far_condemned(share: Share) -> list[BlockRow]:
            return bench.metadata.condemned_blocks(50 - WAIT_MS_MAX - 1, 99, share)

        def check(find: Callable[[Share], list[BlockRow]], expected: set[BlockId]) -> None:
            assert {block.block_id for block in find(WHOLE)} == expected
            for share in shares:
                assert {block.block_id for block in find(share)} == set(filter(share.owns, expected))

        check(candidates, live)
        check(padded, live)
        check(empty, dead)
        share = next(share for share in shares if empty(share))
        assert len(bench.metadata.empty_blocks(1, share)) == 1, "blocks of other workers take no places"
        for block_id in dead:
            assert bench.metadata.condemn_block(block_id, 50)
        check(condemned, dead)
        check(far_condemned, dead)

    def test_blocks_of_large_objects_are_never_rewritten(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        large = bench.large("l", lease)
        bench.metadata.record_large(large, lease, 5)
        assert _candidates(bench, 0.0) == []
        bench.delete("l")
        assert {block.block_id for block in bench.metadata.empty_blocks(9)} == {
            segment.extent.block_id for segment in large.segments
        }

    def test_dead_bytes_that_wait_are_told_by_the_reason(self, bench: MetadataBench) -> None:
        def waiting() -> list[tuple[WaitReason, int, int, int | None]]:
            found = bench.metadata.waiting_blocks(0.7, bench.now_ms, COOL_DOWN_MS_MAX)
            return [(one.reason, one.blocks, one.dead_bytes, one.until_ms) for one in found]

        assert waiting() == []
        lease, size, now_ms = bench.lease(), SIZE // 8, bench.now_ms
        rows = [bench.put(name, size) for name in "abc"]
        still_open = bench.block(lease)
        bench.metadata.commit_group(bench.group(lease, still_open, rows))
        assert waiting() == [], "nothing is dead"
        bench.delete("a")
        for name in ("full", "cooling", "later", "wrong clock", "doomed", "empty", "dead"):
            count = 4 if name == "full" else 2
            rows = [bench.put(f"{name}-{number}", size) for number in range(count)]
            block_id = bench.pack(rows)
            bench.delete(f"{name}-0")
            if name in ("doomed", "empty", "dead"):
                bench.delete(f"{name}-1")
            if name == "doomed":
                assert bench.metadata.condemn_block(block_id, now_ms + 70)
            for until_ms in {"cooling": [500], "later": [600], "wrong clock": [9001]}.get(name, []):
                is_dense = name == "later"
                bench.metadata.cool_down_block(block_id, now_ms + until_ms, failed=not is_dense)
        large = bench.large("l", lease, parts=1)
        bench.metadata.record_large(large, lease, 5)
        stripe = bench.metadata.block(large.segments[0].extent.block_id).size_bytes
        assert waiting() == [
            (WaitReason.OPEN, 1, size, None),
            (WaitReason.SET_ASIDE, 2, 2 * size, now_ms + 500),
            (WaitReason.TOO_FULL, 1, size, None),
            (WaitReason.CONDEMNED, 1, stripe, now_ms + 70),
        ]
        of_any_waste = bench.metadata.waiting_blocks(0.0, now_ms, COOL_DOWN_MS_MAX)
        set_aside = [(one.blocks, one.until_ms) for one in of_any_waste if one.reason is WaitReason.SET_ASIDE]
        assert set_aside == [(1, now_ms + 500)], "a dense block does not wait for a policy of space"
        bench.now_ms += 550
        assert (WaitReason.SET_ASIDE, 1, size, now_ms + 600) in waiting()
        bench.metadata.fence_lease(lease, bench.now_ms + TTL_MS)
        assert waiting()[0] == (WaitReason.FENCED, 1, size, None)

    def test_a_block_that_cools_down_is_not_a_candidate(self, bench: MetadataBench) -> None:
        block_id = bench.pack([bench.put("a", 100)])
        (before,) = _candidates(bench, 0.5)
        assert before.gc_failures == 0
        bench.metadata.cool_down_block(block_id, bench.now_ms + 500, failed=True)
        assert _candidates(bench, 0.5) == []
        bench.now_ms += 499
        assert _candidates(bench, 0.5) == []
        bench.now_ms += 1
        assert [block.gc_failures for block in _candidates(bench, 0.5)] == [1]
        bench.metadata.cool_down_block(block_id, bench.now_ms + COOL_DOWN_MS_MAX, failed=False)
        assert _candidates(bench, 0.5) == []
        assert bench.metadata.block(block_id).gc_failures == 0, "the second time it did not fail"

    def test_a_cool_down_set_by_a_wrong_clock_counts_as_over(self, bench: MetadataBench) -> None:
        block_id = bench.pack([bench.put("a", 100)])
        bench.metadata.cool_down_block(block_id, bench.now_ms + 365 * 86_400_000, failed=True)
        assert [block.block_id for block in _candidates(bench, 0.5)] == [block_id]

    @pytest.mark.invariant(6)
    def test_waste_is_updated_with_every_change(self, bench: MetadataBench) -> None:
        # After each kind of change, the index must find the block at exactly its ratio and not above.
        first, second = bench.put("a", SIZE // 4), bench.put("b", SIZE // 2)
        block_id = bench.pack([first, second])
        self._found_at(bench, block_id, 0.25)
        bench.put("a", 1)
        self._found_at(bench, block_id, 0.5)
        bench.pack([bench.get("b")])
        assert block_id in [block.block_id for block in bench.metadata.empty_blocks(9)]
        assert bench.metadata.block(block_id).waste_ratio == 1.0

    @staticmethod
    def _found_at(bench: MetadataBench, block_id: BlockId, ratio: float) -> None:
        assert bench.metadata.block(block_id).waste_ratio == ratio
        assert block_id in [block.block_id for block in _candidates(bench, ratio)]
        assert block_id not in [block.block_id for block in _candidates(bench, ratio + 0.001)]

    @pytest.mark.invariant(4)
    def test_only_a_sealed_block_without_references_is_condemned(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        row = bench.put("n")
        block_id = bench.pack([row])
        large = bench.large("l", lease, parts=1)
        bench.metadata.record_large(large, lease, 5)
        large_id = large.segments[0].extent.block_id
        open_id = bench.block(lease)
        for used in (block_id, large_id, open_id, new_block_id()):
            assert not bench.metadata.condemn_block(used, 50)
        bench.delete("n")
        bench.delete("l")
        assert bench.metadata.condemn_block(block_id, 50)
        assert bench.metadata.condemn_block(large_id, 40)
        assert not bench.metadata.condemn_block(block_id, 60), "it is not sealed any more"
        assert bench.metadata.block(block_id).delete_after_ms == 50
        assert bench.metadata.condemned_blocks(39, 9) == []
        assert [block.block_id for block in bench.metadata.condemned_blocks(50, 9)] == [large_id, block_id]
        assert len(bench.metadata.condemned_blocks(50, 1)) == 1
        assert _candidates(bench, 0.0) == []
        assert bench.metadata.empty_blocks(9) == []

    @pytest.mark.invariant(4)
    def test_only_a_condemned_block_is_forgotten(self, bench: MetadataBench) -> None:
        block_id = bench.pack([bench.put("n")])
        with pytest.raises(Conflict, match="condemned"):
            bench.metadata.forget_block(block_id)
        bench.delete("n")
        assert bench.metadata.condemn_block(block_id, 5)
        for _ in range(2):
            bench.metadata.forget_block(block_id)
        with pytest.raises(NotFound):
            bench.metadata.block(block_id)

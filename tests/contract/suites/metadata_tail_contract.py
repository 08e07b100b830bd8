"""Contract of recording tails of large objects (nos_ec.core.tails)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.core.errors import Conflict, NotFound
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import BlockKind, ObjectState
from nos_ec.core.tails import TAILS_BUCKET, tail_key
from nos_ec.ports.metadata import NewObject, ObjectRow, TailOf
from tests.rig.fakes.audit import counted_totals
from tests.rig.fakes.metadata_bench import MetadataBench, asking, new_block_id


def tail_of(bench: MetadataBench, block_id: BlockId, size: int = 700) -> NewObject:
    """A tail that has landed."""
    key = tail_key(block_id)
    return asking(bench.new(key.name, size, bucket=key.bucket), step=TailOf(block_id))


class TailContract:
    """`record_puts` and `record_large` with tails, and what lists and counts them."""

    def test_a_tail_is_recorded_while_its_block_is_open(self, bench: MetadataBench) -> None:
        metadata, lease = bench.metadata, bench.lease()
        large = bench.large("x", lease)
        tail = tail_of(bench, large.segments[-1].extent.block_id)
        (row,) = metadata.record_puts([tail], bench.now_ms)
        assert isinstance(row, ObjectRow)
        whole = replace(large, size=large.size + tail.size, tail_bytes=tail.size)
        assert metadata.record_large(whole, lease, bench.now_ms) is True
        assert metadata.get(whole.key).size == 2 * 20_000 + 700
        assert metadata.record_puts([tail], bench.now_ms) == [row], "recorded before"
        bench.delete("x")
        assert metadata.get(tail.key) == row, "it goes with its block"
        bench.check_counters()

    def test_no_tail_is_recorded_when_its_block_is_not_open(self, bench: MetadataBench) -> None:
        metadata, lease = bench.metadata, bench.lease()
        fenced = bench.block(lease, BlockKind.LARGE)
        metadata.fence_block(lease, fenced)
        recorded = bench.large("x", lease)
        assert metadata.record_large(recorded, lease, bench.now_ms) is True
        blocks = [fenced, recorded.segments[0].extent.block_id, new_block_id()]
        refused = [tail_of(bench, block_id) for block_id in blocks]
        other = bench.new("other")
        answers = metadata.record_puts([*refused, other], bench.now_ms)
        assert [type(answer) for answer in answers] == [Conflict, Conflict, Conflict, ObjectRow]
        for one in refused:
            with pytest.raises(NotFound):
                metadata.get(one.key)
            assert one.landing_id is not None
            assert bench.deletions()[one.landing_id].object_id is None, "its copy stays reserved"

    def test_segments_and_tail_sum_to_the_size(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        large = bench.large("x", lease)
        for tail_bytes in (1, -1):
            with pytest.raises(ValueError, match="tail do not sum"):
                bench.metadata.record_large(replace(large, tail_bytes=tail_bytes), lease, bench.now_ms)

    def test_buckets_of_tails_are_not_listed(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        for _ in range(3):
            bench.record([tail_of(bench, bench.block(lease, BlockKind.LARGE))])
        for bucket in (".nos_ec.tails", ".nos_ec.tailt", ".nos_ec.parts.b", "b", ".nos"):
            bench.put("n", bucket=bucket)
        assert bench.metadata.list_buckets("", 9) == [".nos", ".nos_ec.tails", ".nos_ec.tailt", "b"]
        assert bench.metadata.list_buckets(TAILS_BUCKET, 1) == [".nos_ec.tailt"]

    def test_packed_tails_count_as_bytes_of_large_objects(self, bench: MetadataBench) -> None:
        metadata, lease = bench.metadata, bench.lease()
        large = bench.large("x", lease)
        (tail,) = bench.record([tail_of(bench, large.segments[-1].extent.block_id)])
        whole = replace(large, size=large.size + 700, tail_bytes=700)
        assert metadata.record_large(whole, lease, bench.now_ms) is True
        totals = metadata.totals()
        assert (totals.landed_objects, totals.large_objects, totals.large_bytes) == (1, 1, 40_000)
        bench.pack([tail, bench.put("small", 50)])
        totals = metadata.totals()
        assert totals == counted_totals(metadata)
        assert (totals.packed_objects, totals.large_objects, totals.large_bytes) == (1, 1, 40_700)
        assert totals.live_bytes == 40_750
        packed = metadata.get(tail.key)
        assert packed.state is ObjectState.PACKED
        assert metadata.delete_many([tail.key, ObjectKey("b", "none")], bench.now_ms) == [packed]
        assert metadata.totals() == counted_totals(metadata)
        bench.check_counters()

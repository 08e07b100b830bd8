"""What every metadata store must say of one object or block. Part of `MetadataContract`."""

from __future__ import annotations

import pytest

from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId, LandingId, ObjectKey, record_ids_between
from nos_ec.core.states import BlockState, ObjectState, SegmentState
from nos_ec.ports.metadata import QueueEntry, WaitReason
from tests.contract.suites.metadata_segment_contract import SegmentBench
from tests.rig.fakes.metadata_bench import MetadataBench, new_block_id

LOWEST, HIGHEST = LandingId(bytes(16)), LandingId(b"\xff" * 16)


class ExplanationContract:
    """object_facts, find_queued_copy, landing_segment, block_facts."""

    def test_the_facts_of_an_object(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        landed = bench.put("n", due_ms=bench.now_ms + 77)
        facts = metadata.object_facts(landed.key)
        assert (facts.row, facts.row.due_ms, facts.block) == (bench.get("n"), bench.now_ms + 77, None)
        metadata.mark_published([landed], bench.now_ms + 99)
        facts = metadata.object_facts(landed.key)
        assert (facts.row.state, facts.row.due_ms) == (ObjectState.QUEUED, bench.now_ms + 99)
        block_id = bench.pack([landed])
        facts = metadata.object_facts(landed.key)
        assert (facts.row, facts.row.due_ms, facts.block) == (bench.get("n"), None, metadata.block(block_id))
        bench.put("empty", 0)
        assert metadata.object_facts(ObjectKey("bucket", "empty")).row.state is ObjectState.EMPTY
        with pytest.raises(NotFound) as refusal:
            metadata.object_facts(ObjectKey("bucket", "none"))
        assert refusal.value.key == ObjectKey("bucket", "none")

    def test_the_queued_copy_is_found_also_when_it_is_doomed(self, bench: MetadataBench) -> None:
        landed, metadata = bench.put("n"), bench.metadata
        assert landed.landing_id is not None
        assert metadata.find_queued_copy(landed, LOWEST, HIGHEST) is None, "it is the object's only copy"
        block_id = bench.pack([landed])
        packed = bench.get("n")
        (deletion,) = (one for one in metadata.due_deletions(2**60, 9) if one.object_id == packed.object_id)
        found = metadata.find_queued_copy(packed, landed.landing_id, landed.landing_id)
        of_version = (deletion.landing_id, packed.object_id, packed.version)
        assert found == QueueEntry(*of_version, bench.now_ms + 5, doomed=False)
        metadata.doom_landing({landed.landing_id: block_id})
        found = metadata.find_queued_copy(packed, landed.landing_id, landed.landing_id)
        assert found == QueueEntry(*of_version, bench.now_ms + 5, doomed=True)
        metadata.forget_landing([landed.landing_id])
        assert metadata.find_queued_copy(packed, LOWEST, HIGHEST) is None

    def test_the_segment_of_a_record(self, bench: MetadataBench) -> None:
        log = SegmentBench(bench)
        segment = log.segment()
        (row,) = log.put(segment, "n")
        found = bench.metadata.landing_segment(segment)
        assert found is not None
        assert (found.segment, found.state) == (segment, SegmentState.OPEN)
        log.seal(segment)
        found = bench.metadata.landing_segment(segment)
        assert found is not None
        assert found.state is SegmentState.SEALED
        bench.pack([row])
        packed = bench.get("n")
        copy = bench.metadata.find_queued_copy(packed, *_records(bench))
        assert copy is not None
        assert copy.landing_id == row.landing_id
        bench.metadata.doom_landing({copy.landing_id: packed.extent.block_id if packed.extent else None})
        bench.metadata.forget_landing([copy.landing_id])
        assert bench.metadata.doom_segment(segment)
        bench.metadata.forget_segments([segment])
        assert bench.metadata.landing_segment(segment) is None

    def test_the_facts_of_a_block(self, bench: MetadataBench) -> None:
        metadata, lease = bench.metadata, bench.lease()
        block_id = bench.block(lease)
        rows = [bench.put(f"n{i}", 9000) for i in range(3)]

        def facts(ratio: float = 0.5, later_ms: int = 0) -> tuple[WaitReason | None, int | None]:
            found = metadata.block_facts(block_id, ratio, bench.now_ms + later_ms, 1000)
            assert found.row == metadata.block(block_id)
            return found.waits, found.until_ms

        metadata.commit_group(bench.group(lease, block_id, rows))
        assert facts() == (WaitReason.OPEN, None)
        metadata.seal_block(lease, block_id, bench.now_ms + 3)
        assert facts() == (WaitReason.TOO_FULL, None)
        assert facts(0.01) == (None, None), "a candidate"
        metadata.cool_down_block(block_id, bench.now_ms + 500, failed=True)
        assert facts(0.01) == (WaitReason.SET_ASIDE, bench.now_ms + 500)
        assert facts(0.01, 501) == (None, None)
        found = metadata.block_facts(block_id, 0.01, bench.now_ms, 1000)
        assert (found.sealed_ms, found.gc_not_before_ms) == (bench.now_ms + 3, bench.now_ms + 500)
        for row in rows:
            metadata.delete(row.key, bench.now_ms)
        assert facts() == (None, None), "empty"
        metadata.condemn_block(block_id, bench.now_ms + 700)
        assert facts() == (WaitReason.CONDEMNED, bench.now_ms + 700)
        other = bench.block(lease)
        metadata.fence_block(lease, other)
        assert metadata.block_facts(other, 0.5, bench.now_ms, 1000).waits is WaitReason.FENCED
        assert metadata.block(other).state is BlockState.FENCED
        with pytest.raises(NotFound):
            metadata.block_facts(BlockId(new_block_id()), 0.5, bench.now_ms, 1000)


def _records(bench: MetadataBench) -> tuple[LandingId, LandingId]:
    return record_ids_between(0, bench.now_ms + 60_000)

"""Contract of `Repairs`: rows are changed only while they are as they were found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import Conflict
from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.states import BlockState
from nos_ec.ports.metadata import QUARANTINE, QUARANTINE_ENDED, QueueEntry
from tests.contract.suites.metadata_segment_contract import copy_of
from tests.rig.fakes.metadata_bench import MetadataBench, new_block_id, new_landing_id


class RepairContract:
    """What is wrong enough for wait_again and stop_waiting, none of the port's methods can make:
    tests/service/check/test_repairs.py does it by SQL."""

    def test_counters_are_set_while_the_row_is_the_same(self, bench: MetadataBench) -> None:
        bench.pack([bench.put("a", 10), bench.put("b", 20)])
        (row,) = bench.metadata.list_blocks(None, 10)
        account = BlockAccount(row.live_bytes - 1, row.dead_bytes + 1, row.overhead_bytes, 7, ())
        assert not bench.metadata.recount_block(replace(row, dead_bytes=row.dead_bytes + 5), account)
        assert bench.metadata.block(row.block_id) == row
        assert bench.metadata.recount_block(row, account)
        changed = replace(row, live_bytes=row.live_bytes - 1, dead_bytes=row.dead_bytes + 1, live_objects=7)
        assert bench.metadata.block(row.block_id) == changed
        assert not bench.metadata.recount_block(row, account)

    def test_what_waits_rightly_stays_as_it_is(self, bench: MetadataBench) -> None:
        row = bench.put("a")
        before = bench.metadata.waiting_after(None, 10)
        assert not bench.metadata.wait_again(row, bench.now_ms + 5)
        assert not bench.metadata.stop_waiting(copy_of(row), bench.now_ms + 5)
        assert not bench.metadata.stop_waiting(new_landing_id(), bench.now_ms)
        assert not bench.metadata.wait_again(replace(row, version=row.version + 1), bench.now_ms)
        assert bench.metadata.waiting_after(None, 10) == before
        bench.pack([row])
        assert not bench.metadata.wait_again(row, bench.now_ms)
        assert bench.metadata.waiting_after(None, 10) == []

    def test_a_copy_that_an_object_waits_with_leaves_the_queue(self, bench: MetadataBench) -> None:
        copy = copy_of(bench.put("a"))
        assert not bench.metadata.unqueue_copy(copy)
        bench.metadata.reserve_landing([copy], bench.now_ms + 5)
        assert bench.metadata.unqueue_copy(copy)
        assert bench.metadata.deletions_after(None, 10) == []
        nobodys = new_landing_id()
        bench.metadata.reserve_landing([nobodys], bench.now_ms + 5)
        assert not bench.metadata.unqueue_copy(nobodys)

    def test_a_copy_that_is_queued_by_mistake_stops_nobody(self, bench: MetadataBench) -> None:
        rows = {name: bench.put(name, 10) for name in ("deleted", "in trash", "packed", "right", "written again")}
        copies = {name: copy_of(row) for name, row in rows.items()}
        mistaken = [copy for name, copy in copies.items() if name != "right"]
        bench.metadata.reserve_landing(mistaken, bench.now_ms + 5)
        bench.pack([rows["packed"], rows["right"]])
        bench.put("written again", 20)
        bench.delete("deleted")
        bench.delete_into_trash("in trash", 1000)
        (in_trash,) = bench.metadata.trash_page(None, 9).rows
        assert bench.metadata.purge_trash([in_trash], bench.now_ms + 1000) == [in_trash]
        queue = {one.landing_id: (one.object_id, one.version) for one in bench.metadata.deletions_after(None, 10)}
        assert queue == {copies[name]: (row.object_id, row.version) for name, row in rows.items()}
        bench.check_counters()

    def test_a_block_comes_into_quarantine_and_out(self, bench: MetadataBench) -> None:
        bench.pack([bench.put("a", 10)])
        (known,) = bench.metadata.list_blocks(None, 10)
        account = BlockAccount(0, 30, 70, 0, ())
        now_ms = bench.now_ms
        assert not bench.metadata.quarantine_block(known.block_id, 1, account, now_ms, now_ms + 9)
        block_id = new_block_id()
        assert bench.metadata.quarantine_block(block_id, 1, account, now_ms, now_ms + 9)
        assert not bench.metadata.quarantine_block(block_id, 1, account, now_ms, now_ms + 9)
        row = bench.metadata.block(block_id)
        assert (row.writer, row.state, row.delete_after_ms) == (QUARANTINE, BlockState.CONDEMNED, now_ms + 9)
        assert (row.stripes, row.live_bytes, row.dead_bytes, row.overhead_bytes) == (1, 0, 30, 70)
        assert [one.block_id for one in bench.metadata.condemned_blocks(now_ms + 9, 10)] == [block_id]
        assert not bench.metadata.release_block(known.block_id)
        assert bench.metadata.release_block(block_id)
        assert not bench.metadata.release_block(block_id)
        assert bench.metadata.list_blocks(None, 10) == [known]

    def test_a_block_whose_quarantine_has_ended_is_not_released(self, bench: MetadataBench) -> None:
        account, now_ms = BlockAccount(0, 30, 70, 0, ()), bench.now_ms
        block_id = new_block_id()
        assert not bench.metadata.end_quarantine(block_id, now_ms)
        assert bench.metadata.quarantine_block(block_id, 1, account, now_ms, now_ms)
        assert bench.metadata.release_block(block_id)
        assert not bench.metadata.end_quarantine(block_id, now_ms), "it was released"
        assert bench.metadata.quarantine_block(block_id, 1, account, now_ms, now_ms + 9)
        assert not bench.metadata.end_quarantine(block_id, now_ms), "it came into quarantine again since"
        assert bench.metadata.end_quarantine(block_id, now_ms + 9)
        assert not bench.metadata.end_quarantine(block_id, now_ms + 9)
        with pytest.raises(Conflict, match="too late"):
            bench.metadata.release_block(block_id)
        (row,) = bench.metadata.condemned_blocks(now_ms + 9, 10)
        assert (row.block_id, row.writer, row.stripes) == (block_id, QUARANTINE_ENDED, 1)
        bench.metadata.forget_block(block_id)
        assert not bench.metadata.release_block(block_id)

    def test_blocks_in_quarantine_hide_no_others_from_gc(self, bench: MetadataBench) -> None:
        account, now_ms = BlockAccount(0, 30, 70, 0, ()), bench.now_ms
        for _ in range(3):
            assert bench.metadata.quarantine_block(new_block_id(), 1, account, now_ms, now_ms + 9)
        emptied = [bench.pack([bench.put(name, 10)]) for name in "ab"]
        for name, block_id, grace_ms in zip("ab", emptied, (20, 10), strict=True):
            bench.delete(name)
            assert bench.metadata.condemn_block(block_id, now_ms + grace_ms)
        assert [row.block_id for row in bench.metadata.blocks_in_grace(2)] == [emptied[1], emptied[0]]
        assert [row.block_id for row in bench.metadata.blocks_in_grace(1)] == [emptied[1]]
        assert len(bench.metadata.blocks_in_grace(9)) == 2

    def test_what_gc_has_condemned_is_not_in_quarantine(self, bench: MetadataBench) -> None:
        block_id = bench.pack([bench.put("a", 10)])
        bench.delete("a")
        assert bench.metadata.condemn_block(block_id, bench.now_ms)
        assert not bench.metadata.end_quarantine(block_id, bench.now_ms)
        assert not bench.metadata.release_block(block_id)

    def test_a_copy_comes_into_quarantine_and_out(self, bench: MetadataBench) -> None:
        waiting, copy, late_ms = copy_of(bench.put("a")), new_landing_id(), bench.now_ms + 9
        assert not bench.metadata.quarantine_copy(waiting, late_ms)
        assert bench.metadata.quarantine_copy(copy, late_ms)
        assert not bench.metadata.quarantine_copy(copy, late_ms)
        assert bench.metadata.deletions_after(None, 10) == [QueueEntry(copy, None, 0, late_ms, doomed=False)]
        assert bench.metadata.release_copy(copy)
        assert not bench.metadata.release_copy(copy)
        bench.metadata.reserve_landing([copy], late_ms)
        assert not bench.metadata.release_copy(copy)

    def test_a_copy_in_quarantine_is_deleted_when_it_is_due(self, bench: MetadataBench) -> None:
        copy, late_ms = new_landing_id(), bench.now_ms + 9
        assert bench.metadata.quarantine_copy(copy, late_ms)
        (due,) = bench.metadata.due_deletions(late_ms, 10)
        assert (due.landing_id, due.object_id, due.row) == (copy, None, None)
        assert bench.metadata.release_copy(copy)
        assert bench.metadata.doom_landing({copy: None}) == frozenset(), "it was released"
        assert bench.metadata.quarantine_copy(copy, late_ms)
        assert bench.metadata.doom_landing({copy: None}) == {copy}
        with pytest.raises(Conflict, match="too late"):
            bench.metadata.release_copy(copy)
        bench.metadata.forget_landing([copy])
        assert not bench.metadata.release_copy(copy)

    def test_quarantine_does_not_end_when_the_clock_is_set_back(self, bench: MetadataBench) -> None:
        copy, block_id = new_landing_id(), new_block_id()
        late_ms = bench.now_ms + 86_400_000
        assert bench.metadata.quarantine_copy(copy, late_ms)
        account = BlockAccount(0, 30, 70, 0, ())
        assert bench.metadata.quarantine_block(block_id, 1, account, bench.now_ms, late_ms)
        past_ms = late_ms - WAIT_MS_MAX - 1
        assert bench.metadata.due_deletions(past_ms, 10) == []
        assert bench.metadata.condemned_blocks(past_ms, 10) == []
        assert [one.landing_id for one in bench.metadata.due_deletions(late_ms, 10)] == [copy]
        assert [row.block_id for row in bench.metadata.condemned_blocks(late_ms, 10)] == [block_id]

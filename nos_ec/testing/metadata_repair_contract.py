"""Contract of `Repairs`: rows are changed only while they are as they were found."""

from __future__ import annotations

from dataclasses import replace

from nos_ec.core.reclaim import BlockAccount
from nos_ec.testing.metadata_bench import MetadataBench, new_landing_id
from nos_ec.testing.metadata_segment_contract import copy_of


class RepairContract:
    """recount_block, wait_again, stop_waiting. What is wrong enough for the last two, none of the port's methods can
    make: tests/service/test_repairs.py does it by SQL."""

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

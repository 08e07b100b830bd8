"""What GC and space cost: the parts of a raw byte, amplifications over days, and the way to other targets."""

from __future__ import annotations

import json

import pytest

from nos_ec.cli.status import status_data
from nos_ec.engine.usage import DAY_MS
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock

from .conftest import Bench
from .test_gc_policies import fresh, holey


def test_what_users_wrote_and_gc_copied_stays_known_after_blocks_are_deleted(bench: Bench) -> None:
    with holey(bench) as system:
        system.store_totals().keep()
        before = system.metadata.totals()
        assert before.copied_bytes_written == 0
        result = gc_service(system).run_once()
        assert result.blocks_deleted > 0
        after = system.metadata.totals()
        assert after.user_bytes_written == before.user_bytes_written, "deleted blocks are counted"
        assert after.copied_bytes_written == result.bytes_moved > 0
        assert after.dead_bytes < before.dead_bytes

        system.clock = LaterClock(200 * DAY_MS)
        system.store_totals().keep()
        system.clock = LaterClock(201 * DAY_MS)
        bench.put_some(system, 200, prefix="later")
        bench.pack(system)
        written = system.metadata.totals().user_bytes_written - after.user_bytes_written
        system.clock = LaterClock(202 * DAY_MS)
    with bench.open() as system:
        system.clock = LaterClock(202 * DAY_MS)
        data, _ = status_data(system, exact=True)
        week = data["cost"]["usage"]["week"]
        assert week["user_bytes"] == written > 0
        assert week["write_amplification"] == 1
        assert week["span_ms"] == pytest.approx(2 * DAY_MS, rel=0.01)


def test_status_shows_the_parts_of_a_raw_byte_and_why_gc_is_behind(bench: Bench) -> None:
    with holey(bench, 'policy = "space-target"\nblocks_max_per_run = 2') as system:
        assert gc_service(system).run_once().behind == "blocks"
    data = json.loads(bench.run("status", "--json").stdout)
    cost = data["cost"]
    assert cost["raw_bytes_per_live_byte"] == pytest.approx(data["raw_bytes_per_user_byte"], abs=1e-5)
    assert sum(cost["parts"].values()) == pytest.approx(cost["raw_bytes_per_live_byte"], abs=1e-5)
    assert cost["parts"]["coding"] == pytest.approx(3 / 8)
    assert cost["break_even_space_amplification"] > data["space_amplification"] > 1.2
    assert data["gc_behind"] == "blocks"
    text = bench.run("status").stdout.decode()
    assert "dead sealed" in text
    assert "GC is behind" in text


def test_condemned_blocks_are_a_part_of_their_own_and_not_of_the_space_amplification(bench: Bench) -> None:
    with holey(bench, 'policy = "space-target"\nblock_grace_ms = 1000000000') as system:
        result = gc_service(system).run_once()
        assert (result.blocks_deleted, result.blocks_condemned > 0) == (0, True)
        totals = system.metadata.totals()
        assert totals.space_amplification == pytest.approx(result.space_amplification, abs=1e-5)
        assert totals.condemned_dead_bytes > 0
        cost = totals.raw_cost(system.geometry)
        assert cost is not None
        assert cost.parts["dead_condemned"] > cost.parts["dead_open"] == 0


def test_the_way_to_other_targets_is_near_what_a_run_does(bench: Bench) -> None:
    with holey(bench) as system:
        costs = gc_service(system).target_costs([1.1, 1.2, 1.4])
        assert [cost.is_reached for cost in costs] == [True] * 3
        copied = [cost.copied_bytes for cost in costs]
        assert copied == sorted(copied, reverse=True)
        largest = max(block.size_bytes for block in fresh(system))
        result = gc_service(system).run_once()
        assert result.bytes_moved == pytest.approx(costs[1].copied_bytes, abs=2 * largest)


def test_the_plan_shows_the_way_to_other_targets_when_asked(bench: Bench) -> None:
    with holey(bench):
        pass
    assert "targets" not in json.loads(bench.run("gc", "plan", "--json").stdout)
    shown = json.loads(bench.run("gc", "plan", "--targets", "--json").stdout)["targets"]
    assert [one["target"] for one in shown] == [1.1, 1.2, 1.4]
    assert b"target 1.1: copy" in bench.run("gc", "plan", "--targets").stdout

"""GC by its policies: which blocks it takes, when it stops, and what it says when it cannot reach its target."""

from __future__ import annotations

import json
import random
import signal
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import NoSpace
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.explain.block_reasons import BlockReason
from nos_ec.engine.figures.header_survey import HeaderSurvey
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.ports.metadata import BlockRow
from nos_gc.assemble import gc_collector, gc_service
from tests.rig.at_rest import LaterClock
from tests.service.check.test_explain_blocks import explained
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.gc.test_gc import configure, fail, sealed

DAY_MS = 86_400_000
BLOCK = 8 * STRIPE


def holey(bench: Bench, lines: str = 'policy = "space-target"', age_days: int = 100) -> System:
    """An open store whose blocks are dead by nothing to nine tenths, sealed this many days ago."""
    for line in lines.splitlines():
        configure(bench, "gc", line)
    with bench.open() as system:
        bench.put_some(system, 1000)
        bench.pack(system)
        blocks = [block for block in sealed(system) if block.stripes == 8]
        assert len(blocks) >= 10
        for place, block in enumerate(blocks):
            for number, placed in enumerate(system.metadata.placed_in(block.block_id)):
                if number % 10 < place % 10:
                    bench.delete(system, placed.key)
    later = bench.open()
    later.clock = LaterClock(age_days * DAY_MS)
    return later


def amplification(system: System) -> float:
    return system.metadata.space_use().with_empty.space_amplification


def fresh(system: System) -> list[BlockRow]:
    """The blocks that are left of those that were packed, fullest first."""
    found = [block for block in sealed(system) if block.kind is BlockKind.FRESH]
    return sorted(found, key=lambda block: block.hole_ratio)


# --- a target of space ----------------------------------------------------------------------------
def test_a_store_is_brought_to_its_target_and_no_further(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(bench, "consumer", "split_bytes = 2048")  # at 0, long groups may leave some blocks not full
    with holey(bench) as system:
        before, blocks = amplification(system), fresh(system)
        assert before > 1.5
        outlook = gc_collector(system).plan().outlook
        assert (outlook.before.space_amplification, outlook.target, outlook.behind) == (before, 1.2, None)
        result = gc_service(system).run_once()
        assert result.behind is None
        assert result.target_space_amplification == 1.2
        assert result.space_amplification is not None
        assert 1.15 < result.space_amplification <= 1.2
        assert result.space_amplification == pytest.approx(amplification(system), abs=1e-6)
        assert outlook.after.space_amplification == pytest.approx(amplification(system))
        left = fresh(system)
        assert [block.block_id for block in left] == [block.block_id for block in blocks[: len(left)]]
        assert 0 < len(left) < len(blocks)
        monkeypatch.setattr(type(system.metadata), "blocks_with_holes", lambda *_: pytest.fail("nothing is to be read"))
        for _ in range(2):
            assert gc_service(system).run_once().blocks_examined == 0, "the store is within its target"
        bench.assert_readable(system)
        bench.assert_balanced(system)


def test_a_store_within_its_target_is_left_alone_until_more_is_deleted(bench: Bench) -> None:
    with holey(bench, 'policy = "space-target"\nspace_amp = 3') as system:
        assert gc_service(system).run_once().objects_moved == 0
        last = fresh(system)[0]
        found = explained(system, last.block_id)
        assert (found.reason, found.would_collect) == (BlockReason.TOO_FULL, False)
        found = explained(system, fresh(system)[-1].block_id)
        assert (found.reason, found.would_collect) == (BlockReason.WITHIN_TARGET, False)
        for placed in system.metadata.placed_in(last.block_id):
            bench.delete(system, placed.key)
        result = gc_service(system).run_once()
        assert (result.blocks_deleted, result.objects_moved) == (1, 0), "what is dead as a whole costs nothing"


def test_blocks_that_are_not_worth_copying_yet(bench: Bench) -> None:
    with holey(bench, age_days=0) as system:
        result = gc_service(system).run_once()
        assert (result.objects_moved, result.behind) == (0, Behind.PRICE)
        assert result.space_amplification is not None
        assert result.space_amplification > 1.2
        assert explained(system, fresh(system)[-1].block_id).reason is BlockReason.TOO_DEAR
        system.clock = LaterClock(100 * DAY_MS)
        assert explained(system, fresh(system)[-1].block_id).reason is BlockReason.UNDECIDED
        assert gc_service(system).run_once().behind is None
        bench.assert_readable(system)


def test_a_store_without_space_pays_any_price(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with holey(bench, f'policy = "space-target"\nreserve_bytes = {2 * BLOCK}', age_days=0) as system:
        monkeypatch.setattr(type(system.blocks), "free_bytes", lambda _: 4 * BLOCK - 1)
        result = gc_service(system).run_once()
        assert result.objects_moved > 0
        assert result.behind is None
        assert amplification(system) <= 1.2


# --- limits of a run ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limit", "reason"), [(f"copy_bytes_max = {BLOCK}", Behind.BUDGET), ("blocks_max_per_run = 2", Behind.BLOCKS)]
)
def test_a_run_stops_at_its_limit_and_the_next_goes_on(bench: Bench, limit: str, reason: Behind) -> None:
    # A target of 1.2 takes the live bytes of about a block: one run may be enough.
    with holey(bench, f'policy = "space-target"\nspace_amp = 1.1\n{limit}') as system:
        results: list[CollectionResult] = []
        while not results or results[-1].behind:
            results.append(gc_service(system).run_once())
            assert results[-1].bytes_moved <= BLOCK or reason is not Behind.BUDGET
            assert results[-1].blocks_examined <= 2 or reason is not Behind.BLOCKS
            assert len(results) < 20
        assert len(results) > 1
        assert {result.behind for result in results[:-1]} == {reason}
        assert amplification(system) <= 1.1
        bench.assert_readable(system)


def test_the_budget_limits_the_threshold_too(bench: Bench) -> None:
    lines = f'policy = "threshold"\nhole_ratio_min = 0.3\ncopy_bytes_max = {BLOCK}'
    with holey(bench, lines) as system:
        result = gc_service(system).run_once()
        assert 0 < result.bytes_moved <= BLOCK
        assert (result.behind, result.target_space_amplification) == (Behind.BUDGET, None)


# --- the other policies ---------------------------------------------------------------------------
def test_the_threshold_takes_all_that_waste_enough_whatever_the_target(bench: Bench) -> None:
    with holey(bench, 'policy = "threshold"\nhole_ratio_min = 0.5') as system:
        wasteful = {block.block_id for block in fresh(system) if block.hole_ratio >= 0.5}
        result = gc_service(system).run_once()
        assert (result.behind, result.target_space_amplification) == (None, None)
        left = {block.block_id for block in fresh(system)}
        assert wasteful
        assert not wasteful & left
        assert all(block.hole_ratio < 0.5 for block in fresh(system))


def test_a_price_takes_all_that_is_worth_it(bench: Bench) -> None:
    with holey(bench, 'policy = "price"') as system:
        plan = gc_collector(system).plan()
        prices = [decision.price_days for decision in plan.decisions]
        assert prices == sorted(prices, key=lambda price: -(price or 0))
        assert all(price is not None and price >= 20 for price in prices)
        victims = {decision.block.block_id for decision in plan.decisions}
        left = {block.block_id for block in fresh(system)} - victims
        assert left
        result = gc_service(system).run_once()
        assert (result.behind, result.target_space_amplification) == (None, None)
        assert {block.block_id for block in fresh(system)} == left


def test_stripes_that_were_written_before_they_were_full_are_merged(bench: Bench) -> None:
    """Nothing in them is dead, so no policy asks for it."""
    configure(bench, "gc", 'policy = "space-target"')
    with bench.open() as system:
        for number in range(20):
            bench.put(system, f"trickle/{number:02}", bench.data(1000))
            bench.pack(system)
        assert sum(block.stripes for block in sealed(system)) == 20
        assert gc_service(system).run_once().objects_moved == 20
        assert sum(block.stripes for block in sealed(system)) == 1
        assert gc_service(system).run_once().objects_moved == 0
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.parametrize("packing", ["best", "nos"])
@pytest.mark.parametrize("policy", ['policy = "space-target"\nspace_amp = 1.01', 'policy = "price"'])
def test_each_run_leaves_fewer_stripes_or_rewrites_nothing(bench: Bench, policy: str, packing: str) -> None:
    configure(bench, "consumer", f'policy = "{packing}"')
    with holey(bench, policy) as system:
        stripes = sum(block.stripes for block in sealed(system))
        for days in range(200, 3200, 300):
            system.clock = LaterClock(days * DAY_MS)
            moved = gc_service(system).run_once().objects_moved
            now = sum(block.stripes for block in sealed(system))
            assert now < stripes or not moved
            stripes = now
        assert not moved
        bench.assert_readable(system)
        bench.assert_balanced(system)


# --- what keeps a run from its target -------------------------------------------------------------
def test_blocks_that_cool_down_are_not_chosen_again(bench: Bench) -> None:
    with holey(bench) as system:
        stuck = {block.block_id for block in fresh(system)[1:]}
        survey = HeaderSurvey(system.metadata, system.blocks, system.clock, random.Random(1))
        assert survey.run_once(), "or GC would read headers for it, too"
        failing = fail(system, "read_many", stuck)
        result = gc_service(system).run_once()
        assert (result.behind, result.blocks_deleted) == (Behind.SET_ASIDE, 0)
        assert result.blocks_parked
        for _ in range(5):
            result = gc_service(system).run_once()
        asked = failing.asked
        result = gc_service(system).run_once()
        assert (failing.asked, result.blocks_parked, result.behind) == (asked, 0, Behind.SET_ASIDE)
        assert gc_collector(system).plan().outlook.behind is Behind.SET_ASIDE
        failing.stuck.clear()
        system.clock = LaterClock(103 * DAY_MS)
        assert gc_service(system).run_once().behind is None
        assert amplification(system) <= 1.2
        bench.assert_readable(system)


def test_a_target_that_rewriting_cannot_reach(bench: Bench) -> None:
    """So little of each block is dead that its survivors would take as many stripes as before. At this age they are not
    repacked either."""
    configure(bench, "gc", 'policy = "space-target"\nspace_amp = 1.001')
    with bench.open() as system:
        bench.put_some(system, 400)
        bench.pack(system)
        for block in sealed(system):
            smallest = min(system.metadata.placed_in(block.block_id), key=lambda placed: placed.extent.length)
            bench.delete(system, smallest.key)
        system.clock = LaterClock(DAY_MS)
        assert amplification(system) > 1.001
        result = gc_service(system).run_once()
        assert (result.objects_moved, result.behind) == (0, Behind.GAIN)


def test_no_space_to_write_survivors(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with holey(bench) as system:
        monkeypatch.setattr(type(system.blocks), "free_bytes", lambda _: STRIPE)
        seen: list[CollectionResult] = []
        with pytest.raises(NoSpace), system.lease("gc", 30_000) as held:
            gc_collector(system).run(lambda: system.worker.writer(held.lease, BlockKind.SURVIVOR), seen.append)
        assert seen[-1].behind is Behind.SPACE


# --- the command line -----------------------------------------------------------------------------
def test_the_plan_tells_prices_bytes_and_the_target(bench: Bench) -> None:
    with holey(bench, 'policy = "space-target"\nprice_days = 0'):
        pass
    plan: dict[str, Any] = json.loads(bench.run("gc", "plan", "--json").stdout)
    chosen = [block for block in plan["blocks"] if block["collect"]]
    assert chosen
    assert all(block["price_days"] >= 0 for block in chosen)
    assert all(0 < block["bytes_to_write"] < block["size_bytes"] for block in chosen)
    assert plan["bytes_to_write"] == sum(block["bytes_to_write"] for block in chosen)
    assert plan["space_amplification_after"] <= 1.2 < plan["space_amplification"]
    assert (plan["target_space_amplification"], plan["behind"]) == (1.2, None)
    text = bench.run("gc", "plan").stdout.decode()
    assert f"{plan['space_amplification']:.3f} now, {plan['space_amplification_after']:.3f} after a run" in text
    assert "target 1.2" in text
    assert "  price " in text
    assert ", write " in text
    done: dict[str, Any] = json.loads(bench.run("gc", "run", "--apply", "--json").stdout)
    assert done["space_amplification"] == pytest.approx(plan["space_amplification_after"], abs=1e-5)
    assert (done["target_space_amplification"], done["behind"]) == (1.2, None)


def test_the_command_says_why_the_target_is_not_reached(bench: Bench) -> None:
    with holey(bench):
        pass
    for command in (("plan",), ("run", "--apply")):
        told = bench.run("gc", *command).stdout.decode()
        assert "less than the policy asks for: the other blocks are not sealed, or not worth copying yet" in told


@pytest.mark.parametrize("kill_point", ["gc.rewritten", "gc.condemned", "gc.batch_drained"])
def test_a_run_that_was_killed_is_gone_on_with(bench: Bench, kill_point: str) -> None:
    with holey(bench, 'policy = "space-target"\nprice_days = 0'):
        pass
    assert bench.run("gc", "run", "--apply", kill_at=kill_point).returncode == -signal.SIGKILL
    with bench.open() as system:
        bench.end_leases()
        result = gc_service(system).run_once()
        assert result.behind is None
        assert amplification(system) <= 1.2
        assert all(block.state is not BlockState.CONDEMNED for block in system.metadata.list_blocks(None, 999))
        bench.assert_readable(system)
        bench.settle(system)
        bench.assert_at_rest(system)


def test_sizes(bench: Bench) -> None:
    """The tests above assume it."""
    assert bench.settings().geometry.value().block_size == BLOCK == 64 * CHUNK

"""Repacking: blocks whose objects leave less padding when they are packed anew, as those of an older packer do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.composition import packing
from nos_ec.composition.packing import collector_options
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.engine.explain.block_reasons import BlockReason
from nos_ec.engine.gc import victims as victims_of_gc
from nos_ec.engine.gc.victims import judge, may_be_repacked
from nos_ec.ports.metadata import BlockRow
from nos_gc.assemble import gc_collector, gc_service
from tests.rig.at_rest import HOUR_MS, LaterClock
from tests.service.check.test_explain_blocks import explained
from tests.service.conftest import Bench
from tests.service.gc.test_gc import DAY_MS, configure, fail, sealed
from tests.service.objects.test_splits import NEVER, SIZE, WIDE_CONFIG

OLD_DAYS = 10
SPLIT = "split_bytes = 16384"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, WIDE_CONFIG.replace('policy = "threshold"\n', ""))
    initialise(made.settings())
    return made


@pytest.fixture
def padded(bench: Bench) -> Iterator[System]:
    """A store of objects that fill little more than half of a chunk, packed one to a chunk, and opened ten days later
    with a packer that splits them."""
    configure(bench, "consumer", NEVER)
    with bench.open() as system:
        put_equal(bench, system, 300)
        assert sum(block.overhead_bytes for block in sealed(system)) > 0.4 * sum(map(size_of, sealed(system)))
    configure(bench, "consumer", SPLIT)
    with bench.open() as system:
        system.clock = LaterClock(OLD_DAYS * DAY_MS)
        yield system


def put_equal(bench: Bench, system: System, count: int, prefix: str = "equal", size: int = SIZE) -> list[ObjectKey]:
    keys = [ObjectKey("b", f"{prefix}/{number:04}") for number in range(count)]
    pairs = [(key, bench.data(size)) for key in keys]
    system.client.store().put_many(pairs)
    bench.acknowledged.update(pairs)
    bench.pack(system)
    return keys


def size_of(block: BlockRow) -> int:
    return block.size_bytes


def victims(system: System) -> set[BlockId]:
    return {victim.block.block_id for victim in gc_collector(system).plan().victims}


def test_old_blocks_are_repacked_once(bench: Bench, padded: System) -> None:
    before = sealed(padded)
    plan = gc_collector(padded).plan()
    assert {victim.block.block_id for victim in plan.victims} == {block.block_id for block in before}
    expected = sum(victim.padding_freed_bytes for victim in plan.victims)
    assert expected > 0.35 * sum(map(size_of, before))
    assert all(decision.price_days is not None and decision.price_days > 2 for decision in plan.decisions)
    result = gc_service(padded).run_once()
    assert (result.objects_moved, result.blocks_deleted) == (len(bench.acknowledged), len(before))
    freed = sum(map(size_of, before)) - sum(map(size_of, sealed(padded)))
    assert freed >= expected, "packed with those of other blocks, they take no more space"
    for days in (OLD_DAYS, 10_000):
        padded.clock = LaterClock(days * DAY_MS)
        assert victims(padded) == set()
        assert gc_service(padded).run_once().objects_moved == 0
    bench.assert_readable(padded)
    bench.assert_balanced(padded)


def test_full_blocks_are_repacked_however_much_of_them_is_dead(bench: Bench, padded: System) -> None:
    """A run that was ended has moved their objects. That is within the target, so the policy does not take them."""
    half_emptied, *_ = (block for block in sealed(padded) if block.stripes == 8)
    for number, placed in enumerate(padded.metadata.placed_in(half_emptied.block_id)):
        if number % 3:
            bench.delete(padded, placed.key)
    configure(bench, "gc", "space_amp = 2.0")
    with bench.open() as system:
        system.clock = padded.clock
        assert explained(system, half_emptied.block_id).reason is BlockReason.REPACK
        gc_service(system).run_once()
        assert half_emptied.block_id not in {block.block_id for block in sealed(system)}
        assert sum(map(size_of, sealed(system))) < 1.1 * sum(block.live_bytes for block in sealed(system))
        bench.assert_readable(system)


@pytest.mark.parametrize(
    ("policy", "reason"), [("threshold", BlockReason.PAYS_NOT), ("space-target", BlockReason.UNDECIDED)]
)
def test_small_blocks_that_no_packing_merges_are_left_alone(bench: Bench, policy: str, reason: BlockReason) -> None:
    """A chunk holds three of these objects. By their volume, those of the three blocks fit into two stripes."""
    configure(bench, "gc", f'policy = "{policy}"\nhole_ratio_min = 0.3')
    with bench.open() as system:
        for count in (16, 17, 17):
            put_equal(bench, system, count, f"pack-{len(bench.acknowledged)}", 39_500)
        system.clock = LaterClock(OLD_DAYS * DAY_MS)
        blocks = sealed(system)
        assert [block.stripes for block in blocks] == [1, 1, 1]
        assert all(judge(system.metadata, system.blocks, collector_options(system.settings), block) for block in blocks)
        assert {explained(system, block.block_id).reason for block in blocks} == {reason}
        assert gc_service(system).run_once().objects_moved == 0
        for number, key in enumerate(list(bench.acknowledged)):
            if number % 3:
                bench.delete(system, key)
        assert [gc_service(system).run_once().objects_moved for _ in range(2)] == [17, 0]
        assert [block.stripes for block in sealed(system)] == [1]
        bench.assert_readable(system)


def test_small_blocks_that_were_set_aside_at_different_times_are_merged(tmp_path: Path) -> None:
    """Alone, neither of them becomes smaller."""
    tiny = "stripes_per_block = 1\nstripes_per_group_max = 1"
    bench = Bench(tmp_path, WIDE_CONFIG.replace("stripes_per_block = 8", tiny))
    initialise(bench.settings())
    with bench.open() as system:
        day_ms = OLD_DAYS * DAY_MS - system.clock.now_ms() % DAY_MS
        for hour, moved in ((10, 0), (15, 0), (25, 2)):
            system.clock = LaterClock(0)
            if not moved:
                put_equal(bench, system, 1, f"hour-{hour}")
            system.clock = LaterClock(day_ms + hour * HOUR_MS)
            assert gc_service(system).run_once().objects_moved == moved
        assert [block.stripes for block in sealed(system)] == [1]
        bench.assert_readable(system)


def test_small_blocks_that_no_packing_merges_do_not_take_the_places_of_others(bench: Bench) -> None:
    configure(bench, "gc", 'policy = "threshold"\nhole_ratio_min = 0.3\nblocks_max_per_run = 1')
    with bench.open() as system:
        for count in (16, 17, 17):
            put_equal(bench, system, count, f"pack-{len(bench.acknowledged)}", 39_500)
        left = []
        for _ in range(3):
            assert gc_service(system).run_once().objects_moved == 0
            left.append(len(system.metadata.gc_candidates(0.3, system.clock.now_ms(), DAY_MS, 9)))
        assert left == [2, 1, 0]


def test_a_run_merges_a_limited_number_of_objects(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims_of_gc, "REPACK_OBJECTS_MAX", 20)
    configure(bench, "gc", 'policy = "threshold"\nhole_ratio_min = 0.3')
    with bench.open() as system:
        for _ in range(4):
            put_equal(bench, system, 10, f"pack-{len(bench.acknowledged)}", 39_500)
        results = [gc_service(system).run_once() for _ in range(3)]
        assert [(one.objects_moved, one.behind) for one in results] == [(20, Behind.BLOCKS), (20, None), (0, None)]
        bench.assert_readable(system)


def test_explain_and_a_run_agree_on_a_block_with_dead_bytes_and_one_to_merge(bench: Bench) -> None:
    """Together they would fit into one stripe. But a run merges blocks only if that pays without others."""
    configure(bench, "gc", 'policy = "threshold"\nhole_ratio_min = 0.5')
    with bench.open() as system:
        for key in put_equal(bench, system, 24, "dead", 39_500)[6:]:
            bench.delete(system, key)
        put_equal(bench, system, 9, "small", 39_500)
        reasons = {explained(system, block.block_id).reason for block in sealed(system)}
        assert (reasons, gc_service(system).run_once().objects_moved) == ({BlockReason.PAYS_NOT}, 0)


def test_short_blocks_of_which_much_is_dead_are_left_to_the_policy(bench: Bench, padded: System) -> None:
    keys = put_equal(bench, padded, 20, "short")
    (short,) = {row.extent.block_id for key in keys if (row := padded.metadata.get(key)).extent is not None}
    assert padded.metadata.block(short).stripes < 4
    for key in keys[::2]:
        bench.delete(padded, key)
    assert not may_be_repacked(padded.geometry, padded.metadata.block(short))


def test_young_blocks_are_not_worth_it_yet(bench: Bench, padded: System) -> None:
    padded.clock = LaterClock(DAY_MS)
    block_id = sealed(padded)[0].block_id
    assert (victims(padded), gc_service(padded).run_once().blocks_examined) == (set(), 0)
    found = explained(padded, block_id)
    assert (found.reason, found.would_collect) == (BlockReason.TOO_DEAR, False)
    configure(bench, "gc", "price_days = 0.5")
    with bench.open() as cheaper:
        cheaper.clock = padded.clock
        assert block_id in victims(cheaper)


def test_explain_and_the_plan_agree_on_blocks_that_were_just_written(bench: Bench, padded: System) -> None:
    padded.clock = LaterClock(60_000)
    block_id = sealed(padded)[0].block_id
    for price_days in (0.0001, 0.01):
        configure(bench, "gc", f"price_days = {price_days}")
        with bench.open() as system:
            system.clock = padded.clock
            expected = BlockReason.REPACK if block_id in victims(system) else BlockReason.TOO_DEAR
            assert explained(system, block_id).reason is expected


def test_without_space_any_price_is_right(bench: Bench, padded: System, monkeypatch: pytest.MonkeyPatch) -> None:
    padded.clock = LaterClock(0)
    block_id = sealed(padded)[0].block_id
    assert victims(padded) == set()
    monkeypatch.setattr(packing, "FLOOR_BYTES", 10**15)
    with bench.open() as full:
        assert block_id in victims(full)
        assert explained(full, block_id).reason is BlockReason.REPACK


def test_explain_says_that_a_block_is_repacked(bench: Bench, padded: System) -> None:
    block_id = sealed(padded)[0].block_id
    found = explained(padded, block_id)
    assert (found.reason, found.would_collect) == (BlockReason.REPACK, True)
    assert found.stripes_needed is not None
    assert found.stripes_needed < 0.7 * found.stripes
    assert f"about {found.stripes_needed:.1f} of its {found.stripes} stripes" in found.why
    configure(bench, "gc", "blocks_max_per_run = 1")
    with bench.open() as hurried:
        hurried.clock = padded.clock
        reasons = [explained(hurried, block.block_id).reason for block in sealed(hurried)]
        assert set(reasons) == {BlockReason.REPACK, BlockReason.LATER_RUN}
        assert reasons.count(BlockReason.REPACK) == len(victims(hurried)) == 1


def test_blocks_that_are_dense_are_set_aside_but_their_holes_are_seen(bench: Bench, padded: System) -> None:
    """They are as dense as the packer that never splits can make them. The policy looks at what is dead in them at any
    time."""
    configure(bench, "consumer", NEVER)
    with bench.open() as system:
        system.clock = padded.clock
        blocks = sealed(system)
        assert gc_service(system).run_once().objects_moved == 0
        assert gc_service(system).run_once().blocks_examined == 0, "their rows are not read in every run"
        found = explained(system, blocks[0].block_id)
        assert (found.reason, found.gc_failures, found.next_ms) == (BlockReason.DENSE, 0, found.gc_not_before_ms)
        for number, placed in enumerate(system.metadata.placed_in(blocks[0].block_id)):
            if number % 10:
                bench.delete(system, placed.key)
        for placed in system.metadata.placed_in(blocks[1].block_id)[::2]:
            bench.delete(system, placed.key)
        assert explained(system, blocks[0].block_id).reason is BlockReason.UNDECIDED
        assert gc_collector(system).plan().waiting == []
        assert blocks[0].block_id in victims(system)
        gc_service(system).run_once()
        assert blocks[0].block_id not in {block.block_id for block in sealed(system)}
        bench.assert_readable(system)


def test_a_store_of_many_old_blocks_is_repacked_in_several_runs(bench: Bench, padded: System) -> None:
    before = len(sealed(padded))
    configure(bench, "gc", f"copy_bytes_max = {2 * 64 * SIZE}")
    with bench.open() as slow:
        slow.clock = padded.clock
        runs = 0
        while victims(slow):
            result = gc_service(slow).run_once()
            assert 0 < result.bytes_moved <= 2 * 64 * SIZE
            assert result.behind in (Behind.BUDGET, None)
            runs += 1
        assert 1 < runs < before
        bench.assert_readable(slow)


def test_a_run_packs_a_limited_number_of_objects_in_memory(
    bench: Bench, padded: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(victims_of_gc, "REPACK_OBJECTS_MAX", 100)
    before = sealed(padded)
    assert len(victims(padded)) == 1, "two have more objects than that"
    reasons = [explained(padded, block.block_id).reason for block in before]
    assert (reasons.count(BlockReason.REPACK), reasons.count(BlockReason.LATER_RUN)) == (1, len(before) - 1)
    while victims(padded):
        assert gc_service(padded).run_once().objects_moved > 0
    bench.assert_readable(padded)


def test_blocks_of_little_but_padding_are_repacked_too(bench: Bench) -> None:
    """They have too little to be merged with others: GC estimates what they need with a twentieth to spare."""
    configure(bench, "consumer", NEVER)
    configure(bench, "gc", "hole_ratio_min = 0.45")
    with bench.open() as system:
        put_equal(bench, system, 300)
        assert max(block.overhead_bytes / block.size_bytes for block in sealed(system)) > 0.45
    configure(bench, "consumer", "split_bytes = 60000")
    with bench.open() as system:
        system.clock = LaterClock(OLD_DAYS * DAY_MS)
        assert victims(system)


def test_blocks_that_are_too_dear_are_not_set_aside(bench: Bench, padded: System) -> None:
    """The bytes that are freed are fewer than the row of a block lets one hope for."""
    (victim, *_) = gc_collector(padded).plan().victims
    at_days = OLD_DAYS * 2 / victim.padding_days(padded.clock.now_ms())
    padded.clock = LaterClock(round((at_days - 0.02) * DAY_MS))
    assert gc_service(padded).run_once().objects_moved == 0
    assert explained(padded, victim.block.block_id).reason is BlockReason.TOO_DEAR
    padded.clock = LaterClock(round((at_days + 0.02) * DAY_MS))
    assert victim.block.block_id in victims(padded)


def test_blocks_whose_objects_fit_each_other_by_chance_are_left_alone(
    bench: Bench, padded: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would gain alone, but all together would not."""
    alone = victims_of_gc._padding_freed
    monkeypatch.setattr(victims_of_gc, "_padding_freed", lambda *args: alone(*args) if len(args[3]) == 1 else 1)
    assert gc_service(padded).run_once().objects_moved == 0
    assert {explained(padded, block.block_id).reason for block in sealed(padded)} == {BlockReason.DENSE}


def test_an_old_block_that_does_not_answer_does_not_stop_the_others(bench: Bench, padded: System) -> None:
    stuck = sealed(padded)[0].block_id
    fail(padded, "read_many", {stuck})
    result = gc_service(padded).run_once()
    assert result.blocks_parked == 1
    assert result.blocks_deleted > 0
    assert explained(padded, stuck).reason is BlockReason.SET_ASIDE


def test_gc_plan_shows_what_repacking_frees(bench: Bench, padded: System) -> None:
    del padded
    configure(bench, "gc", "price_days = 0")
    done = bench.run("gc", "plan", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    repacked = [block for block in plan["blocks"] if block["padding_bytes_to_free"]]
    assert sum(block["padding_bytes_to_free"] for block in repacked) == plan["padding_bytes_to_free"] > 0
    assert all(block["collect"] and block["hole_ratio"] == 0 for block in repacked)
    assert plan["bytes_to_write"] + plan["padding_bytes_to_free"] == plan["bytes_to_reclaim"]
    printed = bench.run("gc", "plan").stdout.decode()
    assert f"{len(repacked)} blocks of them repacked, which frees" in printed
    assert "of headers and padding" in printed

"""`simulate gc`: its workloads, its bound, its books, and the bars of docs/GC.md on stores that are small and fast."""

from __future__ import annotations

import random
from math import exp
from typing import Any

import pytest

from nos_ec.bench.gc.blocks import Blocks
from nos_ec.bench.gc.bound import amplification_at, bound_write_amplification, live_share_at
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.packer import PackerOptions, StorePacker
from nos_ec.bench.gc.simulation import PERIODS, GcResult, simulate_gc
from nos_ec.bench.gc.workloads import GC_WORKLOADS, Law, Life, Objects, gc_workload, sized
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_policy import Price, SpaceTarget, Threshold
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.lifetimes import UNKNOWN, ToPack
from nos_ec.core.packing.packer import size_max
from nos_ec.settings.sections import ConsumerSettings
from tests.rig.gc_bars import Bar, measure, measure_packed

SMALL: dict[str, Any] = {"blocks": 60, "block_bytes": 32}


def consumer(window: int, lanes: int) -> ConsumerSettings:
    return ConsumerSettings().model_copy(update={"window_objects": window, "lanes": lanes})


@pytest.mark.parametrize(
    "bar",
    [
        Bar("A", 1.2, 3.30, 2.95),
        Bar("B", 1.4, 1.70),
        Bar("B", 1.2, 2.25, options={"min_age_days": 1}),
        Bar("C", 1.2, 3.20),
        Bar("D", 1.2, 2.30),
        Bar("E", 1.2, 1.57),
    ],
    ids=lambda bar: f"{bar.title} {bar.space_amp}",
)
def test_the_bars_on_a_small_store(bar: Bar) -> None:
    """The bars of docs/GC.md; tests/soak/gc_bars.py runs all of them on stores of full size. Workload D has a bar of
    its own here: with a tenth of the blocks for as many tenants, what is deleted together fills less of each block."""
    size = {"blocks": {"A": 100, "E": 80}.get(bar.workload, 200), "block_bytes": 64}
    (found, *relative) = measure([bar], [1], size, relative={})
    assert found.is_met, found
    assert relative == []


def test_the_bars_of_b_on_a_small_store() -> None:
    """The relative one, too: four streams and the break-even price, against one stream and greedy collection."""
    results = list(measure([Bar("B", 1.2, 2.50)], [1], {"blocks": 250, "block_bytes": 64}))
    assert len(results) == 2
    assert all(found.is_met for found in results), results


def test_a_bar_with_the_packer_of_a_store_and_its_padding() -> None:
    """tests/soak/gc_bars.py runs all of them on larger stores. The bar for another order is left out."""
    packed = [Bar("B", 1.4, 1.70), Bar("D", 1.2, 1.82, options={"sort_window_blocks": 16})]
    (found,) = measure_packed(packed, [1], blocks=300, object_bytes=1 << 20)
    assert found.is_met, found
    assert found.space_amp == pytest.approx(1.05 * 1.4)


@pytest.mark.parametrize("name", GC_WORKLOADS)
def test_a_workload_repeats_with_its_seed(name: str) -> None:
    drawn = []
    for seed in (1, 1, 2):
        workload, objects = gc_workload(name, seed), Objects()
        workload.begin(objects, 50)
        for step in range(300):
            objects.add(step / 10, workload.draw(step / 10))
        assert all(born < dies for born, dies in zip(objects.born, objects.dies, strict=True))
        assert max(objects.bucket) < len(objects.buckets)
        assert max(objects.prefix) < len(objects.prefixes)
        drawn.append((objects.born, objects.dies, objects.bucket))
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_an_equilibrium_stays_one(name: str) -> None:
    """As many objects live after a while as at the beginning, of the same ages."""
    workload, objects, count, days = gc_workload(name, 3), Objects(), 20_000, 60.0
    workload.begin(objects, count)
    arrivals = round(count / workload.mean_days * days)
    for n in range(arrivals):
        born = days * n / arrivals
        objects.add(born, workload.draw(born))
    alive = [n for n in range(len(objects)) if objects.dies[n] > days]
    assert len(alive) == pytest.approx(count, rel=0.03)
    before = sum(objects.born[n] < -100 for n in range(count)) / count
    after = sum(objects.born[n] < days - 100 for n in alive) / len(alive)
    assert after == pytest.approx(before, abs=0.03)


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_the_laws_are_those_of_the_objects(name: str) -> None:
    workload, objects = gc_workload(name, 5), Objects()
    workload.begin(objects, 0)
    lives = [workload.draw(0.0).dies for _ in range(20_000)]
    laws = workload.laws()
    assert sum(law.share for law in laws) == pytest.approx(1)
    for age in (0.1, 5.0, 40.0, 300.0):
        expected = sum(law.share * law.survival(age) for law in laws)
        assert sum(life > age for life in lives) / len(lives) == pytest.approx(expected, abs=0.015)


def test_objects_that_expire_die_at_midnight_and_datasets_as_a_whole() -> None:
    workload, objects = gc_workload("D", 1), Objects()
    workload.begin(objects, 0)
    for step in range(5000):
        objects.add(step / 100, workload.draw(step / 100))
    ends: dict[int, set[float]] = {}
    for n in range(len(objects)):
        if objects.expires[n]:
            assert objects.dies[n] == int(objects.dies[n])
        elif objects.prefix[n]:
            ends.setdefault(objects.prefix[n], set()).add(objects.dies[n])
            assert objects.buckets[objects.bucket[n]] == "datasets"
    assert len(ends) > 300
    assert all(len(times) == 1 for times in ends.values())


@pytest.mark.parametrize("target", [1.1, 1.2, 1.4, 3.0])
def test_the_bound_of_memoryless_objects_is_the_closed_form(target: float) -> None:
    u = live_share_at(target)
    assert amplification_at(u) == pytest.approx(target)
    for mean in (3.0, 100.0):
        laws = [Law(1.0, lambda age, mean=mean: exp(-age / mean))]  # type: ignore[misc]
        assert bound_write_amplification(laws, target) == pytest.approx(1 / (1 - u), rel=0.03)


def test_knowing_buckets_lowers_the_bound() -> None:
    laws = gc_workload("B", 1).laws()
    short, long = laws[0], laws[-1]
    apart = [Law(0.5, short.survival), Law(0.5, long.survival)]
    together = [Law(1.0, lambda age: (short.survival(age) + long.survival(age)) / 2)]
    found = [bound_write_amplification(one, 1.2) for one in (apart, together)]
    assert found[0] is not None
    assert found[1] is not None
    assert 1 < found[0] < found[1]
    delayed = bound_write_amplification(apart, 1.2, min_age_days=1)
    assert delayed is not None
    assert delayed < found[0]


def test_there_is_no_bound_without_laws_or_dead_bytes() -> None:
    assert bound_write_amplification(gc_workload("D", 1).laws(), 1.2) is None
    assert bound_write_amplification(gc_workload("A", 1).laws(), 1.0) is None


@pytest.mark.parametrize(
    "policy", [SpaceTarget(1.3, floor_days=0), Price(30), Threshold(0.5)], ids=lambda one: type(one).__name__
)
def test_a_run_repeats_and_its_figures_fit_together(policy: SpaceTarget | Price | Threshold) -> None:
    options = GcOptions(policy, days=200, seed=4, **SMALL)
    result = simulate_gc(gc_workload("B", 4), options)
    assert result == simulate_gc(gc_workload("B", 4), options)
    assert result.write_amplification == pytest.approx(1 + result.copied_bytes / result.user_bytes)
    assert result.never_packed == 0
    assert len(result.periods) == PERIODS
    assert result.periods[-1].until_day == pytest.approx(200, abs=10)
    assert result.live_blocks == pytest.approx(60, rel=0.15)
    assert result.blocks_stored > result.live_blocks
    if isinstance(policy, SpaceTarget):
        assert result.space_amplification <= 1.3


def test_what_dies_in_the_landing_store_is_never_packed() -> None:
    result = simulate_gc(gc_workload("B", 1), GcOptions(min_age_days=3, days=200, **SMALL))
    assert 0.15 < result.never_packed < 0.35
    fresh = result.user_bytes * (1 - result.never_packed)
    assert result.write_amplification == pytest.approx((fresh + result.copied_bytes) / result.user_bytes)


@pytest.mark.parametrize("min_age_days", [0, 0.5, 2, 8])
def test_the_landing_store_holds_what_arrives_in_the_delay(min_age_days: float) -> None:
    workload = gc_workload("A", 1)
    result = simulate_gc(workload, GcOptions(min_age_days=min_age_days, days=200, blocks=400, block_bytes=32))
    reach_blocks = exp(-min_age_days / workload.mean_days)
    assert result.landing_ratio == pytest.approx(min_age_days / workload.mean_days / reach_blocks, rel=0.15, abs=5e-4)
    assert result.never_packed == pytest.approx(1 - reach_blocks, rel=0.25, abs=5e-4)


def test_a_window_and_hints_help_where_objects_expire() -> None:
    def written(**options: Any) -> float:
        return simulate_gc(
            gc_workload("D-mixed", 1), GcOptions(days=700, blocks=150, block_bytes=32, **options)
        ).copied_bytes

    plain, hinted = written(), written(hints=True)
    assert hinted < 0.8 * plain
    assert written(hints=True, sort_window_blocks=8) < hinted
    assert written(sort_survivors=False) > plain


def test_a_run_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    simulate_gc(gc_workload("A", 1), GcOptions(days=60, **SMALL), lambda done, total: told.append((done, total)))
    assert len(told) > 3
    assert told == sorted(told)
    assert {total for _, total in told} == {160}


def test_the_books_of_the_blocks() -> None:
    """Random packing, dying and collecting: the sums are those of the objects, and no live object is lost."""
    rng = random.Random(1)
    objects, dead = Objects(), bytearray()
    objects.buckets = ["a"]
    policy = SpaceTarget(1.1, floor_days=0)
    blocks = Blocks(objects, dead, GcOptions(policy, streams=2, blocks=10, block_bytes=20))
    alive: set[int] = set()
    for step in range(400):
        new = list(range(len(objects), len(objects) + rng.randrange(9)))
        for _ in new:
            objects.add(step, Life(0, step + 100.0), rng.randint(1, 7))
        dead.extend(bytes(len(new)))
        blocks.born(len(new))
        packed = blocks.pack(new, step, UNKNOWN, fresh=True, ordered=rng.random() < 0.5)
        assert packed == sum(objects.size[n] for n in new)
        alive |= set(new)
        for n in rng.sample(sorted(alive), min(len(alive), rng.randrange(8))):
            dead[n] = 1
            blocks.died(n)
            alive.remove(n)
        blocks.delete_dead()
        plan = policy.plan(blocks.sealed(step), blocks.stored)
        assert blocks.collect(plan, step, UNKNOWN) == plan.copied_bytes
        sealed = list(blocks.sealed(step))
        live = sum(objects.size[n] for n in alive)
        assert blocks.stored.live_bytes == live
        in_sealed = sum(b.live_bytes + b.dead_bytes for b in sealed)
        assert 0 <= blocks.stored.stored_bytes - in_sealed < 4 * 20
        assert len(blocks) - len(sealed) <= 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: GcOptions(streams=0),
        lambda: GcOptions(streams=7),
        lambda: GcOptions(blocks=1),
        lambda: GcOptions(min_age_days=-1),
        lambda: GcOptions(days=0),
        lambda: gc_workload("Z", 1),
        lambda: sized(gc_workload("B", 1), 1 << 30, 1, 1 << 20),
        lambda: sized(gc_workload("B", 1), 0, 1, 1 << 20),
        lambda: simulate_gc(gc_workload("B", 1), GcOptions(days=5, min_age_days=30, **SMALL)),
    ],
)
def test_senseless_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        wrong()


def of_a_store(lanes: int, name: str = "D", blocks: int = 60, days: float = 500, **options: Any) -> GcResult:
    geometry = Geometry()
    packer = PackerOptions(geometry, consumer(100, lanes))
    workload = sized(gc_workload(name, 1), "W1", 1, size_max(geometry))
    policy = SpaceTarget(1.3, floor_days=0)
    return simulate_gc(
        workload,
        GcOptions(policy, blocks=blocks, block_bytes=geometry.block_size, packer=packer, days=days, **options),
    )


def test_with_the_packer_of_a_store_figures_fit_together() -> None:
    result = of_a_store(2, "B", days=300)
    assert result == of_a_store(2, "B", days=300)
    assert result.write_amplification == pytest.approx(1 + result.copied_bytes / result.user_bytes)
    assert result.live_blocks == pytest.approx(60, rel=0.15)
    assert 1.2 < result.space_amplification <= 1.3
    assert result.landing_ratio > 0, "objects wait for their groups"
    delayed = of_a_store(2, "B", days=300, min_age_days=3)
    assert 0.1 < delayed.never_packed < 0.4


def test_padding_counts_with_the_packer_of_a_store() -> None:
    """Blocks of 32 stripes have room for 31 objects of a stripe: also those that the store begins with, and those that
    GC fills."""
    geometry = Geometry()
    packer = PackerOptions(geometry, consumer(100, 1))
    size: dict[str, Any] = {"blocks": 60, "block_bytes": geometry.block_size, "days": 200, "streams": 1}
    alike = sized(gc_workload("A", 1), geometry.stripe_size, 1, size_max(geometry))
    padded = simulate_gc(alike, GcOptions(SpaceTarget(1.3), packer=packer, **size))
    assert padded.space_amplification_with_padding is not None
    ratio = padded.space_amplification_with_padding / padded.space_amplification
    assert ratio == pytest.approx(32 / 31, rel=0.01)
    plain = sized(gc_workload("A", 1), geometry.stripe_size, 1, size_max(geometry))
    assert simulate_gc(plain, GcOptions(SpaceTarget(1.3), **size)).space_amplification_with_padding is None


@pytest.mark.parametrize("lanes", [1, 3])
def test_each_lane_fills_a_block_with_objects_that_follow_each_other(lanes: int) -> None:
    geometry = Geometry()
    objects = Objects()
    objects.buckets = ["a"]
    packer = PackerOptions(geometry, consumer(20, lanes))
    options = GcOptions(
        SpaceTarget(1.1, floor_days=0), streams=1, blocks=10, block_bytes=geometry.block_size, packer=packer
    )
    numbers = range(2000)
    for number in numbers:
        objects.add(0, Life(0, 100), 200_000 + number % 7)
    blocks = Blocks(objects, bytearray(len(numbers)), options)
    blocks.born(len(numbers))
    blocks.pack(numbers, 0, UNKNOWN, fresh=True, ordered=False)
    sealed = [blocks._members[block] for block in blocks._sealed_at]
    assert len(sealed) >= 6
    for members in sealed:
        assert max(members) - min(members) < len(members) + 2 * packer.consumer.window_objects


def test_the_books_of_the_packer_of_a_store() -> None:
    """Random arrivals, deaths and cycles: sums are those of the objects, no block is overfull, no live object is
    lost."""
    rng, geometry = random.Random(5), Geometry()
    objects, dead = Objects(), bytearray()
    objects.buckets = ["a", "b"]
    policy = SpaceTarget(1.1, floor_days=0)
    packer = PackerOptions(geometry, consumer(50, 3))
    options = GcOptions(policy, streams=2, blocks=10, block_bytes=geometry.block_size, packer=packer)
    blocks = Blocks(objects, dead, options)
    for step in range(120):
        new = list(range(len(objects), len(objects) + rng.randrange(60)))
        for _ in new:
            objects.add(step, Life(rng.randrange(2), step + 100), rng.choice([0, 1, 5000, 300_000, 3_000_000]))
        dead.extend(bytes(len(new)))
        blocks.born(len(new))
        blocks.pack(new, step, UNKNOWN, fresh=True, ordered=False)
        for number in rng.sample(range(len(objects)), min(len(objects), 30)):
            if not dead[number]:
                dead[number] = 1
                blocks.died(number)
        blocks.delete_dead()
        if policy.is_due(blocks.stored):
            blocks.collect(policy.plan(blocks.sealed(step), blocks.stored), step, UNKNOWN)
        placed = {number: block for block, members in blocks._members.items() for number in members}
        living = [number for number in placed if not dead[number]]
        assert blocks.stored.live_bytes == sum(objects.size[number] for number in living)
        assert blocks.stored.stored_bytes == sum(blocks._filled[block] for block in blocks._members)
        assert all(blocks._block_of[number] == block for number, block in placed.items() if not dead[number])
        padded = [blocks._filled[block] + blocks._padding[block] for block in blocks._members]
        assert all(size <= geometry.block_size and size % geometry.stripe_size == 0 for size in padded)
        assert blocks.padding_bytes == sum(padded) - blocks.stored.stored_bytes
        waiting = sum(not dead[n] and objects.size[n] > 0 for n in range(len(objects))) - len(living)
        assert waiting <= 5 * 50, "all others are in blocks"
    assert len(blocks) > 10
    assert blocks.padding_bytes > 0


@pytest.mark.parametrize(("streams", "buckets"), [(1, {"a", "b"}), (4, {"a"})])
def test_the_packer_of_a_store_with_one_stream_sorts_nothing(streams: int, buckets: set[str]) -> None:
    packer = StorePacker(PackerOptions(Geometry(), consumer(50, 1)), streams)
    objects = [(ToPack(0, "ab"[n % 2], "", n, n), 300_000) for n in range(200)]
    first = next(packer.fresh(objects))
    assert {one.candidate.payload.bucket for one in first.placed} == buckets

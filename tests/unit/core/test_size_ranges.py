"""Objects of similar sizes are packed in ranges of sizes, in rows that they fill."""

from __future__ import annotations

import random
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.bench.simulate import simulate
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.merge_list import merge_list
from nos_ec.core.packing.packer import PLAIN_RECORD_MAX
from nos_ec.core.packing.plan import Candidate, GroupPlan, MergeList
from nos_ec.core.packing.size_classes import SizeClasses
from nos_ec.core.packing.size_ranges import SPAN_MAX, cheapest_ranges, row_of
from nos_ec.core.packing.splits import SPLIT_BYTES
from nos_ec.settings.sections import ConsumerSettings
from tests.unit.core.test_packer import check_plan

CHUNK = 128 * 1024
KIB = 1024


def uniform(least_kib: int, most_kib: int, count: int) -> list[int]:
    rng = random.Random(1)
    return [rng.randint(least_kib * KIB, most_kib * KIB) for _ in range(count)]


def test_each_range_has_the_rows_that_its_objects_fill() -> None:
    small, middle, large = cheapest_ranges(uniform(30, 45, 2000), CHUNK, SPLIT_BYTES)
    assert (small.span, small.objects) == (1, 4)
    assert (middle.span, middle.objects) == (2, 7)
    assert (large.span, large.objects, large.below) == (1, 3, inf)
    assert 33 * KIB < small.below < 35 * KIB < 38 * KIB < middle.below < 41 * KIB


def test_objects_that_nearly_fill_a_chunk_are_alone() -> None:
    *split, alone = cheapest_ranges(uniform(100, 124, 2000), CHUNK, SPLIT_BYTES)
    assert (alone.span, alone.objects) == (1, 1)
    assert all(one.objects == one.span + 1 for one in split)
    assert alone.least == pytest.approx(115 * KIB, rel=0.01), "where the gap costs as much as a row with splits"


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(CHUNK // 16, CHUNK), min_size=1, max_size=150),
    price=st.sampled_from([0, 1, 4096, SPLIT_BYTES, CHUNK - 1]),
    chunks=st.integers(1, 40),
)
def test_ranges_follow_each_other_and_rows_fit(sizes: list[int], price: int, chunks: int) -> None:
    ranges = cheapest_ranges(sizes, CHUNK, price)
    assert ranges[0].least == min(sizes)
    assert ranges[-1].below == inf
    assert all(one.below == after.least for one, after in pairwise(ranges))
    for size in sizes:
        span, objects = row_of(ranges, size, chunks, CHUNK, price)
        assert 1 <= span <= chunks
        assert objects == 1 or size + (objects - 1) * min(sizes) <= span * CHUNK
        assert span <= SPAN_MAX or span == chunks or chunks > SPAN_MAX
        assert span == chunks or chunks - span >= min(one.span for one in ranges)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, CHUNK), min_size=1, max_size=40),
    room=st.integers(0, 4 * CHUNK),
    count=st.integers(1, 20),
)
def test_an_even_share_fits_and_is_the_nearest(sizes: list[int], room: int, count: int) -> None:
    waiting: SizeClasses[None] = SizeClasses(CHUNK)
    for size in sizes:
        waiting.add_small(Candidate(size, 0, None, 0))
    found = waiting.evenly(room, count)
    if found is not None:
        assert found.size <= room
    if found is not None and count > 2 and room >= count:
        share = min(room / count, CHUNK)
        assert abs(found.size - share) <= min(abs(size - share) for size in sizes) + 2 * 64


@pytest.mark.parametrize(
    ("least_kib", "most_kib", "cost_max"),
    [(30, 45, 1300), (65, 70, 8250), (100, 124, 10_800), (60, 130, 6500), (40, 60, 3150), (20, 25, 900)],
)
def test_ranges_cost_little_more_than_the_best_that_is_known(least_kib: int, most_kib: int, cost_max: int) -> None:
    """docs/PACKING.md has what a search finds."""
    result = simulate(
        uniform(least_kib, most_kib, 15_000), ConsumerSettings(), Geometry(), timer=lambda: 0.0, names=False
    )
    assert result.cost_bound <= result.cost <= cost_max
    assert result.max_wait_windows <= 2.5


@pytest.mark.parametrize("seed", range(6))
def test_objects_of_planned_rows_are_placed_once_in_valid_groups(seed: int) -> None:
    """This holds whatever else arrives, whatever deadlines pass, and whatever the names are: a row that is planned need
    not get its objects."""
    rng = random.Random(seed)
    geometry = rng.choice(
        [Geometry(), Geometry(k=3, m=2, chunk_size=32 * KIB), Geometry(k=2, m=1, chunk_size=KIB * 16)]
    )
    chunk, price = geometry.chunk_size, rng.choice([geometry.chunk_size // 32, geometry.chunk_size // 8])
    least = rng.uniform(0.1, 0.8)
    most = min(1.02, least * rng.uniform(1.05, 2))
    merge: MergeList[int] = merge_list("best", geometry, 400, rng.choice([600, 1 << 40]), rng, split_bytes=price)
    plans: list[GroupPlan[int]] = []
    for now_ms in range(2500):
        size = rng.uniform(least, most) if rng.random() < 0.98 else rng.choice([0.01, 1.5, 3.2])
        merge.add(Candidate(int(size * chunk), rng.choice([60, PLAIN_RECORD_MAX]), now_ms, now_ms))
        while (plan := merge.plan(now_ms, flush=rng.random() < 0.001)) is not None:
            plans.append(plan)
    assert any(plan.split_objects for plan in plans)
    while (plan := merge.plan(2500, flush=True)) is not None:
        plans.append(plan)
    for plan in plans:
        check_plan(plan, geometry, splits=True)
    assert sorted(one.candidate.payload for plan in plans for one in plan.placed) == list(range(2500))


@pytest.mark.parametrize("k", [2, 8])
def test_an_object_smaller_than_the_ranges_begins_no_planned_row(k: int) -> None:
    """It comes after the ranges were computed, and is the oldest of all."""
    geometry = Geometry(k=k, m=1)
    merge: MergeList[None] = merge_list("best", geometry, 1000, 1 << 40, random.Random(1), split_bytes=SPLIT_BYTES)
    split_objects = 0
    for size in uniform(94, 104, 1500):
        merge.add(Candidate(size, 0, None, 0))
        while (plan := merge.plan(0)) is not None:
            split_objects += plan.split_objects
    assert split_objects
    while merge.plan(0, flush=True) is not None:
        pass
    merge.add(Candidate(10, 0, None, 0))
    plan = merge.plan(0, flush=True)
    assert plan is not None
    assert plan.stripe_count == len(plan.placed) == 1


def test_what_fills_chunks_anyway_is_not_split() -> None:
    """Objects of which small ones fill the gaps, and those of which as many as a chunk holds differ enough."""
    for least_kib, most_kib in ((0, 45), (35, 50)):
        sizes = [size for size in uniform(least_kib, most_kib, 6000) if size]
        result = simulate(sizes, ConsumerSettings(), Geometry(), timer=lambda: 0.0, names=False)
        assert result.extra_reads == 0.0
        assert result.utilisation > 0.99

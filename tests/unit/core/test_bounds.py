"""The bound is below every known packing, and exact where the best packing is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.bench.simulate import simulate
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.bounds import (
    bins_min,
    chunks_min,
    cost_min,
    cost_of_rows,
    stripes_by_groups,
    stripes_by_volume,
    stripes_min,
    utilisation_max,
)
from nos_ec.core.packing.merge_list import merge_list
from nos_ec.core.packing.packer import size_max
from nos_ec.core.packing.plan import Candidate, MergeList
from nos_ec.settings.sections import ConsumerSettings

KIB = 1024
SMALL = Geometry(k=2, m=1, chunk_size=16 * KIB, stripes_per_group_max=3)


def bins_exact(items: list[int], bin_size: int) -> int:
    """The fewest bins, by trying all arrangements."""
    best = len(items)

    def place(index: int, bins: list[int]) -> None:
        nonlocal best
        if len(bins) >= best:
            return
        if index == len(items):
            best = len(bins)
            return
        for i in range(len(bins)):
            if bins[i] + items[index] <= bin_size:
                bins[i] += items[index]
                place(index + 1, bins)
                bins[i] -= items[index]
        place(index + 1, [*bins, items[index]])

    place(0, [])
    return best


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=7))
def test_bins_bound_never_exceeds_the_optimum(items: list[int]) -> None:
    assert bins_min(items, 20) <= bins_exact(items, 20)


def test_bins_bound_is_exact_where_volume_is_not() -> None:
    assert bins_min([11] * 10, 20) == 10, "two of them never share a bin"
    assert bins_min([13] * 4 + [8] * 4, 20) == 6, "no 8 fits in a bin with a 13"
    assert bins_min([10] * 10, 20) == 5
    assert bins_min([20] * 3 + [1], 20) == 4
    assert bins_min([], 20) == 0


def test_chunks_of_large_objects() -> None:
    assert chunks_min([2 * 20 + 1], 20) == 3
    assert chunks_min([2 * 20 + 1, 3 * 20 + 19], 20) == 6, "the rests share a chunk"
    assert chunks_min([40, 60], 20) == 5, "whole chunks"


@settings(max_examples=60, deadline=None)
@given(
    objects=st.lists(
        st.one_of(st.integers(1, 128 * KIB), st.integers(1, size_max(Geometry()))), min_size=1, max_size=60
    ),
    policy=st.sampled_from(["best", "nos"]),
    price=st.sampled_from([0, 4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB]),
    equal=st.booleans(),
)
def test_no_packing_beats_the_bounds(objects: list[int], policy: str, price: int, equal: bool) -> None:
    geometry = Geometry()
    objects = objects[:1] * len(objects) if equal else objects
    merge: MergeList[None] = merge_list(policy, geometry, 1000, 1000, random.Random(0), names=False, split_bytes=price)
    for size in objects:
        merge.add(Candidate(size, 44, None, 0))
    stripes = split_objects = 0
    while (plan := merge.plan(0, flush=True)) is not None:
        stripes += plan.stripe_count
        split_objects += plan.split_objects
    assert stripes >= stripes_min(objects, geometry, price)
    assert sum(objects) / (stripes * geometry.stripe_size) <= utilisation_max(objects, geometry, price)
    cost = stripes * geometry.stripe_size - sum(objects) + price * split_objects
    assert cost >= cost_min(objects, geometry, price) - 1e-3


@settings(max_examples=60, deadline=None)
@given(
    rests=st.lists(st.integers(SMALL.chunk_size // 8, SMALL.chunk_size), min_size=1, max_size=6),
    price=st.integers(0, SMALL.chunk_size),
)
def test_the_bound_of_the_cost_never_exceeds_that_of_the_best_rows(rests: list[int], price: int) -> None:
    """All divisions of a few objects into rows are tried."""
    chunk = SMALL.chunk_size

    def least(remaining: tuple[int, ...]) -> int:
        if not remaining:
            return 0
        first, others = remaining[0], remaining[1:]
        best = None
        for chosen in range(1 << len(others)):
            row = [first, *(one for i, one in enumerate(others) if chosen >> i & 1)]
            span = -(-sum(row) // chunk)
            cost = span * chunk - sum(row) + price * (span - 1)
            cost += least(tuple(one for i, one in enumerate(others) if not chosen >> i & 1))
            best = cost if best is None else min(best, cost)
        assert best is not None
        return best

    assert cost_of_rows(rests, SMALL, price) <= least(tuple(rests)) + 1e-6


@pytest.mark.parametrize(("low_kib", "high_kib", "tight"), [(65, 70, 1.13), (100, 124, 1.17), (60, 128, 1.3)])
def test_the_bound_of_the_cost_is_tight_on_narrow_ranges(low_kib: int, high_kib: int, tight: float) -> None:
    rng = random.Random(1)
    sizes = [rng.randint(low_kib * KIB, high_kib * KIB) for _ in range(6000)]
    found = simulate(sizes, ConsumerSettings(), Geometry(), timer=lambda: 0.0, names=False)
    assert found.cost_bound <= found.cost <= tight * found.cost_bound


@pytest.mark.parametrize("price", [0, 16 * KIB])
def test_the_bound_of_the_cost_of_long_groups_takes_seconds(price: int) -> None:
    rng = random.Random(1)
    rests = [rng.randint(70 * KIB, 120 * KIB) for _ in range(500)]
    short, long = (cost_of_rows(rests, Geometry(stripes_per_group_max=stripes), price) for stripes in (4, 32))
    assert 0 <= long <= short
    assert (long > 0) == (price > 0)


def test_groups_hold_whole_objects() -> None:
    assert stripes_by_groups([1 << 20] * 310, Geometry()) == 320, "31 in a block, because of the front"
    assert 555 < stripes_by_groups([2_000_000] * 300 + [1] * 1000, Geometry()) < 600
    assert stripes_by_groups([], Geometry()) == 0
    assert utilisation_max([1 << 20] * 3, Geometry(), 0) == 31 / 32


def test_names_count_as_volume() -> None:
    sizes = [2000] * 10_000
    assert stripes_by_volume(sizes, Geometry(), 440_000) > stripes_by_volume(sizes, Geometry(), 0)


def test_nothing_uses_no_space() -> None:
    assert utilisation_max([], Geometry(), 0) == cost_min([], Geometry(), 0) == 0.0

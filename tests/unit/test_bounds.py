"""The bound is below every known packing, and exact where the best packing is known."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.bounds import bins_min, chunks_min, stripes_by_volume, stripes_min, utilisation_max
from nos_ec.core.packing.merge_list import merge_list
from nos_ec.core.packing.packer import size_max
from nos_ec.core.packing.plan import Candidate, MergeList

KIB = 1024


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
    assert bins_min([13] * 4 + [8] * 4, 20) == 6, "no 8 fits beside a 13"
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
)
def test_no_packing_beats_the_bound(objects: list[int], policy: str) -> None:
    geometry = Geometry()
    merge: MergeList[None] = merge_list(policy, geometry, 1000, 1000, random.Random(0), names=False)
    for size in objects:
        merge.add(Candidate(size, 44, None, 0))
    stripes = 0
    while (plan := merge.plan(0, flush=True)) is not None:
        stripes += plan.stripe_count
    assert stripes >= stripes_min(objects, geometry)
    assert sum(objects) / (stripes * geometry.stripe_size) <= utilisation_max(objects, geometry)


def test_names_count_as_volume() -> None:
    sizes = [2000] * 10_000
    assert stripes_by_volume(sizes, Geometry(), 440_000) > stripes_by_volume(sizes, Geometry(), 0)


def test_nothing_uses_no_space() -> None:
    assert utilisation_max([], Geometry()) == 0.0

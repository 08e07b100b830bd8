"""The cheapest rows of equal objects are the best of all layouts, and the packer makes them."""

from __future__ import annotations

import random
from heapq import heapify, heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.bench.simulate import simulate
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.packing.best_fit import LONGER_SAVES_MIN
from nos_ec.core.packing.equal_sizes import cheapest_rows
from nos_ec.settings.sections import ConsumerSettings

CHUNK = 16 * 1024


def least_cost(stripes: int, k: int, size: int, price: int) -> float | None:
    """Return the least cost an object, by trying all groups whose objects begin at the end of another, at the end of
    the front, or at a chunk's border; None if no group holds an object."""
    geometry = Geometry(k=k, m=1, chunk_size=CHUNK, stripes_per_group_max=stripes)
    fewest = geometry.chunks_touched(0, size)
    # By offset: for each number of objects before it, the fewest extra reads.
    extra: dict[int, dict[int, int]] = {PAGE: {0: 0}} | {number * CHUNK: {} for number in range(1, stripes * k)}
    offsets = list(extra)
    heapify(offsets)
    best: float | None = None
    while offsets:
        offset = heappop(offsets)
        border = (offset // CHUNK + 1) * CHUNK
        for count, reads in extra[offset].items():
            if count:
                empty = geometry.stripes_for(offset) * geometry.stripe_size - count * size
                best = min(best or 1e9, (empty + price * reads) / count)
            more = geometry.chunks_touched(offset, size) - fewest
            for end, objects, sum_reads in ((border, count, reads), (offset + size, count + 1, reads + more)):
                if end > geometry.group_size_max:
                    continue
                if end not in extra:
                    extra[end] = {}
                    heappush(offsets, end)
                extra[end][objects] = min(extra[end].get(objects, sum_reads), sum_reads)
    return best


@settings(max_examples=200, deadline=None)
@given(
    stripes=st.integers(1, 3),
    k=st.integers(1, 4),
    size=st.one_of(st.integers(1500, CHUNK), st.integers(CHUNK, 10 * CHUNK), st.integers(CHUNK + 1, CHUNK + 3000)),
    price=st.sampled_from([0, 1, 512, 4096, CHUNK - 1]),
)
def test_no_group_is_cheaper(stripes: int, k: int, size: int, price: int) -> None:
    rows = cheapest_rows(stripes, k, CHUNK, size, PAGE, price)
    least = least_cost(stripes, k, size, price)
    assert (rows is None) == (least is None)
    if rows is not None:
        assert rows.cost == pytest.approx(least)


@pytest.mark.parametrize("size", [43_700, 70_000, 136_072, 141_072, 150_000, 200_000, 544_288, 700_000, 1 << 20])
@pytest.mark.parametrize("price", [0, 16 * 1024, 64 * 1024])
def test_the_packer_makes_them(size: int, price: int) -> None:
    consumer = ConsumerSettings(split_bytes=price)
    found = simulate([size] * 2000, consumer, Geometry(), timer=lambda: 0.0, names=False)
    assert found.cost_bound - 1 <= found.cost <= found.cost_bound + LONGER_SAVES_MIN * size


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("other", [71_000, 100_000])
def test_a_few_objects_of_another_size_do_not_spoil_the_group(share: float, other: int) -> None:
    """They run out now and then, and come again while a group is open that was begun without them."""
    rng = random.Random(1)
    sizes = [other if rng.random() < share else 70_000 for _ in range(5000)]
    found = simulate(sizes, ConsumerSettings(), Geometry(), timer=lambda: 0.0, names=False)
    assert found.utilisation > 0.96


@pytest.mark.parametrize(
    ("least", "most", "utilisation"),
    [(43_680, 43_700, 0.98), (26_200, 26_230, 0.98), (100_000, 100_030, 0.98), (136_072, 136_100, 0.99)],
)
def test_sizes_that_differ_by_a_few_bytes(least: int, most: int, utilisation: float) -> None:
    """In the first two cases, a chunk holds one more of the smallest objects than of the largest."""
    rng = random.Random(1)
    sizes = [rng.randint(least, most) for _ in range(4000)]
    found = simulate(sizes, ConsumerSettings(), Geometry(), timer=lambda: 0.0, names=False)
    assert found.utilisation > utilisation

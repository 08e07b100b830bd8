"""The curve of what a target of space costs, and how long objects live, as the page Space and GC shows them."""

from __future__ import annotations

import pytest

from nos_ec.console.space import AGES_DAYS, HEIGHT, POINTS_MAX, WIDTH, curve, curve_data, lives
from nos_ec.core.gc.gc_policy import SealedBlock, StoredBytes
from nos_ec.core.gc.target_costs import price_curve
from nos_ec.core.ids import BlockId
from nos_ec.core.packing.lifetimes import AGE_RANGES, OTHERS, Counts
from nos_ec.ports.metadata import SurvivalRow

NOW_MS = 1_800_000_000_000


def sealed(count: int) -> list[SealedBlock]:
    """Blocks of all live shares and ages."""
    return [
        SealedBlock(BlockId(number.to_bytes(16)), 1000 - number * 7 % 999, number * 7 % 999, 1.0 + number * 31 % 400)
        for number in range(count)
    ]


def store_of(blocks: list[SealedBlock]) -> StoredBytes:
    return StoredBytes(sum(one.live_bytes + one.dead_bytes for one in blocks), sum(one.live_bytes for one in blocks))


def test_an_empty_store_has_no_curve() -> None:
    found = price_curve([], StoredBytes(0, 0), 0.0)
    shown = curve(found, 1.2)
    assert (shown.now, shown.points, shown.costs) == (None, "", ())
    assert curve_data(found) == {"stored_bytes": 0, "live_bytes": 0, "least": None, "classes": []}


def test_a_store_without_holes_has_no_curve() -> None:
    shown = curve(price_curve([], StoredBytes(1000, 1000), 0.0), 1.2)
    assert (shown.now, shown.least, shown.points, shown.target_x, shown.costs) == (1.0, 1.0, "", None, [])


def test_the_curve_rises_from_now_to_the_least_that_can_be_reached() -> None:
    blocks = sealed(3000)
    found = price_curve(blocks, store_of(blocks), 0.0)
    shown = curve(found, 1.3)
    assert shown.now is not None
    assert shown.least is not None
    assert 1 <= shown.least < 1.3 < shown.now
    points = [tuple(map(float, point.split(","))) for point in shown.points.split()]
    assert len(points) <= POINTS_MAX + 1
    assert points[0] == (WIDTH, HEIGHT)
    assert points[-1] == (0, 0)
    assert [x for x, _ in points] == sorted((x for x, _ in points), reverse=True)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    assert shown.target_x == pytest.approx(WIDTH * (1.3 - shown.least) / (shown.now - shown.least), abs=0.1)
    assert [cost.target for cost in shown.costs] == [*(1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6)]
    assert all(found.cost(cost.target) == cost for cost in shown.costs)


def test_a_target_outside_the_curve_is_not_drawn() -> None:
    blocks = sealed(300)
    found = price_curve(blocks, store_of(blocks), 0.0)
    assert curve(found, 9.0).target_x is None
    assert curve(found, None).target_x is None


def test_lifetimes_of_the_buckets_of_which_most_is_known_come_first() -> None:
    assert lives([], NOW_MS) == []
    quick, slow = Counts(), Counts()
    quick.exposure_days = [10.0] * AGE_RANGES
    quick.deaths = [50.0] * AGE_RANGES
    slow.exposure_days = [1000.0] * AGE_RANGES
    found = lives([SurvivalRow("quick", NOW_MS, quick), SurvivalRow("slow", NOW_MS, slow)], NOW_MS)
    assert [one.bucket for one in found] == ["slow", "quick", OTHERS]
    for one in found:
        assert len(one.shares) == len(AGES_DAYS)
        assert one.shares == sorted(one.shares, reverse=True)
    assert found[1].shares[1] < found[2].shares[1] < found[0].shares[1]

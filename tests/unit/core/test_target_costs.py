"""What it would cost to reach a target: an estimate from classes of prices against the plan of the policy itself."""

from __future__ import annotations

import random

import pytest

from nos_ec.core.gc.gc_policy import SealedBlock, SpaceTarget, StoredBytes
from nos_ec.core.gc.raw_cost import StoredParts, raw_cost
from nos_ec.core.gc.target_costs import CLASS_MAX, CLASS_MIN, price_curve
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId

SIZE = 1 << 25


def blocks(count: int, seed: int = 3) -> list[SealedBlock]:
    rng = random.Random(seed)
    found = []
    for number in range(count):
        dead = round(SIZE * rng.random() ** 2)
        found.append(SealedBlock(BlockId(number.to_bytes(16, "big")), SIZE - dead, dead, rng.uniform(1, 400)))
    return found


def store_of(some: list[SealedBlock]) -> StoredBytes:
    return StoredBytes(SIZE * len(some), sum(block.live_bytes for block in some))


@pytest.mark.parametrize("target", [1.1, 1.2, 1.4])
@pytest.mark.parametrize("floor_days", [0.0, 20.0])
def test_the_estimate_is_near_what_the_policy_plans(target: float, floor_days: float) -> None:
    some = blocks(3000)
    store = store_of(some)
    found = price_curve(some, store, floor_days).cost(target)
    plan = SpaceTarget(target, hysteresis=0, floor_days=floor_days).plan(some, store)
    assert found.is_reached == (plan.behind is None)
    assert found.copied_bytes == pytest.approx(plan.copied_bytes, rel=0.03, abs=SIZE)
    assert found.freed_bytes == pytest.approx(plan.freed_bytes, rel=0.03, abs=SIZE)
    if found.is_reached:
        assert found.space_amplification == pytest.approx(min(target, store.space_amplification), abs=1e-6)


def test_nothing_is_to_be_done_within_the_target() -> None:
    some = [SealedBlock(BlockId(bytes(16)), SIZE - 5, 5, 100.0)]
    found = price_curve(some, store_of(some), 2.0).cost(1.2)
    assert (found.copied_bytes, found.freed_bytes, found.price_days, found.is_reached) == (0, 0, None, True)


def test_a_target_that_the_floor_keeps_out_of_reach() -> None:
    young = [block._replace(age_days=0.1) for block in blocks(100)]
    found = price_curve(young, store_of(young), 1000.0).cost(1.1)
    assert (found.copied_bytes, found.is_reached) == (0, False)
    assert found.space_amplification == store_of(young).space_amplification


def test_a_curve_has_a_bounded_number_of_classes_however_many_blocks_there_are() -> None:
    some = blocks(3000)
    curve = price_curve(some, store_of(some), 0.0)
    assert len(curve.classes) <= CLASS_MAX - CLASS_MIN + 1 == 1101
    assert [place for place, _, _ in curve.classes] == sorted({place for place, _, _ in curve.classes}, reverse=True)
    assert sum(live for _, live, _ in curve.classes) == sum(block.live_bytes for block in some if block.dead_bytes)
    assert sum(dead for _, _, dead in curve.classes) == sum(block.dead_bytes for block in some)


def test_the_parts_of_a_raw_byte_add_up_and_the_break_even_is_where_they_come_to_three() -> None:
    geometry = Geometry()
    assert raw_cost(StoredParts(0, 5, 5, 5, 5), geometry) is None
    cost = raw_cost(StoredParts(100, 30, 10, 5, 8), geometry)
    assert cost is not None
    assert cost.total == pytest.approx(sum(cost.parts.values()))
    assert cost.total == pytest.approx(11 / 8 * (100 + 30 + 10 + 5 + 8) / 100)
    divided = raw_cost(StoredParts(100, 30, 10, 5, 8, 0.25), geometry)
    assert divided is not None
    assert divided.total == pytest.approx(sum(divided.parts.values()))
    assert (divided.total, divided.break_even) == (cost.total, cost.break_even)
    assert divided.undivided == 0
    assert divided.headers + divided.padding == pytest.approx(cost.undivided)
    assert divided.headers == pytest.approx(11 / 8 * 2 / 100)
    dead = round((cost.break_even - 1) * 100)
    at = raw_cost(StoredParts(100, dead, 0, 0, 8), geometry)
    assert at is not None
    assert at.total == pytest.approx(3, abs=0.02)

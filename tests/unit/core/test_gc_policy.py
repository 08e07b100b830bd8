"""The policies that choose the blocks of a GC cycle, and the break-even price that ranks them."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp, inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_policy import (
    AGE_DAYS_MIN,
    Behind,
    GcPlan,
    Price,
    SealedBlock,
    SpaceTarget,
    StoredBytes,
    Threshold,
    break_even_days,
    hole_share,
)
from nos_ec.core.ids import BlockId


def block(number: int, live: int, dead: int, age: float = 10.0) -> SealedBlock:
    return SealedBlock(BlockId(number.to_bytes(16, "big")), live, dead, age)


def stored(blocks: list[SealedBlock], open_live: int = 0, open_dead: int = 0) -> StoredBytes:
    live = open_live + sum(b.live_bytes for b in blocks)
    return StoredBytes(live + open_dead + sum(b.dead_bytes for b in blocks), live)


BYTES = st.one_of(st.just(0), st.integers(0, 1 << 25))
BLOCKS = st.lists(st.tuples(BYTES, BYTES, st.floats(-1, 3000)), max_size=30).map(
    lambda rows: [block(n, live, dead, age) for n, (live, dead, age) in enumerate(rows)]
)
BUDGETS = st.one_of(st.just(inf), st.integers(0, 1 << 28))
POLICIES: st.SearchStrategy[SpaceTarget | Price | Threshold] = st.one_of(
    st.builds(SpaceTarget, st.floats(1.01, 5), st.floats(0, 0.4), st.floats(0, 50), BUDGETS),
    st.builds(Price, st.floats(0.1, 500), BUDGETS),
    st.builds(Threshold, st.floats(0.01, 1), BUDGETS),
)


@given(BLOCKS, POLICIES, st.integers(0, 1 << 26), st.randoms(use_true_random=False))
def test_every_plan(
    blocks: list[SealedBlock], policy: SpaceTarget | Price | Threshold, open_live: int, rng: random.Random
) -> None:
    """What holds for each policy: sums, dead blocks first, nothing without holes, the budget, one plan per input."""
    store = stored(blocks, open_live)
    plan = policy.plan(blocks, store)
    assert len(set(plan.victims)) == len(plan.victims)
    assert set(plan.victims) <= set(blocks)
    assert plan.copied_bytes == sum(victim.live_bytes for victim in plan.victims)
    assert plan.freed_bytes == sum(victim.dead_bytes for victim in plan.victims)
    dead = [b for b in blocks if b.is_dead]
    assert set(plan.victims[: len(dead)]) == set(dead)
    assert all(victim.dead_bytes for victim in plan.victims[len(dead) :])
    assert plan.copied_bytes <= policy.budget_bytes
    if not policy.is_due(store):
        assert len(plan.victims) == len(dead)
    shuffled = list(blocks)
    rng.shuffle(shuffled)
    assert policy.plan(shuffled, store) == plan


@given(BLOCKS, st.floats(1.01, 5), st.floats(0, 0.4), st.floats(0, 50), BUDGETS)
def test_a_space_target_is_reached_or_the_plan_says_why(
    blocks: list[SealedBlock], space_amp: float, hysteresis: float, floor_days: float, budget: float
) -> None:
    policy = SpaceTarget(space_amp, hysteresis, floor_days, budget)
    store = stored(blocks)
    plan = policy.plan(blocks, store)
    after = StoredBytes(store.stored_bytes - plan.freed_bytes, store.live_bytes)
    if plan.behind is None:
        assert not policy.is_due(after)
        return
    assert policy.is_due(after)
    chosen = set(plan.victims)
    left = [b for b in blocks if b not in chosen and b.dead_bytes and break_even_days(b) >= floor_days]
    if plan.behind is Behind.PRICE:
        assert left == []
    else:
        assert plan.copied_bytes + max(left, key=break_even_days).live_bytes > budget


@given(BLOCKS, st.floats(1.01, 3))
def test_a_space_target_copies_no_block_too_many(blocks: list[SealedBlock], space_amp: float) -> None:
    """Without its last victim that had to be copied, a plan would not reach its goal."""
    policy = SpaceTarget(space_amp, 0.02, 0)
    store = stored(blocks)
    plan = policy.plan(blocks, store)
    if plan.copied_bytes:
        goal = store.live_bytes * (1 + (space_amp - 1) * 0.96)
        assert store.stored_bytes - plan.freed_bytes + plan.victims[-1].dead_bytes > goal
        copied = [victim for victim in plan.victims if not victim.is_dead]
        prices = [break_even_days(victim) for victim in copied]
        assert prices == sorted(prices, reverse=True)


def test_a_space_target_waits_until_it_is_missed_and_then_goes_below() -> None:
    blocks = [block(n, 80, 20) for n in range(100)]
    policy = SpaceTarget(1.25, 0.1, 0)
    assert policy.plan(blocks, stored(blocks)) == GcPlan((), 0, 0)
    over = [*blocks, block(100, 70, 30)]
    plan = policy.plan(over, stored(over))
    assert plan.behind is None
    assert plan.victims[0].block_id == over[-1].block_id
    after = stored(over).stored_bytes - plan.freed_bytes
    assert after <= 1.20 * stored(over).live_bytes < after + 20


def test_a_space_target_tells_what_keeps_it_behind() -> None:
    blocks = [block(n, 50, 50) for n in range(4)]
    assert SpaceTarget(1.2, budget_bytes=120).plan(blocks, stored(blocks)) == GcPlan(
        tuple(blocks[:2]), 100, 100, Behind.BUDGET
    )
    assert SpaceTarget(1.2, floor_days=100).plan(blocks, stored(blocks)) == GcPlan((), 0, 0, Behind.PRICE)
    in_open_blocks = stored([], open_live=10, open_dead=90)
    assert SpaceTarget(1.2).plan([], in_open_blocks).behind is Behind.PRICE
    assert Threshold(0.5, budget_bytes=70).plan(blocks, stored(blocks)).behind is Behind.BUDGET


@given(BLOCKS, st.integers(0, 30), st.floats(0, 50), BUDGETS)
def test_a_plan_of_so_many_blocks_begins_as_one_without_a_limit(
    blocks: list[SealedBlock], victims_max: int, floor_days: float, budget: float
) -> None:
    store = stored(blocks)
    for whole in (SpaceTarget(1.2, 0.02, floor_days, budget), Price(floor_days + 1, budget)):
        unlimited = [b for b in whole.plan(blocks, store).victims if not b.is_dead]
        plan = replace(whole, victims_max=victims_max).plan(iter(blocks), store)
        copied = [b for b in plan.victims if not b.is_dead]
        assert copied == unlimited[:victims_max]
        if plan.behind is Behind.BLOCKS:
            assert len(copied) == victims_max
        elif len(unlimited) > victims_max:
            assert plan.behind is None, "within the target, but not below it"
        else:
            assert plan == whole.plan(blocks, store)


def test_a_store_without_space_pays_any_price() -> None:
    blocks = [block(n, 50, 50, age=0.0) for n in range(4)]
    for policy in (SpaceTarget(1.2), Price(20)):
        assert policy.plan(blocks, stored(blocks)).victims == ()
        assert policy.at_any_price().plan(blocks, stored(blocks)).victims == tuple(blocks)
        assert policy.at_any_price().target == policy.target
    assert Threshold(0.6).at_any_price() == Threshold(0.6)
    assert Threshold(0.6).target is None


def test_an_empty_store_is_within_every_target() -> None:
    assert StoredBytes(0, 0).space_amplification == 1
    assert StoredBytes(5, 0).space_amplification == inf
    assert not SpaceTarget().is_due(StoredBytes(0, 0))


@given(BLOCKS, st.floats(0.1, 500))
def test_a_price_takes_all_that_is_worth_it(blocks: list[SealedBlock], days: float) -> None:
    plan = Price(days).plan(blocks, stored(blocks))
    wanted = {b for b in blocks if b.is_dead or (b.dead_bytes and break_even_days(b) >= days)}
    assert set(plan.victims) == wanted


@pytest.mark.parametrize(("live", "dead", "taken"), [(25, 75, True), (26, 74, False), (0, 0, True), (0, 1, True)])
def test_the_threshold_is_the_rule_that_was_first_asked_for(live: int, dead: int, taken: bool) -> None:
    one = block(1, live, dead)
    assert bool(Threshold().plan([one], stored([one])).victims) is taken


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.floats(0.01, 5000))
def test_a_break_even_price_is_what_its_docstring_says(live: int, dead: int, age: float) -> None:
    price = break_even_days(block(0, live, dead, age))
    assert 0 <= price < inf
    u = live / (live + dead)
    if u < 0.999:
        assert price == pytest.approx((1 / u - 1 + log(u)) / (-log(u) / age), rel=1e-6)
    assert break_even_days(block(0, live, dead + live, age)) > price
    assert break_even_days(block(0, live, dead, 2 * age)) == pytest.approx(2 * price)


@pytest.mark.parametrize("price", [1.0, 20.0, 300.0])
def test_collecting_at_the_break_even_price_costs_least(price: float) -> None:
    """V = (D + u P)/(1 - u) of the docstring, over a grid of ages: its minimum is where break_even_days is P."""
    rate = 1 / 100

    def cost(age: float) -> float:
        u = exp(-rate * age)
        return (age - (1 - u) / rate + u * price) / (1 - u)

    best = min((age / 10 for age in range(1, 10_000)), key=cost)
    whole = 1 << 40
    live = round(whole * exp(-rate * best))
    assert break_even_days(block(0, live, whole - live, best)) == pytest.approx(price, rel=0.01)


def test_the_extremes_of_a_price() -> None:
    assert break_even_days(block(0, 0, 0)) == 0
    assert break_even_days(block(0, 5, 0)) == 0
    assert break_even_days(block(0, 0, 5)) == inf
    assert break_even_days(block(0, 5, 5, -100)) == break_even_days(block(0, 5, 5, AGE_DAYS_MIN))
    assert break_even_days(block(0, 1 << 62, 1)) >= 0
    assert hole_share(block(0, 0, 0)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SpaceTarget(1.0),
        lambda: SpaceTarget(inf),
        lambda: SpaceTarget(hysteresis=0.5),
        lambda: Price(0),
        lambda: Threshold(0),
        lambda: Threshold(1.1),
    ],
)
def test_senseless_settings_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput):
        wrong()  # type: ignore[operator]

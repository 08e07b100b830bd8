"""When a group is planned, and that nobody waits for ever."""

from __future__ import annotations

import random

import pytest

from nos_ec.core.geometry import Geometry
from nos_ec.core.merge_list import POLICIES, BestFitMergeList, merge_list
from nos_ec.core.plan import Candidate, MergeList

KIB = 1024
GEOMETRY = Geometry()


def add(merge: MergeList, size: int, now_ms: int) -> Candidate:
    candidate = Candidate(size, 44, None, now_ms)
    merge.add(candidate)
    return candidate


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_planned_before_the_deadline_of_a_short_list(policy: str) -> None:
    merge = merge_list(policy, GEOMETRY, 100, 500, random.Random(0))
    assert merge.plan(0) is None
    add(merge, 1000, now_ms=7)
    add(merge, 1000, now_ms=100)
    assert merge.next_deadline_ms() == 507
    assert merge.plan(506) is None
    plan = merge.plan(507)
    assert plan is not None
    assert len(plan.placements) == 2, "what is not overdue fills up"
    assert len(merge) == 0


def test_deadline_group_takes_overdue_objects_before_better_fits() -> None:
    """One stripe holds the 12 overdue objects, so all of them are in it though others fill chunks exactly."""
    merge = BestFitMergeList(GEOMETRY, 1000, 500)
    overdue = [add(merge, 50 * KIB, now_ms=0) for _ in range(12)]
    for _ in range(20):
        add(merge, 128 * KIB, now_ms=400)
        add(merge, 78 * KIB, now_ms=400)
    plan = merge.plan(500)
    assert plan is not None
    assert plan.stripe_count == 1
    assert {id(c) for c in overdue} <= {id(c) for c, _ in plan.placements}
    assert plan.data_length > sum(c.size for c in overdue), "then it is filled"
    assert merge.plan(500) is None, "the others are not overdue"


@pytest.mark.parametrize("policy", POLICIES)
def test_deadline_drains_several_groups(policy: str) -> None:
    merge = merge_list(policy, GEOMETRY, 1000, 500, random.Random(0))
    for _ in range(60):
        add(merge, 120 * KIB, now_ms=0)
    add(merge, 10, now_ms=300)
    groups = 0
    while (plan := merge.plan(500)) is not None:
        groups += 1
        assert plan.placements
    assert groups >= 2
    assert len(merge) <= 1, "all that was overdue is gone"


@pytest.mark.parametrize(("size", "count", "stripes"), [(70 * KIB, 8, 1), (1000, 3, 1), (900 * KIB, 2, 2)])
def test_needed_groups_use_few_stripes(size: int, count: int, stripes: int) -> None:
    merge = BestFitMergeList(GEOMETRY, 1000, 500)
    for _ in range(count):
        add(merge, size, now_ms=0)
    plan = merge.plan(500)
    assert plan is not None
    assert plan.stripe_count == stripes
    assert len(plan.placements) == count


def test_full_backlog_makes_full_groups_without_a_deadline() -> None:
    merge = BestFitMergeList(GEOMETRY, 100, 1 << 40)
    for i in range(99):
        add(merge, 300 * KIB + i, now_ms=0)
    assert merge.plan(0) is None, "fewer than the window"
    add(merge, 300 * KIB, now_ms=0)
    plan = merge.plan(0)
    assert plan is not None
    assert plan.stripe_count == GEOMETRY.stripes_per_group_max


def test_window_of_tiny_objects_waits_for_a_stripe_of_bytes() -> None:
    merge = BestFitMergeList(GEOMETRY, 10, 1 << 40)
    for _ in range(1000):
        add(merge, 1000, now_ms=0)
    assert merge.plan(0) is None
    for _ in range(300):
        add(merge, 1000, now_ms=0)
    assert merge.plan(0) is not None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fraction_large", [0.0, 0.05, 0.5, 1.0])
def test_no_object_starves(policy: str, fraction_large: float) -> None:
    """Awkward sizes among easy ones: a bound on arrivals seen while waiting, as a stream goes on."""
    window, rng = 200, random.Random(3)
    merge = merge_list(policy, GEOMETRY, window, 2 * window, random.Random(4))
    wait_max = arrivals = 0
    while arrivals < 6000:
        large = rng.random() < fraction_large
        add(
            merge,
            rng.choice([3_900_000, 2_000_000, 140_000]) if large else rng.choice([127_000, 66_000, 900]),
            arrivals,
        )
        arrivals += 1
        while (plan := merge.plan(arrivals)) is not None:
            wait_max = max(wait_max, *(arrivals - c.seq for c, _ in plan.placements))
    assert wait_max <= 2.5 * window

"""When a group is planned, and that no object waits for ever."""

from __future__ import annotations

import random

import pytest

from nos_ec.bench.workloads import sizes
from nos_ec.core.formats.header import names_size_max
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.packing.best_fit import OVERDUE_WINDOWS, WINDOW_GROUPS
from nos_ec.core.packing.merge_list import POLICIES, BestFitMergeList, merge_list
from nos_ec.core.packing.packer import NAME_RECORD_MAX
from nos_ec.core.packing.plan import Candidate, Linger, MergeList
from tests.unit.core.test_packer import check_plan

KIB = 1024
GEOMETRY = Geometry()


def add(merge: MergeList[None], size: int, now_ms: int) -> Candidate[None]:
    candidate = Candidate(size, 44, None, now_ms)
    merge.add(candidate)
    return candidate


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_planned_before_the_deadline_of_a_short_list(policy: str) -> None:
    merge: MergeList[None] = merge_list(policy, GEOMETRY, 100, 500, random.Random(0))
    assert merge.plan(0) is None
    add(merge, 1000, now_ms=7)
    add(merge, 1000, now_ms=100)
    assert merge.next_deadline_ms() == 507
    assert merge.plan(506) is None
    plan = merge.plan(507)
    assert plan is not None
    assert len(plan.placed) == 2, "what is not overdue fills up"
    assert len(merge) == 0


def test_deadline_group_takes_overdue_objects_before_better_fits() -> None:
    """One stripe holds the 12 overdue objects, so all of them are in it, although others fill chunks exactly."""
    merge = BestFitMergeList[None](GEOMETRY, 1000, 500)
    overdue = [add(merge, 50 * KIB, now_ms=0) for _ in range(12)]
    for _ in range(20):
        add(merge, 128 * KIB, now_ms=400)
        add(merge, 78 * KIB, now_ms=400)
    plan = merge.plan(500)
    assert plan is not None
    assert plan.stripe_count == 1
    assert {id(c) for c in overdue} <= {id(c) for c, _ in plan.placed}
    assert plan.data_length > sum(c.size for c in overdue), "then it is filled"
    assert merge.plan(500) is None, "the others are not overdue"


@pytest.mark.parametrize("policy", POLICIES)
def test_deadline_drains_several_groups(policy: str) -> None:
    merge: MergeList[None] = merge_list(policy, GEOMETRY, 1000, 500, random.Random(0))
    for _ in range(60):
        add(merge, 120 * KIB, now_ms=0)
    add(merge, 10, now_ms=300)
    groups = 0
    while (plan := merge.plan(500)) is not None:
        groups += 1
        assert plan.placed
    assert groups >= 2
    assert len(merge) <= 1, "all that was overdue is gone"


@pytest.mark.parametrize(("size", "count", "stripes"), [(70 * KIB, 8, 1), (1000, 3, 1), (900 * KIB, 2, 2)])
def test_needed_groups_use_few_stripes(size: int, count: int, stripes: int) -> None:
    merge = BestFitMergeList[None](GEOMETRY, 1000, 500)
    for _ in range(count):
        add(merge, size, now_ms=0)
    plan = merge.plan(500)
    assert plan is not None
    assert plan.stripe_count == stripes
    assert len(plan.placed) == count


def test_full_backlog_makes_full_groups_without_a_deadline() -> None:
    """Objects beyond the window go to the open group, which is handed out when nothing more fits it."""
    merge = BestFitMergeList[None](GEOMETRY, 100, 1 << 40)
    waiting = [add(merge, 300 * KIB + i, now_ms=0) for i in range(100)]
    assert merge.plan(0) is None
    assert all(c.waiting for c in waiting), "no more than the window"
    while (plan := merge.plan(0)) is None:
        waiting.append(add(merge, 300 * KIB, now_ms=0))
    assert GEOMETRY.stripes_per_group_max <= plan.stripe_count <= GEOMETRY.stripes_per_group_max + 1
    assert len(merge) == len(waiting) - len(plan.placed)


def test_the_open_group_counts_until_it_is_handed_out() -> None:
    """The consumer limits its memory by these figures."""
    merge = BestFitMergeList[None](GEOMETRY, 10, 500)
    waiting = [add(merge, 1000, now_ms=i) for i in range(100)]
    assert merge.plan(100) is None
    assert sum(c.waiting for c in waiting) <= 10
    assert (len(merge), merge.waiting_bytes) == (100, 100_000)
    assert merge.next_deadline_ms() == 500, "of the oldest, though it is in the open group"
    for candidate in (waiting[0], waiting[-1]):
        with pytest.raises(ValueError, match="add each candidate once"):
            merge.add(candidate)
    assert merge.plan(499) is None
    plan = merge.plan(500)
    assert plan is not None
    assert (plan.stripe_count, len(plan.placed)) == (1, 100), "what waited has joined"
    assert (len(merge), merge.waiting_bytes, merge.next_deadline_ms()) == (0, 0, None)


def test_a_window_of_objects_ends_the_group_with_its_stripe() -> None:
    """So no more than two windows and a stripe are held, however small objects are."""
    merge = BestFitMergeList[None](GEOMETRY, 100, 1 << 40)
    for count in range(1, 5001):
        add(merge, 4000, now_ms=0)
        while (plan := merge.plan(0)) is not None:
            assert plan.stripe_count == 1
            assert len(plan.placed) > 240
        assert len(merge) <= min(count, 2 * 100 + GEOMETRY.stripe_size // 4000)


@pytest.mark.parametrize("size", [1, 100 * KIB, GEOMETRY.stripe_size - PAGE - names_size_max(NAME_RECORD_MAX) + 1])
def test_flush_makes_room_for_the_longest_names(size: int) -> None:
    merge = BestFitMergeList[None](GEOMETRY, 10, 1 << 40)
    merge.add(Candidate(size, NAME_RECORD_MAX, None, 0))
    plan = merge.plan(0, flush=True)
    assert plan is not None
    assert plan.stripe_count == (1 if size <= 100 * KIB else 2)


def test_flush_closes_the_open_group_with_all_that_fits() -> None:
    merge = BestFitMergeList[None](GEOMETRY, 20, 1 << 40)
    for size in [100 * KIB, 20 * KIB] * 16:
        add(merge, size, now_ms=0)
    assert merge.plan(0) is None
    plan = merge.plan(0, flush=True)
    assert plan is not None
    assert (plan.stripe_count, len(plan.placed)) == (2, 32)


def test_deadline_of_an_object_in_the_open_group_adds_no_stripe() -> None:
    """What is not overdue fills the last stripe of it, and no more."""
    merge = BestFitMergeList[None](GEOMETRY, 20, 500)
    for i in range(22):
        add(merge, 100 * KIB, now_ms=0 if i < 2 else 400)
    assert merge.plan(400) is None
    plan = merge.plan(500)
    assert plan is not None
    assert (plan.stripe_count, len(plan.placed)) == (1, 10)
    assert merge.plan(500) is None
    assert merge.next_deadline_ms() == 900


@pytest.mark.parametrize("window", [1, 2, 30, 200])
@pytest.mark.parametrize("workload", ["W1", "W3", "W4", "W6", "W7"])
def test_the_window_is_a_limit_of_number_and_wait(workload: str, window: int) -> None:
    """Invariants E and F: whenever `plan` has no group, at most a window of objects waits, each for at most two."""
    merge = BestFitMergeList[None](GEOMETRY, window, 1 << 40)
    waiting: list[Candidate[None]] = []
    for arrived, size in enumerate(sizes(workload, 1200, random.Random(window), merge.size_max), 1):
        waiting.append(add(merge, size, now_ms=0))
        while merge.plan(0) is not None:
            pass
        waiting = [c for c in waiting if c.waiting]
        assert len(waiting) <= window, "invariant E"
        assert all(arrived - c.seq <= OVERDUE_WINDOWS * window for c in waiting), "invariant F"


@pytest.mark.parametrize(("per_s", "utilisation_min"), [(16, 0.98), (64, 0.98)])
def test_large_objects_fill_a_window_before_their_deadline(per_s: int, utilisation_min: float) -> None:
    """Invariant E. At a deadline they would be packed in 3 stripes each, at 83 %."""
    merge = BestFitMergeList[None](GEOMETRY, 1000, 60_000)
    rng, plans = random.Random(1), []
    for number in range(1500):
        add(merge, rng.randint(1 << 20, 4_180_000), now_ms=number * 1000 // per_s)
        while (plan := merge.plan(number * 1000 // per_s)) is not None:
            plans.append(plan)
        assert merge.waiting_bytes <= WINDOW_GROUPS * GEOMETRY.group_size_max + GEOMETRY.block_size
    stripes = sum(plan.stripe_count for plan in plans)
    assert sum(plan.data_length for plan in plans) / (stripes * GEOMETRY.stripe_size) > utilisation_min
    assert stripes > 8 * len(plans)


def test_a_window_can_be_given_fewer_bytes() -> None:
    """Invariant E."""
    merge = BestFitMergeList[None](GEOMETRY, 1000, 1 << 40)
    merge.set_window(1000, 64 << 20)
    rng = random.Random(1)
    for _ in range(300):
        add(merge, rng.randint(1 << 20, 4_180_000), now_ms=0)
        while merge.plan(0) is not None:
            pass
        assert merge.waiting_bytes <= (64 << 20) + GEOMETRY.block_size


@pytest.mark.parametrize("sizes", [(1 << 20, 1 << 20), (1 << 20, 4_180_000), (100 * KIB, 2 << 20)])
def test_a_deadline_closes_a_full_group_while_enough_waits(sizes: tuple[int, int]) -> None:
    """Large objects come slowly. In as few stripes as the overdue ones need, they would fill 50 to 90 %."""
    merge = BestFitMergeList[None](GEOMETRY, 1000, 60_000)
    rng, plans = random.Random(1), []
    for now_ms in range(0, 800_000, 500):
        add(merge, rng.randint(*sizes), now_ms)
        while (plan := merge.plan(now_ms)) is not None:
            assert min(placed.candidate.arrived_ms for placed in plan.placed) == now_ms - 60_000
            plans.append(plan)
    stripes = sum(plan.stripe_count for plan in plans)
    assert sum(plan.data_length for plan in plans) > 0.965 * stripes * GEOMETRY.stripe_size


def test_a_flush_fills_groups_while_enough_waits() -> None:
    merge = BestFitMergeList[None](GEOMETRY, 1000, 1 << 40)
    for _ in range(100):
        add(merge, 1 << 20, now_ms=0)
        add(merge, 2 << 20, now_ms=0)
    plans = []
    while (plan := merge.plan(0, flush=True)) is not None:
        check_plan(plan, GEOMETRY, True, splits=True)
        plans.append(plan)
    assert max(plan.stripe_count for plan in plans) > 16
    stripes = sum(plan.stripe_count for plan in plans)
    assert sum(plan.data_length for plan in plans) > 0.95 * stripes * GEOMETRY.stripe_size


@pytest.mark.parametrize(("window", "large"), [(1000, 0), (1000, 20), (8, 0), (8, 20)])
def test_deadlines_follow_the_time_of_arrival_not_the_order(window: int, large: int) -> None:
    """A merge list of several streams adds objects sorted by bucket. With the smaller window, some are in an open
    group."""
    merge = BestFitMergeList[None](GEOMETRY, window, 500)
    for arrived_ms in (300, 100, 400, 0, 200, 10, 20, 110, 210, 310, 410):
        add(merge, 110 * KIB, arrived_ms)
    for _ in range(large):
        add(merge, 1 << 20, now_ms=450)
    while merge.plan(450) is not None:
        pass
    assert len(merge)
    while (due_ms := merge.next_deadline_ms()) is not None:
        assert merge.plan(due_ms - 1) is None
        plan = merge.plan(due_ms)
        assert plan is not None
        assert min(placed.candidate.arrived_ms for placed in plan.placed) == due_ms - 500


@pytest.mark.parametrize("names", [True, False])
def test_a_group_of_one_stripe_takes_what_needs_more(names: bool) -> None:
    merge = BestFitMergeList[None](GEOMETRY, 5, 1 << 40, group_stripes=1, names=names)
    rng, packed = random.Random(1), 0
    for _ in range(300):
        add(merge, rng.choice([3_900_000, 2_000_000, 140_000, 70_000, 900]), now_ms=0)
        while (plan := merge.plan(0)) is not None:
            packed += len(plan.placed)
            check_plan(plan, GEOMETRY, names, splits=True)
    assert packed + len(merge) == 300


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fraction_large", [0.0, 0.05, 0.5, 1.0])
def test_no_object_starves(policy: str, fraction_large: float) -> None:
    """Awkward sizes among easy ones: a bound on how many arrive while one waits, while the stream continues."""
    window, rng = 200, random.Random(3)
    merge: MergeList[None] = merge_list(policy, GEOMETRY, window, 2 * window, random.Random(4))
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
            wait_max = max(wait_max, *(arrivals - c.seq for c, _ in plan.placed))
    assert wait_max <= 2.5 * window


@pytest.mark.parametrize("policy", POLICIES)
def test_a_group_below_the_fill_limit_waits_for_the_longer_one(policy: str) -> None:
    half = GEOMETRY.stripe_size // 2
    merge: MergeList[None] = merge_list(policy, GEOMETRY, 1000, Linger(500, 9000, half), random.Random(0))
    for arrived_ms in (0, 100):
        merge.add(Candidate(1000, 20, None, arrived_ms))
    assert merge.next_deadline_ms() == 9000
    assert merge.plan(8999) is None
    plan = merge.plan(9000)
    assert plan is not None
    assert len(plan.placed) == 2, "what has waited for less goes along: the stripe is written anyway"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_group_above_the_fill_limit_waits_for_the_shorter_one(policy: str) -> None:
    size = GEOMETRY.chunk_size // 2
    merge: MergeList[None] = merge_list(
        policy, GEOMETRY, 1000, Linger(500, 9000, GEOMETRY.stripe_size // 2), random.Random(0)
    )
    for _ in range(GEOMETRY.k - 1):
        merge.add(Candidate(size, 20, None, 0))
    assert merge.plan(500) is None
    merge.add(Candidate(size, 20, None, 400))
    assert merge.next_deadline_ms() == 500
    plan = merge.plan(500)
    assert plan is not None
    assert len(plan.placed) == GEOMETRY.k


@pytest.mark.parametrize("policy", POLICIES)
def test_flush_knows_no_fill_limit(policy: str) -> None:
    merge: MergeList[None] = merge_list(
        policy, GEOMETRY, 1000, Linger(500, 9000, GEOMETRY.stripe_size), random.Random(0)
    )
    merge.add(Candidate(1000, 20, None, 0))
    assert merge.plan(1, flush=True) is not None


def test_the_longer_limit_is_never_the_shorter_one() -> None:
    assert Linger(500, 100, 1000).limit_ms(0) == 500

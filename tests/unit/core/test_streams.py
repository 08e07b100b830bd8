"""Invariants G, H and I of nos_ec/core/packing/streams.py, and the rule by which streams are folded."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.merge_list import POLICIES, merge_list
from nos_ec.core.packing.plan import Candidate, GroupPlan, MergeList
from nos_ec.core.packing.streams import StreamedMergeList, StreamOptions, folded
from tests.unit.core.test_packer import check_plan

KIB, MIB = 1 << 10, 1 << 20
GEOMETRY = Geometry(k=2, m=1, chunk_size=16 * KIB)
LINGER_MS = 1000


@dataclass(frozen=True)
class Thing:
    stream: int
    bucket: str = "b"
    prefix: str = ""
    born: float = 0


def sorting(thing: Thing, _now_ms: int) -> tuple[int, str, str, float]:
    return thing.stream, thing.bucket, thing.prefix, thing.born


def new_list(
    streams: int = 4,
    *,
    bytes_min: int = 0,
    gathered_max: int = 100,
    window: int = 40,
    policy: str = "best",
    period_ms: int | None = None,
    bytes_max: int | None = None,
) -> StreamedMergeList[Thing]:
    def plain(share: int) -> MergeList[Thing]:
        return merge_list(policy, GEOMETRY, share, LINGER_MS, random.Random(1))

    options = StreamOptions(streams, gathered_max, period_ms, bytes_max, bytes_min)
    return StreamedMergeList(plain, sorting, window, LINGER_MS, options)


def add(merge: MergeList[Thing], thing: Thing, size: int = 5000, now_ms: int = 0) -> Candidate[Thing]:
    candidate = Candidate(size, 30, thing, now_ms)
    merge.add(candidate)
    return candidate


def plans(merge: MergeList[Thing], now_ms: int, *, flush: bool = False) -> list[GroupPlan[Thing]]:
    found = []
    while (plan := merge.plan(now_ms, flush=flush)) is not None:
        check_plan(plan, GEOMETRY)
        found.append(plan)
    return found


def things(plan: GroupPlan[Thing]) -> list[Thing]:
    return [candidate.payload for candidate, _ in plan.placed]


# --- folding --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("collected", "into"),
    [
        ([50, 50, 50, 50], (0, 1, 2, 3)),
        ([0, 0, 0, 0], (3, 3, 3, 3)),
        ([0, 0, 0, 49], (3, 3, 3, 3)),
        ([49, 50, 50, 50], (1, 1, 2, 3)),
        ([30, 30, 50, 50], (1, 1, 2, 3)),
        ([50, 10, 10, 50], (0, 3, 3, 3)),
        ([50, 50, 50, 49], (0, 1, 2, 2)),
        ([99, 20, 10, 10], (0, 0, 0, 0)),
        ([50], (0,)),
        ([0], (0,)),
    ],
)
def test_a_stream_that_collects_too_little_joins_its_longer_lived_neighbour(
    collected: list[int], into: tuple[int, ...]
) -> None:
    assert folded(collected, 50) == into


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.integers(0, 120))
def test_streams_that_are_packed_apart_collect_enough(collected: list[int], least: int) -> None:
    into = folded(collected, least)
    sums = {place: sum(c for c, p in zip(collected, into, strict=True) if p == place) for place in into}
    assert len(sums) == 1 or min(sums.values()) >= least
    assert all(into[place] == place for place in into), "the one that others join is packed apart itself"
    assert list(into) == sorted(into), "neighbours stay neighbours"


def test_a_small_store_has_one_stream() -> None:
    merge = new_list(bytes_min=50 * MIB)
    for number in range(60):
        add(merge, Thing(number % 4))
    found = plans(merge, 0, flush=True)
    assert {plan.stream for plan in found} == {3}
    assert merge.streams_open == 1
    assert sum(len(plan.placed) for plan in found) == 60


def test_streams_open_when_they_collect_enough_and_close_a_period_after_they_do_not() -> None:
    merge = new_list(bytes_min=200_000, period_ms=1000, gathered_max=1000)
    now_ms = 10_000
    assert plans(merge, now_ms) == []
    for number in range(160):
        add(merge, Thing(number % 4), now_ms=now_ms)
    assert {plan.stream for plan in plans(merge, now_ms + 500)} <= {0, 1, 2, 3}
    assert merge.streams_open == 4
    plans(merge, now_ms + 1000)
    assert merge.streams_open == 4, "they collected enough in the period before"
    plans(merge, now_ms + 2000)
    assert merge.streams_open == 1
    for number in range(160):
        add(merge, Thing(number % 4), now_ms=now_ms + 2000)
    plans(merge, now_ms + 2500)
    assert merge.streams_open == 4
    plans(merge, now_ms - 50_000)
    assert merge.streams_open == 1, "the clock was set back; a period is never longer than it should be"


def test_what_waits_in_a_stream_that_is_folded_goes_to_its_neighbour() -> None:
    merge = new_list(2, bytes_min=100_000, period_ms=100, gathered_max=30)
    now_ms = 1000
    plans(merge, now_ms)
    waiting = {add(merge, Thing(number % 2), now_ms=now_ms).payload for number in range(50)}
    handed = sum(len(plan.placed) for plan in plans(merge, now_ms))
    assert merge.streams_open == 2
    assert plans(merge, now_ms + 200) == []
    assert merge.streams_open == 1
    assert len(merge) == 50 - handed
    rest = plans(merge, now_ms + 200, flush=True)
    assert {plan.stream for plan in rest} == {1}
    assert sum(len(plan.placed) for plan in rest) == 50 - handed
    assert waiting == {Thing(0), Thing(1)}


# --- G: groups of one stream; order -----------------------------------------------------------------------
@pytest.mark.parametrize("policy", POLICIES)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60_000)), max_size=120), st.integers(1, 50))
def test_every_object_is_handed_out_once_in_a_group_of_its_stream(
    policy: str, objects: list[tuple[int, int]], window: int
) -> None:
    merge = new_list(policy=policy, window=window, gathered_max=window)
    added = []
    found: list[GroupPlan[Thing]] = []
    for number, (stream, size) in enumerate(objects):
        added.append(add(merge, Thing(stream, born=number), size))
        if number % 7 == 0:
            found += plans(merge, 0)
        assert len(merge) == len(added) - sum(len(plan.placed) for plan in found)
    found += plans(merge, 0, flush=True)
    assert len(merge) == merge.waiting_bytes == 0
    assert merge.next_deadline_ms() is None
    assert all(thing.stream == plan.stream for plan in found for thing in things(plan)), "G"
    assert sorted(thing.born for plan in found for thing in things(plan)) == list(range(len(objects)))
    assert not any(candidate.waiting for candidate in added)


def test_objects_of_a_prefix_lie_together() -> None:
    merge = new_list(1, window=8, gathered_max=800)
    order = [Thing(0, bucket, f"p{prefix}", born) for bucket in "ab" for prefix in range(8) for born in range(50)]
    shuffled = order.copy()
    random.Random(2).shuffle(shuffled)
    for thing in shuffled:
        add(merge, thing, 3000)
    found = [things(plan) for plan in plans(merge, 0, flush=True)]
    assert len(found) > 30
    kinds = [len({(thing.bucket, thing.prefix) for thing in group}) for group in found]
    assert max(kinds) <= 3, "a window reaches from one prefix into the next"
    assert sum(kinds) / len(kinds) < 1.7


# --- H: deadlines ------------------------------------------------------------------------------------------
def test_objects_gather_for_half_of_the_deadline_and_are_packed_by_its_end() -> None:
    merge = new_list()
    add(merge, Thing(0), now_ms=5000)
    assert merge.next_deadline_ms() == 5000 + LINGER_MS // 2
    assert plans(merge, 5000 + LINGER_MS // 2 - 1) == []
    assert plans(merge, 5000 + LINGER_MS // 2) == []
    assert merge.next_deadline_ms() == 5000 + LINGER_MS
    assert [things(plan) for plan in plans(merge, 5000 + LINGER_MS)] == [[Thing(0)]]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9), st.integers(1, 60_000)), max_size=200))
def test_no_order_delays_an_object_beyond_its_deadline(objects: list[tuple[int, int, int]]) -> None:
    """Objects are sorted by bucket, so those that came first may be the last to reach the merge lists."""
    merge = new_list(2, window=1000, gathered_max=1000)
    now_ms = 0

    def pack() -> None:
        for plan in plans(merge, now_ms):
            assert all(now_ms <= candidate.arrived_ms + LINGER_MS for candidate, _ in plan.placed)

    for wait_ms, bucket, size in objects:
        while (due_ms := merge.next_deadline_ms()) is not None and due_ms <= now_ms + wait_ms:
            now_ms = max(now_ms, due_ms)
            pack()
        now_ms += wait_ms
        add(merge, Thing(bucket % 2, f"b{bucket}"), size, now_ms)
        pack()
    while (due_ms := merge.next_deadline_ms()) is not None:
        now_ms = max(now_ms, due_ms)
        pack()
    assert len(merge) == 0


# --- I: bounds ---------------------------------------------------------------------------------------------
def test_no_more_than_the_window_waits_beside_what_gathers() -> None:
    window, gathered_max = 40, 100
    merge = new_list(window=window, gathered_max=gathered_max)
    rng = random.Random(3)
    for number in range(3000):
        add(merge, Thing(rng.randrange(4), born=number), rng.randrange(1, 20_000))
        if number % 10 == 9:
            plans(merge, 0)
            groups = 4 * (GEOMETRY.group_size_max // 10_000 + window)
            assert len(merge) <= gathered_max + window + groups
    assert sum(merge.stream_bytes) > 3000 * 5000


@pytest.mark.parametrize("streams", [2, 4])
def test_large_objects_are_packed_in_long_groups_before_the_list_is_full(streams: int) -> None:
    """I. A list that is full without having a group hands out none but on flush."""
    geometry, bytes_max = Geometry(), 1 << 30

    def plain(share: int) -> MergeList[Thing]:
        return merge_list("best", geometry, share, LINGER_MS, random.Random(1))

    options = StreamOptions(streams, 2000, None, bytes_max)
    merge = StreamedMergeList(plain, sorting, 1000, LINGER_MS, options)
    rng, found = random.Random(1), []
    for number in range(1500):
        add(merge, Thing(rng.randrange(streams), born=number), rng.randint(MIB, merge.size_max))
        while (plan := merge.plan(0)) is not None:
            found.append(plan)
        assert merge.waiting_bytes < bytes_max
    assert {plan.stream for plan in found} == set(range(streams))
    stripes = sum(plan.stripe_count for plan in found)
    assert sum(plan.data_length for plan in found) > 0.985 * stripes * geometry.stripe_size
    assert stripes > 8 * len(found)


def test_all_objects_can_be_taken_back() -> None:
    merge = new_list(window=8, gathered_max=20)
    added = [add(merge, Thing(number % 4, born=number), now_ms=number) for number in range(50)]
    handed = {candidate for plan in plans(merge, 49) for candidate, _ in plan.placed}
    taken = merge.take_all()
    assert taken == [candidate for candidate in added if candidate not in handed]
    assert len(merge) == merge.waiting_bytes == 0
    for candidate in taken:
        merge.add(candidate)
    assert {c for plan in plans(merge, 49, flush=True) for c, _ in plan.placed} == set(taken)


def test_a_candidate_is_added_once() -> None:
    merge = new_list()
    candidate = add(merge, Thing(0))
    with pytest.raises(ValueError, match="already waits"):
        merge.add(candidate)
    with pytest.raises(ValueError, match="can be packed"):
        add(merge, Thing(0), merge.size_max + 1)
    assert len(merge) == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window", [(20, None), (1000, 64 * KIB)])
def test_a_window_can_be_changed(policy: str, window: tuple[int, int | None]) -> None:
    merge: MergeList[Thing] = merge_list(policy, Geometry(), 1000, 10_000, random.Random(1))
    for number in range(999):
        add(merge, Thing(0, born=number))
    assert merge.plan(0) is None
    merge.set_window(*window)
    plan = merge.plan(0)
    assert plan is not None
    assert len(merge) == 999 - len(plan.placed)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_waits_is_packed_in_short_groups_after_a_long_one_failed(policy: str) -> None:
    """It does not matter where it waits; what arrives later is packed in long groups again."""
    short = GEOMETRY.stripes_per_group_max
    merge = new_list(streams=2, gathered_max=60, window=30, policy=policy)
    for number in range(200):
        add(merge, Thing(number % 2, born=number), GEOMETRY.stripe_size)
    merge.shorten()
    assert all(plan.stripe_count <= short for plan in plans(merge, 0, flush=True))
    for number in range(200):
        add(merge, Thing(number % 2, born=number), GEOMETRY.stripe_size)
    assert (max(plan.stripe_count for plan in plans(merge, 0, flush=True)) > short) == (policy == "best")

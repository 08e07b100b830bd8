"""Slots of buckets, and who should hold them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.formats.messages import partition_for
from nos_ec.core.publishing.slots import (
    ALL_SLOTS,
    SLOTS,
    SlotPlan,
    bucket_slot,
    is_member_lease,
    is_producer_lease,
    leased_slot,
    member_lease,
    plan_slots,
    slot_lease,
)


def test_the_slot_of_a_bucket_never_changes() -> None:
    """It stands in the rows of every store."""
    buckets = ["photos", "b", "bucket-0", "bucket-1", "\N{SNOWMAN}", "x" * 255]
    assert [bucket_slot(bucket) for bucket in buckets] == [4, 9, 8, 1, 0, 14]


def test_buckets_spread_over_slots_and_each_slot_over_partitions() -> None:
    buckets = [f"bucket-{number}" for number in range(16_000)]
    counts = Counter(map(bucket_slot, buckets))
    assert counts.keys() == ALL_SLOTS
    assert 850 < min(counts.values()) <= max(counts.values()) < 1150
    partitions = Counter(partition_for(bucket, 8) for bucket in buckets if bucket_slot(bucket) == 3)
    assert 90 < min(partitions.values()) <= max(partitions.values()) < 165
    assert len(partitions) == 8


@pytest.mark.parametrize("slot", sorted(ALL_SLOTS))
def test_leases_of_slots(slot: int) -> None:
    assert leased_slot(slot_lease(slot)) == slot
    assert is_producer_lease(slot_lease(slot))
    assert not is_member_lease(slot_lease(slot))


@given(st.text() | st.from_regex(r"producer-slots-.*"))
def test_any_other_lease_belongs_to_no_slot(name: str) -> None:
    slot = leased_slot(name)
    assert slot is None or slot_lease(slot) == name


def test_leases_of_members() -> None:
    assert is_member_lease(member_lease("producer-host-1"))
    assert is_producer_lease(member_lease("x"))
    assert leased_slot(member_lease("slots-01")) is None
    for writer in ("consumer-host-1-0f", "gc", "put-1", "producer"):
        assert not is_producer_lease(writer)


def test_one_member_takes_all() -> None:
    assert plan_slots(set(), ALL_SLOTS, 0, 1) == SlotPlan((), tuple(range(SLOTS)))
    assert plan_slots(set(ALL_SLOTS), (), 0, 1) == SlotPlan((), ())


def test_a_member_with_too_many_gives_some_up_and_takes_none() -> None:
    assert plan_slots({0, 1, 2, 3, 4, 5, 6}, {9}, 2, 3) == SlotPlan((5, 6), ())
    assert plan_slots({0, 1, 2, 3, 4, 5, 6}, {9}, 0, 3) == SlotPlan((6,), ())


def test_new_members_try_for_different_slots() -> None:
    takes = [plan_slots(set(), ALL_SLOTS, rank, 4).take for rank in range(4)]
    assert sorted(slot for take in takes for slot in take) == sorted(ALL_SLOTS)


def test_some_get_none_when_there_are_more_than_slots() -> None:
    takes = [plan_slots(set(), ALL_SLOTS, rank, 20).take for rank in range(20)]
    assert [len(take) for take in takes] == [1] * 16 + [0] * 4


@given(
    st.lists(st.integers(0, 24), min_size=SLOTS, max_size=SLOTS),
    st.integers(1, 24),
    st.lists(st.integers(0, 23), min_size=60, max_size=60),
)
def test_all_slots_are_soon_held_evenly(owners: list[int], members: int, turns: list[int]) -> None:
    """This holds whatever the start and the order of turns. An owner that is not a member is dead, so its slots are
    free."""
    held = {rank: {slot for slot, owner in enumerate(owners) if owner == rank} for rank in range(members)}

    def turn(rank: int) -> bool:
        free = ALL_SLOTS.difference(*held.values())
        plan = plan_slots(held[rank], free, rank, members)
        assert set(plan.give_up) <= held[rank]
        assert set(plan.take) <= free
        assert not (plan.give_up and plan.take)
        held[rank] = held[rank] - set(plan.give_up) | set(plan.take)
        return bool(plan.give_up or plan.take)

    for rank in turns:
        turn(rank % members)
    for _ in range(2):
        for rank in range(members):
            turn(rank)
    assert [turn(rank) for rank in range(members)] == [False] * members, "it comes to rest"
    assert sum(map(len, held.values())) == SLOTS
    counts = [len(slots) for slots in held.values()]
    assert max(counts) - min(counts) <= 1

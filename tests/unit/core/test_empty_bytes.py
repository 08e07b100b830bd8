"""What a group leaves empty: in front, between objects, at its end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.geometry import CHUNK_SIZE_MAX, PAGE, Geometry
from nos_ec.core.packing.empty_bytes import EmptyBytes, empty_bytes
from nos_ec.core.packing.merge_list import POLICIES, merge_list
from nos_ec.core.packing.plan import Candidate, GroupPlan, MergeList
from nos_ec.core.packing.splits import SPLIT_BYTES

GEOMETRY = Geometry()
CHUNK, STRIPE = GEOMETRY.chunk_size, GEOMETRY.stripe_size


def of_plan(plan: GroupPlan[None]) -> EmptyBytes:
    first, last = plan.placed[0], plan.placed[-1]
    return empty_bytes(GEOMETRY, plan.stripe_count, first.offset, last.offset + last.candidate.size, plan.data_length)


@pytest.mark.parametrize(
    ("first", "last_end", "data_length", "empty"),
    [
        (2 * PAGE, 2 * PAGE + 1000, 1000, EmptyBytes(2 * PAGE, CHUNK - 2 * PAGE - 1000, STRIPE - CHUNK)),
        (CHUNK, STRIPE, STRIPE - CHUNK, EmptyBytes(CHUNK, 0, 0)),
        (PAGE, 3 * CHUNK, 3 * CHUNK - PAGE - 500, EmptyBytes(PAGE, 500, STRIPE - 3 * CHUNK)),
    ],
)
def test_examples(first: int, last_end: int, data_length: int, empty: EmptyBytes) -> None:
    assert empty_bytes(GEOMETRY, 1, first, last_end, data_length) == empty


def test_sums() -> None:
    assert EmptyBytes(1, 2, 3) + EmptyBytes(10, 20, 30) == EmptyBytes(11, 22, 33)


@given(
    policy=st.sampled_from(POLICIES),
    sizes=st.lists(st.integers(1, 3 * CHUNK) | st.just(70_000), min_size=1, max_size=60),
    price=st.sampled_from([0, SPLIT_BYTES, CHUNK_SIZE_MAX]),
)
def test_what_is_empty_adds_up(policy: str, sizes: list[int], price: int) -> None:
    merge: MergeList[None] = merge_list(policy, GEOMETRY, 50, 1000, random.Random(1), split_bytes=price)
    for size in sizes:
        merge.add(Candidate(size, 44, None, 0))
    while (plan := merge.plan(0, flush=True)) is not None:
        empty = of_plan(plan)
        assert empty.front >= plan.header_length + plan.names_room
        assert 0 <= empty.end < STRIPE
        assert empty.end % CHUNK == 0
        assert empty.front + empty.gap + empty.end + plan.data_length == plan.stripe_count * STRIPE

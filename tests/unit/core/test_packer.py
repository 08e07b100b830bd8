"""Invariants A to D of nos_ec/core/packing/packer.py, for both policies, over sizes, names, windows and geometries."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.errors import InvalidInput
from nos_ec.core.formats.header import header_length, names_size_max
from nos_ec.core.geometry import CHUNK_SIZE_MAX, PAGE, Geometry
from nos_ec.core.packing.merge_list import POLICIES, merge_list
from nos_ec.core.packing.packer import ATTRIBUTES_ROOM, NAME_RECORD_MAX, PLAIN_RECORD_MAX, size_max
from nos_ec.core.packing.plan import Candidate, GroupPlan, MergeList, P
from nos_ec.core.packing.splits import SPLIT_BYTES

KIB = 1024
NEVER = CHUNK_SIZE_MAX
"""A price for which no object is split."""
GEOMETRIES = (
    Geometry(),
    Geometry(k=4, m=2),
    Geometry(k=8, m=4),
    Geometry(chunk_size=16 * KIB),
    Geometry(k=4, m=2, chunk_size=20 * KIB, stripes_per_group_max=3),
    Geometry(k=2, m=1, chunk_size=16 * KIB, stripes_per_group_max=1),
    Geometry(k=1, m=1, chunk_size=16 * KIB, stripes_per_group_max=2),
    Geometry(k=1, m=1, chunk_size=16 * KIB, stripes_per_group_max=1),
)


def check_plan(plan: GroupPlan[P], geometry: Geometry, names: bool = True, splits: bool = False) -> None:
    """Assert everything that a stripe writer relies on. splits: whether objects may touch a chunk too many."""
    candidates = [candidate for candidate, _ in plan.placed]
    assert candidates
    assert plan.header_length == header_length(len(candidates))
    names_needed = names_size_max(sum(c.name_size for c in candidates)) if names else 0
    assert plan.names_room == names_needed
    assert plan.data_length == sum(c.size for c in candidates)
    assert 1 <= plan.stripe_count <= geometry.stripes_per_block
    end = plan.header_length + plan.names_room
    for candidate, offset in plan.placed:
        assert offset >= end, "invariants B and C"
        end = offset + candidate.size
        fewest = -(-candidate.size // geometry.chunk_size)
        assert geometry.chunks_touched(offset, candidate.size) <= fewest + splits, "invariant A"
    assert end <= plan.stripe_count * geometry.stripe_size, "invariant B"


def drain(merge: MergeList[P], now_ms: int = 0) -> list[GroupPlan[P]]:
    plans = []
    while (plan := merge.plan(now_ms, flush=True)) is not None:
        assert plan.placed, "every plan makes progress"
        plans.append(plan)
    return plans


def boundary_sizes(geometry: Geometry) -> list[int]:
    chunk, stripe, limit = geometry.chunk_size, geometry.stripe_size, size_max(geometry)
    near = (1, 2, PAGE, chunk - PAGE, chunk - 1, chunk, chunk + 1, 2 * chunk, stripe - chunk, stripe - chunk + 1)
    more = (stripe - PAGE, stripe - 1, stripe, stripe + 1, limit - chunk, limit - 1, limit)
    return sorted({size for size in near + more if 1 <= size <= limit})


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[Geometry, list[tuple[int, int]]]:
    geometry = draw(st.sampled_from(GEOMETRIES))
    limit = size_max(geometry)
    chunk = min(geometry.chunk_size, limit)
    size = st.one_of(
        st.integers(1, limit),
        st.integers(1, chunk),
        st.integers(1, 300),
        st.integers(max(1, chunk - PAGE - 100), chunk),
        st.sampled_from(boundary_sizes(geometry)),
    )
    name_size = st.one_of(
        st.integers(6, 80), st.integers(0, PLAIN_RECORD_MAX), st.just(NAME_RECORD_MAX), st.integers(0, NAME_RECORD_MAX)
    )
    return geometry, [
        (min(size, limit_with(limit, name_size)), name_size)
        for size, name_size in draw(st.lists(st.tuples(size, name_size), max_size=120))
    ]


def limit_with(limit: int, name_size: int) -> int:
    return limit - ATTRIBUTES_ROOM if name_size > PLAIN_RECORD_MAX else limit


@settings(max_examples=120, deadline=None)
@given(
    backlog=backlogs(),
    policy=st.sampled_from(POLICIES),
    window=st.integers(1, 60),
    names=st.booleans(),
    seed=st.integers(0, 3),
    price=st.sampled_from([0, 1 * KIB, SPLIT_BYTES, NEVER]),
)
def test_everything_is_planned_exactly_once_in_valid_groups(
    backlog: tuple[Geometry, list[tuple[int, int]]], policy: str, window: int, names: bool, seed: int, price: int
) -> None:
    """Objects arrive and groups are taken in turns; then the rest is flushed."""
    geometry, objects = backlog
    merge: MergeList[int] = merge_list(
        policy, geometry, window, 50, random.Random(seed), names=names, split_bytes=price
    )
    plans: list[GroupPlan[int]] = []
    waiting = 0
    for now_ms, (size, name_size) in enumerate(objects):
        merge.add(Candidate(size, name_size, now_ms, now_ms))
        waiting += size
        while (plan := merge.plan(now_ms)) is not None:
            plans.append(plan)
            waiting -= plan.data_length
        assert merge.waiting_bytes == waiting
    plans += drain(merge, len(objects))
    for plan in plans:
        check_plan(plan, geometry, names, splits=price < geometry.chunk_size)
    packed = sorted((c.payload, c.size, c.name_size) for plan in plans for c, _ in plan.placed)
    assert packed == [(i, size, name_size) for i, (size, name_size) in enumerate(objects)]
    assert len(merge) == merge.waiting_bytes == 0
    assert merge.next_deadline_ms() is None
    assert merge.plan(1 << 40, flush=True) is None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_any_accepted_object_can_be_planned_alone(geometry: Geometry, policy: str) -> None:
    """Objects with the longest name are planned, too, in the fewest stripes."""
    for size, name_size in product(boundary_sizes(geometry), [PLAIN_RECORD_MAX, PLAIN_RECORD_MAX + 1, NAME_RECORD_MAX]):
        merge: MergeList[None] = merge_list(policy, geometry, 10, 1000, random.Random(0))
        if size > limit_with(size_max(geometry), name_size):
            with pytest.raises(ValueError, match=f"object of {size} bytes"):
                merge.add(Candidate(size, name_size, None, 0))
            continue
        merge.add(Candidate(size, name_size, None, 0))
        (plan,) = drain(merge)
        check_plan(plan, geometry)
        stripes = geometry.stripes_for(PAGE + names_size_max(name_size) + size)
        if size > geometry.chunk_size or geometry.k > 1:
            assert plan.stripe_count == stripes, "invariant D"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_sizes_at_boundaries_together(geometry: Geometry, policy: str) -> None:
    for seed, price in product(range(5), [0, SPLIT_BYTES, NEVER]):
        sizes = boundary_sizes(geometry) * 3
        random.Random(seed).shuffle(sizes)
        merge: MergeList[None] = merge_list(policy, geometry, 1000, 1000, random.Random(seed), split_bytes=price)
        for size in sizes:
            merge.add(Candidate(size, 44, None, 0))
        plans = drain(merge)
        for plan in plans:
            check_plan(plan, geometry, splits=price < geometry.chunk_size)
        assert sorted(c.size for plan in plans for c, _ in plan.placed) == sorted(sizes)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("geometry", [Geometry(), Geometry(chunk_size=16 * KIB)])
def test_front_that_outgrows_chunks(geometry: Geometry, policy: str) -> None:
    """Tens of thousands of one-byte objects: headers and names take more room than the data, and several chunks."""
    count = 30_000
    merge: MergeList[None] = merge_list(policy, geometry, count, 1000, random.Random(0))
    for _ in range(count):
        merge.add(Candidate(1, 44, None, 0))
    merge.add(Candidate(3 * geometry.chunk_size, 44, None, 0))
    plans = drain(merge)
    for plan in plans:
        check_plan(plan, geometry)
    assert sum(len(plan.placed) for plan in plans) == count + 1
    assert max(plan.header_length + plan.names_room for plan in plans) > 2 * geometry.chunk_size


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [0, -1, size_max(Geometry()) + 1])
def test_sizes_that_cannot_be_packed_are_refused(policy: str, size: int) -> None:
    merge: MergeList[None] = merge_list(policy, Geometry(), 10, 1000, random.Random(0))
    with pytest.raises(ValueError, match=f"object of {size} bytes: only 1 to {merge.size_max} bytes can be packed"):
        merge.add(Candidate(size, 44, None, 0))
    assert len(merge) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_impossible_names_and_double_adds_are_refused(policy: str) -> None:
    merge: MergeList[None] = merge_list(policy, Geometry(), 10, 1000, random.Random(0))
    with pytest.raises(ValueError, match="name record of 9478 bytes"):
        merge.add(Candidate(1, NAME_RECORD_MAX + 1, None, 0))
    candidate = Candidate(1, 44, None, 0)
    merge.add(candidate)
    with pytest.raises(ValueError, match="add each candidate once"):
        merge.add(candidate)
    assert len(merge) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_candidate_may_come_back_after_its_plan_was_dropped(policy: str) -> None:
    """The stripe writer adds objects again when the rest of their group could not be read."""
    merge: MergeList[int] = merge_list(policy, Geometry(), 10, 1000, random.Random(0))
    candidates = [Candidate(100 + i, 44, i, 0) for i in range(5)]
    for candidate in candidates:
        merge.add(candidate)
    assert merge.plan(0, flush=True) is not None
    for candidate in reversed(candidates):
        merge.add(candidate)
    (plan,) = drain(merge)
    check_plan(plan, Geometry())
    assert sorted(c.payload for c, _ in plan.placed) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("policy", POLICIES)
def test_same_input_same_plans(policy: str) -> None:
    def run() -> list[list[tuple[object, int]]]:
        rng = random.Random(5)
        merge: MergeList[int] = merge_list(policy, Geometry(), 50, 100, random.Random(9))
        for i in range(400):
            merge.add(Candidate(rng.randint(1, 300_000), 44, i, i))
        return [[(c.payload, offset) for c, offset in plan.placed] for plan in drain(merge)]

    assert run() == run()


def test_factory_refuses_unknown_policies() -> None:
    with pytest.raises(InvalidInput, match="choose one of: best, nos"):
        merge_list("worst", Geometry(), 10, 10, random.Random(0))
    with pytest.raises(InvalidInput, match="window is 0"):
        merge_list("best", Geometry(), 0, 10, random.Random(0))
    with pytest.raises(InvalidInput, match="linger is -1"):
        merge_list("nos", Geometry(), 10, -1, random.Random(0))

"""GroupLayout alone, at its limits: invariants A to D hold, whatever it accepts in whatever order."""

from __future__ import annotations

import random

import pytest

from nos_ec.core.formats.header import header_length
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.packing.merge_list import BestFitMergeList
from nos_ec.core.packing.packer import NAME_RECORD_MAX, GroupLayout, Row
from nos_ec.core.packing.plan import Candidate, GroupPlan

CHUNK = 16 * 1024
SMALL_CHUNKS = Geometry(k=4, m=2, chunk_size=CHUNK)


def check_layout(plan: GroupPlan[None], geometry: Geometry) -> None:
    end = plan.header_length + plan.names_room
    assert plan.header_length == header_length(len(plan.placed))
    for candidate, offset in plan.placed:
        assert offset >= end, "invariants B and C"
        end = offset + candidate.size
        assert geometry.chunks_touched(offset, candidate.size) == -(-candidate.size // geometry.chunk_size)
    assert end <= plan.stripe_count * geometry.stripe_size


def opened(layout: GroupLayout[None], size: int) -> Row[None]:
    """A new row, begun with an object of that many bytes and no name."""
    into = layout.open(Candidate(size, 0, None, 0))
    assert into is not None
    return into


def use_up_allowance(layout: GroupLayout[None], rng: random.Random) -> None:
    """Spend one of the three limits to the last, and as much of the others as goes with it."""
    into = rng.choice(layout.rows)
    allowed = layout.allowance(into)
    spend = rng.choice(["entries", "names", "room"])
    entries = min(allowed.entries, max(0, allowed.room))
    if spend == "names":
        entries = min(entries, max(1, allowed.names // NAME_RECORD_MAX))
    if spend == "room":
        entries = min(entries, 3)
    if entries < 1:
        return
    sizes = [1] * entries
    if spend != "entries":
        sizes[0] = allowed.room - entries + 1
    names_each = min(NAME_RECORD_MAX, allowed.names // entries)
    candidates = [Candidate(size, names_each, None, 0) for size in sizes]
    layout.extend(into, candidates, sum(sizes), names_each * entries)


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("geometry", [SMALL_CHUNKS, Geometry(k=2, m=1, chunk_size=CHUNK), Geometry(k=8, m=3)])
def test_full_use_of_every_allowance(geometry: Geometry, names: bool) -> None:
    chunk = geometry.chunk_size
    for seed in range(150 if chunk == CHUNK else 25):
        rng = random.Random(seed)
        layout = GroupLayout[None](geometry, rng.randint(1, geometry.stripes_per_group_max), names=names)
        for _ in range(60):
            size = rng.choice([1, 100, chunk - PAGE, chunk, rng.randint(1, chunk), rng.randint(1, 3 * chunk)])
            candidate = Candidate(size, rng.choice([5, 44, NAME_RECORD_MAX]), None, 0)
            if layout.chunks_free and rng.random() < 0.5:
                layout.open(candidate)
            elif layout.rows and size > chunk:
                layout.chain(rng.choice(layout.rows), candidate)
            if layout.rows:
                for _ in range(rng.choice([0, 0, 1, 20])):
                    use_up_allowance(layout, rng)
        if layout.rows:
            check_layout(layout.seal(), geometry)


@pytest.mark.parametrize("size", [CHUNK // 2, 2 * CHUNK + CHUNK // 2])
def test_front_pushes_the_bin_that_it_reaches(size: int) -> None:
    """It does so while the row has room, whether or not it has large objects, and not by a byte more."""
    layout = GroupLayout[None](SMALL_CHUNKS, 1, names=False)
    into = opened(layout, size)
    first = layout.chunks_free
    while (allowed := layout.allowance(into)).room > 0:
        count = min(allowed.entries, allowed.room)
        layout.extend(into, [Candidate(1, 0, None, 0) for _ in range(count)], count, 0)
    assert layout.front_size() > first * CHUNK
    assert not layout.open(Candidate(CHUNK, 0, None, 0))
    plan = layout.seal()
    check_layout(plan, SMALL_CHUNKS)
    assert plan.placed[0].offset == plan.header_length
    assert plan.header_length + plan.data_length + PAGE > SMALL_CHUNKS.stripe_size


def test_large_object_right_behind_the_front() -> None:
    """An object of k chunks in a single stripe starts after the header, and the next object shares its last chunk."""
    layout = GroupLayout[None](SMALL_CHUNKS, 1, names=False)
    assert not layout.open(Candidate(4 * CHUNK - PAGE + 1, 0, None, 0)), "it would need a fifth chunk"
    into = opened(layout, 3 * CHUNK + 100)
    assert layout.allowance(into).room == CHUNK - PAGE - 100
    layout.extend(into, [Candidate(CHUNK - PAGE - 100, 0, None, 0)], CHUNK - PAGE - 100, 0)
    plan = layout.seal()
    assert [offset for _, offset in plan.placed] == [PAGE, PAGE + 3 * CHUNK + 100]
    check_layout(plan, SMALL_CHUNKS)


def test_chained_large_objects_share_a_chunk() -> None:
    layout = GroupLayout[None](SMALL_CHUNKS, 2, names=False)
    into = opened(layout, 2 * CHUNK + 1000)
    assert not layout.chain(into, Candidate(CHUNK + CHUNK - 999, 0, None, 0)), "the rests sum to a byte over a chunk"
    assert layout.chain(into, Candidate(CHUNK + CHUNK - 1000, 0, None, 0))
    assert layout.allowance(into).room == 0
    plan = layout.seal()
    check_layout(plan, SMALL_CHUNKS)
    assert plan.stripe_count == 2
    assert len({offset // CHUNK for _, offset in plan.placed}) == 2


def test_stripes_without_data_are_left_out() -> None:
    layout = GroupLayout[None](SMALL_CHUNKS, 4, names=False)
    assert layout.open(Candidate(100, 0, None, 0))
    assert layout.seal().stripe_count == 1


def test_overlaps_are_never_sealed() -> None:
    """A policy that takes more than its allowance is stopped before anything is written."""
    layout = GroupLayout[None](SMALL_CHUNKS, 1, names=False)
    layout.extend(opened(layout, 100), [Candidate(CHUNK, 0, None, 0)], CHUNK, 0)
    with pytest.raises(AssertionError, match="a row is longer than its chunks"):
        layout.seal()
    layout = GroupLayout[None](SMALL_CHUNKS, 1, names=False)
    assert layout.open(Candidate(3 * CHUNK + 100, 0, None, 0))
    layout.extend(layout.rows[0], [Candidate(1, 0, None, 0)] * CHUNK, 0, 0)
    with pytest.raises(AssertionError, match="a group is longer than its stripes"):
        layout.seal()


def test_front_lies_in_the_emptiest_bin() -> None:
    """No matter when that row was opened, so that the others may be filled to the last byte."""
    layout = GroupLayout[None](SMALL_CHUNKS, 1, names=False)
    emptiest = opened(layout, CHUNK - PAGE)
    for _ in range(2):
        opened(layout, CHUNK)
    last = opened(layout, CHUNK - 7)
    assert layout.chunks_free == 0
    assert layout.allowance(emptiest).room == 0
    assert layout.allowance(last).room == 7
    layout.extend(last, [Candidate(7, 0, None, 0)], 7, 0)
    plan = layout.seal()
    check_layout(plan, SMALL_CHUNKS)
    assert plan.placed[0].candidate.size == CHUNK - PAGE
    assert plan.header_length + plan.data_length == SMALL_CHUNKS.stripe_size


@pytest.mark.parametrize(
    ("others", "stripes", "split_objects"), [(0, 1, 2), (4, 2, 2), (3, 2, 1), (2, 2, 0), (1, 2, 0)]
)
def test_rows_are_divided_as_far_as_the_last_stripe_has_chunks(others: int, stripes: int, split_objects: int) -> None:
    """Six objects of more than half a chunk take four chunks end to end, and six if none is split."""
    size = CHUNK // 2 + 1000
    layout = GroupLayout[None](SMALL_CHUNKS, 4, names=False)
    for _ in range(others):
        opened(layout, CHUNK)
    into = opened(layout, size)
    assert layout.widen(into, 3)
    layout.extend(into, [Candidate(size, 0, None, 0) for _ in range(5)], 5 * size, 0)
    layout.unsplit()
    plan = layout.seal()
    assert (plan.stripe_count, plan.split_objects, len(plan.placed)) == (stripes, split_objects, 6 + others)
    assert [offset for _, offset in plan.placed] == sorted(offset for _, offset in plan.placed)


def test_large_objects_of_a_divided_row_stay_in_their_chunks() -> None:
    layout = GroupLayout[None](SMALL_CHUNKS, 2, names=True)
    into = opened(layout, 2 * CHUNK + CHUNK // 2 + 1)
    assert layout.widen(into, 1)
    assert layout.chain(into, Candidate(CHUNK + CHUNK // 2 + 1, 60, None, 0))
    layout.extend(into, [Candidate(100, 60, None, 0)], 100, 60)
    layout.unsplit()
    plan = layout.seal()
    assert (plan.stripe_count, plan.split_objects, len(plan.placed)) == (2, 0, 3)
    check_layout(plan, SMALL_CHUNKS)


@pytest.mark.parametrize("size", [43_700, 70_000, 90_000, 100_000, 200_000])
@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_a_group_that_is_closed_early_splits_nothing_for_nothing(size: int, count: int) -> None:
    """Its last stripe is written whole, so chunks that stay empty save no space."""
    plans = []
    for price in (16 * 1024, 128 * 1024):
        merge = BestFitMergeList[None](Geometry(), 1000, 1000, split_bytes=price)
        for _ in range(count):
            merge.add(Candidate(size, 60, None, 0))
        plan = merge.plan(2000)
        assert plan is not None
        plans.append(plan)
    split, whole = plans
    assert split.stripe_count <= whole.stripe_count
    if (split.stripe_count, len(split.placed)) == (whole.stripe_count, len(whole.placed)):
        assert not split.split_objects


def test_limit_gives_up_whole_stripes_only() -> None:
    layout = GroupLayout[None](SMALL_CHUNKS, 4, names=False)
    opened(layout, CHUNK)
    layout.limit(3 * CHUNK, PAGE)
    assert layout.chunks_free == 2 * 4 - 1, "the front has no room in a full chunk"
    layout.limit(CHUNK, PAGE)
    assert layout.chunks_free == 4 - 1
    layout.limit(100 * CHUNK, PAGE)
    assert layout.chunks_free == 4 - 1, "what was given up does not come back"
    assert not layout.open(Candidate(3 * CHUNK + 1, 0, None, 0))


@pytest.mark.parametrize("window", [1, 20, 200])
def test_long_waits_with_all_kinds_of_names(window: int) -> None:
    """A long stream of tiny objects with long names among others, so that overdue objects meet a tight front."""
    rng = random.Random(window)
    merge = BestFitMergeList[None](SMALL_CHUNKS, window, 1 << 40)
    packed = 0
    for i in range(6000):
        size = rng.choice([1, 1, 1, 900, rng.randint(1, CHUNK), rng.randint(1, 4 * CHUNK)])
        merge.add(Candidate(size, rng.choice([5, 44, 300, NAME_RECORD_MAX]), None, i))
        while (plan := merge.plan(i)) is not None:
            check_layout(plan, SMALL_CHUNKS)
            packed += len(plan.placed)
    assert packed + len(merge) == 6000
    assert packed > 5000


def test_an_overdue_object_behind_another_of_its_class() -> None:
    """The first of the class is 5 bytes too large for the room, the second fits: the right one is taken."""
    geometry, kib = Geometry(), 1024
    merge = BestFitMergeList[None](geometry, 1000, 10, names=False)
    sizes = [28 * kib - 20, 100 * kib + 25, 100 * kib + 15]
    for size in sizes:
        merge.add(Candidate(size, 0, None, 0))
    plan = merge.plan(10)
    assert plan is not None
    check_layout(plan, geometry)
    chunk_of = {c.size: offset // geometry.chunk_size for c, offset in plan.placed}
    assert chunk_of[sizes[0]] == chunk_of[sizes[2]] != chunk_of[sizes[1]]
    assert len(merge) == 0

"""The choice of a place. It is pure, so every rule is tried on hand-made and on random maps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.adapters.rados.placement.object_hash import object_hash, placement_group, stable_mod
from nos_ec.core.ids import BlockId
from nos_ec.core.placement import (
    NO_OSD,
    ClusterMap,
    Condition,
    Fullness,
    Grade,
    Group,
    Osd,
    Place,
    choose,
    condition,
)

CLEAN = frozenset({"active", "clean"})
DEGRADED = frozenset({"active", "undersized", "degraded"})
WRITABLE_MIN = 3


def osds(*fills: float, **changed: Osd) -> dict[int, Osd]:
    """OSDs 0, 1, ... with these fill ratios; osd_3=Osd(...) replaces one."""
    made = {number: Osd(is_up=True, is_in=True, fill_ratio=fill) for number, fill in enumerate(fills)}
    return made | {int(name.removeprefix("osd_")): osd for name, osd in changed.items()}


def cluster(known: dict[int, Osd], *groups: tuple[frozenset[str], tuple[int, ...]]) -> ClusterMap:
    return ClusterMap(
        group_count=max(1, len(groups)),
        writable_min=WRITABLE_MIN,
        osds=known,
        groups={number: Group(words, acting) for number, (words, acting) in enumerate(groups)},
    )


def place(group: int) -> Place:
    return Place(BlockId(bytes([group]) * 16), group)


def chosen(known: ClusterMap, *groups: int) -> int | None:
    found = choose(known, [place(group) for group in groups or range(len(known.groups))])
    return None if found is None else found.group


DOWN = Osd(is_up=False, is_in=True)


def test_the_least_full_of_the_clean_places_is_chosen() -> None:
    known = cluster(osds(0.5, 0.3, 0.2, 0.2, 0.4), (CLEAN, (0, 2, 3)), (CLEAN, (1, 2, 3)), (CLEAN, (4, 2, 3)))
    assert chosen(known) == 1


def test_with_the_same_fullest_osd_the_next_fullest_decides() -> None:
    known = cluster(osds(0.9, 0.5, 0.2, 0.4), (CLEAN, (0, 1, 2)), (CLEAN, (0, 2, 3)))
    assert chosen(known) == 1


def test_the_first_of_equals_is_chosen() -> None:
    known = cluster(osds(0.5, 0.5, 0.5), (CLEAN, (0, 1, 2)), (CLEAN, (2, 1, 0)))
    assert chosen(known, 0, 1) == 0
    assert chosen(known, 1, 0) == 1


@pytest.mark.parametrize(
    "worse",
    [
        (DEGRADED, (0, 1, 2, NO_OSD)),
        (frozenset({"active", "remapped", "backfilling"}), (0, 1, 2)),
        (CLEAN, (0, 1, 2, 5)),  # dead, and the group has not said so yet
        (CLEAN, (0, 1, 6)),  # nearly full
        (CLEAN, (0, 1, 7)),  # being emptied
        (CLEAN, (0, 1, 8)),  # full
        (frozenset({"peering"}), (0, 1, 2)),
        (frozenset({"stale", "active", "clean"}), (0, 1, 2)),
    ],
)
def test_a_clean_place_comes_before_any_other_however_full(worse: tuple[frozenset[str], tuple[int, ...]]) -> None:
    known = osds(
        0.0,
        0.0,
        0.0,
        0.8,
        0.8,
        osd_5=DOWN,
        osd_6=Osd(is_up=True, is_in=True, fullness=Fullness.NEARLY),
        osd_7=Osd(is_up=True, is_in=False),
        osd_8=Osd(is_up=True, is_in=True, fullness=Fullness.FULL),
    )
    assert chosen(cluster(known, worse, (CLEAN, (2, 3, 4)))) == 1


def test_without_a_clean_place_the_one_missing_the_fewest_osds_is_chosen() -> None:
    known = cluster(
        osds(0.1, 0.1, 0.1, 0.9),
        (DEGRADED, (0, 1, 2, NO_OSD, NO_OSD)),
        (DEGRADED, (0, 1, 2, 3, NO_OSD)),
    )
    assert chosen(known) == 1


def test_a_full_place_comes_after_writable_ones_and_before_inactive_ones() -> None:
    known = osds(0.1, 0.1, 0.1, osd_3=Osd(is_up=True, is_in=True, fullness=Fullness.FULL))
    assert chosen(cluster(known, (CLEAN, (0, 1, 3)), (DEGRADED, (0, 1, 2, NO_OSD)))) == 1
    assert chosen(cluster(known, (frozenset({"down"}), (0, 1, 2)), (CLEAN, (0, 1, 3)))) == 1


def test_no_place_is_chosen_when_none_is_active() -> None:
    known = osds(0.1, 0.1, 0.1, osd_3=DOWN)
    peered = frozenset({"undersized", "degraded", "peered"})
    assert chosen(cluster(known, (peered, (0, 1, 2)), (CLEAN, (0, 1, 3)))) is None


def test_a_group_with_too_few_osds_is_inactive_before_it_reports_it() -> None:
    known = cluster(osds(0.1, 0.1, 0.1, osd_3=DOWN, osd_4=DOWN), (CLEAN, (0, 1, 2, 3)), (CLEAN, (0, 1, 3, 4)))
    assert condition(known, 0).grade is Grade.DEGRADED
    assert condition(known, 1).grade is Grade.INACTIVE


def test_an_unknown_group_may_work() -> None:
    known = cluster(osds(0.1, 0.1, 0.1), (CLEAN, (0, 1, 2)), (frozenset({"down"}), (0, 1, 2)))
    assert chosen(known, 99, 0) == 0
    assert chosen(known, 99, 1) == 99
    assert chosen(ClusterMap(4, 2), 3, 2) == 3


def test_an_unknown_osd_counts_as_missing() -> None:
    assert condition(cluster(osds(0.1, 0.1, 0.1), (CLEAN, (0, 1, 2, 77))), 0).missing == 1


def test_without_candidates_there_is_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="no candidates"):
        choose(ClusterMap(1, 1), [])


def test_reasons_to_leave_a_block() -> None:
    start = Condition(Grade.DEGRADED, 1, (0.5,))
    assert Condition(Grade.DEGRADED, 2, (0.5,)).worse_than(start)
    assert Condition(Grade.FULL, 0, (0.97,)).worse_than(start)
    assert Condition(Grade.INACTIVE, 1, (0.5,)).worse_than(start)
    assert not Condition(Grade.DEGRADED, 1, (0.8,)).worse_than(start)
    assert not Condition(Grade.CLEAN, 0, (0.5,)).worse_than(start)


WORDS = st.sampled_from(
    [
        CLEAN,
        DEGRADED,
        frozenset({"active", "clean", "scrubbing", "deep"}),
        frozenset({"active", "remapped"}),
        frozenset({"peering"}),
        frozenset({"down"}),
        frozenset({"stale", "active", "clean"}),
        frozenset({""}),
    ]
)
OSD = st.builds(Osd, st.booleans(), st.booleans(), st.floats(0, 1), st.sampled_from(Fullness))
NUMBERS = st.integers(0, 7) | st.just(NO_OSD)
GROUP = st.builds(Group, WORDS, st.lists(NUMBERS, max_size=6).map(tuple))
MAP = st.builds(
    ClusterMap,
    st.integers(1, 16),
    st.integers(1, 6),
    st.dictionaries(st.integers(0, 7), OSD),
    st.dictionaries(st.integers(0, 15), GROUP),
)


@given(MAP, st.lists(st.integers(0, 16).map(place), min_size=1, max_size=10))
def test_no_candidate_is_better_than_the_one_chosen(known: ClusterMap, places: list[Place]) -> None:
    found = choose(known, places)
    conditions = [condition(known, candidate.group) for candidate in places]
    if found is None:
        assert {now.grade for now in conditions} == {Grade.INACTIVE}
        return
    assert found in places
    best = condition(known, found.group)
    assert best.grade is not Grade.INACTIVE
    assert all((best.grade, best.missing) <= (now.grade, now.missing) for now in conditions)
    same = [now for now in conditions if (now.grade, now.missing) == (best.grade, best.missing)]
    assert all(best.fills[:1] <= now.fills[:1] for now in same)


@given(MAP, st.integers(0, 16))
def test_a_clean_place_has_all_of_its_osds(known: ClusterMap, group: int) -> None:
    now = condition(known, group)
    assert not now.worse_than(now)
    if now.grade is Grade.CLEAN:
        members = [known.osds[number] for number in known.groups[group].acting]
        assert all(osd.is_up and osd.is_in and osd.fullness is Fullness.ROOMY for osd in members)
        assert len(members) >= known.writable_min


# --- which group an object belongs to ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "namespace", "expected"),
    [("abc", "", 0x251E4793), ("abc", "ns", 0x7DAB6494)],
)
def test_hashes_match_those_of_a_cluster(name: str, namespace: str, expected: int) -> None:
    """`ceph osd map` printed them; tests/real/faults/test_placement.py asks a cluster for many more."""
    assert object_hash(name, namespace) == expected


def test_a_pool_without_groups() -> None:
    with pytest.raises(ValueError, match="0 placement groups"):
        placement_group("a", "", 0)


@given(st.integers(0, 0xFFFFFFFF), st.integers(1, 5000))
def test_every_value_maps_to_an_existing_group(value: int, count: int) -> None:
    assert 0 <= stable_mod(value, count) < count
    if count & (count - 1) == 0:
        assert stable_mod(value, count) == value % count


@given(st.integers(0, 0xFFFFFFFF), st.integers(1, 5000))
def test_an_additional_group_takes_from_one_group_only(value: int, count: int) -> None:
    before, after = stable_mod(value, count), stable_mod(value, count + 1)
    assert after in (before, count)

"""The survival table, the streams that it decides, and the order of packing."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.errors import InvalidInput
from nos_ec.core.packing.lifetimes import (
    AGE_EDGES_DAYS,
    AGE_RANGES,
    SAMPLE_ONE_IN,
    STREAM_CUTS_DAYS,
    UNKNOWN,
    SurvivalTable,
    ToPack,
    age_range,
    is_sampled,
    packing_order,
    stream_of,
)

AGES = st.floats(-5, 5000)
OBSERVATIONS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0, 3000), st.floats(0, 3000), st.booleans()), max_size=60
)


def table_of(observations: list[tuple[str, float, float, bool]], buckets_max: int = 9) -> SurvivalTable:
    table = SurvivalTable(buckets_max=buckets_max)
    for bucket, begin, lasted, died in observations:
        table.observe(bucket, begin, begin + lasted, died=died)
    return table


def exponential(table: SurvivalTable, bucket: str, mean_days: float, count: int, window_days: float = 4000) -> None:
    rng = random.Random(bucket)
    for _ in range(count):
        lived = rng.expovariate(1 / mean_days)
        table.observe(bucket, 0, min(lived, window_days), died=lived <= window_days)


@given(AGES)
def test_an_age_lies_in_one_range(age: float) -> None:
    i = age_range(age)
    assert 0 <= i < AGE_RANGES
    assert AGE_EDGES_DAYS[i] <= max(0, age)
    assert i == AGE_RANGES - 1 or age < AGE_EDGES_DAYS[i + 1]


@given(OBSERVATIONS, AGES)
def test_a_half_life_is_always_finite_and_not_negative(
    observations: list[tuple[str, float, float, bool]], age: float
) -> None:
    lifetimes = table_of(observations).lifetimes()
    for bucket in ("a", "b", "unknown"):
        assert 0 < lifetimes.half_life_days(bucket, age) < float("inf")


@given(st.floats(0, 3000), st.lists(st.floats(0, 900), min_size=1, max_size=5), st.booleans())
def test_a_life_may_be_observed_in_pieces(begin: float, pieces: list[float], died: bool) -> None:
    whole, parts = SurvivalTable(), SurvivalTable()
    at = begin
    for number, piece in enumerate(pieces):
        parts.observe("a", at, at + piece, died=died and number == len(pieces) - 1)
        at += piece
    whole.observe("a", begin, at, died=died)
    for age in AGE_EDGES_DAYS:
        assert parts.lifetimes().half_life_days("a", age) == pytest.approx(whole.lifetimes().half_life_days("a", age))


@pytest.mark.parametrize("mean_days", [0.5, 10.0, 100.0, 1000.0])
def test_an_exponential_bucket_is_learned(mean_days: float) -> None:
    """Its half-life is ln 2 of its mean at every age that was seen."""
    table = SurvivalTable()
    exponential(table, "a", mean_days, 4000)
    lifetimes = table.lifetimes()
    for age in (0, mean_days / 4, mean_days):
        assert lifetimes.half_life_days("a", age) == pytest.approx(0.693 * mean_days, rel=0.12)


def test_what_still_lives_counts() -> None:
    """Only a few of the objects that live for years have died yet, all of them young."""
    table = SurvivalTable()
    exponential(table, "immortal", 3000, 500, window_days=200)
    assert table.lifetimes().half_life_days("immortal", 0) > 1000


def test_age_tells_survivors_apart() -> None:
    """Half live for a day and half for a year: what has lived for a month is of the second kind."""
    table = SurvivalTable()
    exponential(table, "mixed", 1, 1000)
    exponential(table, "mixed", 365, 1000)
    lifetimes = table.lifetimes()
    assert lifetimes.half_life_days("mixed", 0) < 10
    assert lifetimes.half_life_days("mixed", 30) > 150


def test_a_bucket_without_history_takes_that_of_all() -> None:
    table = SurvivalTable()
    exponential(table, "a", 50, 2000)
    lifetimes = table.lifetimes()
    assert lifetimes.half_life_days("new", 5) == pytest.approx(lifetimes.half_life_days("a", 5), rel=0.1)


def test_old_habits_are_forgotten() -> None:
    table = SurvivalTable(half_life_days=30)
    exponential(table, "a", 1000, 200)
    before = table.lifetimes().half_life_days("a", 0)
    for _ in range(300):
        table.decay(1)
        table.observe("a", 0, 1, died=True)
        table.observe("a", 0, 1, died=True)
    assert table.lifetimes().half_life_days("a", 0) < 2 < before
    table.decay(-100)
    table.decay(0)
    assert table.lifetimes().half_life_days("a", 0) < 2
    table.decay(30 * 40)
    assert len(table) == 0


def test_the_table_is_bounded_and_keeps_those_with_the_most_history() -> None:
    table = SurvivalTable(buckets_max=16)
    exponential(table, "large", 3, 300)
    known = table.lifetimes().half_life_days("large", 0)
    for number in range(500):
        table.observe(f"tiny {number}", 0, 0.01, died=True)
        assert len(table) <= 16
    assert table.lifetimes().half_life_days("large", 0) == pytest.approx(known, rel=0.05)
    assert table.lifetimes().half_life_days("elsewhere", 0) < UNKNOWN.half_life_days("elsewhere", 0)


@given(OBSERVATIONS)
def test_a_bucket_that_is_dropped_still_counts_for_all_together(
    observations: list[tuple[str, float, float, bool]],
) -> None:
    small, large = table_of(observations, 1).lifetimes(), table_of(observations, 9).lifetimes()
    for age in AGE_EDGES_DAYS:
        assert small.half_life_days("x", age) == pytest.approx(large.half_life_days("x", age))


def test_a_sixteenth_of_the_keys_is_watched() -> None:
    watched = sum(is_sampled(hashlib.md5(b"b/%d" % n).digest()) for n in range(16_000))
    assert watched == pytest.approx(16_000 / SAMPLE_ONE_IN, rel=0.15)


@pytest.mark.parametrize("cuts", STREAM_CUTS_DAYS, ids=len)
def test_longer_lives_get_higher_streams(cuts: tuple[float, ...]) -> None:
    assert list(cuts) == sorted(set(cuts))
    streams = [stream_of(UNKNOWN, cuts, "a", 0, days) for days in (0.1, 3, 10, 60, 300, 9999)]
    assert all(one <= two for one, two in pairwise(streams))
    assert (streams[0], streams[-1]) == (0, len(cuts))
    for i, cut in enumerate(cuts):
        assert stream_of(UNKNOWN, cuts, "a", 0, cut) == i + 1


def test_a_known_expiry_beats_the_estimate_both_ways() -> None:
    table = SurvivalTable()
    exponential(table, "long", 2000, 500)
    exponential(table, "short", 0.5, 500)
    lifetimes, cuts = table.lifetimes(), STREAM_CUTS_DAYS[3]
    assert stream_of(lifetimes, cuts, "long", 1) == 3
    assert stream_of(lifetimes, cuts, "long", 1, 2.0) == 0
    assert stream_of(lifetimes, cuts, "short", 0) == 0
    assert stream_of(lifetimes, cuts, "short", 0, 900.0) == 3
    assert stream_of(lifetimes, cuts, "short", 0, -1.0) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.sampled_from(["", "p", "q"]), st.floats(0, 9))))
def test_objects_are_packed_by_stream_bucket_prefix_and_age(rows: list[tuple[int, str, str, float]]) -> None:
    """`ref` need not be comparable, and nothing is lost."""
    objects = [ToPack(*row, {"n": n}) for n, row in enumerate(rows)]
    ordered = packing_order(objects)
    assert [one[:4] for one in ordered] == sorted(rows)
    assert sorted(one.ref["n"] for one in ordered) == list(range(len(rows)))
    for one, two in pairwise(ordered):
        assert one[:4] < two[:4] or one.ref["n"] < two.ref["n"]


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(InvalidInput):
        SurvivalTable(half_life_days=0)
    with pytest.raises(InvalidInput):
        SurvivalTable(buckets_max=0)

"""Ranges are joined into runs, and every range gets its own bytes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.range_coalescing import RUN_BYTES_MAX, MergedRange, Range, cut_ranges, merged_ranges

DATA = bytes(range(256)) * 8


def spans(ranges: list[Range], gap_max: int, bytes_max: int = RUN_BYTES_MAX) -> list[Range]:
    return [(run.offset, run.length) for run in merged_ranges(ranges, gap_max, bytes_max)]


def test_ranges_with_small_gaps_are_one_run() -> None:
    assert merged_ranges([(110, 10), (0, 10), (14, 6)], gap_max=4) == [
        MergedRange(0, 20, ((1, 0), (2, 14))),
        MergedRange(110, 10, ((0, 0),)),
    ]


@pytest.mark.parametrize(("gap", "joined"), [(0, True), (7, True), (8, False)])
def test_a_gap_is_joined_up_to_its_limit(gap: int, joined: bool) -> None:
    assert len(spans([(0, 5), (5 + gap, 5)], gap_max=7)) == (1 if joined else 2)


def test_a_run_ends_before_it_gets_too_long() -> None:
    assert spans([(at, 10) for at in range(0, 70, 10)], gap_max=0, bytes_max=35) == [(0, 30), (30, 30), (60, 10)]


def test_a_range_longer_than_a_run_is_read_as_a_whole() -> None:
    assert spans([(0, 5), (5, 100), (20, 5), (105, 5)], gap_max=9, bytes_max=50) == [(0, 5), (5, 100), (105, 5)]


def test_nothing_is_no_run() -> None:
    assert merged_ranges([], gap_max=9) == []


@pytest.mark.parametrize("wrong", [(-1, 4), (0, -1)])
def test_an_invalid_range_is_refused(wrong: Range) -> None:
    with pytest.raises(ValueError, match=f"range of {wrong[1]} bytes at {wrong[0]}"):
        merged_ranges([(0, 4), (4, 4), wrong], gap_max=9)


RANGES = st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 99)), max_size=30)


@given(RANGES, st.integers(0, 200), st.integers(1, 300))
def test_every_range_gets_its_bytes(ranges: list[Range], gap_max: int, bytes_max: int) -> None:
    runs = merged_ranges(ranges, gap_max, bytes_max)
    found = [DATA[run.offset : run.offset + run.length] for run in runs]
    assert cut_ranges(ranges, runs, found) == [DATA[offset : offset + length] for offset, length in ranges]
    assert sorted(index for run in runs for index, _ in run.ranges) == list(range(len(ranges)))
    longest = max([length for _, length in ranges], default=0)
    assert all(run.length <= max(bytes_max, longest) for run in runs)
    assert [run.offset for run in runs] == sorted(run.offset for run in runs)

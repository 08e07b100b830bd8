"""What is known of the last day and week."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.engine.figures.usage import (
    DAY_MS,
    HOUR_MS,
    KEPT_MS,
    POINT_MS,
    USAGE_NOTE,
    UsagePoint,
    note_point,
    read_points,
    usage,
)
from nos_ec.ports.metadata import NOTE_CHARS_MAX
from tests.unit.engine.test_gc_throttling import InMemoryNotes

NOW_MS = 1_700_000_000_000
TOP = 1 << 62


def point(at_ms: int, user: int = 0, copied: int = 0, stored: int = 120, live: int = 100) -> UsagePoint:
    return UsagePoint(at_ms, user, copied, stored, live)


def test_points_are_few_however_often_they_are_noted_and_old_ones_are_forgotten() -> None:
    notes = InMemoryNotes()
    for hour in range(0, 30 * 24):
        note_point(notes, UsagePoint(NOW_MS + hour * HOUR_MS, TOP, TOP, TOP, TOP))
    points = read_points(notes, NOW_MS + 30 * DAY_MS)
    assert KEPT_MS // POINT_MS - 2 <= len(points) <= KEPT_MS // POINT_MS + 1
    assert points[-1].at_ms - points[-2].at_ms == POINT_MS
    assert len(notes.texts[USAGE_NOTE]) < NOTE_CHARS_MAX, "however large the numbers are"


def test_points_of_a_wrong_clock_are_forgotten() -> None:
    notes = InMemoryNotes()
    note_point(notes, point(NOW_MS + 9 * DAY_MS))
    assert read_points(notes, NOW_MS) == []
    note_point(notes, point(NOW_MS))
    assert read_points(notes, NOW_MS) == [point(NOW_MS)]


@pytest.mark.parametrize("text", ["x", "{}", "[1]", "[[1, 2]]", '[["1", 2, 3, 4, 5]]', "[" * 20_000])
def test_a_note_that_cannot_be_understood_is_replaced(text: str) -> None:
    notes = InMemoryNotes()
    notes.texts[USAGE_NOTE] = text
    assert read_points(notes, NOW_MS) == []
    note_point(notes, point(NOW_MS))
    assert read_points(notes, NOW_MS) == [point(NOW_MS)]


def test_the_usage_of_a_day_is_the_difference_to_the_point_of_a_day_ago() -> None:
    points = [point(NOW_MS - hours * HOUR_MS, user=1000 - 10 * hours, copied=500 - 4 * hours) for hours in (48, 27, 12)]
    found = usage(points, point(NOW_MS, 1000, 500, stored=150), DAY_MS)
    assert found is not None
    assert (found.span_ms, found.user_bytes, found.copied_bytes) == (27 * HOUR_MS, 270, 108)
    assert found.write_amplification == pytest.approx(378 / 270)
    assert found.space_amplification == pytest.approx((120 + 120 + 150) / 300)


def test_a_young_store_has_a_shorter_span_and_at_first_none() -> None:
    now = point(NOW_MS, 10, 5)
    assert usage([], now, DAY_MS) is None
    assert usage([now], now, DAY_MS) is None
    found = usage([point(NOW_MS - HOUR_MS)], now, DAY_MS)
    assert found is not None
    assert (found.span_ms, found.write_amplification) == (HOUR_MS, 1.5)


def test_lost_rows_and_days_without_writes_have_no_write_amplification() -> None:
    before = [point(NOW_MS - DAY_MS, 10, 5)]
    for now in (point(NOW_MS, 9, 6), point(NOW_MS, 11, 4), point(NOW_MS, 10, 7)):
        found = usage(before, now, DAY_MS)
        assert found is not None
        assert found.write_amplification is None
    empty = usage(before, replace(point(NOW_MS, 10, 5), live_bytes=0), DAY_MS)
    assert empty is not None
    assert empty.user_bytes == 0

"""What a live byte has cost in the last day and month."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.engine.figures.cost_history import DAYS_KEPT, HISTORY_NOTE, CostPoint, note_cost, read_history
from nos_ec.engine.figures.usage import DAY_MS, HOUR_MS
from nos_ec.ports.metadata import NOTE_CHARS_MAX, Totals
from tests.unit.engine.test_gc_throttling import InMemoryNotes

NOW_MS = 19_675 * DAY_MS
NOTHING = Totals({}, *[0] * 19)


def totals(live: int, dead: int = 0, open_dead: int = 0, overhead: int = 0) -> Totals:
    return replace(NOTHING, live_bytes=live, dead_bytes=dead, open_dead_bytes=open_dead, overhead_bytes=overhead)


def test_points_are_hourly_for_a_day_and_daily_for_a_month_however_often_they_are_noted() -> None:
    notes = InMemoryNotes()
    for half_hour in range(50 * 48 + 1):
        note_cost(notes, totals(1 << 62, 1 << 62, 1 << 61, 1 << 62), NOW_MS + half_hour * HOUR_MS // 2)
    now_ms = NOW_MS + 50 * DAY_MS
    ages_ms = [now_ms - one.at_ms for one in read_history(notes, now_ms)]
    assert [age for age in reversed(ages_ms) if age <= DAY_MS] == [hours * HOUR_MS for hours in range(25)]
    assert [age for age in reversed(ages_ms) if age > DAY_MS] == [days * DAY_MS for days in range(2, DAYS_KEPT + 1)]
    assert len(notes.texts[HISTORY_NOTE]) < NOTE_CHARS_MAX, "however large the numbers are"


def test_the_next_point_is_due_an_hour_after_the_last() -> None:
    notes = InMemoryNotes()
    assert note_cost(notes, totals(1), NOW_MS) == NOW_MS + HOUR_MS
    assert note_cost(notes, totals(2), NOW_MS + HOUR_MS - 1) == NOW_MS + HOUR_MS
    assert [one.live_bytes for one in read_history(notes, NOW_MS + DAY_MS)] == [1]


def test_a_point_has_the_parts_of_the_cost() -> None:
    whole = totals(100, dead=30, open_dead=10, overhead=20)
    point = CostPoint.of(replace(whole, condemned_dead_bytes=5), NOW_MS, 0.25)
    stored = point.stored
    assert (stored.sealed_dead_bytes, stored.open_dead_bytes, stored.condemned_dead_bytes) == (15, 10, 5)
    assert stored.header_share == 0.25
    assert CostPoint.of(whole, NOW_MS, None).stored.header_share is None


def test_points_of_the_future_are_not_shown() -> None:
    notes = InMemoryNotes()
    note_cost(notes, totals(1), NOW_MS + DAY_MS)
    assert read_history(notes, NOW_MS) == []
    note_cost(notes, totals(2), NOW_MS)
    assert [one.live_bytes for one in read_history(notes, NOW_MS)] == [2]


@pytest.mark.parametrize("off_ms", [400 * DAY_MS, 2 * DAY_MS, HOUR_MS // 2, -3 * DAY_MS])
def test_a_wrong_clock_costs_no_day_of_the_others(off_ms: int) -> None:
    """One process has the right time, another one has not; both record points for two months."""
    notes = InMemoryNotes()
    largest = replace(totals(1 << 62, 1 << 63, 1 << 61, 1 << 62), condemned_dead_bytes=1 << 61, queued_bytes=1 << 62)
    for hour in range(0, 60 * 24, 3):
        for at_ms in (NOW_MS + hour * HOUR_MS, NOW_MS + hour * HOUR_MS + off_ms):
            note_cost(notes, largest, at_ms)
            assert len(notes.texts[HISTORY_NOTE]) < NOTE_CHARS_MAX
    now_ms = NOW_MS + 60 * DAY_MS
    assert {one.at_ms // DAY_MS for one in read_history(notes, now_ms)} >= {
        now_ms // DAY_MS - days for days in range(1, DAYS_KEPT)
    }


@pytest.mark.parametrize("text", ["x", "{}", "[1]", "[[1, 2]]", '[["1", 2, 3, 4, 5, 6, 7, 8]]', "[" * 20_000])
def test_a_note_that_cannot_be_understood_is_replaced(text: str) -> None:
    notes = InMemoryNotes()
    notes.texts[HISTORY_NOTE] = text
    assert read_history(notes, NOW_MS) == []
    note_cost(notes, totals(3), NOW_MS)
    assert [one.live_bytes for one in read_history(notes, NOW_MS)] == [3]

"""Whether the event of a published row still waits in the message log."""

from __future__ import annotations

from nos_ec.core.publishing.republish import (
    CLOCK_MARGIN_MS,
    PERIODS_MAX,
    Publication,
    event_waits,
    is_passed,
    passed_ms,
)

NOW_MS, MINUTE_MS = 2_000_000_000_000, 60_000
REPUBLISH_MS = 10 * MINUTE_MS


def waits(published_ms: int, passed: int | None = None) -> bool:
    return event_waits(Publication(published_ms, False), passed, NOW_MS, REPUBLISH_MS)


def test_an_event_waits_until_the_group_has_passed_it() -> None:
    published_ms = NOW_MS - 20 * MINUTE_MS
    assert waits(published_ms), "the progress is unknown"
    assert waits(published_ms, published_ms)
    assert not waits(published_ms, NOW_MS)


def test_a_row_is_published_again_after_a_week_whatever_the_progress() -> None:
    assert waits(NOW_MS - PERIODS_MAX * REPUBLISH_MS + 1)
    assert not waits(NOW_MS - PERIODS_MAX * REPUBLISH_MS)


def test_a_time_ahead_of_the_clock_is_ignored() -> None:
    """The clock was set back after the row was published."""
    assert waits(NOW_MS)
    assert not waits(NOW_MS + 1)


def test_an_event_is_passed_when_the_group_is_past_it_by_more_than_clocks_differ() -> None:
    assert not is_passed(1000, None, 256)
    assert not is_passed(1000, 1000 + 128, 256)
    assert is_passed(1000, 1001 + 128, 256)
    assert not is_passed(1000, 1000 + CLOCK_MARGIN_MS, 86_400_000)
    assert is_passed(1000, 1001 + CLOCK_MARGIN_MS, 86_400_000)


def test_an_event_that_was_spread_may_wait_in_any_partition() -> None:
    assert passed_ms({0: 5, 1: 7, 2: 9}, 1, 3, is_spread=False) == 7
    assert passed_ms({0: 5, 1: 7, 2: 9}, 1, 3, is_spread=True) == 5
    assert passed_ms({0: 5, 2: 9}, 1, 3, is_spread=False) is None
    assert passed_ms({1: 7, 2: 9}, 1, 3, is_spread=True) is None, "nobody knows of partition 0"

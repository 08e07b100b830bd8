"""The due time of a row says when its object was published, however often it has come due since."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.publishing.republish import CLOCK_MARGIN_MS, Republishing, passed_ms

TIMES_MS = st.integers(1_600_000_000_000, 4_000_000_000_000)
REPUBLISH_MS = st.integers(1000, 30 * 86_400_000)


@given(REPUBLISH_MS, TIMES_MS, st.lists(st.floats(0, 3), max_size=20), st.booleans())
def test_the_time_of_publishing_is_kept_while_the_row_comes_due_again(
    republish_ms: int, published_ms: int, delays: list[float], spread: bool
) -> None:
    """Each time it is looked at late by some multiple of republish_ms. Whether the event was spread is kept, too."""
    rule = Republishing(republish_ms)
    due_ms = rule.first_due_ms(published_ms, spread=spread)
    assert 0.95 * republish_ms < due_ms - published_ms <= republish_ms
    for delay in delays:
        now_ms = due_ms + int(delay * republish_ms)
        until_ms = rule.published_until_ms(due_ms, now_ms)
        assert until_ms is not None
        assert published_ms < until_ms <= published_ms + rule.grain_ms
        later_ms = rule.later_due_ms(due_ms, now_ms)
        assert rule.was_spread(due_ms) == (spread and republish_ms >= 8 * 128)
        if later_ms is None:
            assert now_ms - published_ms > rule.grain_ms * republish_ms * (0.1 if spread else 0.49)
            return
        assert now_ms < later_ms <= now_ms + republish_ms
        due_ms = later_ms


@given(REPUBLISH_MS, TIMES_MS, st.booleans())
def test_a_row_whose_event_waits_for_ever_is_eventually_published_again(
    republish_ms: int, published_ms: int, spread: bool
) -> None:
    rule = Republishing(republish_ms)
    due_ms: int | None = rule.first_due_ms(published_ms, spread=spread)
    count = 0
    while due_ms is not None:
        count, due_ms = count + 1, rule.later_due_ms(due_ms, due_ms)
        if count > 200 and due_ms is not None:  # far enough: go to the end in one step
            due_ms = rule.later_due_ms(due_ms, published_ms + (rule.grain_ms - 2) * (rule.step_ms + 1))
    assert count < rule.grain_ms


@given(REPUBLISH_MS, TIMES_MS)
def test_a_row_that_was_refused_has_no_event(republish_ms: int, retry_ms: int) -> None:
    rule = Republishing(republish_ms)
    due_ms = rule.without_event_ms(retry_ms)
    assert retry_ms <= due_ms < retry_ms + rule.grain_ms
    assert rule.published_until_ms(due_ms, due_ms) is None


@pytest.mark.parametrize(("spread", "days"), [(False, 21), (True, 7)])
def test_ten_minutes_last_for_weeks(spread: bool, days: int) -> None:
    rule = Republishing(600_000)
    assert (rule.grain_ms, rule.step_ms) == (4096, 589_824)
    published_ms = 2_000_000_000_000
    due_ms = rule.first_due_ms(published_ms, spread=spread)
    while (later_ms := rule.later_due_ms(due_ms, due_ms)) is not None:
        due_ms = later_ms
    assert (due_ms - published_ms) / 86_400_000 == pytest.approx(days, abs=0.1)


def test_a_time_ahead_of_the_clock_is_ignored() -> None:
    """The clock was set back after the row was published."""
    rule = Republishing(600_000)
    assert rule.published_until_ms(rule.first_due_ms(2_000_000_000_000), 1_990_000_000_000) is None


def test_too_short_a_wait_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 256"):
        Republishing(255)


def test_an_event_is_passed_when_the_group_is_past_it_by_more_than_clocks_differ() -> None:
    rule, slow = Republishing(256), Republishing(86_400_000)
    assert not rule.is_passed(1000, None)
    assert not rule.is_passed(1000, 1000 + rule.step_ms // 2)
    assert rule.is_passed(1000, 1001 + rule.step_ms // 2)
    assert not slow.is_passed(1000, 1000 + CLOCK_MARGIN_MS)
    assert slow.is_passed(1000, 1001 + CLOCK_MARGIN_MS)


def test_an_event_that_was_spread_may_wait_in_any_partition() -> None:
    assert passed_ms({0: 5, 1: 7, 2: 9}, 1, 3, spread=False) == 7
    assert passed_ms({0: 5, 1: 7, 2: 9}, 1, 3, spread=True) == 5
    assert passed_ms({0: 5, 2: 9}, 1, 3, spread=False) is None
    assert passed_ms({1: 7, 2: 9}, 1, 3, spread=True) is None, "nobody knows of partition 0"

"""RetryQueue of what failed: waits, limits, clocks, and log lines."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from nos_ec.core.errors import Transient
from nos_ec.engine.retry_queue import NAMED_MAX, BackOff, RetryFigures, RetryQueue
from tests.rig.fakes.clock import FakeClock

BACK_OFF = BackOff(first_ms=1000, max_ms=60_000)
GONE = Transient("no answer")


class JumpingClock(FakeClock):
    """Can also be set back."""

    def set(self, now_ms: int) -> None:
        self._now_ms = now_ms


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


def retry_queue(clock: FakeClock, items_max: int = 100) -> RetryQueue[str]:
    return RetryQueue("object", str, clock, BACK_OFF, items_max)


@pytest.mark.parametrize(("failures", "wait_ms"), [(1, 1000), (2, 2000), (3, 4000), (7, 60_000), (10_000, 60_000)])
def test_waits_double_up_to_the_maximum(failures: int, wait_ms: int) -> None:
    assert BACK_OFF.wait_ms(failures) == wait_ms


def test_an_item_waits_until_its_time_and_longer_after_each_failure(clock: JumpingClock) -> None:
    parked = retry_queue(clock)
    parked.park("a", GONE)
    assert parked.waits("a")
    assert parked.due(10) == []
    clock.advance(1000)
    assert not parked.waits("a")
    assert parked.due(10) == ["a"]
    assert parked.due(10) == [], "given out twice"
    parked.park("a", GONE)
    clock.advance(1999)
    assert parked.due(10) == []
    clock.advance(1)
    assert parked.due(10) == ["a"]
    assert dict(parked)["a"].failures == 2


def test_the_longest_due_items_come_first_up_to_the_limit(clock: JumpingClock) -> None:
    parked = retry_queue(clock)
    for item in "abc":
        parked.park(item, GONE)
        clock.advance(1)
    clock.advance(1000)
    assert parked.due(2) == ["a", "b"]
    assert parked.due(2) == ["c"]


def test_a_released_item_starts_afresh(clock: JumpingClock) -> None:
    parked = retry_queue(clock)
    parked.park("a", GONE)
    parked.park("a", GONE)
    parked.release("a")
    parked.release("never parked")
    assert "a" not in parked
    parked.park("a", GONE)
    assert dict(parked)["a"].failures == 1
    assert dict(parked)["a"].retry_ms == clock.now_ms() + 1000


def test_no_more_are_parked_than_the_limit_allows(clock: JumpingClock) -> None:
    parked = retry_queue(clock, items_max=2)
    assert parked.park("a", GONE)
    assert parked.park("b", GONE)
    assert not parked.park("c", GONE)
    assert parked.park("a", GONE), "one that is parked already always fits"
    assert len(parked) == 2


def test_a_clock_that_jumps_back_leaves_nothing_parked_for_ever(clock: JumpingClock) -> None:
    parked = retry_queue(clock)
    parked.park("a", GONE)
    clock.set(clock.now_ms() - 365 * 86_400_000)
    assert not parked.waits("a")
    assert parked.due(10) == ["a"]


def test_figures_give_the_count_and_the_oldest_time(clock: JumpingClock) -> None:
    parked = retry_queue(clock)
    assert parked.figures() == RetryFigures(0, None)
    first_ms = clock.now_ms()
    parked.park("a", GONE)
    clock.advance(5000)
    parked.park("b", GONE)
    parked.park("a", GONE)
    assert parked.figures() == RetryFigures(2, first_ms)


def test_an_item_is_logged_once_when_it_is_parked_and_once_when_it_is_released(clock: JumpingClock) -> None:
    parked = retry_queue(clock)
    with capture_logs() as logs:
        for _ in range(5):
            parked.park("a", GONE)
        clock.advance(7000)
        parked.release("a")
    assert [entry["event"] for entry in logs] == ["object parked", "object no longer parked"]
    assert logs[0]["item"] == "a"
    assert logs[0]["reason"] == "no answer"
    assert (logs[1]["failures"], logs[1]["parked_s"]) == (5, 7)


def test_many_items_are_not_logged_one_by_one(clock: JumpingClock) -> None:
    parked = retry_queue(clock, items_max=10_000)
    with capture_logs() as logs:
        for number in range(5000):
            parked.park(str(number), GONE)
        for number in range(5000):
            parked.release(str(number))
    assert len(logs) == NAMED_MAX + 1 + NAMED_MAX


def test_what_waits_can_be_made_due_at_once(clock: JumpingClock) -> None:
    parked = retry_queue(clock)
    for item in "abc":
        parked.park(item, GONE)
    clock.advance(1000)
    assert parked.due(1) == ["a"]
    parked.park("b", GONE)
    parked.release("c")
    parked.hasten()
    assert parked.due(10) == ["b"], "given out already, or released"
    assert parked.failures("b") == 2
    assert parked.failures("c") == 0
    parked.park("b", GONE)
    assert parked.due(10) == []

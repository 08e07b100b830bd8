"""The limit on the bytes per second of background work, on a clock of its own."""

from __future__ import annotations

from threading import Event

import pytest

from nos_ec.engine.rate_limit import CREDIT_MS, RateLimit
from tests.rig.fakes.clock import FakeClock

START_MS = 1_700_000_000_000


@pytest.mark.parametrize(("piece", "rate"), [(1, 1000), (999, 1000), (1500, 1000), (1 << 20, 3 << 20), (7, 300_000)])
def test_the_rate_is_exact_for_work_that_takes_no_time(piece: int, rate: int) -> None:
    clock = FakeClock(START_MS)
    rate_limit = RateLimit(clock, rate)
    for count in range(1, 2001):
        rate_limit.spend(piece, Event())
        exact_ms = count * piece * 1000 / rate
        assert exact_ms - 1 < clock.now_ms() - START_MS <= exact_ms


def test_work_that_takes_time_waits_only_for_the_rest() -> None:
    clock = FakeClock(START_MS)
    rate_limit = RateLimit(clock, 1000)
    for count in range(1, 101):
        rate_limit.spend(500, Event())
        assert clock.now_ms() - START_MS == 500 * count
        clock.advance(200)


def test_a_pause_earns_no_burst() -> None:
    clock = FakeClock(START_MS)
    rate_limit = RateLimit(clock, 1000)
    rate_limit.spend(1000, Event())
    clock.advance(3_600_000)
    began = clock.now_ms()
    for _ in range(10):
        rate_limit.spend(1000, Event())
    assert clock.now_ms() - began == 10_000


def test_slow_work_is_made_up_for_within_the_credit() -> None:
    clock = FakeClock(START_MS)
    rate_limit = RateLimit(clock, 1000)
    rate_limit.spend(1000, Event())
    clock.advance(CREDIT_MS)
    rate_limit.spend(1000, Event())
    assert clock.now_ms() - START_MS == 1000 + CREDIT_MS
    rate_limit.spend(1000, Event())
    assert clock.now_ms() - START_MS == 2000 + CREDIT_MS


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    clock = FakeClock(START_MS)
    rate_limit = RateLimit(clock, 1000)
    rate_limit.spend(1000, Event())
    rate_limit._clock = earlier = FakeClock(START_MS - 3_600_000)
    rate_limit.spend(1000, Event())
    assert earlier.now_ms() - (START_MS - 3_600_000) == 1000


def test_no_limit_and_a_stop() -> None:
    clock = FakeClock(START_MS)
    RateLimit(clock, 0).spend(1 << 40, Event())
    stop = Event()
    stop.set()
    RateLimit(clock, 1).spend(1 << 40, stop)
    assert clock.now_ms() == START_MS


def test_long_waits_show_that_they_go_on() -> None:
    beats: list[int] = []
    RateLimit(FakeClock(START_MS), 1000).spend(4500, Event(), beats.append)
    assert len(beats) == 5

"""All clocks keep the port's promises."""

from __future__ import annotations

import time
from threading import Event

import pytest

from nos_ec.adapters.system_clock import SteadyClock, SystemClock
from nos_ec.ports.clock import Clock
from tests.rig.fakes.clock import FakeClock


@pytest.mark.parametrize("clock", [SystemClock(), SteadyClock(), FakeClock()])
def test_wait_says_whether_stop_is_set(clock: Clock) -> None:
    stop = Event()
    before_ms = clock.now_ms()
    assert clock.wait(stop, 20) is False
    assert clock.now_ms() >= before_ms + 19
    stop.set()
    assert clock.wait(stop, 60_000) is True


def test_system_clock_is_wall_clock_time() -> None:
    before_s = time.time()
    now_ms = SystemClock().now_ms()
    assert before_s * 1000 - 1 <= now_ms <= time.time() * 1000


def test_the_steady_clock_goes_on_when_the_machine_s_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    before_ms = clock.now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.now_ms() - before_ms < 60_000


def test_fake_time_passes_only_on_request() -> None:
    clock = FakeClock(now_ms=5)
    clock.advance(7)
    assert clock.now_ms() == 12
    stop = Event()
    stop.set()
    clock.wait(stop, 1000)
    assert clock.now_ms() == 12
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)

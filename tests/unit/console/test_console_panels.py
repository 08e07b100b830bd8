"""A panel fails alone, shows its last value then, and is not read too often."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from nos_ec.console.panels import BUG, GOOD_MS_MAX, LATE, ONCE_MAX, THREADS, Panel, Panels
from nos_ec.core.errors import NosError, Transient
from tests.rig.fakes.clock import FakeClock

WAIT_S_MAX = 120.0
"""Longer than a machine that is ten times as busy takes."""


class Reading:
    """What a panel reads: fails with `error`, if there is one."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.count


class Hung:
    """A server that does not answer until `answer` is set."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self._calls = threading.Semaphore(0)

    def __call__(self) -> bool:
        self._calls.release()
        return self.answer.wait()

    def wait_until_all_threads_hang(self) -> None:
        for _ in range(THREADS):
            assert self._calls.acquire(timeout=WAIT_S_MAX)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def panels(clock: FakeClock) -> Iterator[Panels]:
    with closing(Panels(clock, WAIT_S_MAX)) as made:
        yield made


def test_a_value_is_read_once_until_it_is_too_old(panels: Panels, clock: FakeClock) -> None:
    reading = Reading()
    source = panels.source(reading, age_ms_max=1000)
    at_ms = clock.now_ms()
    assert [panels.read(source), panels.read(source)] == [Panel(1, at_ms)] * 2
    clock.advance(1000)
    assert panels.read(source) == Panel(2, at_ms + 1000)


@pytest.mark.parametrize(("error", "shown"), [(Transient("away"), "away"), (ValueError("x"), BUG)])
def test_a_panel_that_fails_shows_why_and_its_last_value(
    panels: Panels, clock: FakeClock, error: Exception, shown: str
) -> None:
    reading = Reading()
    source = panels.source(reading, age_ms_max=1000)
    first = panels.read(source)
    reading.error = error
    clock.advance(1000)
    assert panels.read(source) == Panel(1, first.at_ms, shown)
    reading.error = None
    clock.advance(3000)
    assert panels.read(source) == Panel(3, clock.now_ms())


def test_a_panel_that_never_worked_has_only_a_reason(panels: Panels) -> None:
    def fail() -> int:
        raise NosError("no")

    assert panels.read(panels.source(fail, age_ms_max=1000)) == Panel(None, None, "no")


def test_a_page_does_not_wait_for_a_slow_server_and_asks_it_only_once(clock: FakeClock) -> None:
    answer, asked = threading.Event(), []

    def read() -> str:
        asked.append(1)
        answer.wait()
        return "at last"

    with closing(Panels(clock, wait_s_max=0.01)) as panels:
        source = panels.source(read, age_ms_max=1000)
        for _ in range(20):
            assert panels.read(source) == Panel(None, None, LATE)
        assert panels.read(panels.source(lambda: "another", age_ms_max=1000)).value in ("another", None)
        answer.set()
        flight = source.begin()
        if flight is not None:
            flight.result()
        assert panels.shown(source).value == "at last"
        assert asked == [1]


def test_pages_whose_server_hangs_leave_threads_to_the_others(clock: FakeClock) -> None:
    hung, asked = Hung(), list[int]()

    def read(number: int) -> bool:
        asked.append(number)
        return hung()

    with closing(Panels(clock, wait_s_max=0.01)) as panels:
        for number in range(THREADS):
            for _ in range(3):
                assert panels.read(panels.once(("page", number), partial(read, number))) == Panel(None, None, LATE)
        hung.wait_until_all_threads_hang()
        assert sorted(asked) == list(range(THREADS)), "each is read once"
        shared = panels.source(lambda: "shared", age_ms_max=1000)
        begun = shared.begin()
        assert begun is not None
        begun.result(WAIT_S_MAX)
        assert panels.shown(shared).value == "shared"
        hung.answer.set()


def test_few_pages_wait_for_a_server_that_hangs(clock: FakeClock) -> None:
    hung = Hung()
    with closing(Panels(clock, wait_s_max=0.01)) as panels:
        panels.wait_for(*(panels.once(("hung", number), hung) for number in range(THREADS)))
        hung.wait_until_all_threads_hang()
        waiting = [panels.once(number, clock.now_ms) for number in range(ONCE_MAX)]
        panels.wait_for(*waiting)
        assert all(source.is_late for source in waiting)
        panels.once("another", clock.now_ms)
        assert [source.is_late for source in waiting] == [False] + [True] * (ONCE_MAX - 1)
        assert panels.shown(waiting[0]) == Panel(None, None, LATE)
        hung.answer.set()


def test_a_late_page_is_shown_by_a_reload_and_read_anew_after_that(clock: FakeClock) -> None:
    answer, reading = threading.Event(), Reading()

    def read() -> int:
        answer.wait()
        clock.advance(5000)
        return reading()

    with closing(Panels(clock, wait_s_max=0.01)) as panels:
        late = panels.once("page", read)
        assert panels.read(late).error == LATE
        flight = late.begin()
        answer.set()
        assert flight is not None
        flight.result(WAIT_S_MAX)
        reloaded = panels.once("page", reading)
        assert panels.read(reloaded).value == 1
        assert panels.once("page", reading) is not reloaded


def test_a_value_whose_reading_seemed_to_take_hours_is_read_again_soon(panels: Panels, clock: FakeClock) -> None:
    reading = Reading()

    def read() -> int:
        clock.advance(3_600_000)
        return reading()

    source = panels.source(read, age_ms_max=1000)
    assert panels.read(source).value == 1
    clock.advance(GOOD_MS_MAX - 1)
    assert panels.read(source).value == 1
    clock.advance(1)
    assert panels.read(source).value == 2


def test_what_is_being_read_ends_before_its_store_is_closed(clock: FakeClock) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), list[bool]()

    def read() -> None:
        begun.set()
        ended.append(may_end.wait(WAIT_S_MAX))

    panels = Panels(clock, wait_s_max=WAIT_S_MAX)
    panels.once("page", read).begin()
    assert begun.wait(WAIT_S_MAX)
    panels.close_with(may_end.set)
    panels.close()
    assert ended == [True]


def test_a_server_that_does_not_answer_does_not_keep_the_process_alive() -> None:
    program = (
        "import threading; from nos_ec.adapters.system_clock import SystemClock;"
        "from nos_ec.console.panels import Panels;"
        "panels = Panels(SystemClock(), 0.1); panels.read(panels.source(threading.Event().wait, 1)); panels.close()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_S_MAX)

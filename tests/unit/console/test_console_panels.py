"""A panel fails alone, shows its last value then, and is not read too often."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from nos_ec.console.panels import BUG, LATE, Panel, Panels
from nos_ec.core.errors import NosError, Transient
from tests.rig.fakes.clock import FakeClock


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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def panels(clock: FakeClock) -> Iterator[Panels]:
    with closing(Panels(clock)) as made:
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

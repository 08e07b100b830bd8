"""The Overview of a real store, without a browser."""

from __future__ import annotations

from contextlib import closing

import pytest

from nos_ec.composition.wiring import System
from nos_ec.console.app import create_app
from nos_ec.console.panels import FAILED_MS, Panels
from nos_ec.console.view import UNKNOWN
from nos_ec.core.errors import Transient
from nos_ec.engine.gc.run.note import RunState, write_run
from nos_ec.engine.gc.workers import LEASE_NAME
from tests.rig.fakes.clock import FakeClock, SetClock
from tests.service.conftest import WAIT_S_MAX
from tests.service.console.test_console import Away
from tests.unit.console.test_console_security import Client


@pytest.fixture
def clock(system: System) -> FakeClock:
    clock = SetClock(system.clock.now_ms())
    system.clock = clock
    return clock


@pytest.mark.parametrize(
    ("is_held", "has_ended", "said"),
    [
        (True, False, "runs, at 85 % of its speed"),
        (False, False, "last run was killed"),
        (True, True, "last run ended"),
    ],
)
def test_a_run_that_was_killed_does_not_run(system: System, is_held: bool, has_ended: bool, said: str) -> None:
    now_ms = system.clock.now_ms()
    ended_ms = now_ms if has_ended else None
    write_run(system.metadata, RunState("p", now_ms, now_ms, ended_ms, 4, 1, 100, 10, 1, 1, 7, 5, 85, None, None))
    if is_held:
        system.metadata.acquire_lease(LEASE_NAME, now_ms, 60_000)
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        page = Client(create_app(system, panels, None, bytes)).get("/").text
    assert f"<dd>{said}</dd>" in page
    assert "<dd>1 of 4</dd>" in page


def test_free_space_that_cannot_be_read_says_why(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "blocks", Away(system.geometry))
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        page = Client(create_app(system, panels, None, bytes)).get("/").text
    assert page.count("<dd>the server does not answer</dd>") == 1


def test_free_space_is_known_again_soon_after_a_time_out(
    system: System, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """A server that took a minute to fail is asked again after seconds, not after ten minutes."""

    def time_out() -> int:
        clock.advance(60_000)
        raise Transient("no answer within a minute")

    with closing(Panels(clock, WAIT_S_MAX)) as panels:
        client = Client(create_app(system, panels, None, bytes))
        for part in (system.blocks, system.landing, system.medium):
            monkeypatch.setattr(part, "free_bytes", time_out)
        assert client.get("/").text.count("no answer within a minute") == 2
        monkeypatch.undo()
        clock.advance(FAILED_MS)
        page = client.get("/").text
    assert "no answer within a minute" not in page
    free = page.partition("<h2>Free space</h2>")[2].partition("</section>")[0]
    assert (free.count("<dd>"), f"<dd>{UNKNOWN}</dd>" in free) == (3, False)

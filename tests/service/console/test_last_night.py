"""The page on the last night, in a real browser: what is recorded is shown as text, and a panel fails alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser
from pydantic import SecretStr

from nos_ec import __version__
from nos_ec.composition.wiring import System
from nos_ec.console.alerts import RULES
from nos_ec.console.app import Server, create_app
from nos_ec.console.panels import Panels
from nos_ec.core.errors import Transient
from nos_ec.core.placement import GroupState
from nos_ec.engine.figures.daemons import Presence
from nos_ec.engine.figures.events import EventKind, Outcome
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from tests.rig.browser import visiting
from tests.rig.fakes.clock import FakeClock
from tests.service.conftest import Bench
from tests.service.console.test_console import HOUR_MS, Away, browser, clock, serving

__all__ = ["browser", "clock"]

HOSTILE = "<script>alert(1)</script>\u202e{{ 7 * 7 }}\x1b[31m"
WAIT_S_MAX = 60.0
SHOWN = "<script>alert(1)</script>\\u202e{{ 7 * 7 }}\\x1b[31m"


class Groups:
    """Placement groups of a cluster that has lost an OSD."""

    def states(self) -> Mapping[str, Mapping[GroupState, int]]:
        return {"blocks": {state: 7 if state is GroupState.UNDERSIZED else 0 for state in GroupState}}

    def osds_down(self) -> list[int]:
        return [3, 12]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_happened_is_shown_as_text(
    browser: Browser, bench: Bench, system: System, clock: FakeClock, scheme: Any
) -> None:
    events = system.events()
    events.record(EventKind.GC, Outcome.DONE, "too old", at_ms=clock.now_ms() - 25 * HOUR_MS)
    events.record(EventKind.LEASE, Outcome.FAILED, f"fenced {HOSTILE}", at_ms=clock.now_ms() - HOUR_MS)
    for _ in range(3):
        events.record(EventKind.GC, Outcome.FAILED, "no space", 5000)
        clock.advance(1000)
    queue: RetryQueue[str] = RetryQueue("object", str, clock, BackOff(1000, 1000), 10)
    queue.park(HOSTILE, Transient(f"reason {HOSTILE}"))
    Presence(system.metadata, clock, "consumer", f"process {HOSTILE}", __version__, lambda: [queue]).record(ended=False)
    Presence(system.metadata, clock, "gc", "process 2", "0.0.9", lambda: []).record(ended=False)
    Presence(system.metadata, clock, "gc", "process 3", "0.0.8", lambda: []).record(ended=True)
    system.groups = Groups()
    with serving(system) as url, visiting(browser, url, color_scheme=scheme) as visit:
        text = visit.go("/last-night?quarantine=1")
        for one in (f"fenced {SHOWN}", f"reason {SHOWN}", f"process {SHOWN}"):
            assert one in text
        assert "3 times since" in text
        assert "too old" not in text
        assert "Daemons of different versions are alive: 0.0.9, " in text
        assert "There is no dump in the store." in text
        assert "Nothing is in quarantine." in text
        assert "2 OSDs are down: 3, 12." in text
        assert visit.page.locator("td.failed", has_text="7").count() == 1
        assert visit.severe_findings() == []


def test_the_last_dump_and_scrub_and_their_age_are_shown(
    browser: Browser, bench: Bench, system: System, clock: FakeClock
) -> None:
    bench.put_some(system, 20)
    bench.pack(system)
    assert bench.run("metadata", "dump").returncode == 0
    assert bench.run("scrub").returncode == 0
    clock.advance(5 * HOUR_MS)
    with serving(system) as url, visiting(browser, url) as visit:
        text = visit.go("/last-night")
        assert "bring back objects that were deleted in the last 5.0 h" in text
        assert "and found nothing that is left to mend (0 mended)" in text
        assert "complete pass: " in text


@pytest.mark.parametrize("what", ["metadata", "groups", "blocks"])
def test_a_panel_fails_alone(browser: Browser, bench: Bench, system: System, clock: FakeClock, what: str) -> None:
    bench.put_some(system, 20)
    bench.pack(system)
    system.events().record(EventKind.GC, Outcome.DONE, "freed")
    with serving(system) as url, visiting(browser, url) as visit:
        assert "the server does not answer" not in visit.go("/last-night")
        setattr(system, what, Away(system.geometry))
        clock.advance(HOUR_MS)
        text = visit.go("/last-night")
        assert visit.page.locator("main h2").count() == 9
        assert "the server does not answer" in text
        assert "freed" in text
        assert visit.severe_findings() == []


def test_a_ticket_gets_one_file_without_secrets(
    bench: Bench, system: System, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which panel failed, and names in it cannot change how the file or its name are shown."""
    bench.put_some(system, 20)
    bench.pack(system)
    system.events().record(EventKind.GC, Outcome.FAILED, f"fenced {HOSTILE}")
    Presence(system.metadata, clock, "gc", f"process {HOSTILE}", "0.0.9", lambda: []).record(ended=False)
    store = system.settings.store.model_copy(update={"metadata_url": SecretStr("mysql://user:hunter2@db/nos_ec")})
    kafka = system.settings.kafka.model_copy(update={"secrets": {"sasl.password": SecretStr("hunter3")}})
    system.settings = system.settings.model_copy(update={"store": store, "kafka": kafka})
    monkeypatch.setattr(system, "groups", Away(system.geometry))
    with (
        closing(Panels(clock, WAIT_S_MAX)) as panels,
        Server(create_app(system, panels, None, os.urandom), "127.0.0.1", 0) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S_MAX) as client,
    ):
        assert '<a href="/last-night/report" download>' in client.get("/last-night").text
        answer = client.get("/last-night/report")
    assert answer.headers["Content-Type"] == "application/json"
    assert re.fullmatch(
        r'attachment; filename="nos_ec-[0-9a-f-]+-[0-9TZ-]+\.json"', answer.headers["Content-Disposition"]
    )
    assert answer.text.isascii()
    assert answer.text.replace("\n", "").isprintable()
    assert "hunter" not in answer.text
    found = answer.json()
    assert found["settings"]["store"]["metadata_url"] == "mysql://user:**********@db/nos_ec"
    assert found["versions"]["nos_ec"] == __version__
    assert {one["name"] for one in found["alerts"]} == {rule.name for rule in RULES}
    panels_found = found["panels"]
    failed = {name for name, one in panels_found.items() if one["error"] is not None}
    assert failed == {"groups"}
    assert panels_found["groups"] == {"at": None, "error": "the server does not answer", "value": None}
    assert panels_found["status"]["value"]["packed_objects"] == 20
    assert panels_found["status"]["value"]["osds_down"] is None
    assert [one["text"] for one in panels_found["events"]["value"]] == [f"fenced {HOSTILE}"]
    assert [one["process"] for one in panels_found["daemons"]["value"]] == [f"process {HOSTILE}"]
    assert panels_found["gc"]["value"]["paused"] is False
    assert panels_found["dead_letters"]["value"] == []

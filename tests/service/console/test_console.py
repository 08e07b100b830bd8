"""The console on a real store, in a real browser: nobody sees anything without a login, every page works on an empty
store, a full one and one whose servers are away, and hostile names stay text."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nos_ec.composition.wiring import System
from nos_ec.console.access.login_token import LoginTokens
from nos_ec.console.access.sessions import IDLE_MS_MAX
from nos_ec.console.app import Server, create_app
from nos_ec.console.panels import LATE, Panels
from nos_ec.console.rates.rates import KINDS
from nos_ec.console.view import NAVIGATION
from nos_ec.core.errors import Transient
from nos_ec.core.geometry import Geometry
from nos_ec.engine.figures.cost_history import note_cost
from tests.rig.browser import running_browser, visiting
from tests.rig.fakes.clock import FakeClock, SetClock
from tests.rig.fakes.prometheus import alert, answer, fake_prometheus, hang, rules_of, vector
from tests.rig.waiting import until
from tests.service.conftest import WAIT_S_MAX, Bench

TOKEN = "a-token-of-more-than-16-characters"
MANY_BLOCKS = 300_000
HOUR_MS = 3_600_000
HOSTILE_NAMES = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "\u202egpj.exe\u2066\u200f",
    "{{ 7 * 7 }}{% raw %}",
    "'\"><svg onload=alert(3)>&amp;\x1b[31m",
    "n" * 1000,
)
PAGES = [path for path, _ in NAVIGATION]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture
def clock(system: System) -> FakeClock:
    """A clock of the system that only the test advances."""
    clock = SetClock(system.clock.now_ms())
    system.clock = clock
    return clock


@contextmanager
def serving(system: System, token: LoginTokens | None = None) -> Iterator[str]:
    """The URL of a running console."""
    with (
        closing(Panels(system.clock, WAIT_S_MAX)) as panels,
        Server(create_app(system, panels, token, os.urandom), "127.0.0.1", 0) as server,
    ):
        yield server.url


@pytest.fixture
def token(bench: Bench) -> LoginTokens:
    file = bench.folder / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return LoginTokens(file)


class Away:
    """A server that does not answer."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise Transient("the server does not answer")

        return fail


def test_an_operator_logs_in_looks_around_and_logs_out(browser: Browser, system: System, token: LoginTokens) -> None:
    with serving(system, token) as url, visiting(browser, url) as visit:
        visit.go("/flow")
        expect(visit.page).to_have_title("Log in - nos_ec")
        assert visit.severe_findings() == []
        visit.log_in("wrong")
        expect(visit.page.get_by_role("alert")).to_have_text("That is not the token of this console.")
        visit.were_refused(403)
        visit.log_in(TOKEN)
        expect(visit.page).to_have_url(f"{url}/flow")
        visit.page.get_by_role("link", name="Overview").click()
        expect(visit.page.get_by_role("heading", level=1)).to_have_text("Overview")
        assert [one["httpOnly"] for one in visit.context.cookies()] == [True]
        visit.page.get_by_role("button", name="Log out").click()
        expect(visit.page).to_have_title("Log in - nos_ec")
        visit.page.go_back()
        expect(visit.page).to_have_title("Log in - nos_ec")


def test_a_session_expires_and_a_forged_form_is_refused(
    browser: Browser, system: System, clock: FakeClock, token: LoginTokens
) -> None:
    with serving(system, token) as url, visiting(browser, url) as visit:
        visit.go("/")
        visit.log_in(TOKEN)
        expect(visit.page).to_have_title("Overview - nos_ec")
        visit.page.locator("input[name=csrf]").evaluate("field => { field.value = '0'.repeat(64); }")
        visit.page.get_by_role("button", name="Log out").click()
        expect(visit.page.get_by_role("alert")).to_have_text("The form was too old. Please try again.")
        visit.were_refused(403)
        visit.go("/")
        expect(visit.page).to_have_title("Overview - nos_ec")
        clock.advance(IDLE_MS_MAX)
        visit.go("/")
        expect(visit.page).to_have_title("Log in - nos_ec")


def test_a_page_of_another_origin_cannot_log_out(browser: Browser, system: System, token: LoginTokens) -> None:
    """The other page is on another port of the same host, so that the cookie is sent along."""
    with serving(system, token) as url, serving(system) as other, visiting(browser, url) as visit:
        visit.go("/")
        visit.log_in(TOKEN)
        expect(visit.page).to_have_title("Overview - nos_ec")
        csrf = visit.page.locator("input[name=csrf]").input_value()
        attacker = visit.context.new_page()
        attacker.route(
            f"{other}/**",
            lambda route: route.fulfill(
                content_type="text/html",
                body=f'<form method="post" action="{url}/logout"><input name="csrf" value="{csrf}"><button>x</button>',
            ),
        )
        attacker.goto(other)
        attacker.get_by_role("button").click()
        expect(attacker.locator("body")).to_contain_text("not sent by a page of the console")
        visit.go("/")
        expect(visit.page).to_have_title("Overview - nos_ec")


@pytest.mark.parametrize(
    "look",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"color_scheme": "light", "viewport": {"width": 360, "height": 640}},
    ],
    ids=["light", "dark", "narrow"],
)
def test_pages_of_an_empty_store_are_accessible(browser: Browser, system: System, look: dict[str, Any]) -> None:
    with serving(system) as url, visiting(browser, url, **look) as visit:
        for path in PAGES:
            visit.go(path)
            assert visit.severe_findings() == [], path
            assert visit.page.locator(".failed").count() == 0, path
            width = visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert width <= 0, f"{path} is wider than the window"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_a_store_with_hostile_names_are_accessible(
    browser: Browser, bench: Bench, system: System, scheme: Any
) -> None:
    bench.put_some(system, 50)
    bench.pack(system)
    for number in range(3):
        note_cost(system.metadata, system.metadata.totals(), system.clock.now_ms() - (3 - number) * HOUR_MS)
    for name in HOSTILE_NAMES:
        bench.put(system, name, b"x")
    with serving(system) as url, visiting(browser, url, color_scheme=scheme) as visit:
        for path in PAGES:
            text = visit.go(path)
            assert visit.severe_findings() == [], path
            assert not set("\u202e\u2066\u200f\x1b") & set(text)
        text = visit.go("/flow")
        assert "b/<script>alert(1)</script><img src=x onerror=alert(2)>" in text
        assert "{{ 7 * 7 }}" in text
        assert "\\u202egpj.exe\\u2066\\u200f" in text
        visit.go("/")
        assert visit.page.locator("svg.area polygon").count() >= 3
        visit.page.locator(".term", has_text="Utilisation").first.focus()
        expect(visit.page.get_by_text("Live bytes as a share of all bytes of stripes")).to_be_visible()


def test_definitions_fit_into_a_narrow_window(browser: Browser, bench: Bench, system: System) -> None:
    """Pages of a store with objects are as wide as the window, and wherever a word is, its definition is all there when
    the word has the focus, until Escape hides it."""
    bench.put_some(system, 20)
    bench.pack(system)
    bench.put(system, "waits", b"x")
    block = system.metadata.list_blocks(None, 1)[0].block_id.hex()
    unseen = """() => [...document.querySelectorAll(".term")].filter((term) => {
        term.focus();
        const box = term.querySelector(".definition").getBoundingClientRect();
        const corners = [[box.left + 2, box.top + 2], [box.right - 2, box.bottom - 2]];
        return !box.width || !corners.every(([x, y]) => document.elementFromPoint(x, y)?.closest(".term") === term);
    }).map((term) => term.textContent)"""
    places = ("/space?plan=1", "/objects?bucket=b", "/buckets/one?bucket=b", f"/blocks/{block}")
    with serving(system) as url, visiting(browser, url, viewport={"width": 360, "height": 640}) as visit:
        for path in (*PAGES, *places):
            visit.go(path)
            width = visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert width <= 0, f"{path} is wider than the window"
            assert visit.page.evaluate(unseen) == [], path
        word = visit.page.locator(".term").first
        word.focus()
        expect(word.locator(".definition")).to_be_visible()
        visit.page.keyboard.press("Escape")
        expect(word.locator(".definition")).to_be_hidden()
        word.blur()
        word.focus()
        expect(word.locator(".definition")).to_be_visible()


def test_times_are_in_the_zone_of_the_viewer_with_utc_beside(browser: Browser, bench: Bench, system: System) -> None:
    bench.put_some(system, 3)
    bench.pack(system)
    with serving(system) as url, visiting(browser, url, timezone_id="Asia/Tokyo", locale="en-GB") as visit:
        visit.go("/")
        time = visit.page.locator("time").first
        at = time.get_attribute("datetime")
        assert at is not None
        hour = (int(at[11:13]) + 9) % 24
        expect(time).to_contain_text(f"{hour:02}:{at[14:19]} ({at})")


def test_an_open_page_shows_newer_values_by_itself(
    browser: Browser, bench: Bench, system: System, clock: FakeClock, token: LoginTokens
) -> None:
    with serving(system, token) as url, visiting(browser, url) as visit:
        visit.page.clock.install()
        visit.go("/flow")
        visit.log_in(TOKEN)
        expect(visit.page.get_by_text("Nothing waits.").first).to_be_visible()
        bench.put(system, "new", b"x")
        clock.advance(HOUR_MS // 4)
        visit.page.clock.run_for(20_000)
        expect(visit.page.get_by_text("b/new")).to_be_visible()
        clock.advance(IDLE_MS_MAX)
        visit.page.clock.run_for(20_000)
        expect(visit.page.locator("#notice")).to_contain_text("Your session has ended")
        visit.were_refused(401)


@pytest.mark.parametrize("what", ["metadata", "blocks"])
def test_a_page_stays_when_a_server_is_away(
    browser: Browser, bench: Bench, system: System, clock: FakeClock, what: str
) -> None:
    bench.put_some(system, 50)
    bench.pack(system)
    with serving(system) as url, visiting(browser, url) as visit:
        known = visit.go("/")
        assert "the server does not answer" not in known
        setattr(system, what, Away(system.geometry))
        clock.advance(HOUR_MS)
        text = visit.go("/")
        assert visit.page.locator("main h2").count() == 6
        if what == "metadata":
            assert "the server does not answer" in text
            assert "These are the values of" in text
        assert "Space amplification" in text
        assert visit.severe_findings() == []
        visit.go("/flow")
        assert visit.page.locator("main h2").count() == 4
        for path in PAGES:
            visit.go(path)
            assert visit.page.locator("main h1").count() == 1, path
            assert visit.page.locator(".failed[role=alert]").count() == 0, path
            assert visit.severe_findings() == [], path


def test_pages_of_300_000_blocks_walk_through_none(
    browser: Browser, bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(system, "one", b"x")
    bench.pack(system)
    multiply_blocks(bench.folder / "store" / "metadata.db", MANY_BLOCKS)
    system.operator.store_totals().keep()

    def fail(*_: object) -> None:
        raise AssertionError("this walks through all blocks")

    for name in ("totals", "list_blocks", "blocks_with_holes", "space_use"):
        monkeypatch.setattr(system.metadata, name, fail)
    with serving(system) as url, visiting(browser, url) as visit:
        for path in ("/", "/flow"):
            visit.requested.clear()
            text = visit.go(path)
            assert visit.page.locator(".failed").count() == 0, text
            assert len(visit.requested) <= 4, visit.requested
        assert "300,001" in visit.go("/")


def test_every_page_of_300_000_blocks_is_accessible(browser: Browser, bench: Bench, system: System) -> None:
    key = bench.put(system, "one", b"x")
    bench.pack(system)
    extent = system.metadata.get(key).extent
    assert extent is not None
    multiply_blocks(bench.folder / "store" / "metadata.db", MANY_BLOCKS)
    system.operator.store_totals().keep()
    pages = [*PAGES, "/blocks/tiles", f"/blocks/{extent.block_id.hex()}", "/objects?bucket=b", "/buckets/one?bucket=b"]
    with serving(system) as url, visiting(browser, url) as visit:
        for path in [*pages, "/objects/one?bucket=b&name=one", "/last-night?quarantine=1"]:
            # A page that reads all blocks shows them when they have been read, and is there before.
            until(lambda path=path: LATE not in visit.go(path))  # type: ignore[misc]
            assert visit.page.locator(".failed[role=alert]").count() == 0, path
            assert visit.severe_findings() == [], path


def multiply_blocks(database: Path, count: int) -> None:
    """Add this many copies of the row of a block, with other ids."""
    with closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute("SELECT name FROM pragma_table_xinfo('blocks') WHERE hidden = 0").fetchall()
        columns = [name for (name,) in rows]
        values = ", ".join("randomblob(16)" if name == "block_id" else name for name in columns)
        connection.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
            f" INSERT INTO blocks ({', '.join(columns)}) SELECT {values} FROM (SELECT * FROM blocks LIMIT 1), n"
        )


def test_keys_reach_everything_in_an_order_that_makes_sense(
    browser: Browser, system: System, token: LoginTokens
) -> None:
    with serving(system, token) as url, visiting(browser, url) as visit:
        visit.go("/")
        visit.page.keyboard.type(TOKEN)
        visit.page.keyboard.press("Enter")
        expect(visit.page).to_have_title("Overview - nos_ec")
        visit.page.keyboard.press("Tab")
        expect(visit.page.get_by_role("link", name="Skip to the content")).to_be_focused()
        visit.page.keyboard.press("Enter")
        expect(visit.page.locator("main")).to_be_focused()
        visit.page.keyboard.press("Tab")
        expect(visit.page.locator("summary").first).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_rates_of_prometheus_are_accessible(browser: Browser, bench: Bench, scheme: Any) -> None:
    """The page names kinds and quantiles, and has charts of a day and a month."""
    names = [f"{kind}:{name}" for kind in KINDS for name in ("count", "size_bytes", "p50_s", "p99_s", "errors")]
    now = vector(*(({"figure": name}, "0.5") for name in (*names, "answered", "known")))
    firing = rules_of(("NosEcDaemonDown", "ok", [alert("firing", store="a")]), ("NosEcWritersDie", "ok", []))

    def reply(asked: bytes, _: socket.socket) -> bytes:
        if b"/query_range" in asked:
            step_s = 12 * 3600 if b"step=43200" in asked else 3600
            last_s = int(re.findall(rb"end=(\d+)", asked)[0]) // step_s * step_s
            values = [[last_s - number * step_s, str(number + 1)] for number in range(20, -1, -1)]
            return answer({"result": [{"metric": {"figure": name}, "values": values} for name in names]})
        if b"/rules" in asked:
            return firing
        return vector(({"store": "a"}, "1")) if b"count+by+%28store%29" in asked else now

    with fake_prometheus(reply) as (url, _):
        bench.config.write_text(f'{bench.config.read_text()}[console]\nprometheus_url = "{url}"\n')
        with (
            bench.open() as system,
            serving(system) as console,
            visiting(browser, console, color_scheme=scheme) as visit,
        ):
            text = visit.go("/")
            assert "PUT by S3" in text
            assert "A daemon does not answer." in text
            assert visit.page.locator("svg.area polyline").count() == 12
            assert visit.page.locator(".failed").count() == 0
            assert visit.severe_findings() == []


def test_a_prometheus_that_hangs_does_not_keep_a_page(browser: Browser, bench: Bench, system: System) -> None:
    bench.put_some(system, 5)
    with fake_prometheus(hang, answer_s_max=2) as (url, _):
        bench.config.write_text(f'{bench.config.read_text()}[console]\nprometheus_url = "{url}"\n')
        with bench.open() as watched, serving(watched) as console, visiting(browser, console) as visit:
            for _ in range(3):
                text = visit.go("/")
                assert "What a byte costs" in text
                assert visit.page.locator("main h2").count() == 8
            assert "did not answer within 2 s" in text

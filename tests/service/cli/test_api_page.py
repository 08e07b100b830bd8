"""The page of the API in a real browser: a form for each route, answers as text, nothing from another host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nos_ec.api.access import Token
from nos_ec.api.app import Server
from nos_ec.composition.wiring import System
from tests.rig.browser import Visit, running_browser, visiting
from tests.service.cli.test_api import TOKEN, app_of, routes
from tests.service.conftest import Bench

HOSTILE = "<img src=x onerror=alert(1)>\u202egpj'\"\x1b&"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


def open_page(visit: Visit) -> None:
    visit.go("/docs")
    expect(visit.page.get_by_text("Shows the state of a nos_ec store.")).to_be_visible()


def try_it(visit: Visit, path: str, **values: str) -> tuple[str, str]:
    """Fill in the form of a route and send it. Returns the curl line, and the answer once there is one."""
    form = visit.page.get_by_role("form", name=path, exact=True)
    for name, value in values.items():
        form.get_by_label(name).fill(value)
    section = visit.page.locator("section").filter(has=form)
    form.get_by_role("button").click()
    answer = section.get_by_role("region", name=f"Answer of {path}", exact=True)
    expect(answer).to_be_visible()
    return section.locator(
        "p > code"
    ).inner_text(), f"{section.get_by_role('status').inner_text()}\n{answer.inner_text()}"


@pytest.mark.parametrize(
    "look", [{"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 360, "height": 640}}]
)
def test_the_page_has_a_form_for_each_route_and_shows_answers_as_text(
    browser: Browser, bench: Bench, system: System, look: dict[str, Any]
) -> None:
    bench.put(system, HOSTILE, b"x")
    app = app_of(system, Token(TOKEN))
    with Server(app, "127.0.0.1", 0) as server, visiting(browser, server.url, **look) as visit:
        open_page(visit)
        assert visit.page.get_by_role("form").count() == len(routes(app))
        visit.page.get_by_label("Token of the API").fill(TOKEN)
        curl, answer = try_it(visit, "/v1/object", bucket="b", name=HOSTILE)
        assert answer.startswith("200 OK")
        assert '"name": "<img src=x onerror=alert(1)>\\u202egpj' in answer
        assert "\u202e" not in answer
        assert curl.startswith(
            f'curl -H "Authorization: Bearer $NOS_EC_API__TOKEN" \'{server.url}/v1/object?bucket=b&name='
        )
        assert TOKEN not in visit.page.content()
        assert visit.page.locator("img").count() == 0
        _, blocks = try_it(visit, "/v1/blocks", limit="5")
        assert '"blocks": []' in blocks
        assert "nos_ec_" in try_it(visit, "/metrics")[1]
        for details in visit.page.locator("summary").all():
            details.click()
        assert visit.severe_findings() == []
        assert visit.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
        visit.page.reload()
        expect(visit.page.get_by_label("Token of the API")).to_have_value("")


def test_errors_are_shown_and_nothing_is_sent_to_another_path(browser: Browser, system: System) -> None:
    with Server(app_of(system, Token(TOKEN)), "127.0.0.1", 0) as server, visiting(browser, server.url) as visit:
        open_page(visit)
        assert "send the API's token" in try_it(visit, "/v1/status")[1]
        visit.page.get_by_label("Token of the API").fill(TOKEN)
        _, answer = try_it(visit, "/v1/blocks/{block}", block="../../status")
        assert answer.startswith("4")
        assert not any(one.endswith("/v1/status?") for one in visit.requested)
        visit.were_refused(401, 404)


def test_without_a_token_the_page_asks_for_none(browser: Browser, system: System) -> None:
    with Server(app_of(system, None), "127.0.0.1", 0) as server, visiting(browser, server.url) as visit:
        open_page(visit)
        expect(visit.page.get_by_label("Token of the API")).to_be_hidden()
        curl, answer = try_it(visit, "/v1/status")
        assert (curl, answer.startswith("200 OK")) == (f"curl '{server.url}/v1/status'", True)

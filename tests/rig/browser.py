"""A real browser for tests of the console: Debian's chromium, driven by Playwright, with axe-core."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.rig.programs import need_library, need_program
from tests.rig.waiting import WAIT_S_MAX

SEVERE = {"serious", "critical"}
REFUSAL = re.compile("Failed to load resource: the server responded with a status of ([0-9]{3})")
ICONS = ("/icon.svg", "/favicon.ico")
"""Paths that a browser requests at any time without being asked by a page."""
POLL_MS = 50


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Yield a browser without windows. Skips the test (fails it, with REQUIRE_REAL=1) where it cannot be installed."""
    program = need_program("chromium")
    need_library("libatomic.so.1", "libatomic1")  # of Playwright's driver
    expect.set_options(timeout=1000 * WAIT_S_MAX)
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers do not give.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """A visitor with cookies of its own, and what the browser said about the pages that it saw."""

    context: BrowserContext
    url: str
    messages: list[str] = field(default_factory=list)
    """Everything on the console of the browser: violations of the content security policy, failures, errors."""
    requested: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page: Page = self.context.new_page()
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", self._count)

    def _note(self, message: ConsoleMessage) -> None:
        if not message.location.get("url", "").endswith(ICONS):
            self.messages.append(message.text)

    def _count(self, request: Request) -> None:
        self.requested.append(request.url)

    def go(self, path: str) -> str:
        """Open a page and return its text."""
        self.page.goto(self.url + path)
        return self.page.inner_text("body")

    def log_in(self, token: str) -> None:
        """Fill in the login form of the open page."""
        self.page.get_by_label("Token of the console").fill(token)
        self.page.get_by_role("button", name="Log in").click()

    def were_refused(self, *statuses: int) -> None:
        """Wait for the complaints about answers with these statuses, in this order, and forget them. There must be no
        others. A complaint may come after the page that it is about."""
        for _ in range(int(1000 * WAIT_S_MAX) // POLL_MS):
            if len(self.messages) >= len(statuses):
                break
            self.page.wait_for_timeout(POLL_MS)
        messages, self.messages[:] = list(self.messages), []
        found = [int(match[1]) if (match := REFUSAL.match(one)) else one for one in messages]
        assert found == list(statuses), found

    def severe_findings(self) -> list[tuple[str, str]]:
        """Return what axe-core finds in the open page: (rule, element)."""
        found: dict[str, Any] = Axe().run(self.page).response
        return [
            (one["id"], node["html"]) for one in found["violations"] if one["impact"] in SEVERE for node in one["nodes"]
        ]


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """Yield a visitor, for example with `color_scheme` or `viewport`. Afterwards, it must have had no complaint, and
    must have asked no other host."""
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * WAIT_S_MAX)
    try:
        visit = Visit(context, url)
        yield visit
        assert visit.messages == []
        assert [one for one in visit.requested if not one.startswith(url)] == []
    finally:
        context.close()

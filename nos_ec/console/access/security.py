"""What every request to the console has to pass. nos_ec/api/safe_answers.py has what every answer says to the browser.

Cookies are shared by all ports of a host, and a page that S3 serves on the same host counts as the same site. So a form
must come from the console itself (`SameOrigin`), and carry a value that only this browser was given (sessions.py). A
page elsewhere may let its own name resolve to the address of the console (DNS rebinding), so only known names are
answered (`KnownHosts`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nos_ec.api.host_check import MISDIRECTED, host_name, is_loopback
from nos_ec.ports.clock import Clock

IS_TLS = "nos_ec.console.is_tls"
"""The key of a request's scope that says whether the browser talks to a TLS proxy."""


class KnownHosts:
    """ASGI middleware: answers 421 to requests that name neither a TLS proxy of console.hosts nor this machine's
    loopback interface."""

    def __init__(self, app: ASGIApp, hosts: str) -> None:
        """`hosts` is the setting: names separated by commas."""
        self._app = app
        self._hosts = frozenset(host_name(host.strip()) for host in hosts.split(",")) - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        given = Headers(scope=scope).getlist("host")
        host = host_name(given[0]) if len(given) == 1 else ""
        scope[IS_TLS] = host in self._hosts
        if scope[IS_TLS] or is_loopback(host):
            await self._app(scope, receive, send)
            return
        refusal = PlainTextResponse(
            "The console does not answer under this name. Use localhost or a loopback address, or log in with a"
            " token and add the name of your TLS proxy to console.hosts.\n",
            MISDIRECTED,
        )
        await refusal(scope, receive, send)


class SameOrigin:
    """ASGI middleware: answers 403 to a request other than GET and HEAD, unless the browser says that it comes from a
    page of the console. Browsers say so in Sec-Fetch-Site; old ones only in Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["method"] in ("GET", "HEAD") or _is_same_origin(Headers(scope=scope), is_tls=scope[IS_TLS]):
            await self._app(scope, receive, send)
            return
        await PlainTextResponse("This form was not sent by a page of the console.\n", 403)(scope, receive, send)


FORM_BYTES_MAX = 8192
FORM_S_MAX = 10.0
"""How long a browser may take to send a form."""


class FormsFirst:
    """ASGI middleware: reads a form, or the first bytes of a longer body, before it passes the request on. Everyone can
    begin to send a form, so that a form that is still on its way must not count as one of the concurrent requests. The
    server limits how many connections there are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(FORM_S_MAX):
                while more and len(body) <= FORM_BYTES_MAX:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            await PlainTextResponse("The form did not arrive in time.\n", 408)(scope, receive, send)
            return
        first: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": more}]

        async def receive_again() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, receive_again, send)


def _is_same_origin(headers: Headers, *, is_tls: bool) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return headers.get("origin") == f"{'https' if is_tls else 'http'}://{headers['host']}"


ADDRESSES_MAX = 1000
ATTEMPTS_MAX = 10
ATTEMPT_MS = 2_000
"""After ATTEMPTS_MAX wrong tokens, an address may try one more in this time."""


@dataclass(slots=True)
class _Budget:
    attempts: float
    at_ms: int


class Throttle:
    """Limits how often each address may try a wrong token. Other addresses, and sessions that exist, are not affected.
    It remembers the ADDRESSES_MAX addresses that failed last. All calls come from one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def allows(self, address: str) -> bool:
        """Return whether this address may try a token now."""
        return self._left(address).attempts >= 1

    def fail(self, address: str) -> None:
        """Note that this address tried a wrong token."""
        budget = self._left(address)
        budget.attempts -= 1
        self._budgets[address] = budget
        self._budgets.move_to_end(address)
        if len(self._budgets) > ADDRESSES_MAX:
            self._budgets.popitem(last=False)

    def _left(self, address: str) -> _Budget:
        now_ms = self._clock.now_ms()
        known = self._budgets.get(address)
        if known is None:
            return _Budget(ATTEMPTS_MAX, now_ms)
        gained = max(0, now_ms - known.at_ms) / ATTEMPT_MS
        return _Budget(min(ATTEMPTS_MAX, known.attempts + gained), now_ms)

"""What every request to the console has to pass. nos_ec/api/safe_answers.py has what every answer says to the browser.

Cookies are shared by all ports of a host, and a page that S3 serves on the same host counts as the same site. So a form
must come from the console itself (`SameOrigin`), and carry a value that only this browser was given (sessions.py). A
page elsewhere may let its own name resolve to the address of the console (DNS rebinding), so only known names are
answered (`KnownHosts`).
"""

from __future__ import annotations

import asyncio
import ipaddress
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
        if scope[IS_TLS]:
            scope["scheme"] = "https"  # as the browser knows it, so that redirects lead there again
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
    page of the console. Browsers say so in Sec-Fetch-Site; old ones only in Origin. Pages elsewhere may lead to a page
    of the console, but a GET for a part of theirs, such as an image, is answered 403 as well: it could make the console
    work, and they could measure how long that takes (a resource isolation policy, https://www.w3.org/TR/fetch-metadata/).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers = Headers(scope=scope)
        if scope["method"] in ("GET", "HEAD"):
            passes, refusal = _may_get(headers), "Only pages of the console may load this.\n"
        else:
            passes = _is_same_origin(headers, is_tls=scope[IS_TLS])
            refusal = "This form was not sent by a page of the console.\n"
        await (self._app if passes else PlainTextResponse(refusal, 403))(scope, receive, send)


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


def _may_get(headers: Headers) -> bool:
    """Return whether a GET comes from a page of the console, from the user, or from a link that opens a page."""
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _is_same_origin(headers: Headers, *, is_tls: bool) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return headers.get("origin") == f"{'https' if is_tls else 'http'}://{headers['host']}"


PARTIES_MAX = 1000
ATTEMPTS_MAX = 10
ATTEMPT_MS = 2_000
"""After ATTEMPTS_MAX wrong tokens, a party may try one more in this time."""


def network_of(address: str) -> str:
    """Return the network that counts as one client: the /64 network of an IPv6 address, because one host may use all of
    it, otherwise the address itself."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None:
        return f"{ipaddress.IPv6Address(int(ip) >> 64 << 64)}/64"
    return str(ip if isinstance(ip, ipaddress.IPv4Address) else ip.ipv4_mapped)


@dataclass(slots=True)
class _Budget:
    attempts: float
    at_ms: int


class Throttle:
    """Limits how often each party, a network or a browser, may try a wrong token. Other parties, and sessions that
    exist, are not affected. It remembers the PARTIES_MAX that failed last. All calls come from one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def allows(self, party: str) -> bool:
        """Return whether this party may try a token now."""
        return self._left(party).attempts >= 1

    def fail(self, party: str) -> None:
        """Note that this party tried a wrong token."""
        budget = self._left(party)
        budget.attempts -= 1
        self._budgets[party] = budget
        self._budgets.move_to_end(party)
        if len(self._budgets) > PARTIES_MAX:
            self._budgets.popitem(last=False)

    def _left(self, party: str) -> _Budget:
        now_ms = self._clock.now_ms()
        known = self._budgets.get(party)
        if known is None:
            return _Budget(ATTEMPTS_MAX, now_ms)
        gained = max(0, now_ms - known.at_ms) / ATTEMPT_MS
        return _Budget(min(ATTEMPTS_MAX, known.attempts + gained), now_ms)

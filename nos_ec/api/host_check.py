"""Refuses requests that do not name this machine's loopback interface, if the API requires no token.

A web page that a user of this machine opens may make its own name resolve to 127.0.0.1 (DNS rebinding). The browser
then treats the API as part of that page's site, and would let the page read object names. But the browser sends the
page's name in the Host header, and such requests are refused.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from nos_ec.api import problems

SPARED = frozenset({"/livez", "/readyz"})
"""Probes may use any host name, because their answers contain nothing secret."""
MISDIRECTED = 421


class LoopbackHosts:
    """ASGI middleware: answers 421 to requests whose Host header does not name this machine's loopback interface."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in SPARED:
            await self._app(scope, receive, send)
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and is_loopback(host_name(hosts[0])):
            await self._app(scope, receive, send)
            return
        refusal = HTTPException(
            MISDIRECTED,
            "without a token, the API answers only requests to localhost and loopback addresses: use"
            " http://127.0.0.1 or http://localhost, or set a token",
        )
        await problems.of_http(refusal)(scope, receive, send)


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without the port; "" if the header is invalid."""
    try:
        parts = urlsplit(f"//{host}")
        return "" if parts.username is not None or parts.path or parts.query or parts.fragment else parts.hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Return whether this is a loopback address, `localhost`, or a subdomain of `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

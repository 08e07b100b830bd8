"""Limits concurrent requests, because each one takes memory and a thread."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from nos_ec.api import problems
from nos_ec.core.errors import Transient

REQUESTS_MAX = 64
SPARED = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths for the systems that restart or monitor the process. They always answer, because a busy process is healthy."""


class RequestLimit:
    """ASGI middleware: if `requests_max` requests are already running, it answers 503 at once, with `Retry-After`.

    uvicorn's own limit counts connections, including idle ones that are kept alive.
    """

    def __init__(self, app: ASGIApp, requests_max: int) -> None:
        self._app = app
        self._requests_max = requests_max
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. All requests run on one event loop, so counting needs no lock."""
        if scope["type"] != "http" or scope["path"] in SPARED:
            await self._app(scope, receive, send)
        elif self._under_way >= self._requests_max:
            await problems.answer(Transient(f"{self._under_way} requests are already running; try again"))(
                scope, receive, send
            )
        else:
            self._under_way += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._under_way -= 1

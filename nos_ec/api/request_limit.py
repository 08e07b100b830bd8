"""No more requests at a time than the process has memory and threads for."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from nos_ec.api import problems
from nos_ec.core.errors import Transient

REQUESTS_MAX = 64
SPARED = frozenset({"/livez", "/readyz", "/metrics"})
"""Asked by what restarts and watches the process: a busy one is well."""


class RequestLimit:
    """ASGI middleware: beyond `requests_max` requests under way the answer is 503 at once, with `Retry-After`.

    uvicorn's own limit counts connections, those that are kept alive and ask nothing too."""

    def __init__(self, app: ASGIApp, requests_max: int) -> None:
        self._app = app
        self._requests_max = requests_max
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. All run on one event loop, so counting needs no lock."""
        if scope["type"] != "http" or scope["path"] in SPARED:
            await self._app(scope, receive, send)
        elif self._under_way >= self._requests_max:
            await problems.answer(Transient(f"{self._under_way} requests are under way; try again"))(
                scope, receive, send
            )
        else:
            self._under_way += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._under_way -= 1

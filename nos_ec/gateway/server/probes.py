"""Serves `/-/livez` and `/-/readyz` on the port of the gateway itself, because load balancers often check the port to
which they send requests.

The probes need no signature, are not logged or counted, and do not wait for the threads that serve S3. No bucket can
have the name `-`. If the host names a bucket, these paths are keys of objects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from nos_ec.gateway.server.trusted_proxies import TrustedProxies
from nos_ec.gateway.server.workers import Workers
from nos_ec.monitoring.health import Answer, Health
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import bucket_of_host

ROUND_S = 1.0
"""Minimum time between two readiness checks, because anyone may request them and each one queries all servers that
the process depends on."""


class Probes:
    """The probes of one process. Only the event loop may use them."""

    def __init__(self, health: Health, domains: Collection[str], proxies: TrustedProxies) -> None:
        """`domains` are the domains whose subdomains name buckets."""
        self._health = health
        self._domains = domains
        self._proxies = proxies
        self._thread = Workers(1, "s3-ready")
        self._ready: asyncio.Future[Answer] | None = None
        self._asked_s = 0.0
        self._answers: Mapping[bytes, Callable[[], Awaitable[Answer]]] = {
            b"/-/livez": self._alive,
            b"/-/readyz": self._is_ready,
        }

    def find(self, scope: Mapping[str, Any]) -> Callable[[], Awaitable[Answer]] | None:
        """Return the probe that a request asks for; None for a request of S3."""
        answer = self._answers.get(scope["raw_path"])
        if answer is None or scope["method"] not in ("GET", "HEAD"):
            return None
        try:
            headers = dict(self._proxies.headers((scope["client"] or ("",))[0], scope["headers"]))
        except S3Error:
            return None
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        host = headers.get(b"host", b"").decode("latin-1")
        try:
            return None if has_body or bucket_of_host(host, self._domains) is not None else answer
        except S3Error:
            return None

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    async def _alive(self) -> Answer:
        return self._health.alive()

    async def _is_ready(self) -> Answer:
        now_s = asyncio.get_running_loop().time()
        if self._ready is None or (self._ready.done() and now_s >= self._asked_s + ROUND_S):
            self._ready, self._asked_s = self._thread.run(self._health.ready), now_s
        return await asyncio.shield(self._ready)


async def send_answer(answer: Answer, send: Callable[[Any], Awaitable[None]], *, closes: bool) -> None:
    """Send whether the answer is good, without the reasons, because anyone may ask."""
    body = json.dumps({"ok": answer.good}).encode() + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"cache-control", b"no-store"), *([(b"connection", b"close")] if closes else [])]
    await send({"type": "http.response.start", "status": 200 if answer.good else 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})

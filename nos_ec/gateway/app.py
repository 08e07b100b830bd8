"""The ASGI application: reads requests and bodies, sends answers. Operations run in a pool of threads.

A request of a small body is served by one thread once its body is there. So slow clients hold no thread, unless they
send large bodies. A large answer takes a thread for each window of it, and none while the client reads.

Source: ASGI specification, HTTP and WebSocket message format, version 2.5.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Executor
from typing import Any

from nos_ec.gateway.body import Source
from nos_ec.gateway.reply import Reply
from nos_ec.gateway.service import Service
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request

SMALL_BODY_BYTES = 256 << 10
"""Bodies up to this size are read before a thread serves the request."""
DRAINED_BYTES_MAX = 1 << 20
DRAIN_WAIT_S = 1.0
"""The rest of a body that nobody wants is read if it is no longer than this and comes soon, so that the client reads
the answer and keeps the connection. Otherwise the connection is closed behind the answer."""
BYTES_PER_S_MIN = 4096
GRACE_S = 60.0
"""A body that arrives more slowly than this is given up, once the grace is over: it would hold a thread for ever."""
LOOP_WAIT_S = 5.0
"""How long a thread waits for the event loop itself, which may have ended."""
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class App:
    """One for each process."""

    def __init__(
        self, service: Service, executor: Executor, uploads: Executor, new_id: Callable[[], str], body_wait_s: float
    ) -> None:
        """uploads: serves the requests whose bodies are read while they are served, so that slow ones hold up no
        others. body_wait_s: how long a client may send nothing of a body."""
        self._service = service
        self._executor = executor
        self._uploads = uploads
        self._new_id = new_id
        self._body_wait_s = body_wait_s

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http"
        loop = asyncio.get_running_loop()
        body = _Body(receive, loop, self._body_wait_s)
        request_id = self._new_id()
        request = Request(scope["method"], b"/", b"", [])
        try:
            request = Request(scope["method"], scope["raw_path"], scope["query_string"], scope["headers"])
            length = request.header("content-length")
            is_small = length is not None and length.isascii() and length.isdigit() and int(length) <= SMALL_BODY_BYTES
            has_body = length not in (None, "0") or b"transfer-encoding" in request.header_values
            if is_small and has_body:
                await body.fetch_all()
            pool = self._uploads if has_body and not is_small else self._executor
            reply = await loop.run_in_executor(pool, self._service.answer, request, body, request_id)
        except S3Error as error:
            reply = self._service.refuse(request, error, request_id)
        closes = not await body.drain(awaits_100=request.header_values.get(b"expect") is not None)
        await self._send(reply, receive, send, closes=closes)

    async def _send(self, reply: Reply, receive: _Receive, send: _Send, *, closes: bool) -> None:
        headers = [(name.encode("latin-1"), _encoded(value)) for name, value in reply.headers.items()]
        if reply.status not in (204, 304):
            headers.append((b"content-length", b"%d" % reply.size))
        if closes:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if isinstance(reply.body, bytes):
            await send({"type": "http.response.body", "body": reply.body})
            return
        pieces = reply.body
        loop = asyncio.get_running_loop()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while not gone.done() and (piece := await loop.run_in_executor(self._executor, _next, pieces)):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            await loop.run_in_executor(self._executor, _close, pieces)


async def _disconnected(receive: _Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Body(Source):
    """The body of one request. `next_piece` is called by a thread, the others by the event loop."""

    def __init__(self, receive: _Receive, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        self._receive = receive
        self._loop = loop
        self._wait_s = wait_s
        self._ready: list[bytes] = []
        self._begun = False
        self._ended = False
        self._waited_s = 0.0
        self._bytes = 0

    def next_piece(self) -> bytes:
        """See `Source`."""
        if self._ready:
            return self._ready.pop(0)
        while not self._ended:
            piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result(self._wait_s + LOOP_WAIT_S)
            if piece:
                return piece
        return b""

    async def fetch_all(self) -> None:
        """Have all of it. Raises S3Error."""
        while not self._ended:
            piece = await self._next()
            if piece:
                self._ready.append(piece)

    async def drain(self, *, awaits_100: bool) -> bool:
        """Read on until its end. Returns False if there is too much of it, or it does not come. awaits_100: the client
        sends no body before it is asked to, which reading it would do."""
        if awaits_100 and not self._begun:
            return self._ended
        left = DRAINED_BYTES_MAX
        self._wait_s = min(self._wait_s, DRAIN_WAIT_S)
        try:
            while not self._ended and left > 0:
                left -= len(await self._next())
        except S3Error:
            return False
        return self._ended

    async def _next(self) -> bytes:
        self._begun = True
        left_s = GRACE_S + self._bytes / BYTES_PER_S_MIN - self._waited_s
        began_s = self._loop.time()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, min(self._wait_s, left_s)))
        except TimeoutError:
            raise S3Error("RequestTimeout", "The body did not arrive in time.") from None
        self._waited_s += self._loop.time() - began_s
        if message["type"] == "http.disconnect":
            raise S3Error("IncompleteBody", "The client has closed the connection.")
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        self._bytes += len(piece)
        return piece


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")


def _close(pieces: Iterator[bytes]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        close()


def _encoded(value: str) -> bytes:
    """A header, as UTF-8, or as the bytes that surrogates stand for. Control characters cannot be there."""
    return _CONTROLS.sub(" ", value).strip().encode("utf-8", "surrogateescape")

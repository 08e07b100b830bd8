"""The ASGI application: reads requests and their bodies, and sends answers. Operations run in a pool of threads.

A small body is read completely before a thread serves the request. A request with a large body lets other requests run
while it waits for its client, so that slow clients do not delay others. Each window of a large answer needs a thread
while it is read from the store, but not while the client receives it.

Source: ASGI specification, HTTP and WebSocket message format, version 2.5.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from nos_ec.gateway.message.body import BodyWanted, Source, Unasked
from nos_ec.gateway.message.failures import to_s3_error
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.server.log_batches import AccessLogs
from nos_ec.gateway.server.probes import Probes, send_answer
from nos_ec.gateway.server.record import CLIENT_CLOSED, Record, log_access
from nos_ec.gateway.server.request_counters import RequestCounters
from nos_ec.gateway.server.service import Answers
from nos_ec.gateway.server.trusted_proxies import TrustedProxies
from nos_ec.gateway.server.workers import Workers
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request

SMALL_BODY_BYTES = 256 << 10
"""Bodies up to this size are read before a thread serves the request."""
DRAINED_BYTES_MAX = 1 << 20
DRAIN_WAIT_S = 1.0
"""The unread rest of a body is read and discarded if it is no longer than this and arrives soon, so that the client
reads the answer and keeps the connection. Otherwise the connection is closed after the answer."""
LINGERED_BYTES_MAX = 256 << 20
LINGER_S = 20.0
LINGER_WAIT_S = 2.0
"""Limits of reading such a body after the answer, before the connection is closed: bytes, total time, and time without
a byte."""
BYTES_PER_S_MIN = 4096
GRACE_S = 60.0
"""A body that arrives more slowly than this after the grace period is given up, because it would hold a thread
forever."""
LOOP_WAIT_S = 5.0
"""How much longer than for the client a thread waits for the event loop, which may have ended."""
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class Connection(Protocol):
    """The connection of a request, in `scope["connection"]`. `http_protocol.GatewayProtocol` implements it."""

    @property
    def is_crowded(self) -> bool:
        """Whether there are more connections than the maximum."""

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closing, so that nothing more can be sent."""

    @property
    def tls(self) -> tuple[str, str] | None:
        """The cipher suite and the version of TLS, as OpenSSL names them; None without TLS."""

    def join_head(self) -> None:
        """Send the head of the answer, which is the next write, together with the first piece of its body."""

    def abort(self) -> None:
        """Close the connection so that the client notices that the answer is incomplete."""


@dataclass(frozen=True, slots=True)
class AppOptions:
    """`body_wait_s` limits the pauses in a client's body. `requests_max` is the maximum number of concurrent requests;
    further ones are answered with SlowDown. `logs_access` writes a log line for each request. `proxies` are trusted to
    report the address of a client."""

    body_wait_s: float
    requests_max: int
    logs_access: bool
    proxies: TrustedProxies = field(default_factory=lambda: TrustedProxies([]))


class App:
    """The application of one process.

    A body of up to SMALL_BODY_BYTES is read before its signature is verified. So anonymous senders can make a process
    hold at most `requests_max` times that in memory, no more than senders of valid requests can.
    """

    def __init__(
        self,
        service: Answers,
        workers: Workers,
        uploads: Workers,
        new_id: Callable[[], str],
        options: AppOptions,
        counters: RequestCounters,
        probes: Probes,
        logs: AccessLogs,
    ) -> None:
        """`uploads` serves the requests whose bodies are read while they are served, so that slow ones do not delay
        others."""
        self._probes = probes
        self._logs = logs
        self._service = service
        self._workers = workers
        self._uploads = uploads
        self._new_id = new_id
        self._options = options
        self._counters = counters

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http"
        connection: Connection = scope["connection"]
        probe = self._probes.find(scope)
        if probe is not None:
            sender = _Sender(receive, send, connection, Record("", scope["method"], ""))
            with suppress(_ClientGone):
                await send_answer(await probe(), sender.send, closes=connection.is_crowded)
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        proxies, sent, peer = self._options.proxies, scope["headers"], (scope["client"] or ("",))[0]
        remote = proxies.remote(peer, sent)
        record = Record(self._new_id(), scope["method"], remote.address)
        body = _Body(receive, loop, self._options.body_wait_s, self._uploads)
        request, reply = Request(scope["method"], b"/", b"", []), None
        is_refused = connection.is_crowded or self._counters.under_way >= self._options.requests_max
        self._counters.under_way += not is_refused
        try:
            try:
                target = scope["raw_path"], scope["query_string"]
                scheme = proxies.scheme(peer, sent, scope["scheme"])
                request = Request(scope["method"], *target, sent, scheme, remote.address if remote.is_client else None)
                headers = proxies.headers(peer, sent)
                if headers is not sent:
                    request = replace(request, headers=headers)
                record.agent = b" ".join(request.header_values.get(b"user-agent", [])).decode("latin-1")
                if is_refused:
                    raise S3Error("SlowDown", "Please reduce your request rate.")
                reply = await self._reply(request, body, record)
            except S3Error as error:
                reply = self._service.refuse(request, error, record)
            awaits_100 = b"expect" in request.header_values
            closes = not await body.drain(awaits_100=awaits_100) or connection.is_crowded
            record.first_byte_s = loop.time() - began_s
            try:
                await self._send(reply, body, _Sender(receive, send, connection, record), closes=closes)
            except _ClientGone:
                record.code = record.code or CLIENT_CLOSED
        finally:
            self._counters.under_way -= not is_refused
            record.received, record.whole_s = body.size, loop.time() - began_s
            self._counters.add(record)
            if record.logged is not None:
                self._logs.add(record, request, reply, connection.tls, scope["http_version"])
            if self._options.logs_access:
                log_access(record)

    async def _reply(self, request: Request, body: _Body, record: Record) -> Reply:
        length = request.header("content-length")
        is_small = length is not None and length.isascii() and length.isdigit() and int(length) <= SMALL_BODY_BYTES
        has_body = length not in (None, "0") or b"transfer-encoding" in request.header_values
        if not has_body:
            body.end()
        elif is_small:
            if b"expect" in request.header_values and b"authorization" not in request.header_values:
                # Reading the body asks the client to send it. An anonymous request may have to be refused before that.
                with suppress(BodyWanted):
                    return await self._workers.run(self._service.answer, request, Unasked(), record)
            await body.fetch_all()
        workers = self._uploads if has_body and not is_small else self._workers
        return await workers.run(self._service.answer, request, body, record)

    async def _send(self, reply: Reply, body: _Body, sender: _Sender, *, closes: bool) -> None:
        headers = [(name.encode("latin-1"), _encoded(value)) for name, value in reply.headers.items()]
        if reply.status not in (204, 304):
            headers.append((b"content-length", b"%d" % reply.size))
        if closes:
            headers.append((b"connection", b"close"))
        if reply.body and isinstance(reply.body, bytes):
            sender.connection.join_head()
        await sender.send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if isinstance(reply.body, bytes):
            if closes:
                await sender.send_piece(reply.body)
                await body.linger()
                reply.body = b""
            await sender.send_piece(reply.body, last=True)
            return
        await self._send_pieces(reply.body, sender)

    async def _send_pieces(self, pieces: Iterator[bytes], sender: _Sender) -> None:
        gone = asyncio.ensure_future(_disconnected(sender.receive))
        try:
            while piece := await self._workers.run(_next, pieces):
                if gone.done():
                    raise _ClientGone
                await sender.send_piece(piece)
            await sender.send_piece(b"", last=True)
        except (_ClientGone, asyncio.CancelledError):
            raise
        except Exception as error:
            refusal = to_s3_error(error, request_id=sender.record.request_id)
            sender.record.status, sender.record.code = refusal.status, refusal.code
            sender.connection.abort()
        finally:
            gone.cancel()
            await self._workers.run(_close, pieces)


class _ClientGone(Exception):
    """The client closed the connection before it received the whole answer."""


@dataclass(frozen=True, slots=True)
class _Sender:
    """Sends the answer to the client."""

    receive: _Receive
    asgi_send: _Send
    connection: Connection
    record: Record

    async def send(self, message: _Message) -> None:
        """Send a message. Raises _ClientGone."""
        if not self.connection.is_closing:
            try:
                await self.asgi_send(message)
            except (RuntimeError, OSError):
                if not self.connection.is_closing:
                    raise
            else:
                return
        raise _ClientGone

    async def send_piece(self, piece: bytes, *, last: bool = False) -> None:
        """Send a piece of the body. Raises _ClientGone."""
        await self.send({"type": "http.response.body", "body": piece, "more_body": not last})
        self.record.sent += len(piece)


async def _disconnected(receive: _Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Body(Source):
    """The body of one request. A thread calls `next_piece`; the event loop calls the other methods."""

    def __init__(self, receive: _Receive, loop: asyncio.AbstractEventLoop, wait_s: float, uploads: Workers) -> None:
        """`uploads` is the pool whose threads read the pieces."""
        self._receive = receive
        self._loop = loop
        self._wait_s = wait_s
        self._uploads = uploads
        self._ready: list[bytes] = []
        self._begun = False
        self._ended = False
        self._waited_s = 0.0
        self.size = 0
        """Bytes read so far."""

    def next_piece(self) -> bytes:
        """See `Source`."""
        if self._ready:
            return self._ready.pop(0)
        while not self._ended:
            with self._uploads.step_aside(self.size):
                piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result(self._wait_s + LOOP_WAIT_S)
            if piece:
                return piece
        return b""

    def end(self) -> None:
        """Mark the body as empty: the request has neither a length nor chunks (RFC 9112, section 6.3)."""
        self._ended = True

    async def fetch_all(self) -> None:
        """Read the whole body into memory. Raises S3Error."""
        while not self._ended:
            piece = await self._next()
            if piece:
                self._ready.append(piece)

    async def drain(self, *, awaits_100: bool) -> bool:
        """Read and discard the rest of the body. Returns False if it is too long or does not arrive. `awaits_100`: the
        client sends the body only when asked to, and reading would ask for it."""
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

    async def linger(self) -> None:
        """Read and discard the body for a while after the answer. Closing at once would make the kernel reset the
        connection, and a client that still sends would lose the answer."""
        if not self._begun:
            return
        left, until_s = LINGERED_BYTES_MAX, self._loop.time() + LINGER_S
        self._wait_s = LINGER_WAIT_S
        with suppress(S3Error):
            while not self._ended and left > 0 and self._loop.time() < until_s:
                left -= len(await self._next())

    async def _next(self) -> bytes:
        self._begun = True
        left_s = GRACE_S + self.size / BYTES_PER_S_MIN - self._waited_s
        began_s = self._loop.time()
        try:
            async with asyncio.timeout(max(0.0, min(self._wait_s, left_s))):
                message = await self._receive()
        except TimeoutError:
            raise S3Error("RequestTimeout", "The body did not arrive in time.") from None
        self._waited_s += self._loop.time() - began_s
        if message["type"] == "http.disconnect":
            raise S3Error("IncompleteBody", "The client has closed the connection.")
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        self.size += len(piece)
        return piece


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")


def _close(pieces: Iterator[bytes]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        close()


def _encoded(value: str) -> bytes:
    """Return a header as UTF-8, with surrogates as the bytes that they stand for and without control characters."""
    return _CONTROLS.sub(" ", value).strip().encode("utf-8", "surrogateescape")

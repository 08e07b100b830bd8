"""Connections of the servers for people and their programs: what a client does that never sends a whole request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from nos_ec.monitoring.web_server import HEAD_BYTES_MAX, HEAD_WAIT_S, UNREAD_WAIT_MS, BoundedProtocol, open_listener

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, _: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Nothing is read here."""


class Task:
    """The answer to a request."""

    def add_done_callback(self, _: object) -> None:
        """It never ends."""


class Loop:
    """An event loop whose timers only the test ends, and which begins no task."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.answered = 0

    def call_later(self, delay: float, call: Callable[[], object]) -> SimpleNamespace:
        timer = (delay, call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def create_task(self, answer: Coroutine[Any, Any, None]) -> Task:
        answer.close()
        self.answered += 1
        return Task()


async def answer_nothing(_scope: object, _receive: object, _send: object) -> None:
    """An application that no test here runs."""


@pytest.fixture
def connection() -> Iterator[tuple[BoundedProtocol, Transport, Loop]]:
    config = uvicorn.Config(answer_nothing, lifespan="off", ws="none", log_config=None)
    config.load()
    loop, transport = Loop(), Transport()
    protocol = BoundedProtocol(config, ServerState(), {}, cast(asyncio.AbstractEventLoop, loop))
    protocol.connection_made(cast(asyncio.Transport, transport))
    yield protocol, transport, loop
    protocol.connection_lost(None)
    assert loop.timers == []


def send_without_end(protocol: BoundedProtocol, transport: Transport, data: bytes) -> int:
    """Send `data` until the server hangs up. Returns how many bytes it took."""
    sent = 0
    while not transport.is_closed:
        protocol.data_received(data)
        sent += len(data)
        assert sent < 10 * HEAD_BYTES_MAX, "it takes headers without end"
    return sent


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (HEAD, b"X-A: " + b"a" * 990 + b"\r\n"),
        (HEAD + b"X-A: ", b"a" * 1000),
        (b"GET /", b"a" * 1000),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-A: " + b"a" * 990 + b"\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;a=", b"a" * 1000),
    ],
    ids=["headers", "a header", "a path", "trailers", "an extension of a chunk"],
)
def test_headers_without_end_are_refused(
    connection: tuple[BoundedProtocol, Transport, Loop], begin: bytes, more: bytes
) -> None:
    protocol, transport, _ = connection
    protocol.data_received(begin)
    assert send_without_end(protocol, transport, more) <= HEAD_BYTES_MAX + len(more)
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    protocol.data_received(more)
    assert transport.written.count(b"HTTP/1.1") == 1, "the rest is ignored"


def test_a_long_body_is_no_long_head(connection: tuple[BoundedProtocol, Transport, Loop]) -> None:
    protocol, transport, loop = connection
    protocol.data_received(HEAD + b"Content-Length: %d\r\n\r\n" % (4 * HEAD_BYTES_MAX))
    for _ in range(4 * HEAD_BYTES_MAX // 1024):
        protocol.data_received(b"b" * 1024)
    assert (transport.is_closed, loop.answered) == (False, 1)
    assert not protocol.cycle.more_body


def test_a_client_that_does_not_send_its_headers_is_left(connection: tuple[BoundedProtocol, Transport, Loop]) -> None:
    """It does not matter how many bytes it sends, and how often: the time counts from the beginning."""
    protocol, transport, loop = connection
    for part in (b"GET / HT", b"TP/1.1\r\n", b"X-A: a"):
        protocol.data_received(part)
    ((wait_s, give_up),) = loop.timers
    assert (wait_s, transport.is_closed) == (HEAD_WAIT_S, False)
    give_up()
    assert transport.is_closed


@pytest.mark.parametrize(
    ("length", "more"), [(0, b"\r\n"), (1 << 30, b"b")], ids=["empty lines", "the body of a request that is answered"]
)
def test_a_client_that_sends_no_further_request_is_left(
    connection: tuple[BoundedProtocol, Transport, Loop], length: int, more: bytes
) -> None:
    """It does not matter how often it sends something else."""
    protocol, transport, loop = connection
    protocol.data_received(HEAD + b"Content-Length: %d\r\n\r\n" % length)
    answer(protocol)
    for _ in range(100):
        protocol.data_received(more)
    ((wait_s, give_up),) = loop.timers
    assert (wait_s, transport.is_closed) == (protocol.timeout_keep_alive, False)
    give_up()
    assert transport.is_closed


def test_each_request_has_its_own_time(connection: tuple[BoundedProtocol, Transport, Loop]) -> None:
    protocol, _, loop = connection
    for _ in range(3):
        protocol.data_received(HEAD)
        assert [wait_s for wait_s, _ in loop.timers] == [HEAD_WAIT_S]
        protocol.data_received(b"\r\n")
        answer(protocol)
        assert {wait_s for wait_s, _ in loop.timers} == {protocol.timeout_keep_alive}


def test_a_head_that_came_in_part_during_an_answer_keeps_its_time(
    connection: tuple[BoundedProtocol, Transport, Loop],
) -> None:
    protocol, _, loop = connection
    protocol.data_received(HEAD + b"\r\n" + HEAD)
    answer(protocol)
    assert HEAD_WAIT_S in [wait_s for wait_s, _ in loop.timers]
    protocol.data_received(b"\r\n")
    assert loop.timers == []


def test_a_client_that_reads_nothing_is_left() -> None:
    """The kernel does this, on each connection that the socket accepts."""
    with (
        open_listener("api", "127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_WAIT_MS


def test_each_of_several_requests_hears_that_the_client_has_left(
    connection: tuple[BoundedProtocol, Transport, Loop],
) -> None:
    protocol, _, loop = connection
    protocol.data_received(HEAD + b"\r\n")
    first = protocol.cycle
    protocol.data_received(HEAD + b"\r\n")
    protocol.connection_lost(None)
    assert first.disconnected, "it is being answered"
    assert protocol.cycle.disconnected
    assert (len(protocol.pipeline), loop.answered) == (0, 1), "the second one is never begun"


def answer(protocol: BoundedProtocol) -> None:
    """Do what uvicorn does when the request that is being served was answered."""
    protocol.cycle.response_complete = True
    protocol.on_response_complete()


def test_whole_requests_are_waited_for_one_by_one(connection: tuple[BoundedProtocol, Transport, Loop]) -> None:
    protocol, transport, loop = connection
    protocol.data_received(HEAD + b"\r\n")
    assert loop.timers == [], "the request is here"
    protocol.data_received(HEAD)
    assert [wait_s for wait_s, _ in loop.timers] == [HEAD_WAIT_S]
    protocol.data_received(b"\r\n")
    assert loop.timers == []
    assert not transport.is_closed

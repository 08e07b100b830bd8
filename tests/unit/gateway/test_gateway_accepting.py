"""Processes that share a listening socket: servers in threads, each with an event loop of its own, real connections."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from nos_ec.gateway.server.accepting import SharingServer
from nos_ec.gateway.server.connection_counts import ConnectionCounts
from nos_ec.gateway.server.http_protocol import GatewayProtocol
from nos_ec.monitoring.web_server import WebServer, open_listener
from tests.rig import waiting

WAIT_S = 60
until = partial(waiting.until, wait_s=WAIT_S)
REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with open_listener("s3", "127.0.0.1", 0) as made:
        yield made


@contextmanager
def serving(listener: socket.socket, counts: ConnectionCounts, numbers: Sequence[int]) -> Iterator[list[WebServer]]:
    """Servers that answer with their number. Each closes a socket of its own. All are made first: `dup` would let calls
    wait on all of them again."""
    sockets = [(listener.dup(), number) for number in numbers]
    with ExitStack() as stack:
        yield [stack.enter_context(server(own, counts, number)) for own, number in sockets]


def server(listener: socket.socket, counts: ConnectionCounts, number: int) -> WebServer:
    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": str(number).encode()})

    return WebServer(
        answer,
        f"server-{number}",
        listener,
        stop_wait_s=WAIT_S,
        idle_wait_s=WAIT_S,
        http=GatewayProtocol,
        loop="uvloop",
        new_server=lambda config: SharingServer(config, counts, number),
    )


@contextmanager
def connected(listener: socket.socket, count: int) -> Iterator[list[socket.socket]]:
    """This many connections, opened at once and kept."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(listener.getsockname(), WAIT_S)) for _ in range(count)]


def answers(connections: Sequence[socket.socket]) -> Counter[str]:
    """How many of them each server has."""
    found: Counter[str] = Counter()
    for connection in connections:
        connection.sendall(REQUEST)
    for connection in connections:
        received = b""
        while not received.partition(b"\r\n\r\n")[2]:
            some = connection.recv(4096)
            assert some, "closed"
            received += some
        found[received[-1:].decode()] += 1
    return found


def test_counts_are_seen_by_all_that_share_them() -> None:
    with ConnectionCounts.create(3) as first, ConnectionCounts(os.dup(first.fileno())) as second:
        assert len(second) == 3
        assert first.least_of_others(0) is None
        second.set_count(1, 7)
        second.set_count(2, 1 << 20)
        assert [first.least_of_others(number) for number in range(3)] == [7, 1 << 20, 7]
        first.set_absent(1)
        assert [second.least_of_others(number) for number in range(3)] == [1 << 20, 1 << 20, None]


@pytest.mark.parametrize(("processes", "connections"), [(2, 16), (3, 24), (2, 300)])
def test_connections_that_come_at_once_are_spread(listener: socket.socket, processes: int, connections: int) -> None:
    with (
        ConnectionCounts.create(processes) as counts,
        serving(listener, counts, range(processes)),
        ExitStack() as stack,
    ):
        until(lambda: all(counts.least_of_others(number) == 0 for number in range(processes)))
        opened = stack.enter_context(connected(listener, connections))
        shares = answers(opened)
        assert sum(shares.values()) == connections
        # Each takes one more than others have before it gives way, or an eighth more. A thread that does not run for a
        # while is taken for busy, and others accept in its place: so there is room for a few.
        assert min(shares.values()) >= connections / processes / 2, shares


def test_what_a_busy_process_leaves_is_accepted_by_others(listener: socket.socket) -> None:
    with ConnectionCounts.create(2) as counts:
        counts.set_count(1, 0)  # it accepts, or so it claims
        with serving(listener, counts, [0]), connected(listener, 100) as opened:
            assert answers(opened) == {"0": 100}
            until(lambda: counts.least_of_others(1) == 100)


def test_a_count_falls_when_connections_close(listener: socket.socket) -> None:
    with ConnectionCounts.create(2) as counts, serving(listener, counts, [0]) as (one,):
        with connected(listener, 5) as opened:
            answers(opened)
            until(lambda: counts.least_of_others(1) == 5)
        until(lambda: counts.least_of_others(1) == 0)
        one.finish()
        assert counts.least_of_others(1) is None, "it accepts nothing more"


def test_a_lack_of_descriptors_is_waited_out(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    accept = socket.socket.accept

    def lacking(self: socket.socket) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", lacking)
    with ConnectionCounts.create(2) as counts, serving(listener, counts, [0]), connected(listener, 2) as opened:
        assert answers(opened) == {"0": 2}
    assert len(tries) > 1


def test_requests_are_finished_at_the_end_and_nothing_more_is_accepted(listener: socket.socket) -> None:
    with (
        ConnectionCounts.create(2) as counts,
        serving(listener, counts, [0, 1]) as servers,
        connected(listener, 8) as opened,
    ):
        answers(opened)
        ended = threading.Thread(target=servers[0].finish)
        ended.start()
        ended.join(WAIT_S)
        assert not ended.is_alive()
        with connected(listener, 4) as later:
            assert answers(later) == {"1": 4}

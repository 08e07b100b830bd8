"""Accepts connections as one of several processes that share a listening socket, so that all get an equal number.

The kernel wakes all processes for a connection, and an event loop accepts every connection that waits then. So the
process that wakes first would get most connections of a client that opens many at once, and one core would serve them
all. Here, a process accepts only while no other process has fewer connections (connection_counts.py). Otherwise it
gives way for a moment. It then accepts connections that the others have left because they are busy or hang: one at
first, and twice as many each time.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog
import uvicorn

from nos_ec.gateway.server.connection_counts import ConnectionCounts

_log = structlog.get_logger(__name__)

GIVE_WAY_S = 0.005
SLACK_SHARE = 8
"""A process gives way only if it has more than an eighth more connections than another, so that many connections are
accepted in few turns."""
TURN_MAX = 64
"""Maximum number of connections accepted before the loop handles other events."""
RETRY_S = 1.0
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Serve = Callable[[socket.socket], Coroutine[Any, Any, object]]
"""Starts serving an accepted connection, which the server then counts itself. Raises OSError if TLS fails."""


class Acceptor:
    """One process's share of a listening socket. Only the event loop may use it. It closes like an asyncio.Server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        serve: Serve,
        served: Callable[[], int],
        counts: ConnectionCounts,
        number: int,
    ) -> None:
        """`served` returns how many connections this process has, without those that `serve` has not started yet.
        `number` is the index of this process in `counts`."""
        self._loop = loop
        self._listener = listener
        self._serve = serve
        self._served = served
        self._counts = counts
        self._number = number
        self._begun: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._insists_on = 1
        listener.setblocking(False)
        self.publish_count()
        self._listen()

    def publish_count(self) -> int:
        """Publish to the other processes how many connections this one has, and return the number. A connection that
        has just been accepted may be counted twice, because it is served while its task has not ended. The next call
        corrects that, at the latest the one by `on_tick`."""
        connections = self._served() + len(self._begun)
        self._counts.set_count(self._number, connections)
        return connections

    def close(self) -> None:
        """Accept no more connections."""
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._begun:
            task.cancel()
        self._counts.set_absent(self._number)

    async def wait_closed(self) -> None:
        """See asyncio.Server."""
        await asyncio.gather(*self._begun, return_exceptions=True)

    # --- accepting ------------------------------------------------------------------------------------
    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept while no other process has fewer connections, then give way."""
        for _ in range(TURN_MAX):
            least = self._counts.least_of_others(self._number)
            if least is not None and self.publish_count() > least + least // SLACK_SHARE:
                self._pause(GIVE_WAY_S, partial(self._insist, least))
                return
            if not self._accept_one():
                return

    def _insist(self, least: int) -> None:
        """Accept some connections after giving way, if the other processes accepted none. `least` is the fewest
        connections of another process before."""
        if self._counts.least_of_others(self._number) == least:
            for _ in range(self._insists_on):
                if not self._accept_one():
                    break
            else:
                self._insists_on = min(2 * self._insists_on, TURN_MAX)
        else:
            self._insists_on = 1
        if self._timer is None:
            self._listen()

    def _accept_one(self) -> bool:
        """Accept a connection. Returns whether more may wait."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            _log.error("cannot accept another connection; trying again", error=str(error), after_s=RETRY_S)
            self._pause(RETRY_S, self._listen)
            return False
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection))
        self._begun.add(task)
        task.add_done_callback(self._begin)
        self.publish_count()
        return True

    def _begin(self, task: asyncio.Task[object]) -> None:
        self._begun.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):
            self._loop.call_exception_handler({"message": "a connection was not served", "exception": error})

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        """Ignore the socket for a while, then call `then`."""

        def resume() -> None:
            self._timer = None
            then()

        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, resume)


class SharingServer(uvicorn.Server):
    """uvicorn's server, accepting connections with an Acceptor."""

    def __init__(self, config: uvicorn.Config, counts: ConnectionCounts, number: int) -> None:
        """See `Acceptor`."""
        super().__init__(config)
        self._counts = counts
        self._number = number
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the only socket."""
        await super().startup(sockets=[])
        assert sockets is not None
        (listener,) = sockets
        loop, config = asyncio.get_running_loop(), self.config

        async def serve(connection: socket.socket) -> object:
            return await loop.connect_accepted_socket(self._protocol, connection, ssl=config.ssl)

        connections = self.server_state.connections
        self._acceptor = Acceptor(loop, listener, serve, lambda: len(connections), self._counts, self._number)
        self.servers.append(self._acceptor)  # type: ignore[arg-type]

    async def on_tick(self, counter: int) -> bool:
        """Publish the count. uvicorn calls this ten times a second."""
        assert self._acceptor is not None
        self._acceptor.publish_count()
        return await super().on_tick(counter)

    def _protocol(self) -> asyncio.Protocol:
        """Return a protocol as uvicorn's own `startup` makes it."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

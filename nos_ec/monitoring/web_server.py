"""Serves an ASGI application until the process is asked to stop. Only servers import this module, because uvicorn takes
long to load."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from nos_ec.core.errors import ConfigError
from nos_ec.monitoring.endpoint import url_of

_log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 1000
"""Maximum number of connections, including idle ones. Above it, the answer is 503."""
UNREAD_WAIT_MS = 60_000
"""How long sent data may stay unacknowledged until the kernel closes the connection, as when a client does not read its
answer. Accepted connections inherit the limit from the listening socket."""


def open_listener(section: str, host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free port. `section` is the section of the settings with host and port.
    Raises ConfigError if the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
    except OSError as error:
        raise ConfigError(
            f"{section}: cannot listen on {host}:{port} ({error.strerror}); set {section}.host to an address of this"
            f" machine and {section}.port to a free port",
            settings=(f"{section}.host", f"{section}.port"),
        ) from error
    # Accepted connections inherit this option. Without it, head and body of a short answer are 40 ms apart.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_WAIT_MS)
    return listener


HEAD_BYTES_MAX = 64 << 10
"""Maximum size of a request line with headers; also of trailers, and of the extensions of a chunk."""
HEAD_WAIT_S = 10.0
"""How long a client may take to send a request line with headers, and to begin with its first one."""


class LeavingProtocol(HttpToolsProtocol):
    """A connection that notifies all its requests when the client disconnects. uvicorn notifies only the last of
    pipelined requests, and the request that is being answered would raise RuntimeError when it writes."""

    _served: RequestResponseCycle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop answering."""
        self._disconnect()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _disconnect(self) -> None:
        self.pipeline.clear()
        for cycle in (self._served, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()


class BoundedProtocol(LeavingProtocol):
    """A connection, with bounds that uvicorn leaves to a proxy: a client that sends headers without end, slowly, or not
    at all takes neither memory nor a connection from the others, nor does one that sends something else than its next
    request. It ignores offers of another protocol (RFC 9110, section 7.8) without uvicorn's warning."""

    _unused_bytes = 0
    """Bytes received since the parser last completed an element. The parser and the list of headers keep them."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_head(HEAD_WAIT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._has_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless they are too many without a request or a part of its body."""
        if self.transport.is_closing():
            return
        self._unused_bytes += len(data)
        super().data_received(data)
        if self._unused_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The headers of the request are too long.")

    def on_message_begin(self) -> None:
        """Wait for the rest of the headers."""
        super().on_message_begin()
        if self.cycle is not None:
            self._has_head()  # what has passed was the time between two requests
        self._expect_head(HEAD_WAIT_S)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._has_head()
        self._unused_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass on the end of the body."""
        self._unused_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request. uvicorn's own limit begins anew with every byte, also of an empty line or of the
        body of a request that is answered already."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._expect_head(self.timeout_keep_alive)

    def _expect_head(self, wait_s: float) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(wait_s, self.transport.close)

    def _has_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing."""


class WebServer:
    """Serves on its own thread for the duration of the `with` block, so that signals go to the main thread, as in every
    daemon."""

    def __init__(
        self,
        app: Any,
        name: str,
        listener: socket.socket,
        *,
        stop_wait_s: int,
        idle_wait_s: int,
        new_server: Callable[[uvicorn.Config], uvicorn.Server] = uvicorn.Server,
        **options: Any,
    ) -> None:
        """Prepare a server, whose thread gets this name. Requests in flight may take `stop_wait_s` at the end.
        `options` are further options of uvicorn."""
        self._socket = listener
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=idle_wait_s,
            timeout_graceful_shutdown=stop_wait_s,
            **{"http": BoundedProtocol, "limit_concurrency": CONNECTIONS_MAX, **options},
        )
        self._scheme = "https" if config.is_ssl else "http"
        self._server = new_server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name=name, daemon=True
        )

    @property
    def url(self) -> str:
        """The URL of the server."""
        host, port = self._socket.getsockname()[:2]
        return url_of(self._scheme, host, port)

    @property
    def running(self) -> bool:
        """Whether the server runs. It may have stopped unexpectedly."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        """Start answering. Connections made before this wait in the socket's queue."""
        _log.info("listening", url=self.url)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Call `finish`."""
        self.finish()

    def finish(self) -> None:
        """Stop accepting requests, and let requests in flight finish, for at most `stop_wait_s`. Safe to repeat."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

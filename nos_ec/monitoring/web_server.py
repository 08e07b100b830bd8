"""Serves an ASGI application until the process is asked to stop. Only servers import this module, because uvicorn takes
long to load."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Self

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nos_ec.core.errors import ConfigError
from nos_ec.monitoring.endpoint import url_of

_log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 1000
"""Maximum number of connections, including idle ones. Above it, the answer is 503."""


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
    return listener


class QuietProtocol(HttpToolsProtocol):
    """A connection. It ignores offers of another protocol (RFC 9110, section 7.8) without uvicorn's warning."""

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
            **{"http": QuietProtocol, "limit_concurrency": CONNECTIONS_MAX, **options},
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

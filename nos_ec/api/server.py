"""Serves the app until the process is asked to stop."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

import structlog
import uvicorn
from fastapi import FastAPI

from nos_ec.core.errors import ConfigError

_log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 1000
"""Maximum number of connections, including idle ones. Above it, the answer is 503."""
STOP_WAIT_S = 5
IDLE_WAIT_S = 15


class Server:
    """Serves on its own thread for the duration of the `with` block, so that signals go to the main thread, as in every
    daemon."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Listens at once; port 0 picks a free port. Raises ConfigError when the address cannot be used."""
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"api: cannot listen on {host}:{port} ({error.strerror}); set api.host to an address of this machine"
                " and api.port to a free port",
                settings=("api.host", "api.port"),
            ) from error
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=IDLE_WAIT_S,
            timeout_graceful_shutdown=STOP_WAIT_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="api", daemon=True
        )

    @property
    def url(self) -> str:
        """The URL of the address that it listens on."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def running(self) -> bool:
        """False if it has stopped without being asked to."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        """Start answering. Connections made before this wait in the socket's queue."""
        _log.info("listening", url=self.url)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait a few seconds for requests in flight to finish."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

"""Puts a gateway together, and serves until the process is asked to stop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError
from nos_ec.gateway.access import Access
from nos_ec.gateway.app import App
from nos_ec.gateway.bucket_operations import BucketOperations
from nos_ec.gateway.listings import Listings
from nos_ec.gateway.object_operations import ObjectOperations
from nos_ec.gateway.sealed_secrets import MasterKeys
from nos_ec.gateway.service import Service
from nos_ec.settings import S3Settings

_log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 1000
STOP_WAIT_S = 30
IDLE_WAIT_S = 60
UNREAD_WAIT_MS = 60_000
"""How long a client may read nothing of an answer. Connections that are accepted inherit it."""


def make_service(system: System, masters: MasterKeys, settings: S3Settings) -> Service:
    """The gateway of an open store, without its server."""
    store, metadata, clock = system.store(), system.metadata, system.clock
    access = Access(metadata, masters, clock, settings.access_cache_ms)
    return Service(
        access,
        BucketOperations(metadata, access, clock, settings.region),
        Listings(store),
        ObjectOperations(store, access),
        clock,
        settings.domain_names,
    )


class _Protocol(H11Protocol):
    """Closes connections on which no whole request comes for IDLE_WAIT_S: uvicorn's own limit is for the time between
    two requests, and ends with the first byte of the next one."""

    _idle_since: object = None
    _was_idle = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._timer = self.loop.call_later(IDLE_WAIT_S / 2, self._look)

    def _look(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self._was_idle and self._idle_since is self.cycle:
            self.transport.close()
            return
        self._was_idle, self._idle_since = is_idle, self.cycle
        self._watch()


class GatewayServer:
    """Serves on its own thread for the duration of the `with` block, so that signals go to the main thread."""

    def __init__(self, service: Service, settings: S3Settings, new_id: Callable[[], str]) -> None:
        """Listens at once; port 0 picks a free port. Raises ConfigError when the address cannot be used."""
        host, port = settings.host, settings.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
        except OSError as error:
            raise ConfigError(
                f"s3: cannot listen on {host}:{port} ({error.strerror}); set s3.host to an address of this machine and"
                " s3.port to a free port",
                settings=("s3.host", "s3.port"),
            ) from error
        self._executor = ThreadPoolExecutor(settings.threads, "s3")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_WAIT_MS)
        self._uploads = ThreadPoolExecutor(settings.threads, "s3-upload")
        config = uvicorn.Config(
            App(service, self._executor, self._uploads, new_id, settings.body_wait_ms / 1000),
            http=_Protocol,
            proxy_headers=False,
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
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="s3", daemon=True
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
        """Accept nothing more, and let requests in flight finish, for STOP_WAIT_S at most."""
        self._server.should_exit = True
        self._thread.join()
        for pool in (self._executor, self._uploads):
            pool.shutdown(wait=True, cancel_futures=True)
        self._socket.close()

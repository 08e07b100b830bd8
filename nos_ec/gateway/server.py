"""Puts a gateway together, and serves until the process is asked to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import TracebackType
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from nos_ec.composition.wiring import System
from nos_ec.gateway.access import Access
from nos_ec.gateway.app import App
from nos_ec.gateway.attribute_changes import AttributeChanges
from nos_ec.gateway.bucket_operations import BucketOperations
from nos_ec.gateway.cors import Cors
from nos_ec.gateway.listings import Listings
from nos_ec.gateway.multipart_operations import MultipartOperations
from nos_ec.gateway.object_operations import ObjectOperations
from nos_ec.gateway.post_forms import PostForms
from nos_ec.gateway.sealed_secrets import MasterKeys
from nos_ec.gateway.service import Service
from nos_ec.monitoring.web_server import CONNECTIONS_MAX, WebServer
from nos_ec.settings import S3Settings

STOP_WAIT_S = 30
IDLE_WAIT_S = 60
UNREAD_WAIT_MS = 60_000
"""How long a client may read nothing of an answer. Connections that are accepted inherit it."""


def make_service(system: System, masters: MasterKeys, settings: S3Settings) -> Service:
    """The gateway of an open store, without its server."""
    store, metadata, clock = system.store(), system.metadata, system.clock
    uploads = system.multipart_uploads(store)
    access = Access(metadata, masters, clock, settings.access_cache_ms)
    objects = ObjectOperations(store, uploads, access, AttributeChanges(store, clock, Random().random))
    return Service(
        access,
        BucketOperations(metadata, uploads, access, clock, settings.region),
        Listings(store),
        objects,
        MultipartOperations(store, uploads, access, objects),
        Cors(metadata, access, clock),
        PostForms(access, objects, clock),
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


class GatewayServer(WebServer):
    """The server of a gateway, with the threads that serve its requests."""

    def __init__(self, service: Service, settings: S3Settings, new_id: Callable[[], str]) -> None:
        """Raises ConfigError when the address cannot be used."""
        self._executor = ThreadPoolExecutor(settings.threads, "s3")
        self._uploads = ThreadPoolExecutor(settings.threads, "s3-upload")
        super().__init__(
            App(service, self._executor, self._uploads, new_id, settings.body_wait_ms / 1000),
            "s3",
            settings.host,
            settings.port,
            stop_wait_s=STOP_WAIT_S,
            idle_wait_s=IDLE_WAIT_S,
            http=_Protocol,
            proxy_headers=False,
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_WAIT_MS)
        self._socket.listen(CONNECTIONS_MAX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Also ends the threads."""
        super().__exit__(kind, error, trace)
        for pool in (self._executor, self._uploads):
            pool.shutdown(wait=True, cancel_futures=True)

"""The HTTP endpoint of a daemon: /livez, /readyz, /metrics. It serves plain text, read-only, without authentication.

It listens on 127.0.0.1 unless the operator sets another address. Its answers contain no object names, but may contain
the addresses of servers that do not answer.
"""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Self

import structlog

from nos_ec.core.errors import ConfigError
from nos_ec.monitoring.exposition import CONTENT_TYPE
from nos_ec.monitoring.health import Answer
from nos_ec.monitoring.monitor import Monitor

_log = structlog.get_logger(__name__)

REQUEST_WAIT_S_MAX = 10
"""A client that sends nothing for this long is disconnected, so that it does not occupy a thread for ever."""


def url_of(scheme: str, host: str, port: int) -> str:
    """Return the URL of a server; an IPv6 address is put in brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Endpoint:
    """Serves a monitor on its own threads for the duration of the `with` block."""

    def __init__(self, monitor: Monitor, host: str, port: int) -> None:
        """Listen at once; port 0 picks a free port. Raises ConfigError if the address cannot be used."""
        try:
            self._server = _Server((host, port), monitor)
        except OSError as error:
            raise ConfigError(
                f"monitoring: cannot listen on {host}:{port} ({error.strerror}); set monitoring.host to an"
                f" address of this machine and monitoring.port of this {monitor.service} to a free port, or to 0 for no"
                " endpoint",
                settings=("monitoring.host", "monitoring.port"),
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="endpoint", daemon=True
        )

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        host, port = self._server.server_address[:2]
        return url_of("http", str(host), port)

    def __enter__(self) -> Self:
        """Start answering requests."""
        self._thread.start()
        _log.info("endpoint", url=self.url)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening. Does not wait for requests in flight."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], monitor: Monitor) -> None:
        self.monitor = monitor
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's name look-up, which may wait for a name server and whose result is not used."""
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Log at debug level only, because a client that disconnects is not our error. The base class would print a
        trace."""
        _log.debug("request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_WAIT_S_MAX
    server: _Server

    def do_GET(self) -> None:
        monitor = self.server.monitor
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._reply(200, CONTENT_TYPE, monitor.metrics.text())
        elif path == "/livez":
            self._reply_health(monitor.health.alive())
        elif path == "/readyz":
            self._reply_health(monitor.health.ready())
        else:
            self._reply(404, "text/plain; charset=utf-8", b"not found; use /livez, /readyz or /metrics\n")

    do_HEAD = do_GET  # noqa: N815

    def _reply_health(self, answer: Answer) -> None:
        body = json.dumps(answer.data()) + "\n"
        self._reply(200 if answer.good else 503, "application/json", body.encode())

    def _reply(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing, because probes come every few seconds."""

"""Serves the app until the process is stopped."""

from __future__ import annotations

from fastapi import FastAPI

from nos_ec.monitoring.web_server import WebServer, open_listener

STOP_WAIT_S = 5
IDLE_WAIT_S = 15


class Server(WebServer):
    """The server of the API."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        """Raise ConfigError if the address cannot be used."""
        super().__init__(app, "api", open_listener("api", host, port), stop_wait_s=STOP_WAIT_S, idle_wait_s=IDLE_WAIT_S)

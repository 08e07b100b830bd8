"""A running S3 gateway, and clients of accounts: botocore, and requests just as they are."""

from __future__ import annotations

import http.client
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session

from nos_ec.composition.wiring import System
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.server.http_server import GatewayServer, make_service, open_gateway_listener
from nos_ec.monitoring.health import Health
from nos_ec.settings import S3Settings

MASTERS = MasterKeys(["12" * 32])
SETTINGS = S3Settings(port=0, domains="s3.example.com", threads=8)
LOADER = Session().get_component("data_loader")
"""Sessions share it, because it takes longer to load the description of S3 than to run a short test."""


class Gateway:
    """A running gateway, and clients of accounts."""

    def __init__(self, system: System, url: str) -> None:
        self.system = system
        self.url = url
        self.accounts = Accounts(system.metadata, system.clock, os.urandom)

    def client(self, account: str | None, **options: Any) -> Any:
        """A client of a new key of this account; an anonymous one for None."""
        if account is None:
            return self.client_of(None, None, **options)
        made = self.accounts.create_key(MASTERS, account)
        return self.client_of(made.key.access_key, made.secret, **options)

    def client_of(
        self, access_key: str | None, secret: str | None, token: str | None = None, service: str = "s3", **options: Any
    ) -> Any:
        defaults = {"retries": {"max_attempts": 0, "mode": "standard"}, "s3": {"addressing_style": "path"}}
        version = ("v4" if service == "sts" else "s3v4") if access_key else UNSIGNED
        config = Config(signature_version=version, **{**defaults, **options})
        session = Session()
        session.register_component("data_loader", LOADER)
        return session.create_client(
            service,
            region_name="eu-north-1",
            endpoint_url=self.url,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=config,
        )

    def raw(
        self, method: str, target: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """An unsigned request, just as it is."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        found = answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        return found


def health_of(system: System) -> Health:
    """The health of a gateway that depends on nothing."""
    health = Health(system.clock, 60_000)
    health.started()
    return health


@contextmanager
def serving(system: System, settings: S3Settings = SETTINGS, health: Health | None = None) -> Iterator[Gateway]:
    """A gateway of this store, on a free port."""
    health = health or health_of(system)
    settings = settings.model_copy(update={"port": 0})
    ids = itertools.count(1)
    service, listener = make_service(system, MASTERS, settings), open_gateway_listener(settings)
    with GatewayServer(service, settings, lambda: f"{next(ids):016X}", listener, health) as server:
        yield Gateway(system, server.url)


def refused(code: str, status: int, call: Any, **arguments: Any) -> ClientError:
    """The call must be refused with this error code and HTTP status."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response["Error"]
    assert (error["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status), error
    return caught.value

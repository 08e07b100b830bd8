"""Real S3 clients that encrypt objects, also large ones in parts, over HTTPS. Every byte is compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.wiring import initialise, open_system
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.settings import load_settings
from tests.real.conftest import or_skip
from tests.rig.certificates import make_certificate
from tests.rig.s3.embedded_gateway import CONFIG
from tests.rig.s3.s3_clients import Gateways, clients_python
from tests.rig.s3.s3_encrypting import CLIENTS
from tests.rig.s3.s3_gateway import MASTER_KEY, Access, GatewayProcess, create_key

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """A gateway over HTTPS, with a key of the store, and one of the KMS key red."""
    or_skip(clients_python)
    folder = tmp_path_factory.mktemp("encrypting")
    config = folder / "nos-ec.toml"
    config.write_text(CONFIG)
    settings = load_settings(config, {})
    initialise(settings)
    with open_system(settings) as system:
        ring = KeyRing(system.metadata, MasterKeys([MASTER_KEY]), SystemClock())
        assert [ring.add(os.urandom, name) for name in ("red", None)] == [1, 2]
    key, secret = create_key(config, "ann")
    file, key_file = map(str, make_certificate(folder, "gateway"))
    files = {"NOS_EC_S3__CERTIFICATE_FILE": file, "NOS_EC_S3__KEY_FILE": key_file}
    with GatewayProcess(config, folder / "gateway.log", **files) as gateway:
        yield Access(gateway.url, key, secret, file)
    assert "Traceback" not in (folder / "gateway.log").read_text()


@pytest.mark.parametrize("client", CLIENTS)
def test_client(secure: Access, client: str, tmp_path: Path) -> None:
    or_skip(lambda: CLIENTS[client](Gateways(secure, secure, tmp_path)))

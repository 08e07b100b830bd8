"""Real S3 clients on an embedded store, whose objects are packed meanwhile. Every byte is compared.

They send each file in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.composition.wiring import initialise
from nos_ec.settings import load_settings
from tests.rig.chaos_fleet import CODES, Actor, Fleet
from tests.rig.s3_clients import CLIENTS, Gateways, clients_python
from tests.rig.s3_gateway import Access, GatewayProcess, create_key

from .conftest import or_skip

pytestmark = pytest.mark.real

CONFIG = """
[store]
root = "store"
[put]
min_age_ms = 0
[producer]
idle_wait_ms = 100
[consumer]
idle_wait_ms = 100
linger_ms = 100
[landing]
device_bytes = "64MiB"
"""


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    or_skip(clients_python)
    folder = tmp_path_factory.mktemp("embedded")
    config = folder / "nos-ec.toml"
    config.write_text(CONFIG)
    initialise(load_settings(config, {}))
    key, secret = create_key(config, "ann")
    fleet = Fleet(config, {"producer-0": Actor(("producer",)), "consumer-0": Actor(("consumer",))}, restart_wait_s=1)
    try:
        with GatewayProcess(config, folder / "gateway.log") as gateway:
            yield Access(gateway.url, key, secret)
        fleet.stop()
        assert fleet.misbehaviour(CODES) == []
        assert "Traceback" not in (folder / "gateway.log").read_text()
    finally:
        fleet.abandon()


@pytest.mark.parametrize("client", CLIENTS)
def test_client(access: Access, client: str, tmp_path: Path) -> None:
    CLIENTS[client](Gateways(access, access, tmp_path))

"""The whole product on Vitess: producer, consumers, GC, and two gateways with real S3 clients, on the servers of `make
up DATABASE=vitess`. In the end the tables are dropped, and come back from a dump and from the blocks.

`make vitess` runs this, after it has built Vitess. The tests use one store, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nos_ec.composition.wiring import initialise, open_system
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey
from nos_ec.core.tails import is_tail
from nos_ec.ports.metadata import Totals
from nos_ec.settings import load_settings, without_settings
from tests.real.conftest import Stack, or_skip
from tests.rig.chaos.chaos_fleet import CODES, Actor, Fleet
from tests.rig.daemons import until
from tests.rig.fakes.audit import all_objects
from tests.rig.patience import PATIENCE_MS, patient
from tests.rig.s3 import s3_multipart
from tests.rig.s3.s3_clients import CLIENTS, Gateways, clients_python
from tests.rig.s3.s3_gateway import Access, GatewayProcess, client_of, create_key
from tests.rig.sql.sql_servers import drop_all

pytestmark = pytest.mark.real

CHURN = "churn"
OBJECTS, SIZE_MAX = 600, 50_000
COMMAND_S_MAX = 600
CONFIG = """
[store]
backend = "ceph"
root = "root"
metadata_url = "{metadata_url}"
[ceph]
conf_file = "{conf_file}"
user = "client.nos-ec-front"
keyring_file = "{keyring_file}"
op_timeout_ms = {patience_ms}
[geometry]
stripes_per_block = 4
[put]
min_age_ms = 0
[consumer]
linger_ms = 200
linger_max_ms = 200
[reaper]
landing_grace_ms = 1000
[gc]
policy = "threshold"
hole_ratio_min = 0.3
block_grace_ms = 2000
wait_ms = 1000
reserve_bytes = 0
[log]
backend = "kafka"
partitions = 3
[kafka]
servers = "{servers}"
replication = 1
in_sync_min = 1
[logging]
format = "json"
"""
DAEMONS = {
    "producer-0": ("producer",),
    "consumer-0": ("consumer",),
    "consumer-1": ("consumer",),
    "gc-0": ("gc", "run", "--apply", "--loop"),
}


class Product:
    """A store on the stack, its daemons, and two gateways."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.settings = patient(load_settings(config, {}))
        initialise(self.settings)
        key, secret = create_key(config, "ann")
        self.fleet = Fleet(config, {name: Actor(arguments) for name, arguments in DAEMONS.items()}, restart_wait_s=1)
        self._gateways = [GatewayProcess(config, config.parent / f"gateway-{number}.log") for number in range(2)]
        self.accesses = [Access(one.url, key, secret) for one in self._gateways]
        self._running = ExitStack()

    def start_gateways(self) -> None:
        """Start them, and wait until they answer."""
        for one in self._gateways:
            self._running.enter_context(one)

    def stop(self) -> None:
        """End gateways and daemons. All of them must end well."""
        self._running.close()
        self.fleet.stop()
        assert self.fleet.misbehaviour(CODES) == []
        assert not [one for one in self.config.parent.glob("gateway-*.log") if "Traceback" in one.read_text()]

    def abandon(self) -> None:
        """Leave no process, however the tests ended."""
        self._running.close()
        self.fleet.abandon()

    def command(self, *arguments: str) -> str:
        """Run `nos-ec` with these arguments. Returns what it printed."""
        line = [sys.executable, "-m", "nos_ec", "--config", str(self.config), *arguments]
        environment = without_settings(os.environ)
        ran = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False)
        assert ran.returncode == 0, f"{arguments}: {ran.returncode}: {ran.stdout[-3000:]} {ran.stderr[-3000:]}"
        return ran.stdout

    def await_packed(self) -> None:
        """Wait until nothing waits to be packed."""
        with open_system(self.settings) as seen:
            until(lambda: _waiting(seen.metadata.totals()) == 0, "all objects are packed")

    def contents(self) -> dict[ObjectKey, str]:
        """The SHA-256 of each object of the clients."""
        with open_system(self.settings) as seen:
            store = seen.client.store()
            keys = [row.key for row in all_objects(seen.metadata)]
            clients = [key for key in keys if not key.bucket.startswith(RESERVED_BUCKET) and not is_tail(key)]
            return {key: hashlib.sha256(store.get(key)).hexdigest() for key in clients}


def _waiting(totals: Totals) -> int:
    return totals.landed_objects + totals.queued_objects


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.up(NOS_EC_DEV_DATABASE="vitess")
    try:
        lines = (stack.folder / "stack" / "nos-ec.env").read_text().splitlines()
        given = dict(line.split("=", 1) for line in lines)
        config = tmp_path_factory.mktemp("product") / "nos-ec.toml"
        config.write_text(
            CONFIG.format(
                metadata_url=given["NOS_EC_STORE__METADATA_URL"],
                conf_file=given["NOS_EC_CEPH__CONF_FILE"],
                keyring_file=given["NOS_EC_CEPH__KEYRING_FILE"],
                servers=given["NOS_EC_KAFKA__SERVERS"],
                patience_ms=PATIENCE_MS,
            )
        )
        product = Product(config)
        try:
            product.start_gateways()
            client_of(product.accesses[0]).create_bucket(Bucket=CHURN)
            yield product
        finally:
            product.abandon()
    finally:
        assert stack.script("down").returncode == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_client(product: Product, client: str, tmp_path: Path) -> None:
    or_skip(clients_python)
    write, read = product.accesses
    or_skip(lambda: CLIENTS[client](Gateways(write, read, tmp_path)))


@pytest.mark.parametrize("client", s3_multipart.CLIENTS)
def test_client_that_sends_parts(product: Product, client: str, tmp_path: Path) -> None:
    or_skip(clients_python)
    write, read = product.accesses
    or_skip(lambda: s3_multipart.CLIENTS[client](Gateways(write, read, tmp_path)))


def test_gc_moves_objects_and_deletes_blocks(product: Product) -> None:
    rng = random.Random(39)
    write, read = (client_of(access) for access in product.accesses)
    alive = {f"{number:04}": rng.randbytes(rng.randint(1, SIZE_MAX)) for number in range(OBJECTS)}
    for name, data in alive.items():
        write.put_object(Bucket=CHURN, Key=name, Body=data)
    product.await_packed()
    for name in rng.sample(sorted(alive), OBJECTS * 6 // 10):
        read.delete_object(Bucket=CHURN, Key=name)
        del alive[name]
    until(lambda: product.fleet.sum_said("gc", "collected", "objects_moved") > 0, "GC has moved objects")
    until(lambda: product.fleet.sum_said("gc", "collected", "blocks_deleted") > 0, "GC has deleted blocks")
    for name, data in alive.items():
        assert read.get_object(Bucket=CHURN, Key=name)["Body"].read() == data


def test_the_rows_come_back(product: Product) -> None:
    """They come from the dump and, for what was put since, from the blocks."""
    product.command("metadata", "dump")
    write = client_of(product.accesses[0])
    for number in range(50):
        write.put_object(Bucket=CHURN, Key=f"since {number}", Body=b"since the dump" * number)
    product.await_packed()
    product.stop()
    before = product.contents()
    assert sum(key.name.startswith("since") for key in before) == 50
    product.command("check", "--read-data", "100%")
    drop_all(product.settings.store.url())
    product.command("metadata", "rebuild")
    found = json.loads(product.command("check", "--read-data", "100%", "--json"))
    assert not found.get("problems"), found
    assert product.contents() == before
    product.start_gateways()
    name = next(key.name for key in before if key.bucket == CHURN)
    body = client_of(product.accesses[1]).get_object(Bucket=CHURN, Key=name)["Body"].read()
    assert hashlib.sha256(body).hexdigest() == before[ObjectKey(CHURN, name)]

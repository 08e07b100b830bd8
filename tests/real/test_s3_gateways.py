"""Two S3 gateways of one store on Ceph, Kafka and MariaDB, each process with the rights of its kind and no others.

What one gateway has answered, the other one knows at once, while consumers pack the objects. Real clients write to one
and read from the other, and every byte is compared.
"""

from __future__ import annotations

import hashlib
import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session

from nos_ec.composition.backends import remove_log, remove_objects
from tests.rig.ceph_cluster import CephCluster
from tests.rig.chaos_fleet import CODES, Actor, Fleet
from tests.rig.daemons import until
from tests.rig.dev_servers import DevServer
from tests.rig.patience import PATIENCE_MS
from tests.rig.s3_clients import CLIENTS, Gateways, clients_python
from tests.rig.s3_gateway import Access, GatewayProcess, create_key
from tests.rig.sql_roles import RoleStore

from .conftest import or_skip

pytestmark = pytest.mark.real

CONFIG = """
[store]
backend = "ceph"
root = "root"
[ceph]
conf_file = "{conf_file}"
namespace = "{tag}"
op_timeout_ms = {patience_ms}
[geometry]
stripes_per_block = 4
[put]
min_age_ms = 0
[producer]
idle_wait_ms = 100
[consumer]
linger_ms = 200
linger_max_ms = 200
idle_wait_ms = 100
[log]
backend = "kafka"
partitions = 3
[kafka]
servers = "{servers}"
topic = "{tag}"
replication = 1
in_sync_min = 1
[logging]
format = "json"
"""
DAEMONS = {"producer-0": ("producer",), "consumer-0": ("consumer",), "gc-0": ("gc", "run", "--apply", "--loop")}
WRITERS = 64
RACES = 4
TURNS = 60
KEYS = 8
SIZES = (0, 1, 5_000, 300_000, 5 << 20)


class TwoGateways:
    """The running store."""

    def __init__(self, store: RoleStore, urls: list[str], key: str, secret: str) -> None:
        self.store = store
        self.accesses = [Access(url, key, secret) for url in urls]

    def clients(self) -> list[Any]:
        """A client of each gateway. Safe to use from several threads."""
        config = Config(
            retries={"max_attempts": 0, "mode": "standard"},
            s3={"addressing_style": "path"},
            max_pool_connections=WRITERS,
            read_timeout=PATIENCE_MS // 1000,
        )
        return [
            Session().create_client(
                "s3",
                region_name="eu-north-1",
                endpoint_url=access.url,
                aws_access_key_id=access.access_key,
                aws_secret_access_key=access.secret,
                config=config,
            )
            for access in self.accesses
        ]

    def await_packed(self) -> None:
        """Wait until consumers have packed something."""
        with self.store.open("reader") as seen:
            until(lambda: seen.metadata.totals().packed_objects > 0, "objects are packed")


@pytest.fixture(scope="module")
def gateways(
    ceph: CephCluster, kafka: DevServer, mariadb_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoGateways]:
    tag = f"s3-{uuid.uuid4().hex[:12]}"
    config = CONFIG.format(conf_file=ceph.conf_file, servers=kafka.url, tag=tag, patience_ms=PATIENCE_MS)
    store = RoleStore(mariadb_url, tmp_path_factory.mktemp("gateways"), config, ceph.folder)
    with store.made(), ExitStack() as stack:
        stack.callback(remove_log, store.settings("admin"))
        stack.callback(remove_objects, store.settings("admin"))
        key, secret = create_key(store.config, "ann", **store.environment("admin"))
        actors = {
            name: Actor(arguments, store.environment(name.partition("-")[0])) for name, arguments in DAEMONS.items()
        }
        fleet = Fleet(store.config, actors, restart_wait_s=1)
        stack.callback(fleet.abandon)
        logs = [store.folder / f"gateway-{number}.log" for number in range(2)]
        with ExitStack() as running:
            started = [GatewayProcess(store.config, log, **store.environment("front")) for log in logs]
            for one in started:
                running.enter_context(one)
            yield TwoGateways(store, [one.url for one in started], key, secret)
        fleet.stop()
        assert fleet.misbehaviour(CODES) == []
        for log in logs:
            assert "Traceback" not in log.read_text()


def _fetch(client: Any, bucket: str, name: str) -> bytes | None:
    try:
        data: bytes = client.get_object(Bucket=bucket, Key=name)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchKey":
            raise
        return None
    return data


def _listed(client: Any, bucket: str) -> dict[str, str]:
    found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {entry["Key"]: entry["ETag"] for entry in found}


def test_one_gateway_knows_at_once_what_the_other_has_answered(gateways: TwoGateways) -> None:
    clients = gateways.clients()
    clients[0].create_bucket(Bucket="turns")
    chance = random.Random(3)
    known: dict[str, bytes] = {}
    for turn in range(TURNS):
        write, read = clients[turn % 2], clients[1 - turn % 2]
        name = f"k {chance.randrange(KEYS)}+ü"
        if chance.random() < 0.25:
            write.delete_object(Bucket="turns", Key=name)
            known.pop(name, None)
        else:
            known[name] = chance.randbytes(chance.choice(SIZES))
            write.put_object(Bucket="turns", Key=name, Body=known[name])
        assert _fetch(read, "turns", name) == known.get(name)
        etags = {one: f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"' for one, data in known.items()}
        assert _listed(read, "turns") == etags
        some = chance.choice([*known, name])
        assert _fetch(read, "turns", some) == known.get(some)
    gateways.await_packed()
    assert {name: _fetch(clients[1], "turns", name) for name in known} == known


def test_of_writers_that_ask_for_no_object_one_wins(gateways: TwoGateways) -> None:
    clients = gateways.clients()
    clients[0].create_bucket(Bucket="races")
    for race in range(RACES):
        name, size = f"race-{race}", (100, 70_000, 300_000, 5 << 20)[race]
        begin = threading.Barrier(WRITERS)

        def put(writer: int, name: str = name, size: int = size, begin: threading.Barrier = begin) -> int:
            body = writer.to_bytes(1, "big") * size
            begin.wait()
            try:
                clients[writer % 2].put_object(Bucket="races", Key=name, Body=body, IfNoneMatch="*")
            except ClientError as error:
                return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
            return 200

        with ThreadPoolExecutor(WRITERS) as pool:
            statuses = list(pool.map(put, range(WRITERS)))
        assert Counter(statuses) == {200: 1, 412: WRITERS - 1}
        wanted = statuses.index(200).to_bytes(1, "big") * size
        assert [_fetch(client, "races", name) == wanted for client in clients] == [True, True]


@pytest.mark.parametrize("client", CLIENTS)
def test_client(gateways: TwoGateways, client: str, tmp_path: Path) -> None:
    or_skip(clients_python)
    write, read = gateways.accesses
    CLIENTS[client](Gateways(write, read, tmp_path))

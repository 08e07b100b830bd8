"""Two S3 gateways of one store on Ceph, Kafka and MariaDB, each process with the rights of its kind and no others."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nos_ec.composition.backends import remove_log, remove_objects
from tests.rig.ceph_cluster import CephCluster
from tests.rig.chaos.chaos_fleet import CODES, Actor, Fleet
from tests.rig.daemons import until
from tests.rig.patience import PATIENCE_MS
from tests.rig.s3.s3_gateway import Access, GatewayProcess, client_of, create_key
from tests.rig.sql.sql_roles import RoleStore

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
[consumer]
linger_ms = 200
linger_max_ms = 200
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
CONNECTIONS_MAX = 64


class TwoGateways:
    """The running store."""

    def __init__(self, store: RoleStore, urls: list[str], key: str, secret: str) -> None:
        self.store = store
        self.accesses = [Access(url, key, secret) for url in urls]

    def clients(self) -> list[Any]:
        """A client of each gateway. Safe to use from several threads."""
        options = {"max_pool_connections": CONNECTIONS_MAX, "read_timeout": PATIENCE_MS // 1000}
        return [client_of(access, **options) for access in self.accesses]

    def await_packed(self) -> None:
        """Wait until consumers have packed something."""
        with self.store.open("reader") as seen:
            until(lambda: seen.metadata.totals().packed_objects > 0, "objects are packed")


@contextmanager
def two_gateways(ceph: CephCluster, kafka_url: str, mariadb_url: str, folder: Path) -> Iterator[TwoGateways]:
    """Yield them, on a new store, with daemons that pack and collect. Afterwards all of them must end well."""
    tag = f"s3-{uuid.uuid4().hex[:12]}"
    config = CONFIG.format(conf_file=ceph.conf_file, servers=kafka_url, tag=tag, patience_ms=PATIENCE_MS)
    store = RoleStore(mariadb_url, folder, config, ceph.folder)
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

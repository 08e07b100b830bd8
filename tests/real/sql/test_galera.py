"""A store in a Galera cluster, of which one node writes: what the others are told, and a failover while clients write.

All nodes of the cluster accept writes, as they do by default, so nothing but the store itself keeps to one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from io import BytesIO
from threading import Event

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from nos_consumer.assemble import drain
from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.driver.primary import hold_node
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import without_settings
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.real.conftest import or_skip
from tests.rig.fakes.audit import problems
from tests.rig.sql.galera_cluster import GaleraNode, galera_cluster
from tests.rig.sql.sql_roles import RoleStore
from tests.rig.switched_proxy import SwitchedProxy
from tests.rig.waiting import until

pytestmark = pytest.mark.real

CONFIGURATION, TRANSIENT = 3, 7
"""Exit codes (docs/CLI.md)."""
END_S_MAX = 120
RELEASE = "UPDATE counters SET value = 0 WHERE name = 'galera_node'"
"""As docs/OPERATIONS.md says."""


@dataclass
class Store:
    """A store, and the address that leads to one node of its cluster."""

    nodes: list[GaleraNode]
    proxy: SwitchedProxy
    roles: RoleStore

    @property
    def writing(self) -> GaleraNode:
        """The node to which the address leads."""
        return next(node for node in self.nodes if node.port == self.proxy.target)

    @property
    def others(self) -> list[GaleraNode]:
        """The nodes that do not write."""
        return [node for node in self.nodes if node is not self.writing]

    def fail_over(self) -> None:
        """Let the address lead to another node."""
        self.proxy.target = self.others[0].port

    def url(self, node: GaleraNode) -> str:
        """The URL of a gateway that is configured for this node."""
        of_proxy = (self.roles.folder / "front" / "metadata-url").read_text().strip()
        return of_proxy.replace(f":{self.proxy.port}/", f":{node.port}/")

    def run(self, node: GaleraNode, *command: str) -> subprocess.CompletedProcess[str]:
        """Run `nos-ec` with a configuration that names this node."""
        return subprocess.run(
            [sys.executable, "-m", "nos_ec", "--config", str(self.roles.config), *command],
            env=without_settings(os.environ) | {"NOS_EC_STORE__METADATA_URL": self.url(node)},
            capture_output=True,
            text=True,
            timeout=END_S_MAX,
            check=False,
        )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("galera")
    with ExitStack() as stack:
        nodes: list[GaleraNode] = []
        or_skip(lambda: nodes.extend(stack.enter_context(galera_cluster(folder))))
        proxy = stack.enter_context(SwitchedProxy(nodes[0].port).running())
        (folder / "store").mkdir()
        roles = RoleStore(f"mysql+pymysql://root@127.0.0.1:{proxy.port}/nos_ec", folder / "store")
        stack.enter_context(roles.made())
        yield Store(nodes, proxy, roles)


@pytest.fixture
def systems(store: Store) -> Iterator[dict[str, System]]:
    with store.roles.opened() as systems:
        yield systems


def key(name: str) -> ObjectKey:
    return ObjectKey("bucket", name)


def data(name: str) -> bytes:
    return (name.encode() * 20_000)[:20_000]


def put(system: System, name: str) -> None:
    system.client.store().put(key(name), BytesIO(data(name)))


def assert_sound(system: System, names: list[str]) -> None:
    """Every object is there, and rows and stores agree."""
    store = system.client.store()
    assert [name for name in names if store.get(key(name)) != data(name)] == []
    assert problems(system.metadata, system.blocks, system.landing) == []


@pytest.mark.invariant(8)
def test_another_node_is_refused_with_the_reason(store: Store) -> None:
    """Config check, a daemon and the library refuse it, for reads and for writes."""
    node, told = store.others[0], f"{store.writing.address} writes to this store and is in the cluster"
    checked = store.run(node, "config", "check", "--connect", "--json")
    assert checked.returncode == CONFIGURATION
    said = {one["name"]: one["detail"] for one in json.loads(checked.stdout)["checks"]}
    assert told in said["database schema"]
    daemon = store.run(node, "producer")
    assert daemon.returncode == TRANSIENT
    assert told in daemon.stderr
    with closing(open_metadata(store.url(node))) as metadata:
        with pytest.raises(Transient, match=told):
            metadata.acquire_lease("refused", 1, 1000)
        with pytest.raises(Transient, match=told):
            metadata.list_objects("bucket", "", "", 9)
        with pytest.raises(Transient, match=told):
            metadata.get(key("refused"))


def test_a_node_that_may_be_a_replica_is_read_but_not_written(store: Store, systems: dict[str, System]) -> None:
    put(systems["front"], "replicated")
    with closing(open_metadata(store.url(store.others[0]), replica=True)) as metadata:
        until(lambda: metadata.list_objects("bucket", "replicated", "", 9))
        assert metadata.get(key("replicated")).size == len(data("replicated"))
        with pytest.raises(Transient, match="writes to this store"):
            metadata.delete(key("replicated"), 5)


def test_the_node_that_writes_serves_the_whole_store(store: Store, systems: dict[str, System]) -> None:
    """Each role works with its own rights, which include no further one for Galera."""
    checked = store.run(store.writing, "config", "check", "--connect", "--json")
    assert f"of 3 Galera nodes {store.writing.address} writes" in checked.stdout
    front = systems["front"]
    names = [f"packed-{number:02}" for number in range(30)]
    for name in names:
        put(front, name)
    with producer_service(systems["producer"]) as producer:
        assert producer.drain() >= len(names)
    drain(systems["consumer"])
    for name in names[:25]:
        front.client.store().delete(key(name))
    assert gc_service(systems["gc"]).run_once().objects_moved > 0
    assert_sound(systems["gc"], names[25:])


@pytest.mark.invariant(1)
def test_another_node_takes_over_when_the_one_that_wrote_has_stopped(store: Store, systems: dict[str, System]) -> None:
    """It does so as docs/OPERATIONS.md says, while a client writes. The old node is refused when it is back."""
    front, done = systems["front"], Event()
    written: list[str] = []

    def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            try:
                put(front, f"during-{number}")
            except Transient:
                continue
            written.append(f"during-{number}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: len(written) > 20)
        old = store.writing
        old.server.stop()
        store.fail_over()
        before = len(written)
        until(lambda: len(written) > before + 20)
        old.start()
        before = len(written)
        until(lambda: len(written) > before + 20)
    finally:
        done.set()
        writer.join()
    with closing(open_metadata(store.url(old))) as metadata, pytest.raises(Transient, match="writes to this store"):
        metadata.get(key(written[-1]))
    drain(systems["consumer"])
    assert_sound(systems["gc"], written)


def test_a_node_that_is_read_only_and_released_is_replaced_while_it_runs(
    store: Store, systems: dict[str, System]
) -> None:
    front, old = systems["front"], store.writing
    put(front, "before")
    old.sql("SET GLOBAL read_only = ON")
    with pytest.raises(Transient, match="read-only"):
        put(front, "refused")
    store.fail_over()
    with pytest.raises(Transient, match="writes to this store"):
        put(front, "refused")
    store.writing.sql(f"USE {store.roles.database}", RELEASE)
    put(front, "after")
    old.sql("SET GLOBAL read_only = OFF")
    assert_sound(systems["gc"], ["before", "after"])
    with closing(open_metadata(store.url(old))) as metadata, pytest.raises(Transient, match="writes to this store"):
        metadata.get(key("after"))


def test_a_cell_is_read_on_the_node_that_writes_only(store: Store) -> None:
    with closing(open_metadata(store.url(store.writing))) as metadata:
        metadata.obey_moves(lambda _: None)
        assert metadata.list_names("bucket", "no such name", "", 1) == []
    with closing(open_metadata(store.url(store.others[0]))) as metadata:
        metadata.obey_moves(lambda _: None)
        with pytest.raises(Transient, match="writes to this store"):
            metadata.list_names("bucket", "no such name", "", 1)


@pytest.mark.invariant(8)
def test_a_transaction_of_a_node_that_was_cut_off_is_not_committed_when_it_is_back(store: Store) -> None:
    """Galera itself would commit it: the transaction of a node without quorum stays open, and the row that it has
    changed was changed nowhere else meanwhile."""
    old = store.writing
    begun, go_on = Event(), Event()
    failures: list[str] = []

    def commit_late() -> None:
        engine = make_engine(f"mysql+pymysql://root@{old.address}/{store.roles.database}")
        try:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO store_info VALUES ('late', 'x')"))
                hold_node(connection)  # the last statement before COMMIT (Transactions)
                begun.set()
                go_on.wait()
        except DBAPIError as error:
            failures.append(str(error.orig))
        engine.dispose()

    late = threading.Thread(target=commit_late)
    late.start()
    begun.wait()
    old.server.put_to_sleep()
    store.fail_over()
    try:
        until(lambda: store.writing.status("wsrep_cluster_size") == "2")
        with store.roles.open("front") as front:
            put(front, "without")
    finally:
        old.server.wake()
        until(lambda: old.is_ready and old.view == store.writing.view)
        go_on.set()
        late.join()
    assert "1213" in failures[0]
    assert "late" not in store.writing.sql(f"SELECT name FROM {store.roles.database}.store_info")
    with store.roles.open("gc") as gc:
        assert_sound(gc, ["without"])


def test_a_node_without_quorum_is_refused_until_it_has_one(store: Store) -> None:
    """It keeps its connections open. A COMMIT that needs the others fails, and whether it took effect is unknown."""
    with closing(open_metadata(store.url(store.writing))) as metadata:
        lease = metadata.acquire_lease("before", 1, 1000)
        for node in store.others:
            node.server.put_to_sleep()
        with pytest.raises(Transient, match=r"1180|1047"):
            metadata.acquire_lease("refused", 1, 1000)
        with pytest.raises(Transient, match="1047"):
            metadata.list_leases("")
        for node in store.others:
            node.server.wake()
        until(lambda: all(node.is_ready for node in store.nodes))
        assert lease in metadata.list_leases("")
        metadata.release_lease(lease)

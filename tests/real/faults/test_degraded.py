"""A consumer at full speed while a part of what it relies on is away: nothing is lost, and it recovers by itself.

A real consumer and a real producer; the test is the client that puts without a pause. What a fault may cost is time: a
PUT or GET that cannot be done says Transient, and is tried again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from nos_consumer.assemble import drain
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.demo.losses import osds_down
from nos_ec.settings import load_settings, without_settings
from nos_producer.assemble import producer_service
from tests.rig.ceph_cluster import POOL_BLOCKS, CephCluster, OwnBlockStore
from tests.rig.chaos.chaos_fleet import UNREACHED
from tests.rig.dev_servers import DevServer
from tests.rig.patience import patient
from tests.rig.waiting import until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("NOS_EC_DEV_CEPH_CONF" in os.environ, reason="needs daemons that it may kill"),
]

OP_TIMEOUT_MS = 2_000
BATCH_OBJECTS = 20
LEASES = {"producer": {"NOS_EC_STORE__LEASE_TTL_MS": "5000"}, "consumer": {}}
"""A producer that is started again soon gets the slots of the one before; a consumer outlives every outage."""
SIZE_BYTES_MAX = 200_000
WAIT_S_MAX = 120.0
RATE_S = 2.0
READS = 12
"""Packed objects that are read during a fault, each from another block."""


class Flow:
    """A store with its daemons, and a client that PUTs until it is stopped."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._stop = threading.Event()
        self._rng = random.Random(3)
        self.acknowledged: dict[ObjectKey, bytes] = {}
        self.refused = 0
        self.problems: list[BaseException] = []
        self.system: System
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._client = threading.Thread(target=self._put_until_stopped, name="client")

    @contextmanager
    def running(self) -> Iterator[None]:
        settings = load_settings(self._config, {})
        initialise(patient(settings))
        with open_system(settings) as self.system:
            for name in ("producer", "consumer"):
                self._daemons[name] = self._start(name)
            self._client.start()
            try:
                yield
            finally:
                self.end_puts()
                self._end_daemons()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{name}.log", "ab") as log:
            command = [sys.executable, "-m", "nos_ec", "--config", str(self._config), name]
            return subprocess.Popen(command, env=without_settings(os.environ) | LEASES[name], stdout=log, stderr=log)

    def _end_daemons(self) -> None:
        with ExitStack() as stack:
            for process in self._daemons.values():
                stack.callback(process.kill)
                process.send_signal(signal.SIGTERM)
            for process in self._daemons.values():
                process.wait(timeout=60)

    def _put_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                sizes = [self._rng.randint(1, SIZE_BYTES_MAX) for _ in range(BATCH_OBJECTS)]
                batch = {
                    ObjectKey(f"bucket-{index % 4}", uuid.uuid4().hex): self._rng.randbytes(size)
                    for index, size in enumerate(sizes)
                }
                self._put(batch)
                self._stop.wait(0.1)
        except BaseException as problem:
            self.problems.append(problem)

    def _put(self, batch: dict[ObjectKey, bytes]) -> None:
        while not self._stop.is_set():
            try:
                self.system.client.store().put_many(list(batch.items()))
            except Transient:
                self.refused += 1
                self._stop.wait(0.2)
            else:
                self.acknowledged.update(batch)
                return

    def end_puts(self) -> None:
        self._stop.set()
        if self._client.is_alive():
            self._client.join()

    # --- watching -------------------------------------------------------------------------------------

    def packed(self) -> int:
        return self.system.metadata.totals().packed_objects

    def await_flow(self) -> None:
        """Wait until something is packed. A daemon that cannot reach a server within these time limits at its start
        reports it and ends; it is started again, as by systemd. From then on none may end."""

        def packed() -> bool:
            for name, process in self._daemons.items():
                if process.poll() == UNREACHED:
                    self._daemons[name] = self._start(name)
            return self.packed_patiently() >= BATCH_OBJECTS

        until(packed, "something is packed", self.tell)

    def await_packed(self, count: int) -> float:
        """Wait until this many more objects are packed. Returns the seconds it took."""
        begun_s, before = time.monotonic(), self.packed_patiently()
        until(lambda: self.packed_patiently() >= before + count, f"{count} more objects are packed", self.tell)
        return time.monotonic() - begun_s

    def packed_patiently(self) -> int:
        """The figure as soon as the database answers."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while True:
            try:
                return self.packed()
            except Transient:
                assert time.monotonic() < deadline_s, "the database does not answer any more"
                time.sleep(0.2)

    def packed_keys(self, count: int) -> list[ObjectKey]:
        """Some packed objects, each in another block, because an outage concerns only some placement groups."""
        found: dict[BlockId, ObjectKey] = {}

        def enough() -> bool:
            for key in list(self.acknowledged)[:: BATCH_OBJECTS // 4]:
                row = self.system.client.store().head(key)
                if row.extent is not None and row.extent.block_id not in found:
                    found[row.extent.block_id] = key
            return len(found) >= count

        until(enough, f"objects are in {count} blocks", self.tell)
        return list(found.values())[:count]

    def unread(self, keys: list[ObjectKey]) -> list[ObjectKey]:
        """Read each once. Returns those that could not be read now. The bytes that are read must be right."""
        with ThreadPoolExecutor(8) as pool:
            return [key for key, refused in zip(keys, pool.map(self._is_refused, keys), strict=True) if refused]

    def await_read(self, keys: list[ObjectKey]) -> float:
        """Read each until it succeeds. Returns the seconds it took. While the remaining OSDs agree about a group, and
        on a busy machine, a read may time out."""
        begun_s, left = time.monotonic(), list(keys)

        def all_read() -> bool:
            left[:] = self.unread(left)
            return not left

        until(all_read, "all that is packed reads", self.tell)
        return time.monotonic() - begun_s

    def _is_refused(self, key: ObjectKey) -> bool:
        try:
            assert self.system.client.store().get(key) == self.acknowledged[key], str(key)
        except Transient:
            return True
        return False

    def await_refused(self, keys: list[ObjectKey]) -> int:
        """Wait until some cannot be read. Returns how many. A primary serves its group until it gets the map that the
        monitors already have."""
        refused: list[ObjectKey] = []

        def some() -> bool:
            refused[:] = self.unread(keys)
            return bool(refused)

        until(some, "groups with less than min_size OSDs refuse reads", self.tell)
        return len(refused)

    def assert_chunks_suffice(self, ceph: CephCluster, keys: list[ObjectKey]) -> None:
        """A process that starts now reads them. To one whose librados is older than Tentacle, and that asked a group
        while it waited, its OSD may give no answers even afterwards (docs/CEPH.md): so each try is another process's,
        until the first one that finds all groups at work."""
        settings = self.system.settings

        def all_read() -> bool:
            try:
                blocks = OwnBlockStore(ceph, settings.ceph.namespace, settings.geometry.value(), OP_TIMEOUT_MS)
                with closing(blocks):
                    for key in keys:
                        assert self._bytes_from(blocks, key) == self.acknowledged[key], str(key)
            except Transient:
                return False
            return True

        until(all_read, "all reads with k chunks", self.tell)

    def _bytes_from(self, blocks: OwnBlockStore, key: ObjectKey) -> bytes:
        extent = self._extent(key)
        return blocks.read(extent.block_id, extent.offset, extent.length)

    def _extent(self, key: ObjectKey) -> Extent:
        extent = self.system.client.store().head(key).extent
        assert extent is not None
        return extent

    def osds_of(self, ceph: CephCluster, key: ObjectKey) -> list[int]:
        """The OSDs of the placement group that a packed object lies in."""
        return ceph.osds_of(POOL_BLOCKS, self.system.settings.ceph.namespace, self._extent(key).block_id.hex())

    def packed_in(self, seconds: float) -> int:
        """Objects packed in this time."""
        before = self.packed_patiently()
        time.sleep(seconds)
        return self.packed_patiently() - before

    def assert_alive(self) -> None:
        for name, process in self._daemons.items():
            assert process.poll() is None, self.tell()
            assert b"Traceback" not in (self._folder / f"{name}.log").read_bytes(), self.tell()
        assert not self.problems

    def assert_nothing_lost(self) -> None:
        """After the fault, everything acknowledged is packed eventually, and reads back."""
        self.assert_alive()
        self.end_puts()
        assert not self.problems
        until(self._all_is_packed, "everything is packed", self.tell)
        self.await_read(list(self.acknowledged))
        self.assert_alive()

    def _all_is_packed(self) -> bool:
        try:
            totals = self.system.metadata.totals()
        except Transient:
            return False
        return totals.landed_objects == totals.queued_objects == 0

    def tell(self) -> str:
        """The last lines of the daemons' logs."""
        texts = [(self._folder / f"{name}.log").read_text()[-2000:] for name in self._daemons]
        return f"{len(self.acknowledged)} acknowledged\n" + "\n".join(texts)


@pytest.fixture
def flow(tmp_path: Path, ceph: CephCluster, kafka: DevServer, mysql_server: DevServer) -> Iterator[Flow]:
    """In full flow: something is packed already."""
    name = f"degraded{uuid.uuid4().hex[:8]}"
    url = mysql_server.url.rpartition("/")[0] + f"/{name}"
    client = ceph.options("consumer")
    config = tmp_path / "nos-ec.toml"
    config.write_text(
        f"""
store = {{ backend = "ceph", metadata_url = "{url}", lease_ttl_ms = 600000 }}
log = {{ backend = "kafka", partitions = 4, session_ms = 6000 }}
producer = {{ republish_ms = 5000 }}
consumer = {{ linger_ms = 500, linger_max_ms = 500, lanes = 2 }}
reaper = {{ landing_grace_ms = 0 }}
[geometry]
stripes_per_block = 4
[ceph]
conf_file = "{client.conf_file}"
user = "{client.user}"
keyring_file = "{client.keyring_file}"
namespace = "{name}"
op_timeout_ms = {OP_TIMEOUT_MS}
[kafka]
servers = "{kafka.url}"
topic = "{name}"
replication = 1
in_sync_min = 1
options = {{ "socket.timeout.ms" = 3000 }}
"""
    )
    administer(mysql_server, f"CREATE DATABASE {name}")
    flow = Flow(config, tmp_path)
    with flow.running():
        flow.await_flow()
        yield flow
    administer(mysql_server, f"DROP DATABASE {name}")


def administer(server: DevServer, *statements: str) -> None:
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def victims(ceph: CephCluster, count: int) -> list[int]:
    return random.Random(count).sample(ceph.osds(), count)


def test_split_objects_read_right_whichever_osd_is_down(ceph: CephCluster, stack_config: Path, tmp_path: Path) -> None:
    """Each block has a shard on all but one of the OSDs. So each of its shards is missing in turn, and each chunk in
    which an object continues."""
    settings = load_settings(stack_config, {"NOS_EC_PUT__MIN_AGE_MS": "0"})
    with scratch_store(settings, tmp_path, "splits") as scratch, open_system(scratch) as system:
        rng, store = random.Random(5), system.client.store()
        wanted = {ObjectKey("bucket", f"{number:03}"): rng.randbytes(70_000) for number in range(500)}
        store.put_many(list(wanted.items()))
        with producer_service(system) as producer:
            producer.drain()
        drain(system)
        extents = {key: extent for key in wanted if (extent := store.head(key).extent) is not None}
        split = [key for key, extent in extents.items() if system.geometry.is_split(extent.offset, extent.length)]
        assert len(split) > len(wanted) / 3
        borders = {extents[key].offset // system.geometry.chunk_size % system.geometry.k for key in split}
        assert len(borders) == system.geometry.k
        for osd in ceph.osds():
            with osds_down(ceph.admin, [osd]):
                assert [key for key in split if store.get(key) != wanted[key]] == []


@pytest.mark.parametrize("count", [1, 2])
def test_osds_are_down(ceph: CephCluster, flow: Flow, count: int) -> None:
    """Up to m - 1 OSDs: all packed objects can be read, and packing continues."""
    keys = flow.packed_keys(READS)
    healthy = flow.packed_in(RATE_S)
    with ceph.osds_killed(victims(ceph, count)):
        seconds = flow.await_read(keys)
        degraded = flow.packed_in(RATE_S)
        flow.await_packed(BATCH_OBJECTS)
        flow.assert_alive()
    print(
        f"{count} down: {READS} blocks read after {seconds:.1f} s; {degraded} objects packed in {RATE_S} s, {healthy}"
        f" before; {flow.refused} batches refused"
    )
    flow.assert_nothing_lost()


def test_as_many_osds_are_down_as_there_are_coding_chunks(ceph: CephCluster, flow: Flow) -> None:
    """With min_size k + 1 the groups wait, and nothing is lost; with k all packed objects can be read."""
    keys = flow.packed_keys(READS)
    assert ceph.admin.command("osd pool get", pool=POOL_BLOCKS, var="min_size")["min_size"] == 9
    with ceph.osds_killed(random.Random(3).sample(flow.osds_of(ceph, keys[0]), 3)):
        refused = flow.await_refused(keys)
        ceph.admin.command("osd pool set", pool=POOL_BLOCKS, var="min_size", val="8")
        try:
            begun_s = time.monotonic()
            flow.assert_chunks_suffice(ceph, keys)
            seconds = time.monotonic() - begun_s
            flow.assert_alive()
        finally:
            ceph.admin.command("osd pool set", pool=POOL_BLOCKS, var="min_size", val="9")
    print(f"3 down, min_size 9: {refused} of {len(keys)} reads refused; 8: none, after {seconds:.1f} s")
    flow.assert_nothing_lost()


def test_the_broker_is_restarted(kafka: DevServer, flow: Flow) -> None:
    kafka.stop()
    before = len(flow.acknowledged)
    until(lambda: len(flow.acknowledged) >= before + 2 * BATCH_OBJECTS, "PUTs continue without a broker", flow.tell)
    flow.assert_alive()
    kafka.start()
    print(f"broker back: {2 * BATCH_OBJECTS} objects packed in {flow.await_packed(2 * BATCH_OBJECTS):.1f} s")
    flow.assert_nothing_lost()


def test_the_database_is_restarted(mysql_server: DevServer, flow: Flow) -> None:
    mysql_server.stop()
    flow.assert_alive()
    mysql_server.start()
    print(f"database back: {2 * BATCH_OBJECTS} objects packed in {flow.await_packed(2 * BATCH_OBJECTS):.1f} s")
    flow.assert_nothing_lost()


def test_the_database_fails_over(mysql_server: DevServer, flow: Flow) -> None:
    """What clients see of a server that is demoted and promoted again: it is read-only, and all connections are cut."""
    until(lambda: bool(connections(mysql_server)), "the daemons keep connections open", flow.tell)
    administer(mysql_server, "SET GLOBAL super_read_only = ON")
    try:
        cut_connections(mysql_server)
        time.sleep(2)
        flow.assert_alive()
    finally:
        administer(mysql_server, "SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")
    cut_connections(mysql_server)
    print(f"promoted: {2 * BATCH_OBJECTS} objects packed in {flow.await_packed(2 * BATCH_OBJECTS):.1f} s")
    flow.assert_nothing_lost()


def connections(server: DevServer) -> list[int]:
    """Connections to the stores of this suite. Clients close theirs to a server that refuses a write, so there may be
    none."""
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT id FROM information_schema.processlist WHERE db LIKE 'degraded%'")))


def cut_connections(server: DevServer) -> None:
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.connect() as connection:
        for one in connections(server):
            try:
                connection.exec_driver_sql(f"KILL {one}")
            except DBAPIError as error:
                assert error.orig is not None  # noqa: PT017
                assert error.orig.args[0] == 1094, "it ended by itself"  # noqa: PT017

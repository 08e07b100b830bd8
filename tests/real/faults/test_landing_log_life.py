"""A whole life with the landing log on Ceph, Kafka and MariaDB, each process with the rights of its kind and no others.

Two gateways PUT, each through a log of its own, while a producer, consumers and GC work. The landing pool is full for a
while, an OSD is killed, one gateway sleeps beyond its lease, the other is killed. Nothing acknowledged is lost, and the
daemons empty the log by themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nos_ec.composition.backends import remove_log, remove_objects
from nos_ec.composition.wiring import System
from nos_ec.core.ids import in_log, log_of, segment_of
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.log_lease import LEASE_PREFIX
from nos_ec.settings import without_settings
from tests.real.faults.gateway_process import ACKNOWLEDGED, REFUSED, data_of, key_of
from tests.rig.ceph_cluster import POOL_LANDING, CephCluster
from tests.rig.chaos.chaos_fleet import Actor, Fleet
from tests.rig.daemons import until
from tests.rig.dev_servers import DevServer, free_port, stop_process
from tests.rig.fakes.audit import problems
from tests.rig.patience import PATIENCE_MS
from tests.rig.sql.sql_roles import RoleStore

pytestmark = [pytest.mark.real, pytest.mark.turn(1), pytest.mark.invariant(1, 8)]

PROGRAM = Path(__file__).with_name("gateway_process.py")
CONFIG = """
[store]
backend = "ceph"
root = "root"
lease_ttl_ms = 5000
[ceph]
conf_file = "{conf_file}"
namespace = "{tag}"
op_timeout_ms = {patience_ms}
[geometry]
stripes_per_block = 4
[landing]
mode = "log"
segment_age_ms = 3000
[consumer]
linger_ms = 1000
linger_max_ms = 1000
[reaper]
landing_grace_ms = 1000
[gc]
policy = "threshold"
wait_ms = 1000
reserve_bytes = 0
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
DAEMONS = {
    "producer-0": ("producer",),
    "consumer-0": ("consumer",),
    "consumer-1": ("consumer",),
    "gc-0": ("gc", "run", "--apply", "--loop"),
}
NAPS = 2
SEAL_S = 5.0
"""What recovery gets to seal the segments of a log whose lease it has fenced. It has to wait for a gateway that was
stopped in the middle of a transaction."""
SOME = 40
"""PUTs that show that a gateway works."""


class Gateway:
    """A process that PUTs."""

    def __init__(self, store: RoleStore, name: str) -> None:
        self._said = store.folder / f"{name}.said"
        self.log = store.folder / f"{name}.log"
        environment = without_settings(os.environ) | store.environment("front")
        environment |= {"PYTHONPATH": str(PROGRAM.parents[3])}
        command = [sys.executable, str(PROGRAM), str(store.config)]
        with self._said.open("wb") as out, self.log.open("wb") as err:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)

    def outcomes(self) -> list[tuple[str, str]]:
        """(outcome, name) of each PUT so far. A killed process may leave half a line."""
        lines = self._said.read_text().splitlines(keepends=True)
        return [(line.split()[0], line.split()[1]) for line in lines if line.endswith("\n")]

    def acknowledged(self) -> list[str]:
        """The names of the objects whose PUT was acknowledged."""
        return [name for outcome, name in self.outcomes() if outcome == ACKNOWLEDGED]

    def await_more(self, outcome: str, count: int = SOME) -> None:
        """Wait until this many more PUTs have this outcome."""
        wanted = self._count(outcome) + count
        until(lambda: self._alive() and self._count(outcome) >= wanted, f"{count} PUTs {outcome}")

    def _count(self, outcome: str) -> int:
        return Counter(outcome for outcome, _ in self.outcomes())[outcome]

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        return True

    def end(self, by: signal.Signals) -> int:
        """End it with a signal. Returns its exit code."""
        self.process.send_signal(by)
        return self.process.wait(timeout=120)


class Life:
    """The store, its processes, and what an observer with rights to read alone sees."""

    def __init__(self, store: RoleStore, seen: System) -> None:
        self.store = store
        self.seen = seen
        self.gateways = [Gateway(store, f"gateway-{number}") for number in range(2)]
        self.fleet = Fleet(store.config, dict(self._actors()), restart_wait_s=1.0)

    def _actors(self) -> Iterator[tuple[str, Actor]]:
        for name, arguments in DAEMONS.items():
            kind, port = name.partition("-")[0], free_port()
            environment = self.store.environment(kind) | {"NOS_EC_MONITORING__PORT": str(port)}
            yield name, Actor(arguments, environment, (port,))

    def abandon(self) -> None:
        self.fleet.abandon()
        for gateway in self.gateways:
            gateway.process.kill()
            gateway.process.wait()

    def log_epochs(self) -> set[int]:
        """The epochs of the leases of logs that gateways hold."""
        return {lease.epoch for lease in self.seen.metadata.list_leases(LEASE_PREFIX)}

    def open_segments(self) -> dict[int, str]:
        """The name of an open segment's object for each epoch."""
        rows = self.seen.metadata.list_segments(None, 1000)
        return {row.epoch: f"log.{row.segment.hex()}" for row in rows if row.state is SegmentState.OPEN}

    def log_epoch(self, gateway: Gateway) -> int | None:
        """The epoch of the lease of the gateway's log, or None if its last acknowledged object is not in that log any
        more."""
        landing_id = self.seen.metadata.get(key_of(gateway.acknowledged()[-1])).landing_id
        if landing_id is None or not in_log(landing_id):
            return None
        name = f"{LEASE_PREFIX}{log_of(segment_of(landing_id))}"
        return next((one.epoch for one in self.seen.metadata.list_leases(LEASE_PREFIX) if one.name == name), None)

    def left(self) -> str:
        """What the daemons still have to do."""
        totals, segments = self.seen.metadata.totals(), self.seen.metadata.segment_totals()
        waiting = totals.landed_objects + totals.queued_objects
        return f"{waiting} objects wait, segments {segments}" if waiting or segments or self.log_epochs() else ""


@pytest.fixture
def life(ceph: CephCluster, kafka: DevServer, mariadb_url: str, tmp_path: Path) -> Iterator[Life]:
    if not ceph.owned():
        pytest.skip("the cluster is not this test run's to break")
    tag = f"life-{uuid.uuid4().hex[:12]}"
    config = CONFIG.format(conf_file=ceph.conf_file, servers=kafka.url, tag=tag, patience_ms=PATIENCE_MS)
    store = RoleStore(mariadb_url, tmp_path, config, ceph.folder)
    with store.made():
        try:
            with store.open("reader") as seen:
                life = Life(store, seen)
                try:
                    yield life
                finally:
                    life.abandon()
        finally:
            remove_objects(store.settings("admin"))
            remove_log(store.settings("admin"))


def test_a_whole_life(life: Life, ceph: CephCluster, ceph_server: DevServer, say: Callable[[str], None]) -> None:
    killed, sleeper = life.gateways
    for gateway in life.gateways:
        gateway.await_more(ACKNOWLEDGED)
    assert len(life.log_epochs()) == 2, "each gateway has a log of its own"

    _fill_the_pool(life, ceph, say)
    _kill_an_osd(life, ceph, ceph_server, say)
    for _ in range(NAPS):
        _sleep(life, sleeper, say)
    killed.await_more(ACKNOWLEDGED)
    killed.end(signal.SIGKILL)
    sleeper.await_more(ACKNOWLEDGED)
    assert sleeper.end(signal.SIGTERM) == 0, sleeper.log.read_text()[-4000:]
    until(lambda: not life.left(), "all is packed and the log is empty")

    life.fleet.stop()
    assert life.fleet.misbehaviour({0}) == []
    assert all("Traceback" not in gateway.log.read_text() for gateway in life.gateways)
    assert sleeper.log.read_text().count("the lease of the landing log was lost; taking another") >= NAPS
    names = [name for gateway in life.gateways for name in gateway.acknowledged()]
    store = life.seen.client.store()
    assert [name for name in names if store.get(key_of(name)) != data_of(name)] == []
    assert life.seen.medium is not None
    assert list(life.seen.medium.segments()) == []
    assert problems(life.seen.metadata, life.seen.blocks, life.seen.landing, life.seen.medium) == []
    failed = Counter(outcome for gateway in life.gateways for outcome, _ in gateway.outcomes())
    say(f"{len(names)} acknowledged objects read back; PUTs {dict(failed)}")


def _fill_the_pool(life: Life, ceph: CephCluster, say: Callable[[str], None]) -> None:
    """PUTs are refused while the landing pool has no room, and go to the log again when it has."""
    _set_quota(ceph, 1)
    try:
        for gateway in life.gateways:
            gateway.await_more(REFUSED)
    finally:
        _set_quota(ceph, 0)
    for gateway in life.gateways:
        gateway.await_more(ACKNOWLEDGED)
        until(lambda gateway=gateway: life.log_epoch(gateway) is not None, "PUTs go to the log")  # type: ignore[misc]
    say("a full pool refused PUTs, and took them again when it had room")


def _set_quota(ceph: CephCluster, max_bytes: int) -> None:
    ceph.admin.command("osd pool set-quota", pool=POOL_LANDING, field="max_bytes", val=str(max_bytes))


def _kill_an_osd(life: Life, ceph: CephCluster, ceph_server: DevServer, say: Callable[[str], None]) -> None:
    """The one that takes the appends to an open segment."""
    until(lambda: bool(life.open_segments()), "a segment is open")
    namespace = life.seen.settings.ceph.namespace
    primary = ceph.osds_of(POOL_LANDING, namespace, next(iter(life.open_segments().values())))[0]
    ceph_server.kill(f"osd.{primary}")
    for gateway in life.gateways:
        gateway.await_more(ACKNOWLEDGED)
    ceph_server.start()
    say(f"PUTs went on without osd.{primary}")


def _sleep(life: Life, sleeper: Gateway, say: Callable[[str], None]) -> None:
    """Stop a gateway until another process has fenced its log, and wake it: its PUTs continue under another lease."""
    until(lambda: life.log_epoch(sleeper) is not None, "the gateway has a log")
    epoch = life.log_epoch(sleeper)
    stop_process(sleeper.process.pid)
    begun_s = time.monotonic()
    try:
        until(lambda: epoch not in life.log_epochs(), "the lease of the log is fenced")
        time.sleep(SEAL_S)
        left = epoch in life.open_segments()
    finally:
        os.kill(sleeper.process.pid, signal.SIGCONT)
    slept_s = time.monotonic() - begun_s
    sleeper.await_more(ACKNOWLEDGED)
    until(lambda: epoch not in life.open_segments(), "the segments of the lost log are sealed")
    until(lambda: life.log_epoch(sleeper) not in (None, epoch), "the gateway has another log")
    say(f"a gateway slept for {slept_s:.0f} s, its segments {'not sealed yet' if left else 'sealed'}; then it went on")

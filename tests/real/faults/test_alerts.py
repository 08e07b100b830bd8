"""A real Prometheus with the shipped alerts scrapes real daemons on a real Ceph, in compressed time: a minute of the
rules is a second here. Without a fault no alert fires; faults fire their alerts, which clear when the faults are gone.

The daemons' own times are short, and the rules' times are divided by FACTOR (`tests/rig/prometheus.compressed`). What
Ceph takes to notice a lost OSD or a quota cannot be compressed; it is seconds.

With NOS_EC_RECORD=FOLDER, the series are written to a test for promtool there: tests/golden/prometheus has one.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from nos_ec.adapters.rados.client.cluster_waits import await_clean
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import NoSpace, Transient
from nos_ec.core.ids import ObjectKey
from tests.real.conftest import or_skip
from tests.real.faults.ceph_daemons import CephStore, Daemon
from tests.rig.ceph_cluster import POOL_BLOCKS, CephCluster
from tests.rig.dev_servers import DevServer, free_port
from tests.rig.prometheus import RULES, Prometheus, compressed, recorded
from tests.rig.sampling import sampled
from tests.rig.waiting import until

pytestmark = [
    pytest.mark.real,
    pytest.mark.turn(0),
    pytest.mark.skipif("NOS_EC_DEV_CEPH_CONF" in os.environ, reason="needs OSDs that it may kill"),
]

FACTOR = 60
RECORD = os.environ.get("NOS_EC_RECORD", "")
HEALTHY_S = 60.0 if RECORD else sampled(30.0, 60.0)
"""An hour of the rules, or half of it."""
EDGE_S = 3.0
"""How long a recording continues after the last alert has begun to fire: it has only one sample a second."""
REST_S = 15.0
"""How long a recording continues after the last alert has cleared."""
RESERVE_BYTES = 64 << 20
ROOM_BYTES = 3 * RESERVE_BYTES
"""What the quota leaves: below the alert (four times the reserve), above where PUTs are refused (twice)."""
SIZE_BYTES_MAX = 60_000
DAEMONS = {"producer": "producer", "consumer 1": "consumer", "consumer 2": "consumer", "gc": "gc"}

FAULTS = {"NosEcPackingStandsStill", "NosEcGcNotRunning", "NosEcShardLost", "NosEcSpaceLow"}
BESIDE = {"NosEcDaemonDown", "NosEcLandingCopiesPileUp", "NosEcGroupsInactive"}
"""Also true meanwhile: stopped consumers and GC do not answer, and the reaper runs in them; the groups of a lost OSD
are inactive until they have peered, seconds on a slow machine, which are minutes of the rules."""

CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: nos-ec
    static_configs:
      - targets: [{targets}]
        labels: {{store: tested}}
"""


class Fleet:
    """The daemons of a store, each with its own key and always at the same port, so that Prometheus finds it again."""

    def __init__(self, store: CephStore, ceph: CephCluster) -> None:
        self._store, self._ceph = store, ceph
        self._stacks: dict[str, ExitStack] = {}
        self._running: dict[str, Daemon] = {}
        self.ports = {name: free_port() for name in DAEMONS}

    def start(self, *names: str) -> None:
        """Start them at once and wait until they are ready."""
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(self._start, names))

    def _start(self, name: str) -> None:
        service = DAEMONS[name]
        client = self._ceph.options(service)
        own = {"NOS_EC_CEPH__USER": client.user, "NOS_EC_CEPH__KEYRING_FILE": str(client.keyring_file)}
        stack = self._stacks[name] = ExitStack()
        self._running[name] = stack.enter_context(self._store.daemon(service, self.ports[name], **own))

    def stop(self, *names: str) -> None:
        """Stop them at once, as an administrator does."""
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: self._running.pop(name).stop(), names))
        for name in names:
            self._stacks.pop(name).close()

    def close(self) -> None:
        """Kill those that still run."""
        for stack in self._stacks.values():
            stack.close()


@contextmanager
def prometheus(folder: Path, ports: list[int]) -> Iterator[Prometheus]:
    """A server with compressed rules that scrapes these ports."""
    (folder / "rules.yml").write_text(compressed(RULES.read_text(), FACTOR))
    config = folder / "prometheus.yml"
    config.write_text(CONFIGURATION.format(targets=", ".join(f'"127.0.0.1:{port}"' for port in ports)))
    server = DevServer("prometheus", folder, NOS_EC_DEV_PROMETHEUS_CONFIG=str(config))
    or_skip(server.start)
    try:
        yield Prometheus(server.url)
    finally:
        server.stop()


@contextmanager
def uneven_traffic(system: System) -> Iterator[Callable[[], int]]:
    """PUTs in bursts and with pauses, and a delete for every third. Yields a function that counts the objects."""
    rng, stop, count = random.Random(11), threading.Event(), 0

    def run() -> None:
        nonlocal count
        while not stop.is_set():
            for _ in range(rng.choice([1, 3, 20, 60])):
                key = ObjectKey(f"bucket-{count % 4}", f"{count}")
                try:
                    system.client.store().put(key, BytesIO(rng.randbytes(rng.randint(1, SIZE_BYTES_MAX))))
                    if rng.random() < 1 / 3:
                        system.client.store().delete(key)
                except (Transient, NoSpace):
                    continue  # a PUT that met the OSD while it died
                count += 1
            stop.wait(rng.choice([0.1, 0.5, 2.0]))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield lambda: count
        finally:
            stop.set()
            running.result()


@contextmanager
def nearly_full(ceph: CephCluster) -> Iterator[None]:
    """A quota that leaves ROOM_BYTES in the pool of blocks."""

    def limit(size_bytes: int) -> None:
        ceph.admin.command("osd pool set-quota", pool=POOL_BLOCKS, field="max_bytes", val=str(size_bytes))

    pools = ceph.admin.command("df", detail="detail")["pools"]
    (stored,) = (int(pool["stats"]["stored"]) for pool in pools if pool["name"] == POOL_BLOCKS)
    limit(stored + ROOM_BYTES)
    try:
        yield
    finally:
        limit(0)


def test_alerts_fire_for_faults_and_for_nothing_else(
    tmp_path: Path, ceph: CephCluster, with_promtool: None, say: Callable[[str], None]
) -> None:
    await_clean(ceph.admin)
    store = CephStore(tmp_path, ceph, uuid.uuid4().hex)
    store.compress(reserve_bytes=RESERVE_BYTES)
    settings = store.initialise()
    with ExitStack() as stack:
        system = stack.enter_context(open_system(settings))
        fleet = Fleet(store, ceph)
        stack.callback(fleet.close)
        fleet.start(*DAEMONS)
        server = stack.enter_context(prometheus(tmp_path, [*fleet.ports.values()]))
        until(lambda: server.healthy_targets() == len(DAEMONS), "all daemons are scraped")
        stored = stack.enter_context(uneven_traffic(system))
        marks_s = [time.time()]
        time.sleep(HEALTHY_S)
        marks_s.append(time.time())
        assert server.ever_firing() == set()
        assert stored() > 100
        assert server.value("sum(nos_ec_consumer_packed_objects_total)"), "nothing was packed: it was not healthy"
        assert server.value("min(nos_ec_gc_runs_total)")

        began_s, took_s = time.monotonic(), dict[str, float]()

        def note() -> set[str]:
            firing = server.firing()
            for name in firing - took_s.keys():
                took_s[name] = round(time.monotonic() - began_s, 1)
            return firing

        with ceph.osds_killed([7]), nearly_full(ceph):
            fleet.stop("consumer 1", "consumer 2", "gc")
            until(lambda: note() >= FAULTS, "all alerts fire", lambda: f"{note()}, after {took_s}")
            if RECORD:
                time.sleep(EDGE_S)
            marks_s.append(time.time())
            fleet.start("consumer 1", "consumer 2", "gc")
        say(f"alerts fired after {took_s} s")
        assert took_s.keys() <= FAULTS | BESIDE
        began_s = time.monotonic()
        until(lambda: not server.firing(), "all alerts clear", lambda: str(server.firing()))
        say(f"all were clear {time.monotonic() - began_s:.1f} s after the faults were gone")
        if RECORD:
            time.sleep(REST_S)
            (Path(RECORD) / "recorded_test.yml").write_text(recorded(server, [*marks_s, time.time()], FACTOR))

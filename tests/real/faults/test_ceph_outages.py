"""Daemons on Ceph while a part other than OSDs refuses or hangs: monitors, quotas, the blocklist."""

from __future__ import annotations

import os
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from nos_ec.adapters.rados.block_store import RadosBlockStore
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import NoSpace, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockKind
from tests.real.faults.ceph_daemons import CephStore, Daemon
from tests.real.faults.write_flow import prepare
from tests.rig.ceph_cluster import POOL_BLOCKS, CephCluster
from tests.rig.waiting import until

pytestmark = pytest.mark.real

BLOCKLISTED = 11
"""Exit code."""
CLIENTS = 10
OBJECTS_MAX = 12
"""The quota: a few blocks fit."""
QUOTA_S = 24.0
FENCED_MAX = 5
COMPLAINTS_MAX = 10
"""Warnings and errors of a consumer about blocks and their recovery in that time, apart from the lack of space."""
OP_TIMEOUT_MS = 5_334
CONNECT_TIMEOUT_MS = 8_000
"""The time limit of commands to the monitors, which follows from that of operations."""
HANG_S = 24.0
"""Three of these time limits; less than the monitors give the manager (mon_mgr_beacon_grace, 30 s)."""
SIZE_BYTES_MAX = 100_000


class Clients:
    """PUT from several threads until stopped. A PUT that the OSDs of a stalled machine do not answer in time is
    repeated."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._stop = threading.Event()
        self.acknowledged: dict[ObjectKey, bytes] = {}
        self.puts_s: list[float] = []

    def stop(self) -> None:
        self._stop.set()

    def put_until_stopped(self, client: int) -> int:
        """Returns the number of objects. Raises what a PUT raises."""
        rng, count = random.Random(client), 0
        while not self._stop.is_set():
            data = rng.randbytes(rng.randint(1, SIZE_BYTES_MAX))
            key = ObjectKey(f"bucket-{client % 4}", f"{client}/{count}")
            begun_s = time.monotonic()
            try:
                self._system.client.store().put(key, BytesIO(data))
            except Transient as error:
                if error.landing_id is None:
                    raise
                continue
            self.puts_s.append(time.monotonic() - begun_s)
            self.acknowledged[key] = data
            count += 1
            self._stop.wait(0.2)
        return count

    def slowest_look_s(self, seconds: float) -> float:
        """Ask for free space during this time, as every PUT does. Returns the longest time that it took."""
        slowest_s, end_s = 0.0, time.monotonic() + seconds
        while (begun_s := time.monotonic()) < end_s:
            self._system.landing.free_bytes()
            self._system.blocks.free_bytes()
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            time.sleep(0.1)
        return slowest_s


@pytest.mark.skipif("NOS_EC_DEV_CEPH_CONF" in os.environ, reason="needs daemons that it may stop")
def test_a_monitor_that_hangs_stops_neither_puts_nor_packing(tmp_path: Path, ceph: CephCluster) -> None:
    """The monitors are asked for free space; their answer may be late without making a caller wait for it."""
    store = CephStore(tmp_path, ceph, uuid.uuid4().hex, op_timeout_ms=OP_TIMEOUT_MS)
    settings = store.initialise()
    with (
        open_system(settings) as system,
        store.daemon("producer"),
        store.daemon("consumer") as consumer,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        clients = Clients(system)
        counts = [pool.submit(clients.put_until_stopped, client) for client in range(CLIENTS)]
        try:
            until(lambda: system.metadata.totals().packed_objects > 0, "something is packed", consumer.log)
            system.blocks.free_bytes()  # a process without any figure waits for the first one
            with ceph.monitor_hung():
                slowest_s = clients.slowest_look_s(HANG_S / 2)
                clients.puts_s.clear()
                packed = system.metadata.totals().packed_objects
                until(lambda: consumer.ready() == (200, {"ok": True, "problems": {}}), "it is ready", consumer.log)
                slowest_s = max(slowest_s, clients.slowest_look_s(HANG_S / 2))
                puts_s = sorted(clients.puts_s)
                packed = system.metadata.totals().packed_objects - packed
        finally:
            clients.stop()
        assert all(count.result() > 0 for count in counts), "a PUT failed"
        assert min(len(puts_s), packed) > CLIENTS
        print(
            f"monitor hung for {HANG_S} s; in the last half {len(puts_s)} PUTs, {packed} packed;"
            f" median PUT {puts_s[len(puts_s) // 2]:.2f} s, slowest {puts_s[-1]:.2f} s; slowest look {slowest_s:.2f} s"
        )
        limit_s = CONNECT_TIMEOUT_MS / 1000
        assert slowest_s < limit_s, "free space waited for the monitor"
        assert puts_s[len(puts_s) // 2] < limit_s, "PUTs waited for the monitor"
        for key, data in clients.acknowledged.items():
            assert system.client.store().get(key) == data


@pytest.mark.parametrize("service", ["consumer", "producer"])
def test_a_process_on_the_blocklist_is_not_ready_and_ends(tmp_path: Path, ceph: CephCluster, service: str) -> None:
    """It ends even while it is idle. A new process works."""
    store = CephStore(tmp_path, ceph, uuid.uuid4().hex)
    store.initialise()
    with store.daemon(service) as daemon:
        (connected,) = (line for line in daemon.said() if line.get("event") == "connected to Ceph")
        addresses = re.findall(r"[\d.]+:\d+/\d+", connected["addresses"])
        assert addresses
        for address in addresses:
            ceph.admin.command("osd blocklist", blocklistop="add", addr=address)
        try:
            answers = []

            def ended() -> bool:
                answers.append(daemon.ready())
                return daemon.process.poll() is not None

            until(ended, "it ends", daemon.log)
            assert daemon.process.returncode == BLOCKLISTED, daemon.log()
            assert "Traceback" not in daemon.log()
            refused = [body["problems"] for status, body in answers if status == 503]
            assert any("blocklist" in str(problems) for problems in refused), answers
            with store.daemon(service) as other:
                other.stop()
        finally:
            for address in addresses:
                ceph.admin.command("osd blocklist", blocklistop="rm", addr=address)


@pytest.fixture
def own_pool(ceph: CephCluster) -> Iterator[str]:
    """A separate pool for the blocks of a test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    profile = ceph.admin.command("osd pool get", pool=POOL_BLOCKS, var="erasure_code_profile")["erasure_code_profile"]
    ceph.admin.command("osd pool create", pool=name, pg_num=1, pool_type="erasure", erasure_code_profile=profile)
    yield name
    ceph.admin.command("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)


def test_a_quota_on_objects_leaves_no_fenced_blocks_behind(
    tmp_path: Path, ceph: CephCluster, own_pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CephStore(tmp_path, ceph, uuid.uuid4().hex)
    settings = store.initialise(blocks_pool=own_pool)
    with open_system(settings) as system, store.daemon("producer"), store.daemon("consumer") as consumer:
        ceph.admin.command("osd pool set-quota", pool=own_pool, field="max_objects", val=str(OBJECTS_MAX))
        acknowledged = put_some(system, 2 * OBJECTS_MAX, "before")
        until(lambda: is_over_quota(ceph, own_pool), "the monitors notice it", consumer.log)
        acknowledged |= put_some(system, OBJECTS_MAX, "over")  # the others may be packed by then
        complaints, fenced_max, end_s = len(complaints_of_blocks(consumer)), 0, time.monotonic() + QUOTA_S
        while time.monotonic() < end_s:
            fenced_max = max(fenced_max, len(system.metadata.fenced_blocks(1000)))
            time.sleep(0.2)
        complaints = len(complaints_of_blocks(consumer)) - complaints
        print(f"over the quota for {QUOTA_S} s: at most {fenced_max} fenced blocks, {complaints} complaints")
        assert fenced_max <= FENCED_MAX
        assert complaints <= COMPLAINTS_MAX, consumer.log()
        assert system.metadata.totals().queued_objects > 0, "all was packed: the quota is too large"
        assert_a_refused_block_leaves_nothing_behind(system, monkeypatch)
        ceph.admin.command("osd pool set-quota", pool=own_pool, field="max_objects", val="0")
        until(lambda: is_settled(system), "everything is packed, and no block waits for recovery", consumer.log)
        for key, data in acknowledged.items():
            assert system.client.store().get(key) == data
        known = {row.block_id for row in system.metadata.list_blocks(None, 1000)}
        assert set(system.blocks.list_blocks()) <= known


def assert_a_refused_block_leaves_nothing_behind(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The OSDs refuse what the monitors' figures still allow; after that the free space is 0 for a while."""
    work = prepare(system, groups=1, seed=2)
    now_ms = system.clock.now_ms()
    lease = system.metadata.acquire_lease("test", now_ms, 600_000)
    before = system.metadata.list_blocks(None, 1000)
    with monkeypatch.context() as patched:
        patched.setattr(RadosBlockStore, "free_bytes", lambda _self: 1 << 40)
        result = system.worker.writer(lease, BlockKind.FRESH).write(work.plans[0])
    assert isinstance(result.cause, NoSpace)
    assert system.blocks.free_bytes() == 0
    assert system.metadata.list_blocks(None, 1000) == before
    system.metadata.release_lease(lease)


def complaints_of_blocks(daemon: Daemon) -> list[str]:
    return [event for event in daemon.complaints() if not event.startswith("no space to pack")]


def is_over_quota(ceph: CephCluster, pool_name: str) -> bool:
    pools = ceph.admin.command("osd dump")["pools"]
    return any(pool["pool_name"] == pool_name and "full_quota" in pool["flags_names"] for pool in pools)


def put_some(system: System, blocks: int, prefix: str) -> dict[ObjectKey, bytes]:
    """PUT enough to fill this many blocks."""
    rng, size = random.Random(1), system.geometry.stripe_size // 2
    count = blocks * system.geometry.stripes_per_block * 2
    acknowledged = {ObjectKey(f"bucket-{i % 4}", f"{prefix}-{i}"): rng.randbytes(size) for i in range(count)}
    pairs = list(acknowledged.items())
    for first in range(0, count, 16):
        system.client.store().put_many(pairs[first : first + 16])
    return acknowledged


def is_settled(system: System) -> bool:
    totals = system.metadata.totals()
    return totals.landed_objects == totals.queued_objects == 0 and not system.metadata.fenced_blocks(1)

"""Daemons on Ceph while a part of it refuses or hangs that is no OSD: monitors, quotas, the blocklist."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from nos_ec.core.ids import ObjectKey
from nos_ec.testing.ceph_cluster import CephCluster
from nos_ec.wiring import System, open_system

from .ceph_daemons import CephStore, until

pytestmark = pytest.mark.real

CLIENTS = 10
CONNECT_TIMEOUT_MS = 8_000
"""That of commands to the monitors."""
HANG_S = 24.0
"""Three of these time limits; less than the monitors give the manager (mon_mgr_beacon_grace, 30 s)."""
SIZE_BYTES_MAX = 100_000


class Clients:
    """Put from several threads until told to stop; each call is timed."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._stop = threading.Event()
        self.acknowledged: dict[ObjectKey, bytes] = {}
        self.slowest_s = 0.0

    def stop(self) -> None:
        self._stop.set()

    def put_until_stopped(self, client: int) -> int:
        """How many. Raises what a PUT raises."""
        rng, count = random.Random(client), 0
        while not self._stop.is_set():
            data = rng.randbytes(rng.randint(1, SIZE_BYTES_MAX))
            key = ObjectKey(f"bucket-{client % 4}", f"{client}/{count}")
            begun_s = time.monotonic()
            self._system.store().put(key, BytesIO(data))
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
            self.acknowledged[key] = data
            count += 1
            self._stop.wait(0.2)
        return count


@pytest.mark.skipif("NOS_EC_DEV_CEPH_CONF" in os.environ, reason="needs daemons that it may stop")
def test_a_monitor_that_hangs_stops_neither_puts_nor_packing(tmp_path: Path, ceph: CephCluster) -> None:
    """Free space is asked of the monitors; their answer may be late without anybody waiting for it."""
    store = CephStore(tmp_path, ceph, uuid.uuid4().hex, connect_timeout_ms=CONNECT_TIMEOUT_MS)
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
            with ceph.monitor_hung():
                clients.slowest_s = 0.0
                time.sleep(HANG_S / 2)
                half, packed = len(clients.acknowledged), system.metadata.totals().packed_objects
                assert consumer.ready() == (200, {"ok": True, "problems": {}})
                time.sleep(HANG_S / 2)
                slowest_s, puts = clients.slowest_s, len(clients.acknowledged) - half
                packed = system.metadata.totals().packed_objects - packed
        finally:
            clients.stop()
        assert all(count.result() > 0 for count in counts), "a PUT failed"
        print(f"monitor hung {HANG_S:.0f} s; second half: {puts} PUTs, {packed} packed, slowest {slowest_s:.2f} s")
        assert slowest_s < CONNECT_TIMEOUT_MS / 1000, "a PUT waited for the monitor"
        assert min(puts, packed) > CLIENTS
        for key, data in clients.acknowledged.items():
            assert system.store().get(key) == data

"""Landing copies on real pools that cannot be read: their groups lost two OSDs of three, and do not answer."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nos_consumer.assemble import consumer_service
from nos_consumer.service import ConsumerService
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings
from nos_producer.assemble import producer_service
from tests.rig.ceph_cluster import POOL_LANDING, CephCluster

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("NOS_EC_DEV_CEPH_CONF" in os.environ, reason="needs daemons that it may kill"),
]

OP_TIMEOUT_MS = 10_000
OBJECTS = 600
SIZE_BYTES_MAX = 60_000
WAIT_S_MAX = 300.0


@pytest.fixture
def system(tmp_path: Path, ceph: CephCluster) -> Iterator[System]:
    """Pools of Ceph; metadata and log in a folder."""
    client = ceph.options("consumer")
    config = tmp_path / "nos-ec.toml"
    config.write_text(
        f"""
[store]
backend = "ceph"
root = "{tmp_path / "store"}"
[ceph]
conf_file = "{client.conf_file}"
user = "{client.user}"
keyring_file = "{client.keyring_file}"
namespace = "{uuid.uuid4().hex}"
op_timeout_ms = {OP_TIMEOUT_MS}
[landing]
mode = "store"
[log]
session_ms = 60000
"""
    )
    settings = load_settings(config, {})
    initialise(settings)
    with open_system(settings) as opened:
        yield opened


def test_copies_that_do_not_answer_do_not_delay_others(ceph: CephCluster, system: System) -> None:
    """Each read of such a copy takes ten seconds to fail. All other objects are packed, and these eventually."""
    rng = random.Random(5)
    data = {ObjectKey("b", f"{number:04}"): rng.randbytes(rng.randint(1, SIZE_BYTES_MAX)) for number in range(OBJECTS)}
    system.client.store().put_many(list(data.items()))
    with producer_service(system) as producer:
        producer.drain()
    lost, stuck = _lost_osds(ceph, system, list(data))
    with consumer_service(system) as service:
        with ceph.osds_killed(lost):
            others = OBJECTS - len(stuck)
            seconds = _turn_until(service, lambda: service.counters.packed >= others, "not all others are packed")
            print(f"{others} objects packed in {seconds:.1f} s beside {len(stuck)} that do not answer")
            _turn_until(
                service,
                lambda: {packable.key for packable, _ in service.unread.retry_queue} == stuck,
                "not those are parked that do not answer",
            )
            assert len(service.unread) == len(stuck)
        _turn_until(service, lambda: service.counters.packed == OBJECTS, "those that answer again are not packed")
    store = system.client.store()
    assert all(store.get(key) == value for key, value in data.items())


def _lost_osds(ceph: CephCluster, system: System, keys: list[ObjectKey]) -> tuple[list[int], set[ObjectKey]]:
    """Two OSDs that hold copies together, and the objects whose groups have only one other OSD."""
    namespace = system.settings.ceph.namespace
    groups = {}
    for key in keys:
        landing_id = system.metadata.get(key).landing_id
        assert landing_id is not None
        groups[key] = ceph.osds_of(POOL_LANDING, namespace, landing_id.hex())
    lost = groups[keys[0]][:2]
    return lost, {key for key, osds in groups.items() if set(lost) <= set(osds)}


def _turn_until(service: ConsumerService, done: Callable[[], bool], what: str) -> float:
    """The seconds it took."""
    started_s = time.monotonic()
    while not done():
        with suppress(Transient):
            service.turn(flush=True)
        assert time.monotonic() - started_s < WAIT_S_MAX, f"{what}: {service.counters}"
    return time.monotonic() - started_s

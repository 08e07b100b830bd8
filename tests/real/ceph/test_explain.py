"""`nos-ec explain` on Ceph, Kafka and MariaDB, with the rights of the admin API, which may only read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_consumer.assemble import consumer_service, drain
from nos_ec.composition.backends import remove_log, remove_objects
from nos_ec.composition.explaining import block_explainer, object_explainer
from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.engine.explain.block_reasons import BlockReason
from nos_ec.engine.explain.object_reasons import ObjectReason
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.at_rest import end_log
from tests.rig.ceph_cluster import CephCluster
from tests.rig.dev_servers import DevServer
from tests.rig.patience import PATIENCE_MS
from tests.rig.sql.sql_roles import RoleStore

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
[reaper]
landing_grace_ms = 3600000
[gc]
policy = "threshold"
block_grace_ms = 3600000
reserve_bytes = 0
[log]
backend = "kafka"
partitions = 3
[kafka]
servers = "{servers}"
topic = "{tag}"
replication = 1
in_sync_min = 1
"""
KEYS = [ObjectKey("photos", f"{number}.jpg") for number in range(20)]
KEY = KEYS[7]
TURNS_MAX = 600


@pytest.fixture
def store(ceph: CephCluster, kafka: DevServer, mariadb_url: str, tmp_path: Path) -> Iterator[RoleStore]:
    tag = f"explain-{uuid.uuid4().hex[:12]}"
    config = CONFIG.format(conf_file=ceph.conf_file, servers=kafka.url, tag=tag, patience_ms=PATIENCE_MS)
    made = RoleStore(mariadb_url, tmp_path, config, ceph.folder)
    with made.made():
        try:
            yield made
        finally:
            remove_objects(made.settings("admin"))
            remove_log(made.settings("admin"))


def test_an_object_and_its_block_from_put_to_gc(store: RoleStore) -> None:
    with store.open("api") as api, store.open("consumer") as consumer:

        def explained() -> ObjectExplanation:
            found = object_explainer(api).explain(KEY)
            assert found.unknown == []
            return found

        with store.open("front") as front:
            front.client.store().put_many([(key, bytes(50_000)) for key in KEYS])
            found = explained()
            assert found.reason is ObjectReason.NO_PRODUCER
            assert found.landing_copy is not None
            assert (found.landing_copy.medium, found.landing_copy.readable) == ("log", True)
            with store.open("producer") as producing, producer_service(producing) as producer:
                assert producer.drain() == len(KEYS)
            found = explained()
            assert found.reason is ObjectReason.NO_CONSUMER
            assert found.publishing is not None
            assert found.publishing.passed_ms is not None
            with consumer_service(consumer) as service:
                turns = 0
                while service.waiting_objects < len(KEYS):
                    service.turn(flush=False)
                    turns += 1
                    assert turns < TURNS_MAX
                found = explained()
                assert found.reason is ObjectReason.EVENT_WAITS
                assert found.publishing is not None
                (holder,) = found.publishing.holders
                assert holder.member is not None
                assert holder.member.startswith("consumer-")
            end_log(front)
        drain(consumer)
        found = explained()
        assert found.reason is ObjectReason.COPY_IN_GRACE
        assert found.block is not None
        block_id = BlockId(bytes.fromhex(found.block.block))
        explain = block_explainer(api).explain
        assert explain(block_id).reason is BlockReason.TOO_FULL
        with store.open("front") as front:
            front.client.store().delete_many(KEYS)
        with pytest.raises(NotFound, match="was deleted"):
            explained()
        assert explain(block_id).reason is BlockReason.EMPTY
        with store.open("gc") as gc:
            gc_service(gc).run_once()
        assert explain(block_id).reason is BlockReason.CONDEMNED
    assert "api" not in store.changes

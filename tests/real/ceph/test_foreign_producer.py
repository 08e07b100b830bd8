"""A program that knows docs/MESSAGES.md and Kafka, and nothing of ours, has objects packed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from nos_consumer.assemble import consumer_service
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.formats.messages import partition_for
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.settings import load_settings
from nos_producer.assemble import producer_service
from tests.rig.dev_servers import DevServer

pytestmark = pytest.mark.real

PARTITIONS = 4
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"foreign-{next(_numbers)}"


@pytest.fixture
def system(tmp_path: Path, kafka: DevServer, topic: str) -> Iterator[System]:
    """A store in a folder, with its events on Kafka."""
    config = tmp_path / "nos-ec.toml"
    config.write_text(
        f"""
[store]
root = "store"
[log]
backend = "kafka"
partitions = {PARTITIONS}
session_ms = 6000
[kafka]
servers = "{kafka.url}"
topic = "{topic}"
replication = 1
in_sync_min = 1
"""
    )
    settings = load_settings(config, {})
    initialise(settings)
    with open_system(settings) as system:
        yield system


def publish(
    servers: str,
    topic: str,
    events: list[tuple[str, dict[str, object]]],
    *,
    ours: bool = True,
    transaction: bool = False,
) -> set[int | None]:
    """Publish as librdkafka does, with the partitioner that MESSAGES.md asks for or with librdkafka's own, and
    optionally in a transaction. Returns the partitions."""
    partitions: set[int | None] = set()
    partitioner = {"partitioner": "murmur2_random"} if ours else {}
    in_transactions = {"transactional.id": topic} if transaction else {}
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **partitioner, **in_transactions})
    if transaction:
        producer.init_transactions(30)
        producer.begin_transaction()
    for bucket, event in events:
        producer.produce(
            topic,
            key=bucket.encode(),
            value=json.dumps(event).encode(),
            on_delivery=lambda error, message: partitions.add(-1 if error else message.partition()),
        )
    assert producer.flush(30) == 0
    if transaction:
        producer.commit_transaction(30)
    return partitions


@pytest.mark.parametrize("transaction", [False, True], ids=["plain", "transaction"])
def test_objects_are_packed_by_events_of_another_program(
    system: System, kafka: DevServer, topic: str, transaction: bool
) -> None:
    rng = random.Random(5)
    data = {ObjectKey(f"bucket-{i % 3}", f"o/{i}"): rng.randbytes(rng.randint(1, 20_000)) for i in range(60)}
    rows = system.client.store().put_many(list(data.items()))
    events: list[tuple[str, dict[str, object]]] = [
        (row.key.bucket, {"v": 2, "bucket": row.key.bucket, "name": row.key.name, "version": row.version})
        for row in rows
    ]
    stale = [(bucket, {**event, "version": 1}) for bucket, event in events[:5]]
    bad = [(bucket, {**event, "colour": "blue"}) for bucket, event in events[:2]]
    used = publish(kafka.url, topic, events + stale + bad, transaction=transaction)
    assert used == {partition_for(key.bucket, PARTITIONS) for key in data}
    publish(kafka.url, topic, events[:7], ours=False, transaction=transaction)
    with producer_service(system) as producer:
        assert producer.drain() == 60, "our producer knows nothing of the other"
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    counters = consumer.counters
    assert (counters.packed, counters.superseded, counters.stale, counters.poison) == (60, 0, 60 + 7 + 5, 2)
    assert system.operator.lag() == 0
    for key, expected in data.items():
        assert system.client.store().head(key).state is ObjectState.PACKED
        assert system.client.store().get(key) == expected

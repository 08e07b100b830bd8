"""Notifications of buckets on a real broker, which is away meanwhile."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.connection_check import Outcome, Result, try_all
from nos_ec.composition.connections import Connections
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.core.notifications.configuration import Notification, encode
from nos_ec.ports.metadata import CannedAcl, DocumentKind
from nos_ec.settings import load_settings
from nos_producer.assemble import producer_service
from tests.rig.dev_servers import DevServer
from tests.rig.waiting import until

pytestmark = pytest.mark.real

PARTITIONS = 3
REQUEST_MS = 3000
WAIT_S_MAX = 120.0
OBJECTS = 10


@pytest.fixture
def topic(kafka: DevServer) -> str:
    """A new topic that the operator made."""
    name = f"changes-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.url})
    for answer in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        answer.result()
    return name


@pytest.fixture
def system(tmp_path: Path, kafka: DevServer, topic: str) -> Iterator[System]:
    config = tmp_path / "nos-ec.toml"
    config.write_text(
        f"""
store.root = "store"
log = {{ backend = "kafka", partitions = {PARTITIONS} }}
landing.mode = "store"
[kafka]
servers = "{kafka.url}"
topic = "packing-{topic}"
replication = 1
in_sync_min = 1
request_timeout_ms = {REQUEST_MS}
[s3]
notification_topics = "{topic}"
"""
    )
    settings = load_settings(config, {})
    initialise(settings)
    with open_system(settings) as system:
        metadata, now_ms = system.metadata, system.clock.now_ms()
        metadata.create_bucket("told", "ann", CannedAcl.PRIVATE, now_ms)
        wanted = Notification("all", topic, ("s3:ObjectCreated:*", "s3:ObjectRemoved:*"))
        metadata.set_bucket_document("told", DocumentKind.NOTIFICATION, encode([wanted]), now_ms)
        yield system


def change(system: System, turn: int) -> None:
    """PUT each object, and delete it in every other turn."""
    store = system.client.store()
    for number in range(OBJECTS):
        key = ObjectKey("told", f"{number}")
        store.put(key, BytesIO(b"%d" % turn))
        if turn % 2:
            store.delete(key)


def read_all(servers: str, topic: str) -> list[tuple[int, str, str, str]]:
    """(partition, key, event, sequencer) of all messages, in the order of their partitions."""
    reader = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    try:
        found = []
        for partition in range(PARTITIONS):
            first, end = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
            reader.assign([TopicPartition(topic, partition, first)])
            deadline_s = time.monotonic() + WAIT_S_MAX
            last = first - 1
            while last < end - 1:
                assert time.monotonic() < deadline_s
                message = reader.poll(1)
                if message is None:
                    continue
                value, key, offset = message.value(), message.key(), message.offset()
                assert message.error() is None
                assert value is not None
                assert key is not None
                assert offset is not None
                last = offset
                record = json.loads(value)["Records"][0]
                assert key.decode() == f"told/{record['s3']['object']['key']}"
                found.append((partition, key.decode(), record["eventName"], record["s3"]["object"]["sequencer"]))
        return found
    finally:
        reader.close()


def test_the_check_of_connections_looks_the_topics_up(system: System, tmp_path: Path, topic: str) -> None:
    """Otherwise an operator learns of a misspelt name when the outbox is full."""
    name = "Kafka topics of notifications"

    def checked() -> dict[str, Outcome]:
        with Connections(load_settings(config, {}), SystemClock()) as connections:
            return {one.name: one for one in try_all(connections.checks())}

    config = tmp_path / "nos-ec.toml"
    found = checked()[name]
    assert (found.result, found.detail) == (Result.OK, f"topic {topic}: DESCRIBE, READ, WRITE")
    config.write_text(config.read_text().replace(f'"{topic}"\n', f'"{topic}, misspelt"\n'))
    found = checked()[name]
    assert found.result is Result.FAILED
    assert "notifications: misspelt: no such topic; create it" in found.detail


def test_nothing_is_lost_while_the_broker_is_away(system: System, kafka: DevServer, topic: str) -> None:
    """Changes continue meanwhile. The events of a key have one partition, and are in the order of its changes."""
    stop = Event()
    with producer_service(system) as producer:
        running = Thread(target=producer.run, args=(stop,))
        running.start()
        try:
            change(system, 1)
            until(lambda: system.metadata.outbox_size(1) == 0, wait_s=WAIT_S_MAX)
            kafka.put_to_sleep()
            try:
                began_s = time.monotonic()
                for turn in (2, 3, 4):
                    change(system, turn)
                assert producer.notifications is not None
                sender = producer.notifications
                until(lambda: sender.counters.failures > 0, wait_s=WAIT_S_MAX)
                assert time.monotonic() - began_s < WAIT_S_MAX
                assert system.metadata.outbox_size(1000) == OBJECTS * 4
            finally:
                kafka.wake()
            change(system, 5)
            until(lambda: system.metadata.outbox_size(1) == 0, wait_s=WAIT_S_MAX)
        finally:
            stop.set()
            running.join()
    found = read_all(kafka.url, topic)
    for number in range(OBJECTS):
        of_key = [one for one in found if one[1] == f"told/{number}"]
        assert len({partition for partition, *_ in of_key}) == 1
        first_seen = list(dict.fromkeys((event, sequencer) for _, _, event, sequencer in of_key))
        put, delete = "ObjectCreated:Put", "ObjectRemoved:Delete"
        assert [event for event, _ in first_seen] == [put, delete, put, put, delete, put, put, delete]
        assert [sequencer for _, sequencer in first_seen] == sorted(sequencer for _, sequencer in first_seen)

"""Kafka: the contract, and what can be tested only on a real broker."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import IO

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as DriverMessage
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from nos_ec.adapters.kafka.cluster import KafkaTopic
from nos_ec.adapters.kafka.connection_check import try_topics
from nos_ec.adapters.kafka.consumer import KafkaConsumer
from nos_ec.adapters.kafka.dead_letter_reader import read_dead_letters
from nos_ec.adapters.kafka.dead_letters import DeadLetters
from nos_ec.adapters.kafka.message_log import RETENTION_MS, KafkaMessageLog
from nos_ec.adapters.kafka.progress import KafkaGroupProgress
from nos_ec.adapters.kafka.publisher import KafkaPublisher
from nos_ec.core.errors import ConfigError, Conflict, TooLarge, Transient
from nos_ec.ports.message_log import DeadLetter, GroupProgress, Message, MessageConsumer, MessagePublisher
from tests.contract.suites.message_log_contract import MessageLogContract, ends, keys_of_partitions, settle, take
from tests.real.conftest import run
from tests.rig import waiting
from tests.rig.dev_servers import DevServer
from tests.rig.stalls import Stalls

pytestmark = pytest.mark.real

PARTITIONS = 4
SESSION_MS = 4000
"""Time without a poll or a heartbeat after which a member with a short session is removed."""
STALL_MS_MAX = 6000
"""Other sessions survive a stall of the machine, and a broker that is too busy for their heartbeats."""
HEARTBEATS_MS = 1500
"""Time without a heartbeat after which members that are to be removed are removed."""
until = partial(waiting.until, wait_s=60)

_numbers = itertools.count()


class KafkaHarness:
    """A new topic on the shared broker. letters: settings of a dead-letter topic that exists before."""

    partitions = PARTITIONS
    session_ms = SESSION_MS

    def __init__(self, servers: str, letters: dict[str, str] | None = None) -> None:
        self.topic = KafkaTopic(servers, f"pack-requests-{next(_numbers)}", PARTITIONS, request_timeout_ms=10_000)
        if letters is not None:
            admin = self.admin()
            (answer,) = admin.create_topics([NewTopic(self.topic.dead_letters, 1, 1, config=letters)]).values()
            answer.result()
        self.log = KafkaMessageLog.initialise(self.topic, replication=1, in_sync_min=1)
        self._open: list[KafkaPublisher | KafkaConsumer | KafkaGroupProgress] = []

    def publisher(self) -> MessagePublisher:
        publisher = KafkaPublisher(self.topic, delivery_timeout_ms=20_000)
        self._open.append(publisher)
        return publisher

    def consumer(self, group: str, *, short_session: bool = False) -> MessageConsumer:
        if short_session:
            return self.member(group, session_ms=SESSION_MS, poll_interval_ms_max=SESSION_MS)
        return self.member(group)

    def member(
        self, group: str, *, instance: str = "", session_ms: int = STALL_MS_MAX, poll_interval_ms_max: int = 20_000
    ) -> KafkaConsumer:
        consumer = self.log.consumer(
            group=self.group(group),
            member=f"m{len(self._open)}",
            session_ms=session_ms,
            poll_interval_ms_max=poll_interval_ms_max,
            instance=instance,
        )
        self._open.append(consumer)
        return consumer

    def progress(self, group: str) -> GroupProgress:
        progress = self.log.progress(group=self.group(group), name=f"p{len(self._open)}")
        self._open.append(progress)
        return progress

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def group(self, group: str) -> str:
        return f"{group}-{self.topic.name}"

    def dead_letters(self) -> list[DeadLetter]:
        return [as_dead_letter(letter) for letter in self.raw_dead_letters()]

    def dead_letters_of_ours(self) -> list[DeadLetter]:
        """Those with headers."""
        return [as_dead_letter(letter) for letter in self.raw_dead_letters() if letter.key() is not None]

    def raw_dead_letters(self) -> list[DriverMessage]:
        """Read as an operator's tool would, without a group."""
        reader = Consumer({"bootstrap.servers": self.topic.servers, "group.id": "nobody", "enable.auto.commit": False})
        try:
            place = TopicPartition(self.topic.dead_letters, 0, 0)
            first, end = reader.get_watermark_offsets(place, timeout=10)
            reader.assign([place])
            letters: list[DriverMessage] = []
            deadline = time.monotonic() + 10
            while len(letters) < end - first:
                assert time.monotonic() < deadline
                message = reader.poll(0.1)
                if message is not None:
                    assert message.error() is None
                    letters.append(message)
            return letters
        finally:
            reader.close()

    def pass_time(self, time_ms: int) -> None:
        time.sleep(time_ms / 1000)

    def close(self) -> None:
        for opened in self._open:
            opened.close()
        self.delete_topics()

    def delete_topics(self) -> None:
        """Delete both topics, if they exist."""
        admin = self.admin()
        for answer in admin.delete_topics([self.topic.name, self.topic.dead_letters]).values():
            with suppress(KafkaException):
                answer.result()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.topic.servers})


def test_dead_letters_are_read_without_a_group(log: KafkaHarness) -> None:
    """The newest ones, and also those that a foreign program wrote without headers."""
    assert read_dead_letters(log.topic, 5) == []
    for number in range(4):
        log.member("g").set_aside(Message(1, number, b"k", b"v%d" % number), f"reason {number}")
    foreign = Producer({"bootstrap.servers": log.topic.servers})
    foreign.produce(log.topic.dead_letters, b"foreign", headers=[("offset", b"x"), ("reason", None)])
    assert foreign.flush(30) == 0
    found = read_dead_letters(log.topic, 5)
    assert found[:4] == log.dead_letters_of_ours()
    assert found[4] == DeadLetter(Message(0, 4, b"", b"foreign"), "no reason given")
    assert read_dead_letters(log.topic, 2) == found[3:]
    log.delete_topics()
    with pytest.raises(Transient, match="does not exist at present"):
        read_dead_letters(log.topic, 5)


def as_dead_letter(message: DriverMessage) -> DeadLetter:
    headers = message.headers()
    assert isinstance(headers, list)
    said = {name: value for name, value in headers if isinstance(value, bytes)}
    key, value = message.key(), message.value()
    assert key is not None
    assert value is not None
    return DeadLetter(Message(int(said["partition"]), int(said["offset"]), key, value), said["reason"].decode())


@pytest.fixture
def log(kafka: DevServer) -> Iterator[KafkaHarness]:
    harness = KafkaHarness(kafka.url)
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def doubted_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A broker to be suspended and killed: its controller gives it up after 3 seconds, and after it resumes it reports
    for a moment that no broker is available."""
    yield from run("kafka", tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def doubted_log(doubted_kafka: DevServer) -> Iterator[KafkaHarness]:
    harness = KafkaHarness(doubted_kafka.url)
    yield harness
    harness.close()


class TestKafkaMessageLog(MessageLogContract):
    """The suite that every adapter must pass."""


def topic_settings(admin: AdminClient, name: str) -> dict[str, str]:
    """{setting: value} of a topic."""
    (answer,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
    return {setting: entry.value for setting, entry in answer.result().items()}


def answered(ask: Callable[[], object]) -> bool:
    """Send the broker a request. False: it failed, and may succeed later."""
    try:
        ask()
    except Transient:
        return False
    return True


def published(publisher: MessagePublisher, keys: Sequence[bytes] = (b"k",)) -> bool:
    """Publish a message for each key. False: it failed, and may succeed later."""
    return answered(lambda: publisher.publish([(key, b"v") for key in keys]))


def handed_out(consumer: MessageConsumer) -> bool:
    """Poll once. False: no message came, or it failed and may succeed later."""
    messages: list[Message] = []
    return answered(lambda: messages.extend(consumer.poll(1, 50))) and bool(messages)


# --- topics -----------------------------------------------------------------------------------------
def test_initialise_is_idempotent_and_keeps_the_partition_count(log: KafkaHarness) -> None:
    log.publisher().publish([(b"k", b"v")])
    assert KafkaMessageLog.initialise(log.topic, replication=1, in_sync_min=1).partitions == PARTITIONS
    assert len(take(log.consumer("g"), 1)) == 1
    with pytest.raises(ConfigError, match=r"has 4 partitions, but the configuration says 5; set log\.partitions to 4"):
        KafkaMessageLog.initialise(replace(log.topic, partitions=5), replication=1, in_sync_min=1)


def test_many_initialisers_all_succeed(kafka: DevServer) -> None:
    topic = KafkaTopic(kafka.url, "raced", 3)
    found: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(KafkaMessageLog.initialise(topic, replication=1, in_sync_min=1).partitions)
        )
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3] * 5


def test_topics_are_created_as_configured(log: KafkaHarness) -> None:
    settings = topic_settings(log.admin(), log.topic.name)
    assert settings["cleanup.policy"] == "delete"
    assert settings["retention.ms"] == str(7 * 86_400_000)
    assert settings["min.insync.replicas"] == "1"
    letters = topic_settings(log.admin(), log.topic.dead_letters)
    assert letters["retention.ms"] == str(30 * 86_400_000)
    assert int(letters["max.message.bytes"]) >= 2 * int(settings["max.message.bytes"]) - 1024 > 2_000_000


def alter(log: KafkaHarness, name: str, **settings: str) -> None:
    """Alter settings of a topic, as an operator does; `_` stands for a dot."""
    wanted = {setting.replace("_", "."): value for setting, value in settings.items()}
    changes = [ConfigEntry(*item, incremental_operation=AlterConfigOpType.SET) for item in wanted.items()]
    admin = log.admin()
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result()
    until(lambda: wanted.items() <= topic_settings(admin, name).items())


def test_settings_of_existing_topics_are_checked(log: KafkaHarness) -> None:
    """Retention below that of the settings is refused, and so is compaction: the key is the bucket, so it would drop
    events."""

    def initialise(in_sync_min: int = 1) -> None:
        KafkaMessageLog.initialise(log.topic, replication=3, in_sync_min=in_sync_min)

    alter(log, log.topic.name, retention_ms="-1", min_insync_replicas="2")
    initialise()
    alter(log, log.topic.name, retention_ms="3600000")
    alter(log, log.topic.dead_letters, cleanup_policy="compact")
    with pytest.raises(ConfigError, match="kafka-configs") as refused:
        initialise(2)
    for wrong in (
        f"topic {log.topic.name} has retention.ms=3600000 instead of 604800000",
        f"topic {log.topic.dead_letters} has cleanup.policy=compact instead of delete",
        f"topic {log.topic.dead_letters} has min.insync.replicas=1 instead of 2",
    ):
        assert wrong in str(refused.value)
    with pytest.raises(ConfigError, match=r"retention\.ms=3600000"):
        try_topics(log.topic, in_sync_min=1, retention_ms=RETENTION_MS)
    assert topic_settings(log.admin(), log.topic.name)["retention.ms"] == "3600000", "init changes no topic"


def test_no_client_creates_a_topic_by_looking_for_it(kafka: DevServer) -> None:
    """The broker would create it, with one partition and its own settings, and `init` could only refuse it."""
    topic = KafkaTopic(kafka.url, "sought", PARTITIONS, request_timeout_ms=2000)

    def publish() -> object:
        with closing(KafkaPublisher(topic, delivery_timeout_ms=2000)) as publisher:
            return publisher.publish([(b"k", b"v")])

    def set_aside() -> None:
        with closing(DeadLetters(topic, "m")) as letters:
            letters.keep(Message(0, 0, b"k", b"v"), "no reason")

    with (
        closing(KafkaConsumer(topic, group="g", member="m", session_ms=6000)) as member,
        closing(KafkaGroupProgress(topic, group="g", name="p")) as progress,
    ):
        for ask in (
            lambda: KafkaMessageLog(topic),
            publish,
            set_aside,
            member.lag,
            progress.passed_until,
            lambda: read_dead_letters(topic, 1),
        ):
            with pytest.raises((ConfigError, Transient)):
                ask()
        assert try_topics(topic, in_sync_min=1, retention_ms=RETENTION_MS) is None
        until(lambda: not answered(lambda: member.poll(1, 100)))
    admin = AdminClient({"bootstrap.servers": kafka.url})
    assert not {topic.name, topic.dead_letters} & admin.list_topics(timeout=10).topics.keys()


def test_a_missing_topic_is_a_configuration_error(kafka: DevServer) -> None:
    with pytest.raises(ConfigError, match=r"topic nowhere does not exist .*; run `nos-ec init`"):
        KafkaMessageLog(KafkaTopic(kafka.url, "nowhere", 4))


def test_more_replicas_than_brokers_are_a_configuration_error(kafka: DevServer) -> None:
    with pytest.raises(ConfigError, match=r"set kafka\.replication to no more than"):
        KafkaMessageLog.initialise(KafkaTopic(kafka.url, "ambitious", 4), replication=3, in_sync_min=2)


def test_a_topic_that_has_grown_is_a_configuration_error(log: KafkaHarness) -> None:
    """The events of every bucket whose partition changes would be out of order."""
    admin = log.admin()
    for answer in admin.create_partitions([NewPartitions(log.topic.name, 7)]).values():
        answer.result()
    with pytest.raises(ConfigError, match=r"has 7 partitions, .* set log\.partitions to 7"):
        KafkaMessageLog(log.topic)
    with pytest.raises(ConfigError, match="has grown to at least 7 partitions"):
        log.publisher().publish([(key, b"v") for key in keys_of_partitions(7)])
    consumer = log.consumer("g")
    with pytest.raises(ConfigError, match="has grown to at least 7 partitions"):
        until(lambda: handed_out(consumer))


# --- messages that are too large ----------------------------------------------------------------------
def test_a_lowered_limit_of_the_topic_stops_only_the_messages_above_it(log: KafkaHarness) -> None:
    """The limit is for a whole batch: small messages go in smaller batches, and their publisher keeps working."""
    publisher, consumer, rng = log.publisher(), log.consumer("g"), random.Random(5)
    publisher.publish([(b"k", b"before")])
    limit_messages(log, 10_000)
    sent = [(b"key", rng.randbytes(500)) for _ in range(200)]
    sent[77] = sent[123] = (b"key", rng.randbytes(50_000))
    for _ in range(2):
        refused = publisher.publish(sent)
        assert refused.keys() == {77, 123}
        for error in refused.values():
            assert isinstance(error, TooLarge)
            assert "max.message.bytes of topic" in str(error)
    got = {message.value for message in take(consumer, 1 + 2 * 198)}
    assert got == {b"before"} | {value for _, value in sent if len(value) == 500}
    assert publisher.publish(sent[77:78]).keys() == {0}, "also when there is no other"
    limit_messages(log, 1_048_588)
    until(lambda: publisher.publish(sent[77:78]) == {})


def test_a_message_above_the_limit_of_the_client_stops_only_itself(log: KafkaHarness) -> None:
    publisher = log.publisher()
    refused = publisher.publish([(b"k", b"1"), (b"k", bytes(2_000_000)), (b"k", b"2")])
    assert refused.keys() == {1}
    assert {message.value for message in take(log.consumer("g"), 2)} == {b"1", b"2"}


def limit_messages(log: KafkaHarness, size: int) -> None:
    alter(log, log.topic.name, max_message_bytes=str(size))


# --- dead letters -----------------------------------------------------------------------------------
def test_the_largest_message_that_the_topic_accepts_is_set_aside_whole(log: KafkaHarness) -> None:
    data = random.Random(2).randbytes(1 << 21)
    taken, refused = 0, len(data)
    while refused - taken > 1:
        size = (taken + refused) // 2
        if broker_takes(log.topic, data[:size]):
            taken = size
        else:
            refused = size
    assert taken > 1_048_000
    consumer = log.consumer("g")
    message = last_message(consumer, len(data[:taken]))
    consumer.set_aside(message, "r" * 100_000)
    (letter,) = log.dead_letters()
    assert letter.message == message
    assert letter.reason == "r" * 1000


@pytest.mark.parametrize(("limit", "kept"), [(1_048_588, 960_000), (100_000, 64 << 10), (5_000, 1 << 10)])
def test_the_beginning_of_a_message_too_large_for_the_dead_letters_is_kept(
    kafka: DevServer, limit: int, kept: int
) -> None:
    """Their topic may have been made with Kafka's own default, or a smaller one."""
    log = KafkaHarness(kafka.url, {"max.message.bytes": str(limit)})
    consumer, value = log.consumer("g"), random.Random(3).randbytes(1_048_500)
    assert broker_takes(log.topic, value)
    message = last_message(consumer, len(value))
    consumer.set_aside(message, "poison")
    (letter,) = log.raw_dead_letters()
    assert letter.value() == value[: kept - 3]
    assert letter.key() == b"key"
    headers = dict(letter.headers() or [])
    assert (headers["key-bytes"], headers["value-bytes"]) == (b"3", b"1048500")
    assert (headers["offset"], headers["reason"]) == (b"0", b"poison")
    consumer.set_aside(Message(0, 7, b"k", b"small"), "after one that did not fit")
    assert log.dead_letters()[-1] == DeadLetter(Message(0, 7, b"k", b"small"), "after one that did not fit")
    log.close()


def test_a_message_that_is_too_large_once_decompressed_is_set_aside(log: KafkaHarness) -> None:
    assert broker_takes(log.topic, bytes(20 << 20), compression="gzip")
    consumer = log.consumer("g")
    consumer.set_aside(last_message(consumer, 20 << 20), "poison")
    (letter,) = log.raw_dead_letters()
    assert letter.value() == bytes(960_000 - 3)
    assert dict(letter.headers() or [])["value-bytes"] == b"%d" % (20 << 20)


def broker_takes(topic: KafkaTopic, value: bytes, compression: str = "none") -> bool:
    """Publish a message whatever its size. Returns whether the topic accepted it."""
    producer = Producer(
        {"bootstrap.servers": topic.servers, "message.max.bytes": 100 << 20, "compression.type": compression}
    )
    errors: list[KafkaError | None] = []
    producer.produce(topic.name, value, b"key", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(20) == 0
    (error,) = errors
    assert error is None or error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    return error is None


def last_message(consumer: MessageConsumer, size: int) -> Message:
    """Read until the message of this size."""
    found: list[Message] = []

    def is_read() -> bool:
        found.extend(consumer.poll(1, 100))
        return bool(found) and len(found[-1].value) == size

    until(is_read)
    return found[-1]


# --- brokers that are away --------------------------------------------------------------------------
def test_an_unreachable_broker_is_transient() -> None:
    topic = KafkaTopic("127.0.0.1:1", "t", 4, request_timeout_ms=1000)
    with pytest.raises(Transient, match="Connection refused"):
        KafkaMessageLog(topic)
    with closing(KafkaPublisher(topic, delivery_timeout_ms=1000)) as publisher, pytest.raises(Transient):
        publisher.publish([(b"k", b"v")])
    with closing(KafkaConsumer(topic, group="g", member="m")) as consumer:
        with pytest.raises(Transient, match="brokers are down"):
            until(lambda: bool(consumer.poll(1, 100)))
        with pytest.raises(Transient):
            consumer.lag()
        with pytest.raises(Transient):
            consumer.set_aside(Message(0, 0, b"k", b"v"), "no reason")


def test_publishing_ends_within_the_time_limit_of_a_request(
    doubted_kafka: DevServer, doubted_log: KafkaHarness
) -> None:
    log = KafkaMessageLog(replace(doubted_log.topic, request_timeout_ms=2000))
    with closing(log.publisher()) as publisher:
        publisher.publish([(b"k", b"v")])
        doubted_kafka.put_to_sleep()
        begun_s = time.monotonic()
        try:
            assert not published(publisher)
        finally:
            doubted_kafka.wake()
        assert time.monotonic() - begun_s < 15
    until(lambda: published(doubted_log.publisher()))


def test_a_login_that_the_broker_refuses_is_a_configuration_error(kafka: DevServer) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "nobody", "sasl.password": "wrong"}
    options = {"security.protocol": "SASL_PLAINTEXT"} | login
    topic = KafkaTopic(kafka.url, "t", 4, request_timeout_ms=1000, options=options)
    with pytest.raises(ConfigError, match="check the SASL and TLS options"):
        until(lambda: answered(lambda: KafkaMessageLog(topic)))
    publisher = KafkaPublisher(topic, delivery_timeout_ms=1000)
    with closing(publisher), pytest.raises(ConfigError, match="SASL"):
        until(lambda: published(publisher))
    with closing(KafkaConsumer(topic, group="g", member="m")) as consumer, pytest.raises(ConfigError, match="SASL"):
        until(lambda: handed_out(consumer))


def test_work_continues_when_the_broker_is_killed_and_comes_back(
    doubted_kafka: DevServer, doubted_log: KafkaHarness
) -> None:
    """Nothing acknowledged is lost, and apart from copies each key's messages arrive in order."""
    publisher, consumer = doubted_log.publisher(), doubted_log.consumer("g")
    keys = keys_of_partitions(PARTITIONS)
    acknowledged: list[int] = []
    stop = threading.Event()

    def publish() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            while not stop.is_set():
                with suppress(Transient):
                    publisher.publish([(key, b"%d" % number) for key in keys])
                    acknowledged.append(number)
                    break

    got: list[Message] = []

    def consume() -> bool:
        with suppress(Transient, Conflict):  # removed by the broker that came back: everything is delivered again
            messages = consumer.poll(100, 50)
            got.extend(messages)
            consumer.commit(ends(messages))
        return False

    def consumed(number: int) -> Callable[[], bool]:
        wanted = {(key, b"%d" % n) for n in range(number + 1) for key in keys}
        return lambda: consume() or wanted <= {(m.key, m.value) for m in got}

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        until(consumed(5))
        doubted_kafka.kill()
        doubted_kafka.start()
        before = len(acknowledged)
        until(lambda: consume() or len(acknowledged) > before + 5)
    finally:
        stop.set()
        thread.join()
    until(consumed(acknowledged[-1]))
    for key in keys:
        first_seen = list(dict.fromkeys(int(m.value) for m in got if m.key == key))
        assert first_seen == sorted(first_seen)
    until(lambda: consume() or consumer.lag() == 0)


def test_every_commit_returns_and_work_continues_when_the_broker_is_suspended_repeatedly(
    doubted_kafka: DevServer, doubted_log: KafkaHarness
) -> None:
    """It is suspended for longer than a request may take. After it resumes it may report for a moment that there is no
    broker."""
    timeout_s = 2.0
    topic = replace(doubted_log.topic, request_timeout_ms=int(timeout_s * 1000))
    publisher = doubted_log.publisher()
    consumer = KafkaConsumer(
        topic, group=doubted_log.group("g"), member="m", session_ms=HEARTBEATS_MS, poll_interval_ms_max=10_000
    )
    watcher = KafkaConsumer(topic, group=doubted_log.group("g"), member="watcher")
    keys = keys_of_partitions(PARTITIONS)
    pending: dict[int, int] = {}
    commits: list[tuple[float, float]] = []
    done_count = 0

    def work() -> bool:
        nonlocal done_count
        with suppress(Transient):
            pending.update(ends(consumer.poll(100, 20)))
        for partition in pending.keys() - consumer.assignment():
            del pending[partition]
        begun = time.monotonic()
        with suppress(Transient, Conflict):
            consumer.commit(pending)
            done_count += len(pending)
            pending.clear()
        commits.append((begun, time.monotonic()))
        return False

    def nothing_left() -> bool:
        try:
            left = watcher.lag()
        except Transient as error:  # a broker that has just woken up may not know its own epoch yet
            print(error)
            return False
        print(f"lag {left}, owned {sorted(consumer.assignment())}, to commit {pending}")
        return left == 0

    def publish_and_commit() -> None:
        until(lambda: published(publisher, keys))
        before = done_count
        until(lambda: work() or done_count > before)

    with closing(consumer), closing(watcher), Stalls() as stalls:
        publish_and_commit()
        for _ in range(3):
            published(publisher, keys)
            doubted_kafka.put_to_sleep()
            try:
                awake = time.monotonic() + 1.5 * timeout_s
                while time.monotonic() < awake:
                    work()
            finally:
                doubted_kafka.wake()
            publish_and_commit()
        assert max(stalls.took_s(*commit) for commit in commits) < 2 * timeout_s + 4
        until(lambda: work() or nothing_left())


def test_a_member_leaves_in_time_while_the_broker_is_suspended(
    doubted_kafka: DevServer, doubted_log: KafkaHarness
) -> None:
    """The driver itself would wait for the broker."""
    publisher = doubted_log.publisher()
    publisher.publish([(key, b"v") for key in keys_of_partitions(PARTITIONS)])
    consumer = KafkaConsumer(
        replace(doubted_log.topic, request_timeout_ms=1000), group=doubted_log.group("g"), member="m"
    )
    got = take(consumer, PARTITIONS)
    doubted_kafka.put_to_sleep()
    try:
        with pytest.raises(Transient):
            consumer.commit(ends(got))
        begun = time.monotonic()
        consumer.close()
        assert time.monotonic() - begun < 15
    finally:
        doubted_kafka.wake()
    # The next test must find a broker that works: the controller may have given up one that slept for long.
    until(lambda: published(publisher))


# --- groups -----------------------------------------------------------------------------------------
def test_a_rebalance_does_not_touch_partitions_that_stay(log: KafkaHarness) -> None:
    """Cooperative: no redelivery on partitions that stay, although nothing of them was committed."""
    one, two = log.member("g"), log.member("g")
    revoked: list[frozenset[int]] = []
    one.on_revoke(revoked.append)
    log.publisher().publish([(key, b"%d" % n) for key in keys_of_partitions(PARTITIONS) for n in range(3)])
    take(one, 3 * PARTITIONS)
    one_got, two_got = settle([one, two], PARTITIONS)
    moved = two.assignment()
    assert revoked == [moved]
    assert one_got == []
    two_got += take(two, 3 * len(moved) - len(two_got)) if len(two_got) < 3 * len(moved) else []
    assert {m.partition for m in two_got} == moved


_MEMBER = """
    import sys
    from nos_ec.adapters.kafka.cluster import KafkaTopic
    from nos_ec.adapters.kafka.consumer import KafkaConsumer
    from nos_ec.core.errors import NosError

    servers, name, group = sys.argv[1:]
    consumer = KafkaConsumer(
        KafkaTopic(servers, name, 4), group=group, member="victim", session_ms=1500, poll_interval_ms_max=60_000
    )
    offsets = {}
    while len(offsets) < 4:
        for message in consumer.poll(10, 50):
            offsets[message.partition] = message.offset + 1
    print("taken", flush=True)
    sys.stdin.readline()
    try:
        consumer.commit(offsets)
    except NosError as error:
        print(type(error).__name__, flush=True)
"""


@contextmanager
def member_process(log: KafkaHarness) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process that has taken a message of every partition, and commits on request."""
    command = [sys.executable, "-c", textwrap.dedent(_MEMBER), log.topic.servers, log.topic.name, log.group("g")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            until(lambda: process.stdout is not None and process.stdout.readline() == "taken\n")
            yield process, process.stdout
        finally:
            process.kill()


def test_partitions_of_a_killed_process_move_after_its_session(log: KafkaHarness) -> None:
    log.publisher().publish([(key, b"v") for key in keys_of_partitions(PARTITIONS)])
    with member_process(log) as (process, _):
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        heir = log.consumer("g")
        again = take(heir, PARTITIONS)
        assert time.monotonic() - killed < 30, "half of what it may stay silent"
    assert {m.partition for m in again} == set(range(PARTITIONS)) == heir.assignment()


def test_a_process_suspended_past_its_session_cannot_commit(log: KafkaHarness) -> None:
    """It has not learned of its removal: the broker recognises it by the generation."""
    log.publisher().publish([(key, b"v") for key in keys_of_partitions(PARTITIONS)])
    with member_process(log) as (process, said):
        process.send_signal(signal.SIGSTOP)
        heir = log.consumer("g")
        take(heir, PARTITIONS)
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.write("commit\n")
        process.stdin.flush()
        assert said.readline() == "Conflict\n"
    assert heir.lag() == PARTITIONS


def test_a_static_member_gets_its_partitions_back_without_a_rebalance(log: KafkaHarness) -> None:
    one = log.member("g", instance="one", session_ms=10_000, poll_interval_ms_max=10_000)
    two = log.member("g", instance="two", session_ms=10_000, poll_interval_ms_max=10_000)
    revoked: list[frozenset[int]] = []
    settle([one, two], PARTITIONS)
    two.on_revoke(revoked.append)
    before, others = one.assignment(), two.assignment()
    one.close()
    back = log.member("g", instance="one", session_ms=10_000, poll_interval_ms_max=10_000)
    until(lambda: bool(two.poll(1, 20) or back.poll(1, 20)) or back.assignment() == before)
    assert two.assignment() == others
    assert revoked == []


def test_two_processes_with_the_same_instance_name_are_refused(log: KafkaHarness) -> None:
    first = log.member("g", instance="same")
    settle([first], PARTITIONS)
    second = log.member("g", instance="same")
    with pytest.raises(ConfigError, match="give every process its own instance name"):
        until(lambda: handed_out(second) or handed_out(first))


def test_a_session_the_broker_does_not_allow_is_a_configuration_error(log: KafkaHarness) -> None:
    consumer = log.member("g", session_ms=3_600_000, poll_interval_ms_max=3_600_000)
    with pytest.raises(ConfigError, match=r"group\.max\.session\.timeout\.ms"):
        until(lambda: handed_out(consumer))

"""A topic that is deleted and recreated while it is in use: no message of the new one is skipped, and no process
restarts."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from nos_ec.adapters.kafka.message_log import KafkaMessageLog
from nos_ec.core.errors import ConfigError, Conflict, Transient
from nos_ec.ports.message_log import MessageConsumer
from tests.contract.suites.message_log_contract import ends, keys_of_partitions, take
from tests.real.kafka.test_kafka_message_log import PARTITIONS, KafkaHarness, answered, published, until
from tests.rig.dev_servers import DevServer

pytestmark = pytest.mark.real

KEYS = keys_of_partitions(PARTITIONS)
OLD = 200
"""Messages per partition of the topic that was deleted; all of them are committed."""


@pytest.fixture
def log(kafka: DevServer) -> Iterator[KafkaHarness]:
    harness = KafkaHarness(kafka.url)
    yield harness
    harness.close()


def work_off(log: KafkaHarness, consumer: MessageConsumer) -> None:
    """Publish OLD messages per partition, take and commit all of them."""
    log.publisher().publish([(key, b"old %d" % number) for number in range(OLD) for key in KEYS])
    consumer.commit(ends(take(consumer, OLD * PARTITIONS)))
    assert consumer.lag() == 0


def recreate(log: KafkaHarness, per_partition: int) -> set[bytes]:
    """Delete the topic, recreate it, and publish to it. Returns the values."""
    log.delete_topics()

    def made() -> None:
        KafkaMessageLog.initialise(log.topic, replication=1, in_sync_min=1)

    until(lambda: answered(made))
    values = {b"%d %d" % (partition, number) for partition in range(PARTITIONS) for number in range(per_partition)}
    publisher = log.publisher()
    until(lambda: answered(lambda: publisher.publish([(KEYS[int(v.split()[0])], v) for v in sorted(values)])))
    return values


def collect(consumer: MessageConsumer, wanted: set[bytes], *, commit: bool) -> set[bytes]:
    """Poll until all wanted values have arrived, and the group has no lag if it is to commit. Returns what arrived.

    A member that loses its partitions on the way gets again what it had not committed.
    """
    got: set[bytes] = set()
    pending: dict[int, int] = {}
    consumer.on_revoke(lambda _partitions: pending.clear())

    def poll() -> bool:
        try:
            messages = consumer.poll(500, 100)
            got.update(message.value for message in messages)
            if commit:
                pending.update(ends(messages))
                consumer.commit(pending)  # what a group that rebalances did not accept is committed with the next
                pending.clear()
            return wanted <= got and (not commit or consumer.lag() == 0)
        except (Transient, Conflict):
            return False

    until(poll, wait_s=120)
    return got


@pytest.mark.parametrize("new", [OLD // 2, 2 * OLD], ids=["fewer", "more"])
def test_a_running_member_reads_and_commits_the_new_topic_from_its_beginning(log: KafkaHarness, new: int) -> None:
    """The new topic may end before or after the offsets of the old one."""
    consumer = log.consumer("g")
    work_off(log, consumer)
    values = recreate(log, new)
    onlooker = log.consumer("g")
    assert onlooker.lag() == len(values)
    assert collect(consumer, values, commit=True) >= values
    until(lambda: onlooker.lag() == 0)


def test_nothing_is_skipped_when_a_member_commits_late_and_leaves(log: KafkaHarness) -> None:
    """It holds messages of the old topic, and commits their offsets when the new one has grown past them."""
    consumer = log.consumer("g")
    work_off(log, consumer)
    publisher = log.publisher()
    until(lambda: published(publisher, KEYS))
    held = take(consumer, PARTITIONS)
    values = recreate(log, 2 * OLD)
    answered(lambda: consumer.commit(ends(held)))
    onlooker = log.consumer("g")
    assert onlooker.lag() == len(values)
    consumer.close()
    assert collect(log.consumer("g"), values, commit=False) >= values


_READER = """
    import sys
    from nos_ec.adapters.kafka.cluster import KafkaTopic
    from nos_ec.adapters.kafka.consumer import KafkaConsumer
    from nos_ec.core.errors import NosError

    servers, name, group = sys.argv[1:]
    consumer = KafkaConsumer(
        KafkaTopic(servers, name, 4, request_timeout_ms=10_000), group=group, member="victim", session_ms=6000
    )
    while True:
        try:
            messages = consumer.poll(50, 100)
            for m in messages:
                print(m.value.decode(), flush=True)
            if messages:
                consumer.commit({m.partition: m.offset + 1 for m in messages})
        except NosError:
            continue
"""


def test_a_member_killed_on_the_new_topic_skips_nothing(log: KafkaHarness) -> None:
    """SIGKILL while it is in the middle; what it did not commit comes to the next one."""
    work_off(log, consumer := log.consumer("g"))
    consumer.close()
    command = [sys.executable, "-c", textwrap.dedent(_READER), log.topic.servers, log.topic.name, log.group("g")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            publisher = log.publisher()
            until(lambda: published(publisher, KEYS))
            assert process.stdout is not None
            for _ in range(PARTITIONS):
                process.stdout.readline()
            values = recreate(log, 5 * OLD)
            got = {process.stdout.readline().strip() for _ in range(len(values) // 4)}
        finally:
            process.kill()
        got |= {line.strip() for line in process.stdout.read().splitlines()}
    heir = log.consumer("g")
    left = heir.lag()
    assert left >= len(values - got), "what was not taken is not committed"
    rest = collect(heir, values - got, commit=True)
    assert rest | got >= values
    until(lambda: heir.lag() == 0)


def test_a_missing_topic_is_transient_until_it_is_recreated(log: KafkaHarness) -> None:
    """Daemons keep running; a process that is started meanwhile ends and says what to do."""
    publisher, consumer, progress = log.publisher(), log.consumer("g"), log.progress("g")
    publisher.publish([(key, b"v") for key in KEYS])
    take(consumer, PARTITIONS)
    log.delete_topics()
    for ask in (consumer.lag, progress.passed_until, lambda: publisher.publish([(b"k", b"v")])):
        until(lambda ask=ask: not answered(ask))  # type: ignore[misc]
    with pytest.raises(ConfigError, match="run `nos-ec init`"):
        until(lambda: answered(lambda: KafkaMessageLog(log.topic)) and False)
    late = log.consumer("late")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for member in (consumer, late):
            with suppress(Transient):
                assert member.poll(10, 100) == []
    KafkaMessageLog.initialise(log.topic, replication=1, in_sync_min=1)
    until(lambda: published(publisher, KEYS))
    for member in (consumer, late):
        assert len(collect(member, {b"v"}, commit=True)) == 1
    until(lambda: answered(progress.passed_until))

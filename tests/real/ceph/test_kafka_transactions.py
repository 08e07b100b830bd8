"""Events that other programs publish in transactions: the end of a partition is then not the offset after its last
message, and an open transaction leaves messages that may yet be aborted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from nos_ec.adapters.kafka.consumer import KafkaConsumer
from nos_ec.adapters.kafka.dead_letter_reader import read_dead_letters
from nos_ec.ports.message_log import MessageConsumer
from tests.contract.suites.message_log_contract import ends, keys_of_partitions, take
from tests.real.kafka.test_kafka_message_log import PARTITIONS, KafkaHarness, until
from tests.rig.dev_servers import DevServer

pytestmark = pytest.mark.real

KEYS = keys_of_partitions(PARTITIONS)


@pytest.fixture
def log(kafka: DevServer) -> Iterator[KafkaHarness]:
    harness = KafkaHarness(kafka.url)
    yield harness
    harness.close()


class Foreign:
    """A program that publishes in transactions."""

    def __init__(self, log: KafkaHarness, topic: str | None = None) -> None:
        self._topic = topic or log.topic.name
        settings = {"bootstrap.servers": log.topic.servers, "partitioner": "murmur2_random", "log_level": 0}
        self._producer = Producer({**settings, "transactional.id": self._topic})
        self._producer.init_transactions(30)

    def begin(self, *values: bytes, keys: list[bytes] = KEYS) -> None:
        """Open a transaction, and publish in it: each value to each partition."""
        self._producer.begin_transaction()
        for value in values:
            for key in keys:
                self._producer.produce(self._topic, value, key)
        assert self._producer.flush(30) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        self._producer.abort_transaction(30)


def has_no_lag(member: MessageConsumer) -> None:
    """Poll until the group has no messages left, and check that none arrives."""

    def polled() -> bool:
        assert member.poll(10, 100) == []
        return member.lag() == 0

    until(polled, wait_s=20)


@pytest.mark.invariant(5)
def test_a_group_gets_past_the_markers_of_transactions(log: KafkaHarness) -> None:
    foreign, member, progress = Foreign(log), log.member("g"), log.progress("g")
    foreign.begin(b"one", b"two")
    foreign.commit()
    assert set(progress.passed_until()) == set(range(PARTITIONS))
    got = take(member, 2 * PARTITIONS)
    member.commit(ends(got[:PARTITIONS]))
    assert member.lag() >= PARTITIONS, "what is not done counts"
    member.commit(ends(got))
    has_no_lag(member)
    foreign.begin(b"three")
    foreign.abort()
    got = take(member, PARTITIONS)
    assert {message.value for message in got} == {b"three"}, "an event is a hint, also one that was withdrawn"
    member.commit(ends(got))
    has_no_lag(member)
    log.publisher().publish([(key, b"four") for key in KEYS])
    got = take(member, PARTITIONS)
    member.commit(ends(got))
    assert member.lag() == 0


def test_an_open_transaction_holds_nothing_up(log: KafkaHarness) -> None:
    foreign, member, progress = Foreign(log), log.member("g"), log.progress("g")
    foreign.begin(b"in it")
    log.publisher().publish([(key, b"after it") for key in KEYS])
    got = take(member, 2 * PARTITIONS)
    assert {message.value for message in got} == {b"in it", b"after it"}
    member.commit(ends(got))
    assert member.lag() == 0
    asked_ms = log.now_ms()
    assert min(progress.passed_until().values()) >= asked_ms
    foreign.commit()
    has_no_lag(member)


@pytest.mark.invariant(5)
def test_markers_written_after_the_group_has_left_leave_no_lag(log: KafkaHarness) -> None:
    """Nothing is left to read, and finding that out takes no time-out."""
    foreign, member, progress = Foreign(log), log.member("g"), log.progress("g")
    foreign.begin(b"one")
    member.commit(ends(take(member, PARTITIONS)))
    member.close()
    foreign.commit()
    begun_s, asked_ms = time.monotonic(), log.now_ms()
    assert {p: passed_ms >= asked_ms for p, passed_ms in progress.passed_until().items()} == dict.fromkeys(
        range(PARTITIONS), True
    )
    assert time.monotonic() - begun_s < log.topic.timeout_s, "producers would lose their leases meanwhile"
    heir = log.member("g")
    assert heir.lag() == PARTITIONS
    has_no_lag(heir)


def test_a_member_at_a_marker_does_not_leave_its_group(log: KafkaHarness) -> None:
    """It has waited longer than a member may that misses messages."""
    topic = replace(log.topic, request_timeout_ms=1000)
    member = KafkaConsumer(topic, group=log.group("g"), member="m", session_ms=6000, poll_interval_ms_max=20_000)
    revoked: list[frozenset[int]] = []
    member.on_revoke(revoked.append)
    try:
        foreign = Foreign(log)
        foreign.begin(b"one")
        got = take(member, PARTITIONS)
        foreign.commit()  # its messages are not done yet, so the group stays before the markers
        stop_s = time.monotonic() + 4 * member._stalls.patience_s
        while time.monotonic() < stop_s:
            assert member.poll(10, 200) == []
        assert revoked == []
        member.commit(ends(got))
        assert member.lag() == 0
    finally:
        member.close()


def test_dead_letters_in_a_transaction_are_read(log: KafkaHarness) -> None:
    foreign = Foreign(log, log.topic.dead_letters)
    foreign.begin(b"letter", keys=[b"k"])
    foreign.commit()
    assert [letter.message.value for letter in read_dead_letters(log.topic, 5)] == [b"letter"]

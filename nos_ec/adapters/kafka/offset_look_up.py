"""Looks up the offsets that a group has committed, the ends of the topic's partitions, and the members of the group.

Offsets belong to a topic, and a topic that is deleted and recreated under the same name starts again at offset 0. The
group's offsets may outlive the old topic; a member that trusted them would skip the first messages of the new one. So
each commit carries the topic's id in its metadata, and an offset of another topic does not count. Offsets without an id
(from older versions of this program, or brokers before Kafka 2.8) are accepted unless they lie past the topic's end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConsumerGroupDescription,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicDescription,
)

from nos_ec.adapters.kafka.cluster import (
    NO_TOPIC,
    KafkaTopic,
    bare_error,
    close_admin_in_background,
    translate,
    translated_errors,
)
from nos_ec.core.errors import NosError, Transient

WATCH_S = 5.0
"""The time between two look-ups of the topic's id. Until the next look-up, messages of a recreated topic may be handed
out under the old id; they are delivered again afterwards."""
_RETRY_S = 0.1
_WAIT_S_MIN = 0.001
LOOKING_FOR_COORDINATOR = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

_METADATA = "topic-id="
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""An id of sixteen zero bytes, as Kafka writes it."""

EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def places(topic: KafkaTopic, partitions: Iterable[int]) -> list[TopicPartition]:
    """Return these partitions, sorted, in the driver's form."""
    return [TopicPartition(topic.name, partition) for partition in sorted(partitions)]


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that a group has committed (-1: none), and the id of the topic that it belongs to ("": unknown)."""

    offset: int
    topic_id: str

    def of(self, topic_id: str) -> int:
        """Return the offset if it may belong to the topic with this id, else -1."""
        return self.offset if not topic_id or not self.topic_id or self.topic_id == topic_id else -1


def commit_places(topic: KafkaTopic, offsets: Mapping[int, int], topic_id: str) -> list[TopicPartition]:
    """Return the offsets to commit, each with the id of the topic that it belongs to."""
    metadata = f"{_METADATA}{topic_id}" if topic_id else ""
    return [TopicPartition(topic.name, p, offset, metadata=metadata) for p, offset in sorted(offsets.items())]


def fetch_committed(consumer: Consumer, topic: KafkaTopic, partitions: Iterable[int]) -> dict[int, Committed]:
    """Return the offset that the consumer's group has committed for each of these partitions.

    While the group has no coordinator, as after a restart of brokers, the request is repeated for at most one request
    time-out. Raises ConfigError, Transient.
    """
    with translated_errors(topic, "look up committed offsets"):
        found = _ask_committed(consumer, topic, places(topic, partitions))
    for place in found:
        if place.error is not None:
            raise translate(bare_error(place.error), topic, "look up committed offsets")
    return {place.partition: _committed(place) for place in found}


def _committed(place: TopicPartition) -> Committed:
    metadata = place.metadata or ""
    return Committed(
        -1 if place.offset == OFFSET_INVALID else place.offset,
        metadata.removeprefix(_METADATA) if metadata.startswith(_METADATA) else "",
    )


def next_offset(committed: int, first: int, end: int) -> int:
    """Return the offset at which a group with this committed offset (-1: none) starts. An offset past the end is not
    valid, and the group then starts with the first stored message."""
    return first if committed > end else max(committed, first)


def id_of(found: TopicDescription) -> str:
    """Return the id of a topic; "" from a broker that has no ids."""
    topic_id = str(found.topic_id)
    return "" if topic_id == _NO_ID else topic_id


def _ask_committed(consumer: Consumer, topic: KafkaTopic, wanted: list[TopicPartition]) -> list[TopicPartition]:
    deadline = time.monotonic() + topic.timeout_s
    while True:
        left_s = max(_WAIT_S_MIN, deadline - time.monotonic())
        try:
            return consumer.committed(wanted, timeout=left_s)
        except KafkaException as error:
            if bare_error(error).code() not in LOOKING_FOR_COORDINATOR or left_s <= _RETRY_S:
                raise
        time.sleep(_RETRY_S)


class OffsetLookUp:
    """Looks up the beginnings and ends of the partitions of a topic. It has its own client, because on a consumer's
    connection a request would wait until a fetch ends. Connects at the first request; `name` is for operators."""

    def __init__(self, topic: KafkaTopic, name: str) -> None:
        self._topic = topic
        self._name = name
        self._admin: AdminClient | None = None

    def topic_id(self) -> str:
        """Return the id of the topic as it exists now; "" when its broker has no ids. Raises ConfigError, Transient."""
        answer = self.ask_topic()
        if wait([answer], 2 * self._topic.timeout_s).not_done:
            raise Transient(f"message log: look up the topic: no answer; check the brokers {self._topic.servers}")
        with translated_errors(self._topic, "look up the topic"):
            return id_of(answer.result())

    def ask_topic(self) -> Future[TopicDescription]:
        """Request the topic's description without waiting. The future may end with a KafkaException. Raises
        ConfigError, Transient."""
        with translated_errors(self._topic, "look up the topic"):
            wanted = TopicCollection([self._topic.name])
            answers: dict[str, Future[TopicDescription]]
            answers = self._client().describe_topics(wanted, request_timeout=self._topic.timeout_s)
        return answers[self._topic.name]

    def holders(self, group: str) -> dict[int, str]:
        """Return {partition: client id of the member of the group that owns it}. Raises ConfigError, Transient."""
        with translated_errors(self._topic, "look up the members of the group"):
            answers: dict[str, Future[ConsumerGroupDescription]]
            answers = self._client().describe_consumer_groups([group], request_timeout=self._topic.timeout_s)
            answer = answers[group]
            if wait([answer], 2 * self._topic.timeout_s).not_done:
                raise Transient(f"message log: look up the members: no answer; check the brokers {self._topic.servers}")
            try:
                members = answer.result().members
            except KafkaException as error:
                if bare_error(error).code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise
                members = []  # brokers from Kafka 4 on return this for a group that never had a member
            return {
                place.partition: str(member.client_id)
                for member in members
                if member.assignment is not None
                for place in member.assignment.topic_partitions
                if place.topic == self._topic.name
            }

    def offsets(self, which: OffsetSpec) -> dict[int, int]:
        """Return {partition: offset} for all partitions. Raises ConfigError, Transient."""
        with translated_errors(self._topic, "look up offsets"):
            return {partition: answer.result().offset for partition, answer in self._ask(which).items()}

    def available_offsets(self, which: OffsetSpec) -> dict[int, int]:
        """Return {partition: offset} for partitions that answer. Raises ConfigError; Transient when none answers."""
        found: dict[int, int] = {}
        failure: NosError | None = None
        for partition, answer in self._ask(which).items():
            try:
                with translated_errors(self._topic, "look up offsets"):
                    found[partition] = answer.result().offset
            except Transient as error:
                failure = error
        if failure is not None and not found:
            raise failure
        return found

    def renew(self) -> None:
        """Abandon the client, which may never work again. The next request creates a new one."""
        self.close(0)

    def close(self, wait_s: float) -> None:
        """Release the connections, waiting at most wait_s. Idempotent."""
        admin, self._admin = self._admin, None
        if admin is not None:
            close_admin_in_background(admin, wait_s)

    def _ask(self, which: OffsetSpec) -> dict[int, Future[ListOffsetsResultInfo]]:
        """Return a completed answer for each partition."""
        with translated_errors(self._topic, "look up offsets"):
            wanted = dict.fromkeys(places(self._topic, range(self._topic.partitions)), which)
            answers: dict[TopicPartition, Future[ListOffsetsResultInfo]]
            answers = self._client().list_offsets(wanted, request_timeout=self._topic.timeout_s)
        # Twice the time-out, because the driver's own time-out should end the request first.
        if wait(answers.values(), 2 * self._topic.timeout_s).not_done:
            raise Transient(f"message log: look up offsets: no answer; check the brokers {self._topic.servers}")
        return {place.partition: answer for place, answer in answers.items()}

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._topic.configuration(self._name, {}, {}))
        return self._admin


class TopicWatch:
    """Notices that the topic was deleted and recreated, so that its offsets have started again. Not thread-safe.

    Since Kafka 2.8, brokers give every topic an id, and a topic that is recreated under the same name has another one.
    The id is looked up from time to time, without waiting for the answer.
    """

    def __init__(self, look_up: OffsetLookUp) -> None:
        self._look_up = look_up
        self._known = ""
        self._was_missing = False
        self._asked_s = time.monotonic()
        self._answer: Future[TopicDescription] | None = None

    def begin(self, topic_id: str) -> None:
        """Compare later ids with this one; "" while it is not known."""
        self._known = topic_id
        self._was_missing = False

    def is_another(self) -> bool:
        """Return whether the last answer shows a recreated topic: with another id, or existing again after it was
        missing."""
        if self._answer is not None and self._answer.done():
            answer, self._answer = self._answer, None
            return self._differs(answer)
        if self._answer is None and time.monotonic() - self._asked_s >= WATCH_S:
            self._asked_s = time.monotonic()
            try:
                self._answer = self._look_up.ask_topic()
            except NosError:
                self._look_up.renew()
        return False

    def _differs(self, answer: Future[TopicDescription]) -> bool:
        try:
            found = id_of(answer.result())
        except KafkaException as error:
            self._was_missing = self._was_missing or bare_error(error).code() in NO_TOPIC
            return False
        before, self._known = self._known, found
        was_missing, self._was_missing = self._was_missing, False
        return was_missing or (found != before and bool(found) and bool(before))

"""Looking up offsets: what a group has committed, and where the partitions of the topic begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, wait

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]

from nos_ec.adapters.kafka.cluster import KafkaTopic, bare_error, let_go, translate, translated_errors
from nos_ec.core.errors import NosError, Transient

_RETRY_S = 0.1
_WAIT_S_MIN = 0.001
_LOOKING_FOR_COORDINATOR = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def places(topic: KafkaTopic, partitions: Iterable[int]) -> list[TopicPartition]:
    """These partitions as the driver wants them, in order."""
    return [TopicPartition(topic.name, partition) for partition in sorted(partitions)]


def fetch_committed(consumer: Consumer, topic: KafkaTopic, partitions: Iterable[int]) -> dict[int, int]:
    """{partition: offset that the consumer's group has committed}, -1 where it has none.

    Asks again, within one request's time, while the brokers look for the group's coordinator, as after a restart.
    Raises ConfigError, Transient.
    """
    with translated_errors(topic, "look up committed offsets"):
        found = _ask_committed(consumer, topic, places(topic, partitions))
    for place in found:
        if place.error is not None:
            raise translate(bare_error(place.error), topic, "look up committed offsets")
    return {place.partition: -1 if place.offset == OFFSET_INVALID else place.offset for place in found}


def _ask_committed(consumer: Consumer, topic: KafkaTopic, wanted: list[TopicPartition]) -> list[TopicPartition]:
    deadline = time.monotonic() + topic.timeout_s
    while True:
        left_s = max(_WAIT_S_MIN, deadline - time.monotonic())
        try:
            return consumer.committed(wanted, timeout=left_s)
        except KafkaException as error:
            if bare_error(error).code() not in _LOOKING_FOR_COORDINATOR or left_s <= _RETRY_S:
                raise
        time.sleep(_RETRY_S)


class OffsetLookUp:
    """Where the partitions of a topic begin and end. By a client of its own: on a consumer's connection the question
    would wait behind a fetch. Connects at the first question; `name` is for operators."""

    def __init__(self, topic: KafkaTopic, name: str) -> None:
        self._topic = topic
        self._name = name
        self._admin: AdminClient | None = None

    def offsets(self, which: OffsetSpec) -> dict[int, int]:
        """{partition: offset} of all partitions. Raises ConfigError, Transient."""
        with translated_errors(self._topic, "look up offsets"):
            return {partition: answer.result().offset for partition, answer in self._ask(which).items()}

    def offsets_told(self, which: OffsetSpec) -> dict[int, int]:
        """{partition: offset} of the partitions that can tell. Raises ConfigError; Transient when none can."""
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
        """Give up the client, which may never get on again; the next question makes another one."""
        self.close(0)

    def close(self, wait_s: float) -> None:
        """Release the connections, waiting at most so long. Idempotent."""
        admin: list[object] = [self._admin]
        self._admin = None
        let_go(admin, wait_s)

    def _ask(self, which: OffsetSpec) -> dict[int, Future[ListOffsetsResultInfo]]:
        """An answer for each partition, all of them there."""
        if self._admin is None:
            with translated_errors(self._topic, "connect"):
                self._admin = AdminClient(self._topic.configuration(self._name, {}, {}))
        with translated_errors(self._topic, "look up offsets"):
            wanted = dict.fromkeys(places(self._topic, range(self._topic.partitions)), which)
            answers: dict[TopicPartition, Future[ListOffsetsResultInfo]]
            answers = self._admin.list_offsets(wanted, request_timeout=self._topic.timeout_s)
        # Twice, as the driver's own limit should end it first.
        if wait(answers.values(), 2 * self._topic.timeout_s).not_done:
            raise Transient(f"message log: look up offsets: no answer; check the brokers {self._topic.servers}")
        return {place.partition: answer for place, answer in answers.items()}

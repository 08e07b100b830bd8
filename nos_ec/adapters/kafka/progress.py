"""How far a consumer group has come, by the times of the messages: see GroupProgress.

The oldest message that the group has not committed is read, by a client that is no member of the group. Its timestamp
is the publisher's (CreateTime), or the broker's where the topic says LogAppendTime.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, TopicPartition

from nos_ec.adapters.kafka.cluster import KafkaTopic, let_go, translate, translated_errors
from nos_ec.adapters.kafka.offset_look_up import EARLIEST, LATEST, OffsetLookUp, fetch_committed, next_offset, places
from nos_ec.core.errors import NosError, Transient

_SLICE_S = 0.5
_FETCH_BYTES = 64 << 10
"""One message a partition is wanted; a broker sends a whole batch of them at least."""


class KafkaGroupProgress:
    """See GroupProgress. Connects at the first question."""

    def __init__(self, topic: KafkaTopic, *, group: str, name: str) -> None:
        """`name` is for operators. Raises ConfigError for options that librdkafka refuses."""
        self._topic = topic
        self._look_up = OffsetLookUp(topic, f"{name}-offsets")
        defaults = {"queued.max.messages.kbytes": 1 << 10, "max.partition.fetch.bytes": _FETCH_BYTES}
        fixed = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "allow.auto.create.topics": False,
        }
        self._configuration = topic.configuration(name, defaults, fixed)
        self._reader: Consumer | None = None

    def passed_until(self) -> Mapping[int, int]:
        """See GroupProgress.passed_until. Four requests and a fetch."""
        asked_ms = time.time_ns() // 1_000_000
        try:
            if self._reader is None:
                with translated_errors(self._topic, "connect"):
                    self._reader = Consumer(self._configuration)
            topic_id = self._look_up.topic_id()
            committed = fetch_committed(self._reader, self._topic, range(self._topic.partitions))
            first = self._look_up.offsets_told(EARLIEST)
            ends = self._look_up.offsets_told(LATEST)
            told = first.keys() & ends.keys()
            begins = {p: next_offset(committed[p].of(topic_id), first[p], ends[p]) for p in told}
            waiting = {p: offset for p, offset in begins.items() if offset < ends[p]}
            oldest = self._oldest(self._reader, waiting)
        except NosError:
            # A client may never get on again after its brokers slept.
            self._renew()
            raise
        passed = dict.fromkeys(begins.keys() - waiting.keys(), asked_ms) | oldest
        if not passed:
            self._renew()
            raise Transient(f"message log: no partition tells how far it is read; check {self._topic.servers}")
        return passed

    def close(self) -> None:
        """Release the connections. Idempotent."""
        self._renew(self._topic.timeout_s)

    def _oldest(self, reader: Consumer, begins: Mapping[int, int]) -> dict[int, int]:
        """{partition: timestamp in ms of the message there}, of the partitions that can be read."""
        found: dict[int, int] = {}
        if not begins:
            return found
        deadline = time.monotonic() + self._topic.timeout_s
        with translated_errors(self._topic, "read the oldest messages"):
            reader.assign([TopicPartition(self._topic.name, p, offset) for p, offset in sorted(begins.items())])
            try:
                while begins.keys() - found.keys() and time.monotonic() < deadline:
                    message = reader.poll(_SLICE_S)
                    if message is None:
                        continue
                    if (error := message.error()) is not None:
                        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                            # Not a ConfigError: a producer that may not read goes on with new objects.
                            raise Transient(str(translate(error, self._topic, "read the oldest messages")))
                        continue
                    partition = message.partition()
                    assert partition is not None
                    if partition not in found:
                        kind, timestamp_ms = message.timestamp()
                        # Without a time it counts as old as can be: nothing is published again before it is passed.
                        found[partition] = 0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
                        reader.incremental_unassign(places(self._topic, [partition]))
            finally:
                reader.unassign()
        return found

    def _renew(self, wait_s: float = 0) -> None:
        self._look_up.close(wait_s)
        reader, self._reader = self._reader, None
        if reader is not None:
            let_go(reader.close, wait_s)

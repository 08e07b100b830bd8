"""The progress of a consumer group, measured by the times of its messages: see GroupProgress.

A client that is not a member of the group reads the oldest message that the group has not committed. The message's
timestamp is the publisher's (CreateTime), or the broker's if the topic is set to LogAppendTime.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from nos_ec.adapters.kafka.cluster import READING, KafkaTopic, close_in_background, translate, translated_errors
from nos_ec.adapters.kafka.offset_look_up import EARLIEST, LATEST, OffsetLookUp, fetch_committed, next_offset, places
from nos_ec.core.errors import NosError, Transient

_SLICE_S = 0.5
_FETCH_BYTES = 64 << 10
"""The maximum fetch from one partition. One message would suffice, but a broker sends at least a whole batch."""


class KafkaGroupProgress:
    """A `GroupProgress` (see the port for the contract). Connects at the first call."""

    def __init__(self, topic: KafkaTopic, *, group: str, name: str) -> None:
        """Prepare the settings. `name` is for operators. Raises ConfigError for options that librdkafka refuses."""
        self._topic = topic
        self._group = group
        self._look_up = OffsetLookUp(topic, f"{name}-offsets")
        defaults = {"queued.max.messages.kbytes": 1 << 10, "max.partition.fetch.bytes": _FETCH_BYTES}
        self._configuration = topic.configuration(name, defaults, READING | {"group.id": group})
        self._reader: Consumer | None = None

    def passed_until(self) -> Mapping[int, int]:
        """See GroupProgress.passed_until. Costs four requests and a fetch."""
        asked_ms = time.time_ns() // 1_000_000
        try:
            if self._reader is None:
                with translated_errors(self._topic, "connect"):
                    self._reader = Consumer(self._configuration)
            topic_id = self._look_up.topic_id()
            committed = fetch_committed(self._reader, self._topic, range(self._topic.partitions))
            first = self._look_up.available_offsets(EARLIEST)
            ends = self._look_up.available_offsets(LATEST)
            known = first.keys() & ends.keys()
            begins = {p: next_offset(committed[p].of(topic_id), first[p], ends[p]) for p in known}
            waiting = {p: offset for p, offset in begins.items() if offset < ends[p]}
            oldest = self._oldest(self._reader, waiting, asked_ms)
        except NosError:
            # A client whose brokers were suspended may never recover.
            self._renew()
            raise
        passed = dict.fromkeys(begins.keys() - waiting.keys(), asked_ms) | oldest
        if not passed:
            self._renew()
            raise Transient(
                f"message log: the group's progress is not known for any partition; check {self._topic.servers}"
            )
        return passed

    def holders(self) -> Mapping[int, str]:
        """See GroupProgress.holders."""
        return self._look_up.holders(self._group)

    def close(self) -> None:
        """Release the connections. Idempotent."""
        self._renew(self._topic.timeout_s)

    def _oldest(self, reader: Consumer, begins: Mapping[int, int], asked_ms: int) -> dict[int, int]:
        """Return {partition: timestamp in ms of the first message from its offset on}, for the partitions that can be
        read. The value is asked_ms for a partition that has no such message, although it ends later."""
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
                    timestamp_ms = self._timestamp_ms(message, asked_ms)
                    partition = message.partition()
                    if timestamp_ms is not None and partition is not None and partition not in found:
                        found[partition] = timestamp_ms
                        reader.incremental_unassign(places(self._topic, [partition]))
            finally:
                reader.unassign()
        return found

    def _timestamp_ms(self, message: Message, asked_ms: int) -> int | None:
        """Return the time of a message; asked_ms at the end of a partition; None for an error that means neither."""
        if (error := message.error()) is None:
            kind, timestamp_ms = message.timestamp()
            # A message without a timestamp counts as the oldest possible: no event is published again until the group
            # has passed this message.
            return 0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # Not a ConfigError: a producer without read permission still publishes new objects.
            raise Transient(str(translate(error, self._topic, "read the oldest messages")))
        return asked_ms if error.code() == KafkaError._PARTITION_EOF else None

    def _renew(self, wait_s: float = 0) -> None:
        self._look_up.close(wait_s)
        reader, self._reader = self._reader, None
        if reader is not None:
            close_in_background(reader.close, wait_s)

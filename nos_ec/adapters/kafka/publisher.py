"""The producing side on Kafka: idempotent, acknowledged by all in-sync replicas, keyed like every adapter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock

from confluent_kafka import KafkaError, Message, Producer

from nos_ec.adapters.kafka.cluster import (
    TIMEOUT_MS_MIN,
    ConnectionNews,
    KafkaTopic,
    let_go,
    require_ms,
    translate,
    translated_errors,
    worst,
)
from nos_ec.core.errors import ConfigError, NosError, Transient

_SLICE_S = 0.5
"""Longest wait inside the driver: signals are answered in between."""

Header = tuple[str, bytes]


class _Batch:
    """What became of the messages of one `publish`."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self.errors: list[NosError] = []
        self.partitions_seen = 0

    def reported(self, error: KafkaError | None, message: Message) -> None:
        """A delivery report. Runs inside the driver's poll."""
        if error is not None:
            self.errors.append(translate(error, self._topic, "publish"))
            return
        self.partitions_seen = max(self.partitions_seen, (message.partition() or 0) + 1)


class KafkaPublisher:
    """See MessagePublisher. Safe to call from several threads, which take turns.

    A message that fails may leave later ones of the same key behind it in the topic: publishing all of them again
    puts each of them there in order once more.
    """

    def __init__(
        self,
        topic: KafkaTopic,
        *,
        client: str = "nos-ec-publisher",
        delivery_timeout_ms: int = 30_000,
        message_bytes_max: int = 1_000_000,
    ) -> None:
        """Connects at the first `publish`. Raises ConfigError for options that librdkafka refuses."""
        require_ms("delivery_timeout_ms", delivery_timeout_ms, TIMEOUT_MS_MIN)
        self._topic = topic
        self._delivery_timeout_ms = delivery_timeout_ms
        self._news = ConnectionNews(topic)
        self._configuration = topic.configuration(
            client,
            {
                "linger.ms": 5,
                "compression.type": "lz4",
                "message.max.bytes": message_bytes_max,
                # A batch is awaited as a whole, so the queue never holds more than one.
                "queue.buffering.max.kbytes": 65_536,
            },
            {
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": delivery_timeout_ms,
                "error_cb": self._news.heard,
            },
        )
        self._lock = Lock()
        self._closed = False
        self._producer: Producer | None = self._new_producer()

    def publish(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """See MessagePublisher.publish. Returns when all in-sync replicas have all of the messages.

        Raises ConfigError when the topic is gone, has more partitions than it should, or may not be written. One that
        goes while messages are queued may be Transient once: librdkafka 2.16 then reports some of them as _DESTROY.
        """
        batch = self._send(self._topic.name, [(key, value, []) for key, value in messages])
        if batch.partitions_seen > self._topic.partitions:
            raise ConfigError(
                f"message log: topic {self._topic.name} has grown to at least {batch.partitions_seen} partitions and"
                f" the configuration says {self._topic.partitions}; stop all services, then set log.partitions to"
                " what the topic has now"
            )

    def publish_dead_letter(self, key: bytes, value: bytes, headers: Sequence[Header]) -> None:
        """Append to the dead-letter topic. Durable on return. Raises TooLarge, ConfigError, Transient."""
        self._send(self._topic.dead_letters, [(key, value, list(headers))])

    def close(self) -> None:
        """Release the connections. Idempotent; nothing is in flight between calls of `publish`."""
        with self._lock:
            self._closed = True
            self._drop_producer()

    # --- sending ----------------------------------------------------------------------------------
    def _send(self, name: str, messages: Sequence[tuple[bytes, bytes, list[Header]]]) -> _Batch:
        batch = _Batch(self._topic)
        with self._lock:
            if self._closed:
                raise ValueError("publish after close")
            if self._producer is None:
                self._producer = self._new_producer()
            self._news.forget()
            try:
                with translated_errors(self._topic, "publish"):
                    for key, value, headers in messages:
                        self._hand_over(self._producer, name, key, value, headers, batch)
            except NosError as error:
                batch.errors.append(error)
            self._await_reports(self._producer, batch)
            if batch.errors:
                # It may be one that never works again: after a fatal error, and when it has forgotten every broker.
                self._drop_producer()
        worst_error = worst(batch.errors)
        if worst_error is not None:
            raise self._news.explain(worst_error)
        return batch

    def _hand_over(
        self, producer: Producer, name: str, key: bytes, value: bytes, headers: list[Header], batch: _Batch
    ) -> None:
        """Queue one message. Waits while the driver's queue is full, which delivery or its time-out ends."""
        while True:
            try:
                producer.produce(name, value=value, key=key, headers=list(headers), on_delivery=batch.reported)
                return
            except BufferError:
                producer.poll(_SLICE_S)

    def _await_reports(self, producer: Producer, batch: _Batch) -> None:
        """Every message gets a report within delivery.timeout.ms: the bound is for a driver that breaks its word."""
        deadline = time.monotonic() + 2 * self._delivery_timeout_ms / 1000
        try:
            with translated_errors(self._topic, "publish"):
                while len(producer) and time.monotonic() < deadline:
                    producer.flush(_SLICE_S)
        except NosError as error:
            # Only a fatal error is raised here; what is still queued gets no report any more.
            batch.errors.append(error)
            return
        if len(producer):
            batch.errors.append(Transient("message log: publish: no word about some messages; publish them again"))

    def _drop_producer(self) -> None:
        dropped: list[object] = [self._producer]
        self._producer = None
        let_go(dropped, self._topic.timeout_s)

    def _new_producer(self) -> Producer:
        with translated_errors(self._topic, "connect"):
            return Producer(self._configuration)

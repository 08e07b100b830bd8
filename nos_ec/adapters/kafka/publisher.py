"""Publishes to Kafka: idempotently, acknowledged by all in-sync replicas, and partitioned by key as in every
adapter."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from threading import Lock

import structlog
from confluent_kafka import KafkaError, Message, Producer

from nos_ec.adapters.kafka.cluster import (
    TIMEOUT_MS_MIN,
    ConnectionNews,
    KafkaTopic,
    close_in_background,
    require_ms,
    translate,
    translated_errors,
)
from nos_ec.core.errors import ConfigError, NosError, TooLarge, Transient

_log = structlog.get_logger(__name__)

_SLICE_S = 0.5
"""The longest wait inside the driver. Python handles signals between such waits."""

_BATCH_BYTES_MAX = 1_000_000
"""librdkafka's own batch.size."""
_BATCH_BYTES_MIN = 2_000
_BATCH_DIVISOR = 8
_BATCH_BYTES_S = 600
"""How long smaller batches are sent after a topic has refused one."""

Header = tuple[str, bytes]


class _Batch:
    """The outcome of each message of one `publish`, by index."""

    def __init__(self, topic: KafkaTopic, count: int) -> None:
        self._topic = topic
        self._unknown = set(range(count))
        self._awaits_reports = True
        self.errors: dict[int, NosError] = {}
        self.partitions_seen = 0

    def reported(self, index: int, error: KafkaError | None, message: Message) -> None:
        """Handle a delivery report. The driver calls this inside a poll, and also while it closes an abandoned client,
        whose reports are ignored."""
        if not self._awaits_reports:
            return
        if error is not None:
            self.failed(index, translate(error, self._topic, "publish"))
            return
        self._unknown.discard(index)
        self.errors.pop(index, None)
        self.partitions_seen = max(self.partitions_seen, (message.partition() or 0) + 1)

    def failed(self, index: int, error: NosError) -> None:
        """Note that this message is not known to be appended."""
        self._unknown.discard(index)
        self.errors[index] = error

    def rest_failed(self, error: NosError) -> None:
        """Fail all messages without a report, because no report will come for them."""
        for index in list(self._unknown):
            self.failed(index, error)

    def await_reports(self, awaits: bool) -> None:
        """Set whether delivery reports count."""
        self._awaits_reports = awaits

    def too_large(self) -> list[int]:
        """Return the messages that were refused because they, or the batches they were sent in, are too large."""
        return sorted(index for index, error in self.errors.items() if isinstance(error, TooLarge))


class KafkaPublisher:
    """A `MessagePublisher` and a `NotificationPublisher` (see the port for the contract). Safe to call from several
    threads, which take turns.

    When a message fails, later ones of the same key may still be appended. Publishing all of them again appends each of
    them once more, in order.
    """

    def __init__(
        self,
        topic: KafkaTopic,
        *,
        client: str = "nos-ec-publisher",
        delivery_timeout_ms: int = 30_000,
        message_bytes_max: int = 1_000_000,
    ) -> None:
        """Prepare the client, which connects at the first `publish`. Raises ConfigError for options that librdkafka
        refuses."""
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
                "error_cb": self._news.note,
            },
        )
        self._lock = Lock()
        self._batch_bytes: int | None = None
        """The size limit of batches, once the topic has refused a batch of several messages because of its size."""
        self._batch_bytes_until_s = 0.0
        self._closed = False
        self._producer: Producer | None = self._new_producer()

    def publish(self, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, Transient]:
        """See MessagePublisher.publish. A message is durable once all in-sync replicas have it.

        Raises ConfigError when the topic has more partitions than configured, or this user may not write to it.
        """
        batch = self._send(self._topic.name, [(key, value, []) for key, value in messages])
        if batch.partitions_seen > self._topic.partitions:
            raise ConfigError(
                f"message log: topic {self._topic.name} has grown to at least {batch.partitions_seen} partitions, but"
                f" the configuration says {self._topic.partitions}; stop all services, then set log.partitions to"
                " the topic's current number",
                settings=("log.partitions",),
            )
        failed = {index: error for index, error in batch.errors.items() if isinstance(error, Transient)}
        lasting = [error for index, error in batch.errors.items() if index not in failed]
        passing = [error for error in failed.values() if not isinstance(error, TooLarge)]
        if lasting or (passing and len(failed) == len(messages)):
            raise self._news.explain((lasting or passing)[0])
        return failed

    def publish_to(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, NosError]:
        """See NotificationPublisher."""
        return self._send(topic, [(key, value, []) for key, value in messages]).errors

    def publish_dead_letter(self, key: bytes, value: bytes, headers: Sequence[Header]) -> None:
        """Append to the dead-letter topic. Durable on return. Raises TooLarge, ConfigError, Transient."""
        batch = self._send(self._topic.dead_letters, [(key, value, list(headers))])
        for error in batch.errors.values():
            raise self._news.explain(error)

    def close(self) -> None:
        """Release the connections. Idempotent; nothing is in flight between calls of `publish`."""
        with self._lock:
            self._closed = True
            self._drop_producer()

    # --- sending ----------------------------------------------------------------------------------
    def _send(self, name: str, messages: Sequence[tuple[bytes, bytes, list[Header]]]) -> _Batch:
        batch = _Batch(self._topic, len(messages))
        with self._lock:
            if self._closed:
                raise ValueError("publish after close")
            self._news.forget()
            self._send_some(name, messages, range(len(messages)), batch)
            # The topic's limit applies to a batch as a whole, and librdkafka does not split a refused batch.
            while len(refused := batch.too_large()) > 1 and self._divide_batches():
                self._send_some(name, messages, refused, batch)
        return batch

    def _send_some(
        self, name: str, messages: Sequence[tuple[bytes, bytes, list[Header]]], indexes: Iterable[int], batch: _Batch
    ) -> None:
        """Send these messages and wait for their outcome."""
        if self._producer is None:
            self._producer = self._new_producer()
        batch.await_reports(True)
        try:
            for index in indexes:
                self._hand_over(self._producer, name, messages[index], index, batch)
        except NosError as error:
            batch.rest_failed(error)
        self._await_reports(self._producer, batch)
        batch.await_reports(False)
        if batch.errors:
            # After a fatal error, or once it has forgotten every broker, the client would never work again.
            self._drop_producer()

    def _hand_over(
        self, producer: Producer, name: str, message: tuple[bytes, bytes, list[Header]], index: int, batch: _Batch
    ) -> None:
        """Queue one message. Waits while the driver's queue is full, until messages are delivered or time out."""
        key, value, headers = message
        reported = partial(batch.reported, index)
        while True:
            try:
                with translated_errors(self._topic, "publish"):
                    producer.produce(name, value=value, key=key, headers=list(headers), on_delivery=reported)
                return
            except TooLarge as error:
                batch.failed(index, error)
                return
            except BufferError:
                producer.poll(_SLICE_S)

    def _await_reports(self, producer: Producer, batch: _Batch) -> None:
        """Wait for the reports. The driver promises one report per message within delivery.timeout.ms; the deadline
        here covers a report that never comes."""
        deadline = time.monotonic() + 2 * self._delivery_timeout_ms / 1000
        try:
            with translated_errors(self._topic, "publish"):
                while len(producer) and time.monotonic() < deadline:
                    producer.flush(_SLICE_S)
        except NosError as error:
            # Only fatal errors arrive here, and after one the messages still queued get no report.
            batch.rest_failed(error)
            return
        batch.rest_failed(Transient("message log: publish: no report for some messages; publish them again"))

    def _divide_batches(self) -> bool:
        """Make the next client send smaller batches. Returns False when each batch already holds only one message."""
        before = self._batch_bytes or _BATCH_BYTES_MAX
        if before == 1:
            return False
        self._batch_bytes = before // _BATCH_DIVISOR if before > _BATCH_BYTES_MIN else 1
        self._batch_bytes_until_s = time.monotonic() + _BATCH_BYTES_S
        _log.warning(
            f"topic {self._topic.name} refuses batches of several events as too large; sending smaller ones for"
            f" {_BATCH_BYTES_S} s: raise max.message.bytes of the topic",
            batch_bytes=self._batch_bytes,
        )
        return True

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return

        def close() -> None:
            producer.purge()  # otherwise it would continue to send messages that were reported as failed
            producer.close()

        close_in_background(close, self._topic.timeout_s)

    def _new_producer(self) -> Producer:
        if time.monotonic() >= self._batch_bytes_until_s:
            self._batch_bytes = None
        smaller = {} if self._batch_bytes is None else {"batch.size": self._batch_bytes}
        with translated_errors(self._topic, "connect"):
            return Producer(self._configuration | smaller)

"""Reads dead letters for an operator's tool: without a group, so that no offset is committed."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as DriverMessage

from nos_ec.adapters.kafka.cluster import (
    READING,
    ConnectionNews,
    KafkaTopic,
    close_in_background,
    translate,
    translated_errors,
)
from nos_ec.core.errors import NosError, Transient
from nos_ec.ports.message_log import DeadLetter, Message

_SLICE_S = 0.2


def read_dead_letters(topic: KafkaTopic, count_max: int) -> list[DeadLetter]:
    """Return the newest `count_max` letters, in order of arrival within each partition of their topic. Raises
    ConfigError, Transient."""
    news = ConnectionNews(topic)
    fixed = READING | {"group.id": "nos-ec-dead-letters", "error_cb": news.note}
    configuration = topic.configuration("nos-ec-dead-letters", {}, fixed)
    with translated_errors(topic, "connect"):
        reader = Consumer(configuration)
    try:
        with translated_errors(topic, "read the dead letters"):
            return _newest(reader, topic, count_max)
    except NosError as error:
        raise news.explain(error) from error
    finally:
        close_in_background(reader.close, topic.timeout_s)


def _newest(reader: Consumer, topic: KafkaTopic, count_max: int) -> list[DeadLetter]:
    ends: dict[int, int] = {}
    begins: list[TopicPartition] = []
    for partition in _partitions(reader, topic):
        first, end = reader.get_watermark_offsets(
            TopicPartition(topic.dead_letters, partition), timeout=topic.timeout_s
        ) or (0, 0)
        begin = max(first, end - count_max)
        if begin < end:
            begins.append(TopicPartition(topic.dead_letters, partition, begin))
            ends[partition] = end
    found: list[tuple[int, DeadLetter]] = []
    if begins:
        reader.assign(begins)
    deadline_s = time.monotonic() + topic.timeout_s
    while ends:
        if time.monotonic() > deadline_s:
            raise Transient(
                f"message log: reading {topic.dead_letters} takes too long; check the brokers {topic.servers}"
            )
        _take(reader, topic, found, ends)
    found.sort(key=lambda pair: pair[0])
    return [letter for _, letter in found[-count_max:]]


def _partitions(reader: Consumer, topic: KafkaTopic) -> list[int]:
    found = reader.list_topics(topic.dead_letters, timeout=topic.timeout_s).topics[topic.dead_letters]
    if found.error is not None:
        raise translate(found.error, topic, f"look up topic {topic.dead_letters}")
    return sorted(found.partitions)


def _take(reader: Consumer, topic: KafkaTopic, found: list[tuple[int, DeadLetter]], ends: dict[int, int]) -> None:
    """Take the next letter, if one comes, and drop the partitions that are read to their end."""
    message = reader.poll(_SLICE_S)
    error = None if message is None else message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if message is not None and error is None:
        found.append((message.timestamp()[1], _letter(message)))
    for place in reader.position([TopicPartition(topic.dead_letters, partition) for partition in ends]):
        if place.offset >= ends[place.partition]:
            del ends[place.partition]


def _letter(message: DriverMessage) -> DeadLetter:
    """Return the letter. A letter that was not written by our consumer has no headers; it is returned with its position
    in the dead-letter topic."""
    found = message.headers() or []
    pairs = found if isinstance(found, list) else list(found.items())
    headers = {name: value for name, value in pairs if isinstance(value, bytes)}
    partition, offset = (
        int(text) if (text := headers.get(name, b"")).isdigit() else int(own or 0)
        for name, own in (("partition", message.partition()), ("offset", message.offset()))
    )
    reason = headers.get("reason", b"no reason given").decode(errors="replace")
    return DeadLetter(Message(partition, offset, message.key() or b"", message.value() or b""), reason)

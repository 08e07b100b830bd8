"""Dead letters: copies of messages that cannot be processed, in a separate topic, with headers that give the reason.

A letter is the message plus these headers, so it is larger than the message. The topic is created with room for that
(DEAD_LETTER_BYTES_MAX). If its limit is lower, or a message was small only while compressed, the letter keeps the
beginning of the message, and headers give its full length. The whole message stays in the topic it came from until
retention removes it.
"""

from __future__ import annotations

from nos_ec.adapters.kafka.cluster import KafkaTopic
from nos_ec.adapters.kafka.publisher import Header, KafkaPublisher
from nos_ec.core.errors import TooLarge
from nos_ec.ports.message_log import Message

MESSAGE_BYTES_MAX = 1_048_588
"""max.message.bytes of the topic. It is Kafka's default, set explicitly because dead letters need room for it."""
DEAD_LETTER_BYTES_MAX = 2 << 20
"""max.message.bytes of the dead-letter topic, and the largest message that its client sends."""

_KEPT_BYTES = (960_000, 64 << 10, 1 << 10)
"""The number of bytes of key and value together that each attempt keeps when the whole message is too large. The first
size fits any topic with Kafka's default limit, the last one nearly any topic."""
_REASON_CHARS_MAX = 1_000


class DeadLetters:
    """Writes dead letters. Connects when it writes the first one. `member` identifies the writer to operators."""

    def __init__(self, topic: KafkaTopic, member: str) -> None:
        self._topic = topic
        self._member = member
        self._publisher: KafkaPublisher | None = None

    def keep(self, message: Message, reason: str) -> None:
        """Append a copy of the message. Durable on return. Raises ConfigError, Transient."""
        if self._publisher is None:
            self._publisher = KafkaPublisher(
                self._topic,
                client=f"{self._member}-dead-letters",
                delivery_timeout_ms=self._topic.request_timeout_ms,
                message_bytes_max=DEAD_LETTER_BYTES_MAX,
            )
        headers: list[Header] = [
            ("reason", reason[:_REASON_CHARS_MAX].encode()),
            ("topic", self._topic.name.encode()),
            ("partition", b"%d" % message.partition),
            ("offset", b"%d" % message.offset),
            ("member", self._member.encode()),
        ]
        try:
            self._publisher.publish_dead_letter(message.key, message.value, headers)
        except TooLarge:
            self._keep_beginning(self._publisher, message, headers)

    def close(self) -> None:
        """Release the connections. Idempotent."""
        if self._publisher is not None:
            self._publisher.close()

    def _keep_beginning(self, publisher: KafkaPublisher, message: Message, headers: list[Header]) -> None:
        headers = [
            *headers,
            ("key-bytes", b"%d" % len(message.key)),
            ("value-bytes", b"%d" % len(message.value)),
        ]
        for kept_bytes in _KEPT_BYTES:
            key = message.key[:kept_bytes]
            try:
                publisher.publish_dead_letter(key, message.value[: kept_bytes - len(key)], headers)
                return
            except TooLarge:
                if kept_bytes == _KEPT_BYTES[-1]:
                    raise

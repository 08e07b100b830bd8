"""Notices that the topic was deleted and recreated, so that its offsets have started again.

Since Kafka 2.8, brokers give every topic an id. A topic that is recreated under the same name has another id.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from confluent_kafka import KafkaException
from confluent_kafka.admin import TopicDescription  # type: ignore[attr-defined]

from nos_ec.adapters.kafka.cluster import NO_TOPIC, bare_error
from nos_ec.adapters.kafka.offset_look_up import OffsetLookUp, id_of
from nos_ec.core.errors import NosError

WATCH_S = 5.0
"""The time between two look-ups of the topic's id. Until the next look-up, messages of a recreated topic may be handed
out under the old id; they are delivered again afterwards."""


class TopicWatch:
    """Looks up the topic's id from time to time, without waiting for the answer. Not thread-safe."""

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

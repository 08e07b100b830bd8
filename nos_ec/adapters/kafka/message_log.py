"""The message log on Kafka: one topic with a fixed number of partitions, and another topic for dead letters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, TopicMetadata  # type: ignore[attr-defined]

from nos_ec.adapters.kafka.cluster import (
    ConnectionNews,
    KafkaTopic,
    close_admin_in_background,
    translate,
    translated_errors,
)
from nos_ec.adapters.kafka.consumer import KafkaConsumer
from nos_ec.adapters.kafka.dead_letters import DEAD_LETTER_BYTES_MAX, MESSAGE_BYTES_MAX
from nos_ec.adapters.kafka.progress import KafkaGroupProgress
from nos_ec.adapters.kafka.publisher import KafkaPublisher
from nos_ec.core.errors import ConfigError, NosError, Transient

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
DEAD_LETTER_RETENTION_MS = 30 * DAY_MS
DEAD_LETTER_PARTITIONS = 1

_SETTLE_STEP_S = 0.05


class KafkaMessageLog:
    """An existing topic, checked when it is opened."""

    def __init__(self, topic: KafkaTopic) -> None:
        """Raises Transient, or ConfigError when a topic is missing or has a different number of partitions."""
        self.topic = topic
        self.partitions = topic.partitions
        with closing(_Admin(topic)) as admin:
            found = admin.partition_counts()
        for name in (topic.name, topic.dead_letters):
            if name not in found:
                raise ConfigError(
                    f"message log: topic {name} does not exist (servers {topic.servers}); run `nos-ec init`,"
                    " or correct the name of the topic"
                )
        if found[topic.name] != topic.partitions:
            raise ConfigError(
                f"message log: topic {topic.name} has {found[topic.name]} partitions, but the configuration says"
                f" {topic.partitions}; set log.partitions to {found[topic.name]}",
                settings=("log.partitions",),
            )

    @classmethod
    def initialise(
        cls, topic: KafkaTopic, *, replication: int, in_sync_min: int, retention_ms: int = RETENTION_MS
    ) -> KafkaMessageLog:
        """Create both topics, or check them when they exist. Idempotent; safe to call from several processes.

        in_sync_min replicas must have a message before `publish` returns; while fewer are in sync, publishing waits.
        Existing topics are left as they are, whatever their replication. Raises ConfigError, Transient.
        """
        if not 1 <= in_sync_min <= replication:
            raise ConfigError(
                f"message log: cannot require {in_sync_min} in-sync replicas of {replication}; use 1 to {replication},"
                " and 2 of 3 in production"
            )
        if retention_ms < DAY_MS:
            raise ConfigError(
                f"message log: retention_ms {retention_ms} is too short; keep messages for at least {DAY_MS} (a day)"
            )
        own = {"cleanup.policy": "delete", "min.insync.replicas": str(in_sync_min)}
        requests = {"retention.ms": str(retention_ms), "max.message.bytes": str(MESSAGE_BYTES_MAX)}
        letters = {"retention.ms": str(DEAD_LETTER_RETENTION_MS), "max.message.bytes": str(DEAD_LETTER_BYTES_MAX)}
        with closing(_Admin(topic)) as admin:
            admin.create(
                [
                    _new(topic.name, topic.partitions, replication, own | requests),
                    _new(topic.dead_letters, DEAD_LETTER_PARTITIONS, replication, own | letters),
                ]
            )
        return cls(topic)

    @classmethod
    def partition_counts(cls, topic: KafkaTopic) -> dict[str, int]:
        """The number of partitions of those of the two topics that exist, by name. Raises ConfigError, Transient."""
        with closing(_Admin(topic)) as admin:
            return admin.partition_counts()

    @classmethod
    def remove(cls, topic: KafkaTopic) -> None:
        """Remove both topics with all their messages. A missing topic is not an error.

        Raises ConfigError, Transient.
        """
        with closing(_Admin(topic)) as admin:
            admin.remove()

    def publisher(self) -> KafkaPublisher:
        """Return a publisher with its own connections."""
        return KafkaPublisher(self.topic)

    def progress(self, *, group: str, name: str) -> KafkaGroupProgress:
        """Return the progress of `group`. `name` identifies the client to operators."""
        return KafkaGroupProgress(self.topic, group=group, name=name)

    def consumer(
        self,
        *,
        group: str,
        member: str,
        session_ms: int = 45_000,
        poll_interval_ms_max: int = 300_000,
        instance: str = "",
    ) -> KafkaConsumer:
        """A member of `group`; it joins at its first poll. See KafkaConsumer."""
        return KafkaConsumer(
            self.topic,
            group=group,
            member=member,
            session_ms=session_ms,
            poll_interval_ms_max=poll_interval_ms_max,
            instance=instance,
        )


class _Admin:
    """Creates, removes and looks up the two topics."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._names = (topic.name, topic.dead_letters)
        self._news = ConnectionNews(topic)
        # The client logs little, because the errors raised here already report failed connections.
        with translated_errors(topic, "connect"):
            self._client = AdminClient(
                topic.configuration("nos-ec-admin", {"log_level": 2}, {"error_cb": self._news.note})
            )

    def partition_counts(self) -> dict[str, int]:
        """Return {name: number of partitions} for those of the two topics that exist."""
        counts = {}
        for name in self._names:
            found = self._look_up(name)
            if found is None or (found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
                continue
            if found.error is not None:
                raise translate(found.error, self._topic, f"look up topic {name}")
            counts[name] = len(found.partitions)
        return counts

    def create(self, topics: list[NewTopic]) -> None:
        """Create the missing topics, and wait until they exist."""
        existing = self.partition_counts()
        missing = [new for new in topics if new.topic not in existing]
        if not missing:
            return
        timeout_s = self._topic.timeout_s
        answers = self._client.create_topics(missing, request_timeout=timeout_s, operation_timeout=timeout_s)
        for name, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise translate(error.args[0], self._topic, f"create topic {name}") from error
        self._await_topics()

    def remove(self) -> None:
        """Remove both topics, if they exist."""
        timeout_s = self._topic.timeout_s
        answers = self._client.delete_topics(list(self._names), request_timeout=timeout_s, operation_timeout=timeout_s)
        for name, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise translate(error.args[0], self._topic, f"remove topic {name}") from error

    def close(self) -> None:
        """Release the connections."""
        close_admin_in_background(self._client, self._topic.timeout_s)

    def _await_topics(self) -> None:
        """Wait until the topics exist. Brokers learn of a new topic one after another."""
        deadline = time.monotonic() + self._topic.timeout_s
        while len(self.partition_counts()) < len(self._names):
            if time.monotonic() > deadline:
                raise Transient(f"message log: topic {self._topic.name} was created but is not up yet; try again")
            time.sleep(_SETTLE_STEP_S)

    def _look_up(self, name: str) -> TopicMetadata | None:
        try:
            with translated_errors(self._topic, f"look up topic {name}"):
                return self._client.list_topics(name, timeout=self._topic.timeout_s).topics.get(name)
        except NosError as error:
            self._client.poll(0)
            raise self._news.explain(error) from error


def _new(name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> NewTopic:
    return NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(settings))

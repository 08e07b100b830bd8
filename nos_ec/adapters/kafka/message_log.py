"""The message log on Kafka: one topic with a fixed number of partitions, and another topic for dead letters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

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

_log = structlog.get_logger(__name__)

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
DEAD_LETTER_RETENTION_MS = 30 * DAY_MS
DEAD_LETTER_PARTITIONS = 1

_SETTLE_STEP_S = 0.05


class KafkaMessageLog:
    """The message log on an existing topic, which is checked when it is opened."""

    def __init__(self, topic: KafkaTopic) -> None:
        """Check both topics. Raises Transient, or ConfigError when one is missing or has a different number of
        partitions."""
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
                f" {topic.partitions}; set log.partitions to {found[topic.name]}, or delete the topic and run"
                " `nos-ec init`, which loses no object",
                settings=("log.partitions",),
            )

    @classmethod
    def initialise(
        cls, topic: KafkaTopic, *, replication: int, in_sync_min: int, retention_ms: int = RETENTION_MS
    ) -> KafkaMessageLog:
        """Create both topics, or check them when they exist. Idempotent; safe to call from several processes.

        in_sync_min replicas must have a message before `publish` returns; while fewer are in sync, publishing waits.
        Existing topics are not changed. Raises ConfigError, also when one of them does not have its required settings;
        Transient.
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
        required = _required_settings(topic, in_sync_min, retention_ms)
        requests = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
        letters = {"retention.ms": str(DEAD_LETTER_RETENTION_MS), "max.message.bytes": str(DEAD_LETTER_BYTES_MAX)}
        with closing(_Admin(topic)) as admin:
            existing = admin.create(
                [
                    _new(topic.name, topic.partitions, replication, required[topic.name] | requests),
                    _new(
                        topic.dead_letters,
                        DEAD_LETTER_PARTITIONS,
                        replication,
                        required[topic.dead_letters] | letters,
                    ),
                ]
            )
            log = cls(topic)
            if existing and not admin.check_settings({name: required[name] for name in existing}):
                _log.warning(
                    "settings of existing topics not checked: the user lacks the right DescribeConfigs", topics=existing
                )
        return log

    @classmethod
    def check_settings(cls, topic: KafkaTopic, *, in_sync_min: int, retention_ms: int) -> bool:
        """Return whether the user may read the settings of both topics, which exist. Raises ConfigError when a topic
        does not have its required settings; Transient."""
        with closing(_Admin(topic)) as admin:
            return admin.check_settings(_required_settings(topic, in_sync_min, retention_ms))

    @classmethod
    def partition_counts(cls, topic: KafkaTopic) -> dict[str, int]:
        """Return {name: number of partitions} for those of the two topics that exist. Raises ConfigError, Transient."""
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
        return KafkaPublisher(self.topic, delivery_timeout_ms=self.topic.request_timeout_ms)

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
        """Return a member of `group`, which joins at its first poll. See KafkaConsumer."""
        return KafkaConsumer(
            self.topic,
            group=group,
            member=member,
            session_ms=session_ms,
            poll_interval_ms_max=poll_interval_ms_max,
            instance=instance,
        )


class _Admin:
    """Creates, checks, removes and looks up the two topics."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._names = (topic.name, topic.dead_letters)
        self._news = ConnectionNews(topic)
        # The client logs little, because the errors raised here already report failed connections.
        with translated_errors(topic, "connect"):
            self._client = AdminClient(topic.configuration("nos-ec-admin", {}, {"error_cb": self._news.note}))

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

    def create(self, topics: list[NewTopic]) -> list[str]:
        """Create the missing topics, and wait until they exist. Returns the names of those that existed before."""
        existing = list(self.partition_counts())
        missing = [new for new in topics if new.topic not in existing]
        if not missing:
            return existing
        timeout_s = self._topic.timeout_s
        answers = self._client.create_topics(missing, request_timeout=timeout_s, operation_timeout=timeout_s)
        for name, answer in answers.items():
            try:
                answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise translate(error.args[0], self._topic, f"create topic {name}") from error
                existing.append(name)
        self._await_topics()
        return existing

    def check_settings(self, required: Mapping[str, Mapping[str, str]]) -> bool:
        """Compare {topic: {setting: value}} with the actual settings of these topics. Returns False when the user may
        not read them. Raises ConfigError when they do not suffice; Transient."""
        timeout_s = self._topic.timeout_s
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in required]
        wrong = []
        for resource, answer in self._client.describe_configs(resources, request_timeout=timeout_s).items():
            try:
                found = answer.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return False
                raise translate(error.args[0], self._topic, f"look up the settings of topic {resource.name}") from error
            wrong += [
                f"topic {resource.name} has {setting}={found[setting].value} instead of {value}"
                for setting, value in required[resource.name].items()
                if not _suffices(setting, found[setting].value, value)
            ]
        if wrong:
            raise ConfigError(
                f"message log: {'; '.join(wrong)}: alter the topic with kafka-configs (docs/KAFKA.md), or correct the"
                " setting",
                settings=("kafka.retention_ms", "kafka.in_sync_min"),
            )
        return True

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
                raise Transient(
                    f"message log: topic {self._topic.name} was created but is not available yet; try again"
                )
            time.sleep(_SETTLE_STEP_S)

    def _look_up(self, name: str) -> TopicMetadata | None:
        try:
            with translated_errors(self._topic, f"look up topic {name}"):
                return self._client.list_topics(name, timeout=self._topic.timeout_s).topics.get(name)
        except NosError as error:
            self._client.poll(0)
            raise self._news.explain(error) from error


def _required_settings(topic: KafkaTopic, in_sync_min: int, retention_ms: int) -> dict[str, dict[str, str]]:
    """Return {topic: {setting: value}}: the settings that each of the two topics must have, no matter who created it.

    max.message.bytes is not required, because publishers and dead letters adapt to a lower limit; nor is the retention
    of dead letters, because nothing relies on it.
    """
    both = {"cleanup.policy": "delete", "min.insync.replicas": str(in_sync_min)}
    return {topic.name: both | {"retention.ms": str(retention_ms)}, topic.dead_letters: both}


def _suffices(setting: str, found: str, required: str) -> bool:
    """Return whether a topic with this value of a setting is as safe as with the required value."""
    if setting == "cleanup.policy":
        return found == required
    unlimited = setting == "retention.ms" and found == "-1"
    return unlimited or int(found) >= int(required)


def _new(name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> NewTopic:
    return NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(settings))

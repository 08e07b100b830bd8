"""Checks, for `config check --connect`, what the configured user may do with the topics and the group. Publishes
nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from nos_ec.adapters.kafka.cluster import (
    ConnectionNews,
    KafkaTopic,
    close_admin_in_background,
    translate,
    translated_errors,
)
from nos_ec.adapters.kafka.message_log import KafkaMessageLog
from nos_ec.adapters.kafka.offset_look_up import LOOKING_FOR_COORDINATOR
from nos_ec.core.errors import ConfigError, NosError, Transient

_RETRY_S = 0.2
_OF_INTEREST = ("READ", "WRITE", "DESCRIBE")


def try_topics(topic: KafkaTopic, *, in_sync_min: int, retention_ms: int) -> str | None:
    """Look both topics up. Returns a description of them; None if neither exists. Raises ConfigError when only one
    exists, or with another number of partitions, or without its required settings; Transient."""
    if not KafkaMessageLog.partition_counts(topic):
        return None
    KafkaMessageLog(topic)
    readable = KafkaMessageLog.check_settings(topic, in_sync_min=in_sync_min, retention_ms=retention_ms)
    unread = "" if readable else "; their settings are not checked, because the user lacks the right DescribeConfigs"
    return f"topic {topic.name}, {topic.partitions} partitions, and {topic.dead_letters}{unread}"


def rights(topic: KafkaTopic, group: str) -> str:
    """Return a text about the user's rights to the topics and the group. Raises ConfigError when the user may not even
    see one of them, as every process must; Transient."""
    asked = {"include_authorized_operations": True, "request_timeout": topic.timeout_s}
    names = [topic.name, topic.dead_letters]
    with _asking(topic) as client:
        of_topics = client.describe_topics(TopicCollection(names), **asked)
        found = {f"topic {name}": _rights(of_topics[name], topic) for name in names}
        found[f"group {group}"] = _rights_of_group(client, topic, group, asked)
    return _text_of(found)


def try_notification_topics(topic: KafkaTopic, names: Sequence[str]) -> str:
    """Look up the topics of notifications. `topic` is the topic of the message log. Returns a text about the user's
    rights to the topics of notifications; producers need WRITE. Raises ConfigError if a topic does not exist or the
    user may not see it, Transient."""
    asked = {"include_authorized_operations": True, "request_timeout": topic.timeout_s}
    with _asking(topic) as client:
        described = client.describe_topics(TopicCollection(list(names)), **asked)
        missing = [name for name in names if _is_missing(described[name], topic)]
        if missing:
            raise ConfigError(
                f"notifications: {', '.join(missing)}: no such topic; create it as docs/KAFKA.md says, or remove it"
                " from s3.notification_topics",
                settings=("s3.notification_topics",),
            )
        found = {f"topic {name}": _rights(described[name], topic) for name in names}
    return _text_of(found)


@contextmanager
def _asking(topic: KafkaTopic) -> Iterator[AdminClient]:
    """A client to ask with. Its errors are translated, with what is known of the connection."""
    news = ConnectionNews(topic)
    with translated_errors(topic, "connect"):
        client = AdminClient(topic.configuration("nos-ec-check", {}, {"error_cb": news.note}))
    try:
        with translated_errors(topic, "ask for rights"):
            yield client
    except NosError as error:
        client.poll(0)
        raise news.explain(error) from error
    finally:
        close_admin_in_background(client, topic.timeout_s)


def _text_of(rights_by_name: Mapping[str, frozenset[str]]) -> str:
    text = "; ".join(f"{name}: {', '.join(sorted(may)) or 'nothing'}" for name, may in rights_by_name.items())
    if any("DESCRIBE" not in may for may in rights_by_name.values()):
        raise ConfigError(f"message log: the user lacks rights ({text}); give it the ACLs that docs/KAFKA.md lists")
    return text


def _is_missing(answer: Future[Any], topic: KafkaTopic) -> bool:
    error = answer.exception() if wait([answer], topic.timeout_s).done else None
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def _rights_of_group(client: AdminClient, topic: KafkaTopic, group: str, asked: dict[str, Any]) -> frozenset[str]:
    """Return the user's rights to the group. Repeats the request while the group has no coordinator, as on brokers that
    have never had a group."""
    deadline_s = time.monotonic() + topic.timeout_s
    while True:
        answer = client.describe_consumer_groups([group], **asked)[group]
        error = answer.exception() if wait([answer], topic.timeout_s).done else None
        looking = isinstance(error, KafkaException) and error.args[0].code() in LOOKING_FOR_COORDINATOR
        if not looking or time.monotonic() >= deadline_s:
            return _rights(answer, topic)
        time.sleep(_RETRY_S)


def _rights(answer: Future[Any], topic: KafkaTopic) -> frozenset[str]:
    try:
        described = answer.result(topic.timeout_s)
    except Late as error:
        raise Transient(f"message log: no answer about rights; check the brokers {topic.servers}") from error
    except KafkaException as error:
        failure = translate(error.args[0], topic, "ask for rights")
        if "AUTHORIZATION_FAILED" in error.args[0].name():
            return frozenset()
        raise failure from error
    allowed = {operation.name for operation in described.authorized_operations or ()}
    return frozenset(allowed.intersection(_OF_INTEREST))

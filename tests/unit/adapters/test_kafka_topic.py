"""What the Kafka adapter refuses and reports without a broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from nos_ec.adapters.kafka.cluster import (
    RESERVED,
    ConnectionNews,
    KafkaTopic,
    translate,
    translated_errors,
)
from nos_ec.adapters.kafka.consumer import KafkaConsumer
from nos_ec.adapters.kafka.message_log import KafkaMessageLog
from nos_ec.adapters.kafka.publisher import KafkaPublisher
from nos_ec.core.errors import ConfigError, Conflict, NosError, TooLarge, Transient

TOPIC = KafkaTopic("broker:9092", "pack-requests", 12)


@pytest.mark.parametrize(
    ("servers", "name", "partitions", "said"),
    [
        ("", "t", 1, "configure host:port"),
        (" , ", "t", 1, "configure host:port"),
        ("b:1", "", 1, "cannot be a topic"),
        ("b:1", "..", 1, "cannot be a topic"),
        ("b:1", "a topic", 1, "cannot be a topic"),
        ("b:1", "t" * 250, 1, "cannot be a topic"),
        ("b:1", "t", 0, "use 1 to 1024"),
        ("b:1", "t", 1025, "use 1 to 1024"),
    ],
)
def test_a_topic_that_cannot_work_is_refused(servers: str, name: str, partitions: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaTopic(servers, name, partitions)


def test_dead_letters_go_to_a_separate_topic() -> None:
    assert TOPIC.dead_letters == "pack-requests.dead-letters"


@pytest.mark.parametrize("key", sorted(RESERVED))
def test_options_that_the_guarantees_rely_on_cannot_be_set(key: str) -> None:
    with pytest.raises(ConfigError, match="remove it from the Kafka options"):
        KafkaTopic("b:1", "t", 1, options={key: "x"})


def test_options_override_defaults_and_nothing_else() -> None:
    topic = KafkaTopic("b:1", "t", 1, options={"linger.ms": 50, "sasl.username": "u"})
    made = topic.configuration("c", {"linger.ms": 5, "fetch.max.bytes": 1}, {"acks": "all"})
    assert made["linger.ms"] == 50
    assert made["fetch.max.bytes"] == 1
    assert made["sasl.username"] == "u"
    assert made["acks"] == "all"
    assert made["bootstrap.servers"] == "b:1"


def test_an_option_unknown_to_the_driver_is_refused() -> None:
    topic = KafkaTopic("b:1", "t", 1, options={"lingering.ms": 50})
    for make in (KafkaMessageLog, KafkaPublisher, lambda t: KafkaConsumer(t, group="g", member="m")):
        with pytest.raises(ConfigError, match=r"lingering\.ms.*correct the Kafka options"):
            make(topic)


@pytest.mark.parametrize(
    ("group", "session_ms", "poll_interval_ms_max", "said"),
    [("", 45_000, 300_000, "has no name"), ("g", 999, 300_000, "at least 1000"), ("g", 6000, 5999, "at least 6000")],
)
def test_invalid_membership_is_refused(group: str, session_ms: int, poll_interval_ms_max: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaConsumer(TOPIC, group=group, member="m", session_ms=session_ms, poll_interval_ms_max=poll_interval_ms_max)


@pytest.mark.parametrize(("replication", "in_sync_min"), [(0, 0), (1, 2), (3, 0)])
def test_invalid_replication_is_refused(replication: int, in_sync_min: int) -> None:
    with pytest.raises(ConfigError, match="in-sync replicas"):
        KafkaMessageLog.initialise(TOPIC, replication=replication, in_sync_min=in_sync_min)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Transient, "recreate it with `nos-ec init`"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigError, "ACLs"),
        (KafkaError._AUTHENTICATION, ConfigError, "SASL"),
        (KafkaError.MSG_SIZE_TOO_LARGE, TooLarge, r"max\.message\.bytes of topic pack-requests"),
        (KafkaError.ILLEGAL_GENERATION, Conflict, "removed from its group"),
        (KafkaError.UNKNOWN_MEMBER_ID, Conflict, "removed from its group"),
        (KafkaError._TRANSPORT, Transient, "check the brokers broker:9092"),
        (KafkaError.NOT_ENOUGH_REPLICAS, Transient, "NOT_ENOUGH_REPLICAS"),
        (KafkaError.UNKNOWN, Transient, "UNKNOWN"),
    ],
)
def test_errors_say_what_to_do(code: int, kind: type[NosError], said: str) -> None:
    with pytest.raises(kind, match=said), translated_errors(TOPIC, "publish"):
        raise KafkaException(KafkaError(code))


def test_a_bug_is_not_reported_as_trouble_with_the_brokers() -> None:
    with pytest.raises(KafkaException), translated_errors(TOPIC, "publish"):
        raise KafkaException("not an error of the driver's")


def test_a_time_out_is_explained_by_the_last_report_of_the_driver() -> None:
    news, timed_out = ConnectionNews(TOPIC), Transient("timed out")
    assert news.explain(timed_out) is timed_out
    news.note(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    news.note(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert isinstance(news.explain(timed_out), ConfigError)
    assert news.explain(timed_out) is timed_out, "said once"
    news.note(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    assert str(news.explain(timed_out)) == "timed out; last connection error: connection refused"
    news.note(KafkaError(KafkaError._AUTHENTICATION))
    assert isinstance(news.explain(translate(KafkaError(KafkaError.UNKNOWN_MEMBER_ID), TOPIC, "x")), Conflict)

"""A broker that asks for TLS and a login: what the settings pass on is enough, and a mistake in it is named."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nos_ec.adapters.kafka.cluster import KafkaTopic
from nos_ec.adapters.kafka.message_log import KafkaMessageLog
from nos_ec.core.errors import ConfigError, NosError, Transient
from nos_ec.testing.dev_servers import free_port
from nos_ec.testing.message_log_contract import ends, settle, take

from .conftest import run

pytestmark = pytest.mark.real

PASSWORD = "a password of the test"
PROPERTIES = """
ssl.keystore.type=PEM
ssl.keystore.location={certificate}
sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_nos-ec="{password}";
"""


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTopic]:
    """On a broker with such a listener, as `[kafka.options]` would describe it."""
    folder = tmp_path_factory.mktemp("kafka")
    certificate, address = make_certificate(folder), f"127.0.0.1:{free_port()}"
    properties = folder / "secure.properties"
    properties.write_text(PROPERTIES.format(certificate=certificate, password=PASSWORD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOS_EC_DEV_KAFKA_LISTENER", f"SECURE://{address}")
        patch.setenv("NOS_EC_DEV_KAFKA_PROPERTIES", str(properties))
        for _ in run("kafka", folder):
            options = {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(certificate),
                "sasl.mechanism": "PLAIN",
                "sasl.username": "nos-ec",
                "sasl.password": PASSWORD,
                "log_level": "2",
            }
            yield KafkaTopic(address, "pack-requests", 4, request_timeout_ms=10_000, options=options)


def make_certificate(folder: Path) -> Path:
    """A key and the certificate for it, which signs itself, in one file."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=broker"]
    request += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(request, check=True, capture_output=True)
    together = folder / "broker.pem"
    together.write_text(key.read_text() + certificate.read_text())
    return together


def test_messages_go_through_tls_and_a_login(topic: KafkaTopic) -> None:
    log = KafkaMessageLog.initialise(topic, replication=1, in_sync_min=1)
    with closing(log.publisher(delivery_timeout_ms=20_000)) as publisher:
        publisher.publish([(b"bucket", b"one"), (b"bucket", b"two")])
    member = log.consumer(group="packers", member="m", session_ms=6000, poll_interval_ms_max=6000)
    with closing(member):
        (found,) = settle([member], topic.partitions)
        if len(found) < 2:
            found += take(member, 2 - len(found))
        assert [message.value for message in found] == [b"one", b"two"]
        member.commit(ends(found))
        assert member.lag() == 0


@pytest.mark.parametrize(
    ("option", "value", "kind", "says"),
    [
        ("sasl.password", "another", ConfigError, "uthentication"),
        ("ssl.ca.location", None, Transient, "certificate verify failed"),
        ("security.protocol", "PLAINTEXT", Transient, "check the brokers"),
    ],
)
def test_a_mistake_is_named(topic: KafkaTopic, option: str, value: str | None, kind: type[NosError], says: str) -> None:
    options = {**topic.options, option: value}
    wrong = replace(topic, options={name: text for name, text in options.items() if text is not None})
    with pytest.raises(kind, match=says):
        KafkaMessageLog(replace(wrong, request_timeout_ms=4_000))

"""A broker that requires TLS and a login: the settings that are passed on suffice, and a mistake in them is named."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nos_ec.adapters.kafka.cluster import KafkaTopic
from nos_ec.adapters.kafka.message_log import KafkaMessageLog
from nos_ec.adapters.kafka.publisher import KafkaPublisher
from nos_ec.core.errors import ConfigError, NosError, Transient
from tests.contract.suites.message_log_contract import ends, settle, take
from tests.real.conftest import run
from tests.rig.dev_servers import DevServer, free_port

pytestmark = pytest.mark.real

PASSWORD = "a password of the test"
PROPERTIES = """
broker.session.timeout.ms=9000
ssl.keystore.type=PKCS12
ssl.keystore.location={key_store}
ssl.keystore.password={password}
sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_nos-ec="{password}";
"""


@pytest.fixture(scope="module")
def topic(kafka: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTopic]:
    """On a broker with such a listener, as `[kafka.options]` would describe it. After the shared one, which sees to
    it that Java is installed."""
    assert kafka.url
    for topic, _ in secure_topic(tmp_path_factory.mktemp("kafka")):
        yield topic


def secure_topic(folder: Path, more_properties: str = "") -> Iterator[tuple[KafkaTopic, DevServer]]:
    """A topic as it is reached through TLS and a login, and its broker."""
    key_store, properties, address = folder / "broker.p12", folder / "secure.properties", f"127.0.0.1:{free_port()}"
    certificate = make_certificate(key_store)
    properties.write_text(PROPERTIES.format(key_store=key_store, password=PASSWORD) + more_properties)
    listener = f"SECURE://{address}"
    started = run("kafka", folder, NOS_EC_DEV_KAFKA_LISTENER=listener, NOS_EC_DEV_KAFKA_PROPERTIES=str(properties))
    for server in started:
        options = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(certificate),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "nos-ec",
            "sasl.password": PASSWORD,
            "log_level": "2",
        }
        yield KafkaTopic(address, "pack-requests", 4, request_timeout_ms=10_000, options=options), server


def make_certificate(key_store: Path) -> Path:
    """A key and a certificate that it signed itself, in `key_store`. Returns the certificate's file. By Java's own
    tool: where there is a broker, there is Java."""
    certificate = key_store.with_suffix(".pem")
    store = ["-keystore", str(key_store), "-storetype", "PKCS12", "-storepass", PASSWORD, "-alias", "broker"]
    of_this_machine = ["-keyalg", "RSA", "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1", "-validity", "2"]
    for command in (["-genkeypair", *of_this_machine], ["-exportcert", "-rfc", "-file", str(certificate)]):
        subprocess.run(["keytool", *command, *store], check=True, capture_output=True)
    return certificate


def test_messages_go_through_tls_and_a_login(topic: KafkaTopic) -> None:
    log = KafkaMessageLog.initialise(topic, replication=1, in_sync_min=1)
    with closing(KafkaPublisher(topic, delivery_timeout_ms=20_000)) as publisher:
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
def test_wrong_security_options_are_named(
    topic: KafkaTopic, option: str, value: str | None, kind: type[NosError], says: str
) -> None:
    """A slow broker may not have named the mistake yet: then it is asked again."""
    options = {**topic.options, option: value}
    wrong = replace(topic, options={name: text for name, text in options.items() if text is not None})
    deadline = time.monotonic() + 60
    while True:
        with pytest.raises(NosError) as refused:
            KafkaMessageLog(replace(wrong, request_timeout_ms=4_000))
        if says in str(refused.value):
            break
        assert isinstance(refused.value, Transient)
        assert time.monotonic() < deadline, refused.value
    assert isinstance(refused.value, kind)

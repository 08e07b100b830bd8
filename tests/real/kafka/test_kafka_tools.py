"""Kafka's own tools, as deploy/dev/kafka.sh installs them: every command that docs/KAFKA.md shows, on a broker that
checks rights; and users with exactly the rights that it lists."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from nos_ec.adapters.kafka.cluster import KafkaTopic
from nos_ec.adapters.kafka.message_log import RETENTION_MS, KafkaMessageLog
from nos_ec.adapters.kafka.publisher import KafkaPublisher
from nos_ec.core.errors import NosError
from tests.contract.suites.message_log_contract import ends, settle, take
from tests.real.conftest import run
from tests.real.kafka.test_kafka_security import PASSWORD, make_certificate
from tests.rig.dev_servers import SCRIPTS, DevServer, free_port
from tests.rig.documents import DOCS, blocks

pytestmark = pytest.mark.real

TOOLS = SCRIPTS.parents[1] / "var" / "dev" / "kafka-tools-4.0.0" / "bin"
NAME, GROUP = "requests", "packer"
USERS = ("init", "producer", "consumer", "gc")
ITERATIONS = 4096
"""What the tool uses for SCRAM."""
PROPERTIES = """
broker.session.timeout.ms=9000
ssl.keystore.type=PKCS12
ssl.keystore.location={key_store}
ssl.keystore.password={password}
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class Broker:
    """One that asks users for a password on one listener, and lets an administrator do anything on the other."""

    def __init__(self, admin: str, users: str, certificate: Path) -> None:
        self.admin = admin
        self.users = users
        self.certificate = certificate

    def command(self, line: str) -> str:
        """The output of a line for bash that uses the tools. Raises AssertionError when it fails."""
        line = line.replace("HOST:9092", self.admin).replace("NAME", NAME)
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"PATH={TOOLS}:$PATH; {line}"],
            cwd=SCRIPTS.parents[1],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def set_password(self, user: str, password: str = PASSWORD) -> None:
        """As the tool does, which takes a second of CPU to start."""
        admin = AdminClient({"bootstrap.servers": self.admin})
        login = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        change = UserScramCredentialUpsertion(user, login, password.encode())
        for answer in admin.alter_user_scram_credentials([change]).values():
            answer.result()

    def change_password(self, user: str, password: str) -> None:
        """With the command of docs/RUNBOOKS.md."""
        self.command(
            f"kafka-configs --bootstrap-server HOST:9092 --alter --entity-type users --entity-name {user}"
            f" --add-config 'SCRAM-SHA-512=[password={password}]'"
        )

    def topic(self, user: str, password: str = PASSWORD) -> KafkaTopic:
        options = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificate),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "log_level": "2",
        }
        return KafkaTopic(self.users, NAME, 4, request_timeout_ms=20_000, options=options)


@pytest.fixture(scope="module")
def broker(kafka: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With the users and rights of docs/KAFKA.md, by its own commands, and the topics, by the user `init`."""
    assert kafka.url
    folder = tmp_path_factory.mktemp("kafka")
    key_store, properties, address = folder / "broker.p12", folder / "secure.properties", f"127.0.0.1:{free_port()}"
    certificate = make_certificate(key_store)
    properties.write_text(PROPERTIES.format(key_store=key_store, password=PASSWORD))
    listener = f"SECURE://{address}"
    for server in run("kafka", folder, NOS_EC_DEV_KAFKA_LISTENER=listener, NOS_EC_DEV_KAFKA_PROPERTIES=str(properties)):
        broker = Broker(server.url, address, certificate)
        for user in USERS:
            broker.set_password(user)
        (rights,) = [block.text for block in blocks("KAFKA.md") if "kafka-acls" in block.text]
        listed = broker.command(rights)
        assert "principal=User:producer" in listed
        for _ in range(2):  # creates the topics, then checks them
            KafkaMessageLog.initialise(broker.topic("init"), replication=1, in_sync_min=1)
        assert KafkaMessageLog.check_settings(broker.topic("init"), in_sync_min=1, retention_ms=RETENTION_MS)
        yield broker


def test_users_with_exactly_these_rights_do_their_work(broker: Broker) -> None:
    with closing(KafkaPublisher(broker.topic("producer"), delivery_timeout_ms=20_000)) as publisher:
        publisher.publish([(b"bucket", b"one"), (b"bucket", b"two")])
    log = KafkaMessageLog(broker.topic("consumer"))
    with closing(log.consumer(group=GROUP, member="m", session_ms=6000, poll_interval_ms_max=6000)) as member:
        (found,) = settle([member], 4)
        if len(found) < 2:
            found += take(member, 2 - len(found))
        member.commit(ends(found))
        assert member.lag() == 0
    for user in ("producer", "gc"):
        with closing(KafkaMessageLog(broker.topic(user)).consumer(group=GROUP, member=user)) as outside:
            assert outside.lag() == 0, "asked without joining, as for /readyz"
    with closing(KafkaMessageLog(broker.topic("producer")).progress(group=GROUP, name="p")) as progress:
        assert progress.passed_until().keys() == set(range(4))


def test_the_consumer_cannot_publish(broker: Broker) -> None:
    with pytest.raises(NosError), closing(KafkaPublisher(broker.topic("consumer"), delivery_timeout_ms=5_000)) as it:
        it.publish([(b"bucket", b"foreign")])


@pytest.mark.parametrize("text", [b.text for b in blocks("KAFKA.md") if "HOST:9092" in b.text and "acls" not in b.text])
def test_every_command_of_the_document_runs(broker: Broker, text: str) -> None:
    said = broker.command(text)
    if "--describe --topic" in text:
        assert "PartitionCount: 4" in said
        assert f"{NAME}:3:" in said


def test_the_tools_log_in_as_the_document_says(broker: Broker, tmp_path: Path) -> None:
    names = (DOCS / "KAFKA.md").read_text()
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="gc" password="{PASSWORD}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(broker.certificate),
    }
    assert all(name in names for name in settings)
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    said = broker.command(f"kafka-get-offsets --bootstrap-server {broker.users} --topic NAME --command-config {file}")
    assert f"{NAME}:3:" in said


def test_a_changed_password_is_needed_by_the_next_connection(broker: Broker) -> None:
    """docs/RUNBOOKS.md rotates it like this: a connection that is open stays, so no message waits."""
    broker.set_password("rotated", "first")
    broker.command(
        "kafka-acls --bootstrap-server HOST:9092 --add --allow-principal User:rotated --producer --topic NAME"
    )
    with closing(KafkaPublisher(broker.topic("rotated", "first"), delivery_timeout_ms=20_000)) as publisher:
        publisher.publish([(b"bucket", b"before")])
        broker.change_password("rotated", "second")
        publisher.publish([(b"bucket", b"meanwhile")])
    with pytest.raises(NosError):
        KafkaMessageLog(replace(broker.topic("rotated", "first"), request_timeout_ms=4_000))
    with closing(KafkaPublisher(broker.topic("rotated", "second"), delivery_timeout_ms=20_000)) as publisher:
        publisher.publish([(b"bucket", b"after")])

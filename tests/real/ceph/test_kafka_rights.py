"""What `config check --connect` says of a user's rights, on a broker that checks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from nos_ec.adapters.kafka.cluster import KafkaTopic
from nos_ec.adapters.kafka.connection_check import rights, try_notification_topics, try_topics
from nos_ec.adapters.kafka.message_log import RETENTION_MS, KafkaMessageLog
from nos_ec.core.errors import ConfigError
from tests.real.kafka.test_kafka_security import secure_topic
from tests.rig.dev_servers import DevServer

pytestmark = pytest.mark.real

AUTHORIZER = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
GROUP = "packer"
DESCRIBE, READ, WRITE = AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE


@dataclass(frozen=True)
class Guarded:
    """A topic as its user reaches it, who has no rights yet, and as an administrator does."""

    topic: KafkaTopic
    admin: AdminClient

    def allow(self, *rights: tuple[ResourceType, str, Sequence[AclOperation]]) -> None:
        """Give the user exactly these rights."""
        unnamed: Any = None
        everything = AclBindingFilter(
            ResourceType.ANY,
            unnamed,
            ResourcePatternType.ANY,
            unnamed,
            unnamed,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for removed in self.admin.delete_acls([everything]).values():
            removed.result()
        bindings = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, "User:nos-ec", "*", operation, AclPermissionType.ALLOW)
            for kind, name, operations in rights
            for operation in operations
        ]
        for made in self.admin.create_acls(bindings).values() if bindings else ():
            made.result()


@pytest.fixture(scope="module")
def guarded(kafka: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    assert kafka.url
    for topic, server in secure_topic(tmp_path_factory.mktemp("kafka"), AUTHORIZER):
        KafkaMessageLog.initialise(replace(topic, servers=server.url, options={}), replication=1, in_sync_min=1)
        yield Guarded(topic, AdminClient({"bootstrap.servers": server.url}))


def topics(guarded: Guarded) -> str | None:
    return try_topics(guarded.topic, in_sync_min=1, retention_ms=RETENTION_MS)


def test_rights_are_those_of_the_table(guarded: Guarded) -> None:
    """docs/KAFKA.md has the table. READ and WRITE imply DESCRIBE."""
    name, letters = guarded.topic.name, guarded.topic.dead_letters
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    guarded.allow((topic, name, [READ]), (topic, letters, [WRITE]), (group, GROUP, [READ]))
    found = f"topic {name}, 4 partitions, and {letters}"
    assert (
        topics(guarded) == f"{found}; their settings are not checked, because the user lacks the right DescribeConfigs"
    )
    assert rights(guarded.topic, GROUP) == (
        f"topic {name}: DESCRIBE, READ; topic {letters}: DESCRIBE, WRITE; group {GROUP}: DESCRIBE, READ"
    )
    guarded.allow((topic, name, [READ, WRITE]), (topic, letters, [DESCRIBE]), (group, GROUP, [DESCRIBE]))
    assert rights(guarded.topic, GROUP) == (
        f"topic {name}: DESCRIBE, READ, WRITE; topic {letters}: DESCRIBE; group {GROUP}: DESCRIBE"
    )
    both = [DESCRIBE, AclOperation.DESCRIBE_CONFIGS]
    guarded.allow((topic, name, both), (topic, letters, both))
    assert topics(guarded) == found


def test_rights_to_topics_of_notifications(guarded: Guarded) -> None:
    name = guarded.topic.dead_letters  # any topic
    guarded.allow((ResourceType.TOPIC, name, [WRITE]))
    assert try_notification_topics(guarded.topic, [name]) == f"topic {name}: DESCRIBE, WRITE"
    guarded.allow()
    with pytest.raises(ConfigError, match=f"the user lacks rights .topic {name}: nothing"):
        try_notification_topics(guarded.topic, [name])


def test_missing_rights_are_named(guarded: Guarded) -> None:
    name, letters = guarded.topic.name, guarded.topic.dead_letters
    topic = ResourceType.TOPIC
    guarded.allow()
    with pytest.raises(ConfigError, match=r"give this user the ACLs that docs/KAFKA\.md lists"):
        topics(guarded)
    guarded.allow((topic, name, [READ, WRITE]), (topic, letters, [WRITE]))
    with pytest.raises(ConfigError, match=f"the user lacks rights .*group {GROUP}: nothing"):
        rights(guarded.topic, GROUP)
    guarded.allow((topic, name, [READ]), (ResourceType.GROUP, GROUP, [READ]))
    with pytest.raises(ConfigError, match=f"topic {letters}: nothing"):
        rights(guarded.topic, GROUP)

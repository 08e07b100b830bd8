"""The common basis of all Kafka clients: the cluster's address, the clients' settings, and the translation of
errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nos_ec.core.errors import ConfigError, Conflict, NosError, TooLarge, Transient

try:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
except ImportError as missing:  # pragma: no cover - the requirements have it
    raise ConfigError(
        f"message log: the Kafka client cannot be loaded ({missing}); install confluent-kafka for this Python,"
        " or use the embedded log"
    ) from missing

PARTITIONS_MAX = 1024
"""The maximum number of partitions, the same as in the embedded log, so that a configuration fits both."""

TIMEOUT_MS_MIN = 1000
"""The minimum of time-outs. With shorter ones, a healthy cluster that is electing a leader looks as if it were down."""

_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""The rule for topic names, from org.apache.kafka.common.internals.Topic."""

RESERVED = {
    "acks": "is always all: a message is durable when publish returns",
    "allow.auto.create.topics": "is always false: `nos-ec init` alone creates topics, with their settings",
    "auto.offset.reset": "is always earliest: a new group starts with the first message",
    "bootstrap.servers": "has its own setting",
    "enable.auto.commit": "is always false: the consumer commits what it has processed",
    "enable.auto.offset.store": "is always false: the consumer commits what it has processed",
    "enable.idempotence": "is always true: a retry must not change the order",
    "enable.partition.eof": "is always true: it shows where the messages of a partition end",
    "group.id": "has its own setting",
    "group.instance.id": "has its own setting",
    "group.protocol": "is always classic",
    "isolation.level": "is always read_uncommitted: an open transaction must not block its partition",
    "max.poll.interval.ms": "has its own setting",
    "partition.assignment.strategy": "is always cooperative-sticky",
    "partitioner": "is always murmur2_random: the key alone decides the partition",
    "request.required.acks": "is always all: a message is durable when publish returns",
    "session.timeout.ms": "has its own setting",
    "transactional.id": "is not used: delivery is at least once",
}
"""librdkafka settings that the port's promises depend on, with the reason to give to an operator who sets one."""


READING = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_uncommitted",
}
"""The common settings of all readers.

Other programs may publish in transactions. The brokers then write a marker after the messages, at an offset of its own,
so the end of a partition is not the offset after its last message; only the driver's report that it has reached the end
shows that no message is left. Events of a transaction that is open, or that was aborted, are read like all others: an
event is only a hint, and the object's row decides.
"""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic with its partition count, and how to reach its cluster.

    `servers` is `host:port`, several separated by commas. `partitions` is the number that the topic must have; with
    another number, the events of a bucket would move to another partition and lose their order.
    `request_timeout_ms` limits one request. `options` are further librdkafka settings by their own names (TLS, SASL,
    tuning), passed to every client; RESERVED lists those that cannot be set.
    """

    servers: str
    name: str
    partitions: int
    request_timeout_ms: int = 30_000
    options: Mapping[str, str | int | bool] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Raise ConfigError for values that cannot work, before any connection is made."""
        if not self.servers.strip(" ,"):
            raise ConfigError("message log: no Kafka servers; configure host:port of one or more brokers")
        for name in (self.name, self.dead_letters):
            if not _TOPIC_NAME.fullmatch(name):
                raise ConfigError(
                    f"message log: {name!r} cannot be a topic; use 1 to 249 letters, digits, '.', '_' and '-'"
                )
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise ConfigError(f"message log: cannot have {self.partitions} partitions; use 1 to {PARTITIONS_MAX}")
        require_ms("request_timeout_ms", self.request_timeout_ms, TIMEOUT_MS_MIN)
        for key in sorted(self.options.keys() & RESERVED.keys()):
            raise ConfigError(f"message log: {key} {RESERVED[key]}; remove it from the Kafka options")

    @property
    def dead_letters(self) -> str:
        """Return the name of the topic for messages that cannot be processed."""
        return f"{self.name}.dead-letters"

    @property
    def timeout_s(self) -> float:
        """Return request_timeout_ms in seconds, as the driver's calls expect it."""
        return self.request_timeout_ms / 1000

    def configuration(self, client: str, defaults: Mapping[str, object], fixed: Mapping[str, object]) -> dict[str, Any]:
        """Return librdkafka's settings for one client. The topic's options override `defaults`; nothing overrides
        `fixed`."""
        everywhere = {
            "bootstrap.servers": self.servers,
            "client.id": client,
            # Log only emergencies. Important errors reach `error_cb`, and from there the services' own log, which may
            # have to be JSON; librdkafka writes ten lines a second to standard error while brokers are away. They
            # cannot go through our logger: librdkafka 2.16 would queue its lines while it may already hold that queue's
            # lock, and `close` has been seen to deadlock on itself.
            "log_level": 2,
            "socket.timeout.ms": self.request_timeout_ms,
            "reconnect.backoff.max.ms": 2000,
            # For this long, a missing topic may be one that is just being created.
            "topic.metadata.propagation.max.ms": min(10_000, self.request_timeout_ms),
            # After a suspension, a broker may answer with an empty list of brokers, and librdkafka 2.16 accepts it.
            # With "none", the client would never recover from that.
            "metadata.recovery.strategy": "rebootstrap",
            # With that strategy, this is the wait before each attempt while all brokers are down.
            "reconnect.backoff.ms": 500,
        }
        # Otherwise a broker with auto.create.topics.enable, which is Kafka's default, creates a topic with its own
        # number of partitions and its own settings whenever a client looks for it.
        always = {"allow.auto.create.topics": False}
        return everywhere | dict(defaults) | dict(self.options) | dict(fixed) | always


def require_ms(name: str, value_ms: int, value_ms_min: int) -> None:
    """Raise ConfigError when a duration is too short to work."""
    if value_ms < value_ms_min:
        raise ConfigError(f"message log: {name} {value_ms} is too short; use at least {value_ms_min} ms")


# --- errors -----------------------------------------------------------------------------------------
NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_REMOVED_FROM_GROUP = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
}
_ADVICE: dict[int, str] = {
    KafkaError._AUTHENTICATION: "check the SASL and TLS options",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check the SASL options",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "set sasl.mechanism to one that the brokers offer",
    KafkaError._INVALID_ARG: "correct the Kafka options",
    KafkaError._UNSUPPORTED_FEATURE: "the client was built without it; remove the option",
    KafkaError.INVALID_SESSION_TIMEOUT: (
        "use a session between the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "members of another program use this group; name another group",
    KafkaError.INVALID_REPLICATION_FACTOR: "set kafka.replication to no more than the number of brokers",
    KafkaError.INVALID_PARTITIONS: "use a partition count that the brokers allow",
    KafkaError.INVALID_CONFIG: "correct the topic's settings",
    KafkaError.POLICY_VIOLATION: "the cluster's policy forbids it; ask its operator",
    KafkaError.TOPIC_EXCEPTION: "choose another topic name",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old; use Kafka 2.4 or newer",
}
"""Errors that waiting does not cure, with advice for the operator."""
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


def translate(error: KafkaError, topic: KafkaTopic, action: str) -> NosError:
    """Return the port's error for an error of the driver. It is Transient unless waiting is known not to help."""
    code, text = error.code(), f"message log: {action}: {error.str()}"
    if code in NO_TOPIC:
        # The process starts only if the topic exists, so the topic was deleted since. It may be created again.
        return Transient(
            f"{text}; topic {topic.name} or {topic.dead_letters} does not exist at present (servers {topic.servers}):"
            " recreate it with `nos-ec init`"
        )
    if code in _NOT_ALLOWED:
        return ConfigError(f"{text}; give this user the ACLs that docs/KAFKA.md lists")
    if code in _REMOVED_FROM_GROUP:
        return Conflict(f"{text}; this member was removed from its group")
    if code in _TOO_LARGE:
        return TooLarge(
            f"{text}; raise the setting max.message.bytes of topic {topic.name}, and message.max.bytes of kafka.options"
        )
    if code == KafkaError.INVALID_TIMESTAMP:
        return Transient(
            f"{text}; the clock of this machine differs from the broker's by more than the topic allows"
            " (message.timestamp.after.max.ms, message.timestamp.before.max.ms): set the clocks"
        )
    if code in _ADVICE:
        return ConfigError(f"{text}; {_ADVICE[code]}")
    return Transient(f"{text} ({error.name()}); check the brokers {topic.servers}")


class ConnectionNews:
    """The last connection error that a client reported. The error of a failed request shows only that it timed out.

    Give `note` to the driver as its error callback. The driver calls it while the client is polled.
    """

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Remember the error, except "all brokers down", which gives no reason."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def forget(self) -> None:
        """Forget the last error, because it does not concern the requests that follow."""
        self._last = None

    def explain(self, error: NosError) -> NosError:
        """Return the error to raise for a request that failed with `error`. If it is Transient and a connection error
        is known that only other settings can cure, that error is returned instead; any other connection error is added
        to the message."""
        last, self._last = self._last, None
        if last is None or not isinstance(error, Transient):
            return error
        why = translate(last, self._topic, "connect")
        return why if isinstance(why, ConfigError) else Transient(f"{error}; last connection error: {last.str()}")


def cause_of(error: BaseException | None) -> KafkaError | None:
    """Return the driver's error inside an exception, or None. None means that the exception is a bug.

    A fatal error may be wrapped in a SystemError, because the driver still runs callbacks while it raises the error.
    """
    while error is not None:
        if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
            return error.args[0]
        error = error.__cause__ or error.__context__
    return None


def bare_error(error: object) -> KafkaError:
    """Return the KafkaError itself. The driver passes errors bare in some places, and inside an exception in others."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    assert isinstance(error, KafkaError)
    return error


def is_fatal(error: KafkaError) -> bool:
    """Return whether the client that met this error will never work again."""
    return error.fatal() or error.code() == KafkaError._FATAL


@contextmanager
def translated_errors(topic: KafkaTopic, action: str) -> Iterator[None]:
    """Translate the driver's exceptions into the errors that the ports promise."""
    try:
        yield
    except (KafkaException, SystemError) as error:
        cause = cause_of(error)
        if cause is None:
            raise
        raise translate(cause, topic, action) from error


def close_in_background(close: Callable[[], object], wait_s: float) -> bool:
    """Close a client of the driver on a separate thread, and wait at most wait_s. Returns whether it is closed by then.

    A client of librdkafka 2.16 that lost its brokers may never finish closing. Dropping the last reference to it is not
    enough either: the exception of a failed request keeps the client alive in a reference cycle, and Python's garbage
    collector would close the client on whatever thread the collector runs.
    """

    def close_quietly() -> None:
        with suppress(KafkaException, SystemError, RuntimeError):  # RuntimeError: it is already closed
            close()

    thread = threading.Thread(target=close_quietly, name="kafka-close", daemon=True)
    thread.start()
    thread.join(wait_s)
    return not thread.is_alive()


def close_admin_in_background(client: AdminClient, wait_s: float) -> None:
    """Close an AdminClient as `close_in_background` does, by leaving its context."""
    close_in_background(lambda: client.__exit__(None, None, None), wait_s)

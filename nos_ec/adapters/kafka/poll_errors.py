"""Keeps the errors of a member's client until its next poll raises them."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from nos_ec.adapters.kafka.cluster import KafkaTopic, cause_of, is_fatal, translate
from nos_ec.core.errors import ConfigError, NosError, Transient

_REPORTED = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}
"""Codes of the connection errors that must be reported to the caller. The loss of one broker among several need not."""


class PollErrors:
    """Keeps errors until they are raised, because the driver reports most of them only once. Not thread-safe."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self._errors: list[BaseException] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, error: BaseException) -> None:
        """Keep an error as it is."""
        self._errors.append(error)

    def add_poll_error(self, error: KafkaException | SystemError) -> None:
        """Keep an error that a poll of the driver raised."""
        cause = cause_of(error)
        self._errors.append(error if cause is None else self._translate(cause))

    def add_event(self, error: KafkaError) -> None:
        """Keep an event about the topic or the group."""
        self._errors.append(self._translate(error))

    def add_connection_error(self, error: KafkaError) -> None:
        """Keep an error about connections, if it must be reported to the caller."""
        if is_fatal(error) or error.code() in _REPORTED:
            self._errors.append(self._translate(error))

    def raise_first(self) -> None:
        """Raise the most important error, if there is one: bugs and exceptions of `on_revoke` first, then errors that
        last until the settings are corrected, then Transient. The other Transient errors are dropped, because they may
        be over by now; all other errors stay for later calls."""
        if not self._errors:
            return
        first = min(self._errors, key=_urgency)
        self._errors = [error for error in self._errors if error is not first and not isinstance(error, Transient)]
        raise first

    def _translate(self, error: KafkaError) -> NosError:
        """Return the port's error. After a fatal error a client never receives another message, so waiting does not
        help."""
        if is_fatal(error) or error.code() == KafkaError.FENCED_INSTANCE_ID:
            return ConfigError(
                f"message log: poll: {error.str()}; give every process its own instance name, and restart this process"
            )
        return translate(error, self._topic, "poll")


def _urgency(error: BaseException) -> int:
    """Return the sort key of an error, in the order of `PollErrors.raise_first`."""
    if not isinstance(error, NosError):
        return 0
    return 2 if isinstance(error, Transient) else 1

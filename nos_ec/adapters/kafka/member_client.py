"""The librdkafka client of a group member. The client is abandoned and replaced when it makes no progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import Consumer

from nos_ec.adapters.kafka.cluster import READING, KafkaTopic, close_in_background, translated_errors

_log = structlog.get_logger(__name__)

_HEARTBEATS_PER_SESSION = 10
"""How often a member asks the group, per session, whether it is rebalancing. This decides how fast the group
settles."""
_HEARTBEAT_MS_MAX = 3000

_PREFETCH_BYTES_MAX = 8 << 20
FETCH_SETTINGS = {
    "queued.max.messages.kbytes": _PREFETCH_BYTES_MAX >> 10,
    "fetch.max.bytes": _PREFETCH_BYTES_MAX,
    "max.partition.fetch.bytes": 1 << 20,
}
"""The driver's settings that limit how much a member prefetches. Users can change them."""


class MemberClient:
    """Holds the current client as `driver`, and ignores callbacks of earlier clients.

    `callbacks` are settings of the driver, such as error_cb. Raises ConfigError for settings that the driver refuses.
    """

    def __init__(
        self,
        topic: KafkaTopic,
        member: str,
        configuration: Mapping[str, Any],
        callbacks: Mapping[str, Callable[..., None]],
    ) -> None:
        self._topic = topic
        self._member = member
        self._configuration = configuration
        self._callbacks = callbacks
        self._number = 0
        """The number of the current client. Abandoned clients had lower ones."""
        self.driver: Consumer = self._new()

    def subscribe(self, **callbacks: Callable[..., None]) -> None:
        """Join the group. The callbacks are on_assign, on_revoke and on_lost. Raises ConfigError, Transient."""
        with translated_errors(self._topic, "join the group"):
            guarded = {name: self.while_current(callback) for name, callback in callbacks.items()}
            self.driver.subscribe([self._topic.name], **guarded)

    def replace(self) -> Consumer:
        """Replace the client. Returns the old one, which the caller passes to `abandon`."""
        abandoned, self.driver = self.driver, self._new()
        return abandoned

    def abandon(self, driver: Consumer) -> None:
        """Close a replaced client without waiting. Either the client announces to the group that it leaves, or the
        group removes it when its session ends."""
        close_in_background(driver.close, 0)

    def leave(self) -> None:
        """Leave the group. The driver waits for the answers to commits; this method waits at most a request
        time-out."""
        errors: list[BaseException] = []

        def close() -> None:
            try:
                with translated_errors(self._topic, "leave the group"):
                    self.driver.close()
            except BaseException as error:
                errors.append(error)

        if not close_in_background(close, self._topic.timeout_s):
            _log.warning("left without an answer from the group", member=self._member, brokers=self._topic.servers)
        if errors:
            raise errors[0]

    def while_current(self, callback: Callable[..., None], number: int | None = None) -> Callable[..., None]:
        """Wrap a callback of client `number` (default: the current one), so that it does nothing once that client is
        replaced.

        An abandoned client is closed on a separate thread, and would run its callbacks there.
        """
        number = self._number if number is None else number

        def call(*arguments: object) -> None:
            if number == self._number:
                callback(*arguments)

        return call

    def _new(self) -> Consumer:
        number = self._number + 1
        callbacks = {name: self.while_current(callback, number) for name, callback in self._callbacks.items()}
        with translated_errors(self._topic, "connect"):
            made = Consumer({**self._configuration, **callbacks})
        self._number = number
        return made


def group_settings(group: str, session_ms: int, poll_interval_ms_max: int, instance: str) -> dict[str, object]:
    """Return the driver's settings that a member relies on, and that users cannot change. See KafkaConsumer for the
    values."""
    settings: dict[str, object] = {
        "group.id": group,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": min(_HEARTBEAT_MS_MAX, session_ms // _HEARTBEATS_PER_SESSION),
        "max.poll.interval.ms": poll_interval_ms_max,
        "partition.assignment.strategy": "cooperative-sticky",
        **READING,
    }
    if instance:
        settings["group.instance.id"] = instance
    return settings

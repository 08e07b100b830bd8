"""The partitioned message log between producer and consumers. It requires Kafka's semantics and nothing beyond them.

Terms: *offsets* number the messages of one partition from 0 upwards and are never reused. A *position* is the offset of
the message that a member receives next. The *committed offset* of a group is the first offset that is not processed;
after a restart or a rebalance, the new owner of the partition starts there. Delivery is at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.errors import NosError, Transient


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a consumer sees it."""

    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be processed, and the reason. The message is as it was in the log."""

    message: Message
    reason: str


class MessagePublisher(Protocol):
    """The producing side of the log."""

    def publish(self, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, Transient]:
        """Append (key, value) messages. Messages with equal keys go to the same partition, in order.

        When only part of the messages is known to be appended, returns {index: reason} for the others: for example,
        a message is too large, or its partition accepts none at the moment. Messages not listed are durable on return.

        Raises Transient or NoSpace when no message is known to be appended, and ConfigError; some may have been
        appended even then. Publishing messages again is safe, because delivery is at least once anyway.
        """

    def close(self) -> None:
        """Release all open resources."""


class NotificationPublisher(Protocol):
    """Sends notifications of buckets to topics that others read. Nothing else uses these topics."""

    def publish_to(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, NosError]:
        """Append (key, value) messages to a topic that exists. Messages with equal keys go to the same partition, in
        order. Returns {index: reason} of those that are not known to be appended; the others are durable on return.
        Appending messages again is safe, because delivery is at least once."""

    def close(self) -> None:
        """Release all open resources. Idempotent."""


class GroupProgress(Protocol):
    """The progress of a consumer group, queried from outside the group. Not thread-safe: one thread owns it."""

    def passed_until(self) -> Mapping[int, int]:
        """Return {partition: Unix time in ms}. No message published before that time still waits for the group: the
        group has committed past it, or the log no longer has it.

        The time is the publication of the oldest stored message that the group has not committed, or the time of the
        call if there is no such message. Times come from the publishers' clocks or the broker's. A partition for which
        the time cannot be determined is left out. Costs a fixed number of requests and one message per partition,
        whatever the backlog.

        Raises Transient when the time cannot be determined for any partition.
        """

    def holders(self) -> Mapping[int, str]:
        """Return {partition: name of the member that owns it}, without unowned partitions. A member that died is listed
        until its session expires. Sends one request, whatever the backlog. Raises ConfigError, Transient."""

    def close(self) -> None:
        """Release all open resources. Idempotent."""


class MessageConsumer(Protocol):
    """One member of a consumer group. Not thread-safe: one thread owns it."""

    def poll(self, messages_max: int, wait_ms: int) -> list[Message]:
        """Return up to `messages_max` messages of the assigned partitions that are not paused, in offset order per
        partition.

        Waits at most `wait_ms` for the first message, and returns an empty list if none arrives. The call also keeps
        the membership alive and takes part in rebalancing: the `on_revoke` callback runs inside it. Raises Transient.
        """

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit {partition: first offset not processed}. Durable on return; offsets never move backwards.

        Raises Conflict when this member no longer owns one of the partitions (then nothing is committed), Transient.
        """

    def set_aside(self, message: Message, reason: str) -> None:
        """Keep a copy of a message that cannot be processed, with the reason, where an operator finds it.

        Durable on return. Commits nothing: the caller counts the message as processed afterwards. A message may be set
        aside more than once, because it may be delivered more than once. Raises Transient, NoSpace.
        """

    def assignment(self) -> frozenset[int]:
        """Return the partitions that this member owns now."""

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop returning messages of these partitions from `poll`. The member keeps them, and its positions in them."""

    def resume(self, partitions: Iterable[int]) -> None:
        """Undo `pause`."""

    def on_revoke(self, callback: Callable[[frozenset[int]], None]) -> None:
        """Register a callback that gets the partitions about to be revoked, before the member gives them up.

        The callback may call `commit` for them, because the member still owns them while it runs. The exception is a
        member that was removed from the group for missing its heartbeats: its commit raises Conflict.
        """

    def lag(self) -> int:
        """Return the number of messages in the whole topic that the group has not committed yet."""

    def close(self) -> None:
        """Leave the group at once, without waiting for a time-out, and release all open resources. Idempotent.

        Does not run the `on_revoke` callback, so the owner must commit its offsets first.
        """

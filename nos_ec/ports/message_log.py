"""The partitioned message log between producer and consumers. Kafka's semantics, and no more than that.

Words: an *offset* numbers the messages of one partition from 0 upward without reuse. A *position* is the next
offset a member will be handed. A *committed offset* of a group is the first offset that is not done; after a
restart or a rebalance the new owner of the partition starts there. Delivery is at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.errors import Transient


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a consumer sees it."""

    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be worked on, and why. The message is as it was in the log."""

    message: Message
    reason: str


class MessagePublisher(Protocol):
    """The producing side."""

    def publish(self, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, Transient]:
        """Append (key, value) messages; equal keys go to the same partition, in order.

        Returns {index: why} of the messages that are not known to be appended while others are: one that is too large,
        or of a partition that takes none now. All others are durable on return.

        Raises Transient, NoSpace when none is known to be appended, ConfigError: some may have been appended all the
        same. Publishing messages again is safe, as delivery is at least once anyway.
        """
        ...

    def close(self) -> None:
        """Release what is held open."""
        ...


class GroupProgress(Protocol):
    """How far a consumer group has come, asked from outside the group. Not thread-safe: one thread owns it."""

    def passed_until(self) -> Mapping[int, int]:
        """{partition: Unix time in ms} such that no message that was published before that time waits for the group:
        the group has committed past it, or the log no longer has it.

        It is the time of the oldest message stored that the group has not committed, and the time of the question
        where there is none. Times are those of the publishers' clocks, or the broker's. A partition that cannot
        tell is left out. Costs a fixed number of requests and one message a partition, whatever the backlog.

        Raises Transient when no partition can tell.
        """
        ...

    def close(self) -> None:
        """Release what is held open. Idempotent."""
        ...


class MessageConsumer(Protocol):
    """One member of a consumer group. Not thread-safe: one thread owns it."""

    def poll(self, messages_max: int, wait_ms: int) -> list[Message]:
        """Up to `messages_max` messages of the partitions assigned and not paused, in offset order per partition.

        Waits at most `wait_ms` for the first one; an empty list means there is none. Also keeps membership
        alive and takes part in rebalancing: `on_revoke` runs inside this call. Raises Transient.
        """
        ...

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit {partition: first offset not done}. Durable on return; offsets never move backwards.

        Raises Conflict when this member no longer owns a partition (nothing is committed then), Transient.
        """
        ...

    def set_aside(self, message: Message, reason: str) -> None:
        """Keep a copy of a message that cannot be worked on, with the reason, where an operator finds it.

        Durable on return. Commits nothing: the caller counts the message as done afterwards. A message may be set
        aside more than once, as it may be delivered more than once. Raises Transient, NoSpace.
        """
        ...

    def assignment(self) -> frozenset[int]:
        """Partitions this member owns now."""
        ...

    def pause(self, partitions: Iterable[int]) -> None:
        """Stop handing out messages of these partitions; membership and positions are kept."""
        ...

    def resume(self, partitions: Iterable[int]) -> None:
        """Undo `pause`."""
        ...

    def on_revoke(self, callback: Callable[[frozenset[int]], None]) -> None:
        """Register what to run, before they are given up, with the partitions about to be revoked.

        The callback may call `commit` for them: the member still owns them while it runs (unless it was
        thrown out for missing its heartbeats, in which case commit raises Conflict).
        """
        ...

    def lag(self) -> int:
        """Messages in the whole topic that the group has not committed yet."""
        ...

    def close(self) -> None:
        """Leave the group at once (no waiting for a time-out) and release what is held open. Idempotent.

        Does not run `on_revoke`: commit first what is to be kept.
        """
        ...

"""The outbox: events of buckets with notifications, until producers have sent them (docs/adr/0059).

An event is added in the transaction of the change that it tells about. Only a store with `send_events` adds events.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OutboxOptions:
    """While the outbox has `events_max` events, it takes none for topics that have their share of these. `region` is
    that of the messages. `topics` are those to which events are sent, whatever the configurations of buckets name;
    None: all of them."""

    events_max: int
    region: str
    topics: frozenset[str] | None = None

    def allows(self, topic: str) -> bool:
        """Return whether events are sent to this topic."""
        return self.topics is None or topic in self.topics


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event that waits. `key` is the key of its message: events with equal keys must be sent in the order of
    `Outbox.outbox_events`. `body` is the message (core.notifications.message)."""

    event_id: int
    key: bytes
    sequencer: int
    body: bytes


class Outbox(Protocol):
    """See the module docstring. Safe to call from several threads."""

    def send_events(self, options: OutboxOptions) -> None:
        """From now on, add events for the changes of buckets with notifications. Their configurations are cached for
        CONFIGURATION_MS. While the outbox is full, methods that change objects raise Transient in buckets that send
        to a topic with many events (see OutboxOptions)."""

    def require_event_room(self, buckets: Collection[str]) -> None:
        """Raise Transient if the outbox is full for a topic of one of these buckets. Runs no statement for buckets
        whose configurations are cached, while the outbox cannot be near its bound."""

    def outbox_queues(self, slots: Collection[int]) -> list[tuple[str, int]]:
        """Return each (topic, slot) that has events, for these slots. Runs one statement for each queue, one for
        each topic, and one more, whatever their lengths."""

    def outbox_events(self, topic: str, slot: int, limit: int) -> list[OutboxEvent]:
        """Return the oldest events of a queue, so that the events of each key are in the order of their changes."""

    def forget_events(self, event_ids: Sequence[int]) -> None:
        """Remove events that were sent. Removing them again changes nothing."""

    def add_gaps(self, now_ms: int) -> int:
        """Add an event to each configuration of each bucket, which tells its readers that events may be missing
        (core.notifications.message). Returns how many. Called again, it adds them again."""

    def outbox_size(self, limit: int) -> int:
        """Return the number of events, or `limit` if there are more. Reads that many entries of an index."""

    def oldest_event_ms(self) -> int | None:
        """Return when the oldest event was added; None if there is none."""

"""Tracks which messages of a consumer are done, and commits their offsets.

5  delivery is at least once: the offset of a message is committed only when the message needs no more work
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from nos_consumer.counters import ConsumerCounters
from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.formats.offsets import OffsetTracker
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.message_log import Message, MessageConsumer

_log = structlog.get_logger(__name__)

COMMIT_WAIT_MS = 1000
"""The time between commits while there is work, because each commit costs a round trip and a synced write of the log.
If a crash leaves offsets uncommitted, their messages are delivered again, looked up, and found packed."""


class Offsets:
    """The offsets of one consumer. The consumer's thread owns it."""

    def __init__(self, messages: MessageConsumer, clock: Clock, counters: ConsumerCounters) -> None:
        self._messages = messages
        self._clock = clock
        self._counters = counters
        self._tracker = OffsetTracker()
        self._due_ms = 0

    def take(self, message: Message) -> bool:
        """Record that the log delivered a message. Returns False if it was delivered before."""
        return self._tracker.taken(message.partition, message.offset)

    def done(self, tickets: Iterable[tuple[int, int]]) -> None:
        """Mark the messages at these (partition, offset) as done."""
        for partition, offset in tickets:
            self._tracker.done(partition, offset)

    def commit_when_due(self, *, idle: bool) -> None:
        """Try to commit if COMMIT_WAIT_MS have passed since the last try, or if the consumer is idle."""
        now_ms = self._clock.now_ms()
        if idle or not waits(self._due_ms, now_ms, COMMIT_WAIT_MS):
            self._due_ms = now_ms + COMMIT_WAIT_MS
            self.try_to_commit()

    def try_to_commit(self) -> None:
        """Commit, and only log a Transient failure. A later commit includes the same offsets, or the log delivers their
        messages again."""
        try:
            self.commit()
        except Transient as error:
            _log.warning("offsets not committed; trying again", error=str(error))

    def commit(self) -> None:
        """Commit the offsets of the messages that are done. Raises Transient."""
        offsets = self._tracker.committable()
        if not offsets:
            return
        kill_point("consumer.before_offsets")
        try:
            self._messages.commit(offsets)
        except Conflict as error:
            # This member was removed from the group. The new owner gets these messages again, and finds them packed.
            _log.warning("offsets not committed", error=str(error))
            return
        self._counters.offsets_committed += self._tracker.committed(offsets)
        kill_point("consumer.offsets_committed")

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget revoked partitions, because a commit that includes their offsets would fail."""
        self._tracker.drop(frozenset(partitions))

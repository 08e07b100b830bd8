"""The offsets of a consumer: which messages are done, and committing them.

5  delivery is at least once: an offset is committed only when nothing is left to do for it
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from nos_consumer.counters import ConsumerCounters
from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.core.offsets import OffsetTracker
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.message_log import Message, MessageConsumer

_log = structlog.get_logger(__name__)

COMMIT_WAIT_MS = 1000
"""How long offsets that could be committed wait for others while there is work: each commit is a round trip and a
synced write of the log. What a crash leaves uncommitted is only looked up again and found packed."""


class Offsets:
    """Owned by the consumer's thread."""

    def __init__(self, messages: MessageConsumer, clock: Clock, counters: ConsumerCounters) -> None:
        self._messages = messages
        self._clock = clock
        self._counters = counters
        self._tracker = OffsetTracker()
        self._due_ms = 0

    def take(self, message: Message) -> bool:
        """Note that the log has handed a message out. False when it has been taken before."""
        return self._tracker.taken(message.partition, message.offset)

    def done(self, tickets: Iterable[tuple[int, int]]) -> None:
        """Nothing is left to do for the messages at these (partition, offset)."""
        for partition, offset in tickets:
            self._tracker.done(partition, offset)

    def commit_when_due(self, *, idle: bool) -> None:
        """Commit every COMMIT_WAIT_MS, and at once when there is nothing left to work on."""
        now_ms = self._clock.now_ms()
        if idle or not waits(self._due_ms, now_ms, COMMIT_WAIT_MS):
            self._due_ms = now_ms + COMMIT_WAIT_MS
            self.try_to_commit()

    def try_to_commit(self) -> None:
        """Commit; a failure is logged. The same offsets are committed with later ones, or delivered again."""
        try:
            self.commit()
        except Transient as error:
            _log.warning("offsets not committed, trying again", error=str(error))

    def commit(self) -> None:
        """Commit what is done. Raises Transient."""
        offsets = self._tracker.committable()
        if not offsets:
            return
        kill_point("consumer.before_offsets")
        try:
            self._messages.commit(offsets)
        except Conflict as error:
            # Removed from the group: the new owner of the partitions delivers these again, and nothing moves twice.
            _log.warning("offsets not committed", error=str(error))
            return
        self._counters.offsets_committed += self._tracker.committed(offsets)
        kill_point("consumer.offsets_committed")

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget revoked partitions: their offsets would make every later commit fail."""
        self._tracker.drop(frozenset(partitions))

"""Sends the notifications of buckets from the outbox to their topics.

A producer sends the events of the slots that it holds, so the events of a key have one sender. An event is removed from
the outbox after its topic has taken it, so it may be sent twice, after a crash or a lapsed lease; its sequencer shows
that. After a failure, the later events of the same key wait, so that their order is kept. What fails is tried again
after a wait that doubles, and stops nothing else: neither other topics nor, in its queue, the events of other keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from threading import Event

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Clock
from nos_ec.ports.message_log import NotificationPublisher
from nos_ec.ports.metadata import Outbox, OutboxEvent
from nos_producer.slots import HeldSlots

_log = structlog.get_logger(__name__)

BATCH_EVENTS = 500
"""Events that are sent and removed at once: half a megabyte."""
HELD_READ_MS = 5000
HELD_EVENTS_MAX = 4000
"""At most this many failing events of a queue are read again to find the events after them. More failing events stop
their queue."""
IDLE_WAIT_MS = 500
FAILED_WAIT_MS = 1000
FAILED_WAIT_MS_MAX = 60_000
COUNT_WAIT_MS = 60_000
"""How often the outbox is counted, for the metric."""


@dataclass(slots=True)
class NotificationCounters:
    """Counts the work of this producer since it started. `waiting` and `oldest_ms` describe the whole outbox."""

    sent: int = 0
    failures: int = 0
    """Batches that a topic has not taken, or not in whole."""
    waiting: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Held:
    """The events of a queue that its topic has not taken: their keys and their number, when they are tried again, the
    wait after the next failure, and when the queue is read again for others."""

    keys: frozenset[bytes]
    events: int
    due_ms: int
    wait_ms: int
    read_ms: int = 0


class NotificationSender:
    """Sends what waits in the outbox. One thread runs it; any thread may read its counters."""

    def __init__(
        self,
        metadata: Outbox,
        publisher: NotificationPublisher,
        clock: Clock,
        held_slots: HeldSlots,
        events_max: int,
    ) -> None:
        self._metadata = metadata
        self._publisher = publisher
        self._clock = clock
        self._held_slots = held_slots
        self.events_max = events_max
        self._failed: dict[str, tuple[int, int]] = {}
        """When each failing topic is tried again, and the wait after its next failure."""
        self._held: dict[tuple[str, int], _Held] = {}
        self._first_slot: dict[str, int] = {}
        """The slot after the one that failed last, by topic."""
        self._count_ms = 0
        self.counters = NotificationCounters()

    def turn(self) -> int:
        """Send a batch of each queue whose slot is held. Returns how many events were sent. Raises Transient for the
        metadata; failures of topics are logged."""
        now_ms = self._clock.now_ms()
        sent = 0
        queues = self._metadata.outbox_queues(self._held_slots.slots())
        self._held = {queue: self._held[queue] for queue in queues if queue in self._held}
        # The slots after the one that failed last come first, or a message that always fails would stop them.
        for topic, slot in sorted(queues, key=lambda queue: (queue[1] < self._first_slot.get(queue[0], 0), queue)):
            if now_ms >= self._failed.get(topic, (0, 0))[0] and slot in self._held_slots.slots():
                sent += self._send(topic, slot)
        if now_ms >= self._count_ms:
            self._count_ms = now_ms + COUNT_WAIT_MS
            self.counters.waiting = self._metadata.outbox_size(self.events_max)
            self.counters.oldest_ms = self._metadata.oldest_event_ms()
        return sent

    def _send(self, topic: str, slot: int) -> int:
        queue = topic, slot
        held, now_ms = self._held.get(queue), self._clock.now_ms()
        if held is not None and now_ms < min(held.read_ms, held.due_ms):
            return 0
        # Always from the oldest event on: an event whose transaction ended late has a smaller number than others, and
        # must be sent before later ones of its key.
        events = self._metadata.outbox_events(topic, slot, BATCH_EVENTS + (0 if held is None else held.events))
        skipped: Collection[bytes] = () if held is None or now_ms >= held.due_ms else held.keys
        tried = sorted((one for one in events if one.key not in skipped), key=lambda one: one.sequencer)
        if not tried:
            if held is not None:
                self._held[queue] = replace(held, read_ms=now_ms + HELD_READ_MS)
            return 0
        try:
            failures = self._publisher.publish_to(topic, [(one.key, one.body) for one in tried])
        except NosError as error:
            failures = dict.fromkeys(range(len(tried)), error)
        kill_point("producer.notifications_sent")
        taken = _taken(tried, failures.keys())
        self._metadata.forget_events([one.event_id for one in taken])
        kill_point("producer.notifications_forgotten")
        self.counters.sent += len(taken)
        if taken:
            self._failed.pop(topic, None)
        keys = frozenset(tried[index].key for index in failures).union(skipped)
        if keys:
            self._hold(queue, keys, sum(one.key in keys for one in events), is_tried_again=not skipped)
        else:
            self._held.pop(queue, None)
        if failures:
            self.counters.failures += 1
            self._first_slot[topic] = slot + 1
            why = str(next(iter(failures.values())))
            _log.warning("notifications not sent; trying again", topic=topic, error=why, events=len(failures))
            if not taken:
                self._put_off(topic)
        return len(taken)

    def _hold(self, queue: tuple[str, int], keys: frozenset[bytes], events: int, *, is_tried_again: bool) -> None:
        """Remember the keys whose events were not taken. Keys that fail meanwhile wait as long as the others."""
        before = self._held.get(queue)
        due_ms, wait_ms = (0, FAILED_WAIT_MS) if before is None else (before.due_ms, before.wait_ms)
        if is_tried_again:
            due_ms, wait_ms = self._clock.now_ms() + wait_ms, min(2 * wait_ms, FAILED_WAIT_MS_MAX)
        self._held[queue] = _Held(keys, min(events, HELD_EVENTS_MAX), due_ms, wait_ms)

    def _put_off(self, topic: str) -> None:
        _, wait_ms = self._failed.get(topic, (0, FAILED_WAIT_MS))
        self._failed[topic] = self._clock.now_ms() + wait_ms, min(2 * wait_ms, FAILED_WAIT_MS_MAX)

    def drain(self) -> int:
        """Send until nothing more can be sent now. Returns how many events were sent. Raises Transient."""
        total = 0
        while sent := self.turn():
            total += sent
        return total

    def run(self, stop: Event) -> None:
        """Send until `stop` is set. A failure of the metadata is logged, and sending is tried again."""
        while not stop.is_set():
            try:
                wait_ms = 0 if self.turn() else IDLE_WAIT_MS
            except Transient as error:
                _log.warning("outbox not read; trying again", error=str(error))
                wait_ms = FAILED_WAIT_MS
            except Exception:
                # The thread continues after a bug with one batch, as if the metadata had failed.
                _log.exception("notifications not sent; trying again")
                wait_ms = FAILED_WAIT_MS
            if wait_ms:
                self._clock.wait(stop, wait_ms)


def _taken(events: Sequence[OutboxEvent], failed: Collection[int]) -> list[OutboxEvent]:
    """Return the events that are appended, and whose keys have no earlier event that is not."""
    kept: set[bytes] = set()
    taken = []
    for index, one in enumerate(events):
        if index in failed or one.key in kept:
            kept.add(one.key)
        else:
            taken.append(one)
    return taken

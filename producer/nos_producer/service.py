"""Publishes an event for each landed object, so that a consumer packs it.

Each row holds the time when it is due. So the producer needs no position in the table, and a row whose transaction
commits late is not missed. A row whose event was lost comes due again after `republish_ms`, and `republish_filter`
decides whether it is published again. `refused` parks rows that the log does not accept. A row is first published and
then marked. After a crash in between it is published twice, which is harmless because the consumer's commit is a
compare-and-set (invariant 5). A producer scans only the slots that it holds, so several producers share the work, and
none repeats the work of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import structlog

from nos_ec.core.errors import NoSpace, Transient
from nos_ec.core.formats.messages import encode_pack_request
from nos_ec.core.killpoints import kill_point
from nos_ec.core.publishing.republish import Publication
from nos_ec.core.publishing.slots import SLOTS
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.engine.upkeep.usage_keeper import UsageKeeper, UsageShown
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.message_log import GroupProgress, MessagePublisher
from nos_ec.ports.metadata import ObjectRow, Objects
from nos_producer.notifications import NotificationSender
from nos_producer.refused import Refused
from nos_producer.republish_filter import RepublishFilter
from nos_producer.slots import HeldSlots
from nos_producer.spreading import Destination, Spreading, SpreadOptions

_log = structlog.get_logger(__name__)

RETRY_WAIT_MS = 1000
"""The wait after a batch that failed."""
USAGE_SLOT = 0
"""The producer that holds this slot keeps the usage of buckets."""
IDLE_WAIT_MS = 500
"""The wait after a scan that found no due rows: short compared with consumer.linger_ms. Such a scan is a single small
query."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The options of a producer."""

    republish_ms: int
    """After this time, a published row that is not packed comes due again."""
    partitions: int
    """The number of partitions of the message log."""
    store_id: str
    """The id of the store, which is written into events."""
    batch_objects: int
    """The most rows per scan."""
    spread: SpreadOptions = field(default_factory=SpreadOptions)
    """Over how many partitions the events of a bucket are spread."""


@dataclass(slots=True)
class ProducerCounters:
    """Counts the work of this producer since it started. A republished object counts again."""

    objects: int = 0
    bytes: int = 0
    failures: int = 0
    """Batches that failed."""
    postponed: int = 0
    """Rows that came due again while their event still waited."""
    refused: int = 0
    """Events that the log did not accept."""


class ProducerService:
    """One producer. Not thread-safe."""

    def __init__(
        self,
        metadata: Objects,
        publisher: MessagePublisher,
        progress: GroupProgress,
        clock: Clock,
        held_slots: HeldSlots,
        options: ProducerOptions,
        notifications: NotificationSender | None = None,
        usage: UsageKeeper | None = None,
    ) -> None:
        self._metadata = metadata
        self.notifications = notifications
        self._usage = usage
        self._publisher = publisher
        self._clock = clock
        self._held_slots = held_slots
        self._options = options
        self._republish_filter = RepublishFilter(progress, clock, options.republish_ms, options.partitions)
        self.spreading = Spreading(clock, self._republish_filter.read_progress, options.partitions, options.spread)
        self._refused = Refused(clock, options.republish_ms, options.partitions, self.spreading.partition)
        self.counters = ProducerCounters()

    @property
    def slots_of_others(self) -> int:
        """The number of slots whose objects this producer does not publish now."""
        return SLOTS - len(self._held_slots.slots())

    @property
    def retry_queues(self) -> Sequence[RetryQueue[Any]]:
        """The refused events and partitions that wait for their next try. Any thread may read their figures."""
        return self._refused.retry_queues

    def turn(self) -> int:
        """Process one batch of due rows in the held slots: publish the rows that have no event waiting in the log.

        Returns how many rows were due. Raises Transient.
        """
        self._held_slots.keep()
        with self._held_slots.renewed():
            return self._publish_due()

    def _publish_due(self) -> int:
        slots = self._held_slots.slots()
        now_ms = self._clock.now_ms()
        rows = self._metadata.due_objects(now_ms, self._options.batch_objects, slots)
        more_may_be_due = len(rows) == self._options.batch_objects
        self.spreading.review(rows, self._due_reader(now_ms, slots) if more_may_be_due else None)
        if not slots <= self._held_slots.slots():
            raise Transient("leases of slots expired while looking for due objects: is the metadata store too slow?")
        due, waiting = self._republish_filter.divide(rows, now_ms)
        # Postpone first. Otherwise every scan would return the same batch of waiting rows while publishing fails.
        self._metadata.postpone(waiting, now_ms + self._options.republish_ms)
        self.counters.postponed += len(waiting)
        ready, refused = self._refused.set_apart(due)
        self._mark_refused(refused)
        if ready:
            self._publish(ready, now_ms)
        return len(rows)

    def drain(self) -> int:
        """Publish until no row is due in the held slots, send the notifications of buckets, and keep their usage.
        Returns how many objects were published. Raises Transient."""
        before = self.counters.objects
        while self.turn():
            pass
        if self.notifications is not None:
            self.notifications.drain()
        if self._usage is not None and self._keeps_usage():
            self._usage.drain()
        return self.counters.objects - before

    def _due_reader(self, now_ms: int, slots: frozenset[int]) -> Callable[[int], Sequence[ObjectRow]]:
        return lambda rows_max: self._metadata.due_objects(now_ms, rows_max, slots)

    def _publish(self, rows: Sequence[ObjectRow], now_ms: int) -> None:
        destinations = [self.spreading.destination(row) for row in rows]
        failures = self._publish_events(rows, destinations)
        kill_point("producer.published")
        for is_away in (False, True):
            marked = [
                row
                for index, (row, destination) in enumerate(zip(rows, destinations, strict=True))
                if index not in failures and destination.is_away == is_away
            ]
            if marked:
                due_ms = now_ms + self._options.republish_ms
                self._metadata.mark_published(marked, due_ms, Publication(now_ms, is_away))
                kill_point("producer.marked")
        self._mark_refused(self._refused.settle(rows, failures))
        published = [row for index, row in enumerate(rows) if index not in failures]
        self.spreading.add_published(published, now_ms)
        self.counters.objects += len(published)
        self.counters.bytes += sum(row.size for row in published)
        self.counters.refused += len(failures)

    def _publish_events(
        self, rows: Sequence[ObjectRow], destinations: Sequence[Destination]
    ) -> Mapping[int, Transient]:
        """Publish the event of each row to its destination. Returns {index: error} of the rows whose events are not
        known to be in the log.

        Raises Transient when the failure affects the whole log and not only the partitions of these rows.
        """
        events = [
            (destination.key, _event(row, self._options.store_id))
            for row, destination in zip(rows, destinations, strict=True)
        ]
        try:
            return self._publisher.publish(events)
        except NoSpace:
            raise
        except Transient as error:
            if not self._only_partitions_fail(rows):
                raise
            return dict.fromkeys(range(len(rows)), error)

    def _only_partitions_fail(self, rows: Sequence[ObjectRow]) -> bool:
        """Return whether the log answers, but none of the partitions of these rows."""
        try:
            answering = self._republish_filter.read_progress().keys()
        except Transient:
            return False
        return answering.isdisjoint({self.spreading.partition(row) for row in rows})

    def _mark_refused(self, refused: Mapping[int, Sequence[ObjectRow]]) -> None:
        """Set new due times, {due time: rows}, of rows without an event. They become QUEUED, too."""
        for due_ms, rows in refused.items():
            self._metadata.mark_published(rows, due_ms)

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Publish until `stop` is set. Transient failures are logged, and publishing is tried again. Notifications of
        buckets are sent by a thread of their own, and their usage is kept by another, so that neither a topic that does
        not answer nor a large bucket delays packing."""
        threads: list[Thread] = []
        if self.notifications is not None:
            threads.append(Thread(target=self.notifications.run, args=(stop,), name="notifications", daemon=True))
        if self._usage is not None:
            threads.append(Thread(target=self._usage.run, args=(stop, self._keeps_usage), name="usage", daemon=True))
        for thread in threads:
            thread.start()
        try:
            self._run(stop, beat)
        finally:
            if threads:
                stop.set()
            for thread in threads:
                thread.join()

    @property
    def usage_shown(self) -> UsageShown:
        """What metrics show of the usage of buckets. Any thread may read it."""
        return UsageShown() if self._usage is None or not self._keeps_usage() else self._usage.shown

    def _keeps_usage(self) -> bool:
        """Return whether this producer is the one that keeps the usage of buckets."""
        return USAGE_SLOT in self._held_slots.slots()

    def _run(self, stop: Event, beat: Beat) -> None:
        while not stop.is_set():
            beat(0)
            before = self.counters.objects
            try:
                due = self.turn()
            except Transient as error:
                self.counters.failures += 1
                _log.warning("publishing failed; trying again", error=str(error))
                self._clock.wait(stop, RETRY_WAIT_MS)
                continue
            if self.counters.objects > before:
                _log.info("published", objects=self.counters.objects - before)
            if not due:
                wait_ms = min(IDLE_WAIT_MS, self._held_slots.rest_ms())
                beat(wait_ms)
                self._clock.wait(stop, wait_ms)


def _event(row: ObjectRow, store_id: str) -> bytes:
    assert row.landing_id is not None
    return encode_pack_request(
        object_id=row.object_id,
        key=row.key,
        version=row.version,
        size=row.size,
        crc32c=row.crc32c,
        landing_id=row.landing_id,
        store=store_id,
    )

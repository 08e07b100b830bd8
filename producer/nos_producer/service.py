"""Publishes objects that wait in the landing store, so that a consumer packs them.

No cursor is kept: a row says itself when it is due, so rows whose transaction commits late are never missed, and
a row whose event was lost comes due again (`republish_ms`). Publishing comes first and the mark second: a crash
in between publishes twice, which the commit's compare-and-set makes harmless (invariant 5). Only rows of the slots that
this producer holds are looked for, so that several producers share the work and none of it is done twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.core.messages import encode_pack_request
from nos_ec.core.slots import SLOTS
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.message_log import MessagePublisher
from nos_ec.ports.metadata import Metadata, ObjectRow
from nos_producer.slots import HeldSlots

_log = structlog.get_logger(__name__)

RETRY_WAIT_MS = 1000


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """batch_objects: rows per scan. republish_ms: when a published row that is not packed is published again.
    idle_wait_ms: between scans that find nothing."""

    batch_objects: int
    republish_ms: int
    idle_wait_ms: int


@dataclass(slots=True)
class ProducerCounters:
    """What this producer has done since it started; repeats count again. failures: batches to be tried again."""

    objects: int = 0
    bytes: int = 0
    failures: int = 0


class ProducerService:
    """One producer. Not thread-safe."""

    def __init__(
        self,
        metadata: Metadata,
        publisher: MessagePublisher,
        clock: Clock,
        held: HeldSlots,
        options: ProducerOptions,
    ) -> None:
        self._metadata = metadata
        self._publisher = publisher
        self._clock = clock
        self._held = held
        self._options = options
        self.counters = ProducerCounters()

    @property
    def slots_of_others(self) -> int:
        """Slots whose objects this producer does not publish now."""
        return SLOTS - len(self._held.slots())

    def turn(self) -> int:
        """Publish one batch of due rows of the slots held. Returns how many; 0: none is due. Raises Transient."""
        self._held.keep()
        slots = self._held.slots()
        now_ms = self._clock.now_ms()
        rows = self._metadata.due_objects(now_ms, self._options.batch_objects, slots)
        if not slots <= self._held.slots():
            raise Transient(
                "leases of slots expired while due objects were looked for: is the metadata store too slow?"
            )
        if rows:
            self._publisher.publish([_event(row) for row in rows])
            kill_point("producer.published")
            self._metadata.mark_published(rows, now_ms + self._options.republish_ms)
            kill_point("producer.marked")
            self.counters.objects += len(rows)
            self.counters.bytes += sum(row.size for row in rows)
        return len(rows)

    def drain(self) -> int:
        """Publish until nothing is due in the slots held. Returns how many. Raises Transient."""
        published = 0
        while count := self.turn():
            published += count
        return published

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Publish until `stop` is set. Transient failures are logged and tried again."""
        while not stop.is_set():
            beat(0)
            try:
                count = self.turn()
            except Transient as error:
                self.counters.failures += 1
                _log.warning("publishing failed, trying again", error=str(error))
                self._clock.wait(stop, RETRY_WAIT_MS)
                continue
            if count:
                _log.info("published", objects=count)
            else:
                wait_ms = min(self._options.idle_wait_ms, self._held.rest_ms())
                beat(wait_ms)
                self._clock.wait(stop, wait_ms)


def _event(row: ObjectRow) -> tuple[bytes, bytes]:
    assert row.landing_id is not None
    value = encode_pack_request(
        object_id=row.object_id,
        key=row.key,
        version=row.version,
        size=row.size,
        crc32c=row.crc32c,
        landing_id=row.landing_id,
    )
    return row.key.bucket.encode(), value

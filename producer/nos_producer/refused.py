"""Parks rows whose events the log refuses, while the other rows are published.

An event that is too large for its topic affects only its row. Any other failure, while the rest of the log answers,
affects a partition: all of its rows wait until the partition is tried again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TypeVar

from nos_ec.core.errors import TooLarge, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ObjectRow

PARTITION_WAIT_MS = 5_000
PARTITION_WAIT_MS_MAX = 300_000
OBJECT_WAIT_MS = 60_000
OBJECTS_MAX = 10_000
"""The most refused objects that are parked. Further ones come due again like all others."""
_FORGET_BATCH = 100

Item = tuple[int, int, ObjectKey]
"""The row of a refused event: object id, version, key."""
RowsByTime = dict[int, list[ObjectRow]]
T = TypeVar("T", bound=Hashable)


class Refused:
    """Parks refused events and partitions, and decides when their rows are due again. One thread owns it; any thread
    may read the figures of `retry_queues`."""

    def __init__(
        self, clock: Clock, republish_ms: int, partitions: int, partition_of: Callable[[ObjectRow], int]
    ) -> None:
        self._clock = clock
        self._republish_ms = republish_ms
        self._partition_of = partition_of
        # A row comes due after half of its wait. If it is not refused again before the whole wait is over, it was
        # packed or deleted, or another producer has it now, so `_release` releases it.
        object_wait_ms = 2 * min(OBJECT_WAIT_MS, republish_ms)
        self._objects: RetryQueue[Item] = RetryQueue(
            "event", lambda item: str(item[2]), clock, BackOff(object_wait_ms, 2 * republish_ms), OBJECTS_MAX
        )
        partition_back_off = BackOff(
            PARTITION_WAIT_MS, max(PARTITION_WAIT_MS, min(PARTITION_WAIT_MS_MAX, republish_ms))
        )
        self._partitions: RetryQueue[int] = RetryQueue("partition", str, clock, partition_back_off, partitions)
        self.retry_queues = (self._objects, self._partitions)

    def set_apart(self, rows: Sequence[ObjectRow]) -> tuple[list[ObjectRow], RowsByTime]:
        """Return (rows that can be published, {due time: rows of partitions that wait for their next try})."""
        if not self._partitions:
            return list(rows), {}
        ready: list[ObjectRow] = []
        waiting: RowsByTime = defaultdict(list)
        for row in rows:
            partition = self._partition_of(row)
            if self._partitions.waits(partition):
                waiting[self._due_ms(self._partitions, partition)].append(row)
            else:
                ready.append(row)
        return ready, waiting

    def settle(self, rows: Sequence[ObjectRow], failures: Mapping[int, Transient]) -> RowsByTime:
        """Park the rows that failed, and release those that were published. `failures` holds the error of each failed
        row by its index. Returns {due time: rows that failed}."""
        failed = {self._partition_of(rows[i]): why for i, why in failures.items() if not isinstance(why, TooLarge)}
        for partition, error in failed.items():
            self._partitions.park(partition, error)
        waiting: RowsByTime = defaultdict(list)
        for index, error in failures.items():
            row = rows[index]
            if isinstance(error, TooLarge):
                item = (row.object_id, row.version, row.key)
                self._objects.park(item, error)
                waiting[self._due_ms(self._objects, item, parts=2)].append(row)
            else:
                waiting[self._due_ms(self._partitions, self._partition_of(row))].append(row)
        self._release(rows, failures, failed.keys())
        return waiting

    def _release(self, rows: Sequence[ObjectRow], failures: Mapping[int, Transient], away: Collection[int]) -> None:
        published = [row for index, row in enumerate(rows) if index not in failures]
        if self._partitions:
            for partition in {self._partition_of(row) for row in published} - set(away):
                self._partitions.release(partition)
        if self._objects:
            for row in published:
                self._objects.release((row.object_id, row.version, row.key))
            for item in self._objects.due(_FORGET_BATCH):
                self._objects.release(item)

    def _due_ms(self, retry_queue: RetryQueue[T], item: T, parts: int = 1) -> int:
        """Return the time of the next try: after 1/`parts` of the item's wait, but no later than published rows come
        due."""
        now_ms = self._clock.now_ms()
        parked = retry_queue.get(item)
        wait_ms = self._republish_ms if parked is None else (parked.retry_ms - now_ms) // parts
        return now_ms + max(1, min(wait_ms, self._republish_ms))

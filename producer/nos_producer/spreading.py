"""Decides over how many partitions the events of each bucket are spread (`core.publishing.spread`).

The settings fix the number for a bucket, or leave it to the producer. In the second case a bucket stays in its home
partition, so that one consumer packs it and its objects share stripes, until it has most of the backlog and more than
one consumer takes at a time. Then its events go to all partitions, until its backlog is small again.

The backlog of a bucket is the events that this producer published and the consumer group has not passed yet, plus the
rows that are due. All rows of a bucket are in one slot, so one producer sees all of them. A producer that ends loses
this knowledge, and a new one learns it again from what it publishes: no event depends on it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.formats.messages import partition_for
from nos_ec.core.publishing.republish import passed_everywhere_ms
from nos_ec.core.publishing.spread import message_key, spread_partition
from nos_ec.core.states import ObjectState
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import ObjectRow

_log = structlog.get_logger(__name__)

REVIEW_WAIT_MS = 10_000
"""The shortest time between two reads of the progress, and between two reads of further due rows."""
HOLD_MS = 300_000
"""How long a bucket stays spread after it last had a large backlog. Otherwise a steady load that several consumers can
handle and a single one cannot would change the spread all the time."""
DUE_ROWS_MAX = 10_000
_REST_DIVISOR = 4
"""The backlog of a spread bucket is large while it is at least `backlog_min` divided by this number."""

home_partition = lru_cache(maxsize=4096)(partition_for)
_key = lru_cache(maxsize=4096)(message_key)


@dataclass(frozen=True, slots=True)
class SpreadOptions:
    """The options of spreading."""

    backlog_min: int = 4000
    """How many objects of a bucket must wait before the producer spreads it."""
    default: int | None = 1
    """The spread of every bucket, at least 1; None to let the producer decide."""
    buckets: Mapping[str, int | None] = field(default_factory=dict)
    """The spread of single buckets, instead of the default."""


class Destination(NamedTuple):
    """The destination of an event."""

    key: bytes
    """The message key, which decides the partition."""
    is_away: bool
    """Whether the partition is not the home of the bucket."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that were published at the same time."""

    published_ms: int
    rows: int
    counts: Mapping[str, int]
    """The number of rows by bucket, without buckets that have few rows."""


class Spreading:
    """Chooses the destination of each event. One thread owns it; any thread may read `spread_buckets`."""

    def __init__(
        self,
        clock: Clock,
        passed_until: Callable[[], Mapping[int, int]],
        partitions: int,
        options: SpreadOptions,
    ) -> None:
        """passed_until: see GroupProgress."""
        self._clock = clock
        self._passed_until = passed_until
        self._partitions = partitions
        self._options = options
        self._recent: deque[_Batch] = deque()
        self._recent_rows = 0
        self._recent_counts: Counter[str] = Counter()
        """The sums over `_recent`."""
        self._until_ms: dict[str, int] = {}
        """The buckets that this producer spreads, each with the time until which it stays spread."""
        self._review_ms = 0

    @property
    def spread_buckets(self) -> int:
        """The number of buckets that this producer has decided to spread."""
        return len(self._until_ms)

    def partition(self, row: ObjectRow) -> int:
        """Return the partition of the row's event if it is published now."""
        bucket = row.key.bucket
        return spread_partition(row.key, self._home(bucket), self._spread(bucket), self._partitions)

    def destination(self, row: ObjectRow) -> Destination:
        """Return the destination of the row's event if it is published now."""
        bucket = row.key.bucket
        if self._spread(bucket) == 1:
            return Destination(bucket.encode(), False)
        partition = self.partition(row)
        return Destination(_key(bucket, partition, self._partitions), partition != self._home(bucket))

    def add_published(self, rows: Sequence[ObjectRow], now_ms: int) -> None:
        """Record rows that were published."""
        if not rows:
            return
        few = len(rows) // 8
        counts = Counter(row.key.bucket for row in rows)
        batch = _Batch(now_ms, len(rows), {bucket: count for bucket, count in counts.items() if count > few})
        self._recent.append(batch)
        self._recent_rows += batch.rows
        self._recent_counts.update(batch.counts)
        while self._recent_rows - self._recent[0].rows > 2 * self._options.backlog_min:
            oldest = self._recent.popleft()
            self._recent_rows -= oldest.rows
            self._recent_counts -= Counter(oldest.counts)  # leaves out buckets without rows

    def review(self, due: Sequence[ObjectRow], read_due: Callable[[int], Sequence[ObjectRow]] | None) -> None:
        """Spread the bucket that has most of the backlog, and return buckets to their homes. Call it before rows are
        published.

        due: rows that are due. read_due: returns up to a number of due rows, including `due`; None if `due` holds all
        of them. Raises only what `read_due` raises, such as Transient.
        """
        now_ms = self._clock.now_ms()
        if not (due or self._until_ms) or waits(self._review_ms, now_ms, REVIEW_WAIT_MS):
            return
        bucket = self._candidate(_new(due), read_due is not None)
        if bucket is None and not self._until_ms:
            return
        self._review_ms = now_ms + REVIEW_WAIT_MS
        if bucket is not None and read_due is not None:
            due = read_due(min(2 * self._options.backlog_min, DUE_ROWS_MAX))
        try:
            passed = self._passed_until()
        except Transient:
            return  # the backlog is unknown, so no spread changes
        if bucket is not None:
            self._spread_if_large(bucket, _new(due), passed, now_ms)
        self._return_home(_new(due), passed, now_ms)

    def _home(self, bucket: str) -> int:
        return home_partition(bucket, self._partitions)

    # --- deciding ---------------------------------------------------------------------------------
    def _spread(self, bucket: str) -> int:
        spread = self._options.buckets.get(bucket, self._options.default)
        if spread is None:
            return self._partitions if bucket in self._until_ms else 1
        return spread

    def _candidate(self, new: Counter[str], more_are_due: bool) -> str | None:
        """Return the bucket that may have a large backlog, judged without reading the log or more rows."""
        counts = self._recent_counts + new
        bucket, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        may_spread = self._options.buckets.get(bucket, self._options.default) is None
        if not may_spread or bucket in self._until_ms or self._partitions == 1:
            return None
        is_most = 2 * count > self._recent_rows + new.total()
        return bucket if is_most and (more_are_due or count >= self._options.backlog_min) else None

    def _spread_if_large(self, bucket: str, new: Counter[str], passed: Mapping[int, int], now_ms: int) -> None:
        since_ms = passed.get(self._home(bucket), 0)
        waiting = self._waiting(bucket, new, since_ms)
        all_waiting = new.total() + sum(batch.rows for batch in self._recent if batch.published_ms >= since_ms)
        if waiting >= self._options.backlog_min and 2 * waiting > all_waiting:
            self._until_ms[bucket] = now_ms + HOLD_MS
            _log.info(
                "bucket has most of the backlog; spreading its events over all partitions",
                bucket=bucket,
                waiting_min=waiting,
                partitions=self._partitions,
            )

    def _return_home(self, new: Counter[str], passed: Mapping[int, int], now_ms: int) -> None:
        since_ms = passed_everywhere_ms(passed, self._partitions) or 0
        for bucket, until_ms in list(self._until_ms.items()):
            waiting = self._waiting(bucket, new, since_ms)
            if _REST_DIVISOR * waiting >= self._options.backlog_min:
                self._until_ms[bucket] = now_ms + HOLD_MS
            elif not waits(until_ms, now_ms, HOLD_MS):
                del self._until_ms[bucket]
                _log.info("events of the bucket go to its own partition again", bucket=bucket, waiting=waiting)

    def _waiting(self, bucket: str, new: Counter[str], since_ms: int) -> int:
        """Return how many rows of the bucket are due, or were published since `since_ms`."""
        return new[bucket] + sum(b.counts.get(bucket, 0) for b in self._recent if b.published_ms >= since_ms)


def _new(rows: Sequence[ObjectRow]) -> Counter[str]:
    """Count the rows without an event by bucket. The events of the other rows are in the log."""
    return Counter(row.key.bucket for row in rows if row.state is ObjectState.LANDED)

"""Parks items that failed and are tried again later, so that one failing item does not make its loop fail.

A failed item is parked with the reason, the time of its first failure and the time of its next try. The waits between
its tries double up to a maximum. It is logged once when it is parked and once when it has recovered, not at every try.
Packing, GC, recovery, the reaper and the producer use this module; metrics count the parked items
(`nos_ec_parked_items`).

9  a retry queue has a limit; an item that does not fit is left to the scan that finds it again
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, TypeVar

import structlog

from nos_ec.core.errors import NosError
from nos_ec.ports.clock import Clock, waits

_log = structlog.get_logger(__name__)

NAMED_MAX = 20
"""The most parked items that are logged by name. When a whole store fails, the first few are enough."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Exponential back-off: waits double from `first_ms` to `max_ms`, which is never exceeded."""

    first_ms: int
    max_ms: int

    def wait_ms(self, failures: int) -> int:
        """Return how long to wait after this many failures in a row (at least 1)."""
        return min(self.max_ms, self.first_ms << min(failures - 1, 40))


@dataclass(frozen=True, slots=True)
class Parked:
    """Why and since when an item is parked."""

    reason: str
    since_ms: int
    """When it failed first."""
    retry_ms: int
    """When it is tried next."""
    failures: int
    """How often it has failed in a row."""


@dataclass(frozen=True, slots=True)
class RetryFigures:
    """Figures of a retry queue."""

    items: int
    """The number of parked items."""
    oldest_since_ms: int | None
    """The first failure of the item that has failed for the longest time; None if no item is parked."""


T = TypeVar("T", bound=Hashable)


class RetryQueue(Generic[T]):
    """Parked items of one kind. One thread parks and releases; any thread may read `figures` and iterate.

    what: the name of the kind in the log and in the label of the metrics. name: returns an item's name for operators.
    items_max: the most parked items at a time.
    """

    def __init__(self, what: str, name: Callable[[T], str], clock: Clock, back_off: BackOff, items_max: int) -> None:
        self.what = what
        self._name = name
        self._clock = clock
        self._back_off = back_off
        self._items_max = items_max
        self._parked: dict[T, Parked] = {}
        self._named: set[T] = set()
        self._unnamed = 0
        self._heap: list[tuple[int, int, T]] = []
        """(retry_ms, number, item). Entries of items that have since been parked again or released are skipped."""
        self._pushed = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, item: T) -> bool:
        return item in self._parked

    def __iter__(self) -> Iterator[tuple[T, Parked]]:
        """Yields the parked items in the order of their first failures."""
        with self._lock:
            parked = list(self._parked.items())
        return iter(parked)

    def first(self, limit: int) -> list[tuple[str, Parked]]:
        """Return the names of the first `limit` parked items for operators, and why they are parked, in the order of
        their first failures."""
        with self._lock:
            return [(self._name(item), parked) for item, parked in islice(self._parked.items(), limit)]

    def get(self, item: T) -> Parked | None:
        """Return why an item is parked, or None if it is not."""
        return self._parked.get(item)

    def figures(self) -> RetryFigures:
        """Return the figures for metrics."""
        with self._lock:
            return RetryFigures(len(self._parked), min((one.since_ms for one in self._parked.values()), default=None))

    def park(self, item: T, error: NosError) -> bool:
        """Park an item that has failed, or has failed again. An item that is already parked waits twice as long.

        Returns False if it is not parked because the limit is reached.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            before = self._parked.get(item)
            if before is None and len(self._parked) >= self._items_max:
                return False
            failures = 1 if before is None else before.failures + 1
            since_ms = now_ms if before is None else before.since_ms
            parked = Parked(str(error), since_ms, now_ms + self._back_off.wait_ms(failures), failures)
            self._parked[item] = parked
            self._push(parked.retry_ms, item)
        if before is None:
            self._log_parked(item, parked, now_ms)
        return True

    def waits(self, item: T) -> bool:
        """Return whether an item is parked and its next try is not due yet."""
        parked = self._parked.get(item)
        return parked is not None and waits(parked.retry_ms, self._clock.now_ms(), self._back_off.max_ms)

    def due(self, limit: int) -> list[T]:
        """Return at most `limit` items whose next try is due, the longest due first. Each is returned once, and stays
        parked until it is released or parked again."""
        now_ms = self._clock.now_ms()
        found: list[T] = []
        with self._lock:
            while self._heap and len(found) < limit and not waits(self._heap[0][0], now_ms, self._back_off.max_ms):
                retry_ms, _, item = heapq.heappop(self._heap)
                if self._is_next(item, retry_ms):
                    found.append(item)
        return found

    def hasten(self) -> None:
        """Make every item due now, because the cause of their failures is gone. Items that `due` has already returned
        are not affected."""
        now_ms = self._clock.now_ms()
        with self._lock:
            waiting = {item for retry_ms, _, item in self._heap if self._is_next(item, retry_ms)}
            self._heap.clear()
            for item, parked in self._parked.items():
                if item in waiting:
                    self._parked[item] = replace(parked, retry_ms=now_ms)
                    self._push(now_ms, item)

    def failures(self, item: T) -> int:
        """Return how often an item has failed in a row; 0 if it is not parked."""
        parked = self._parked.get(item)
        return 0 if parked is None else parked.failures

    def release(self, item: T) -> None:
        """Release an item that has recovered or needs no more work. Items that are not parked are ignored."""
        with self._lock:
            parked = self._parked.pop(item, None)
            named = item in self._named
            self._named.discard(item)
            if not self._parked:
                self._heap.clear()
                self._unnamed = 0
        if parked is not None and named:
            _log.info(
                f"{self.what} no longer parked",
                item=self._name(item),
                failures=parked.failures,
                parked_s=max(0, self._clock.now_ms() - parked.since_ms) // 1000,
            )

    def _is_next(self, item: T, retry_ms: int) -> bool:
        """Return whether an entry of the heap is still valid."""
        parked = self._parked.get(item)
        return parked is not None and parked.retry_ms == retry_ms

    def _push(self, retry_ms: int, item: T) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (retry_ms, self._pushed, item))

    def _log_parked(self, item: T, parked: Parked, now_ms: int) -> None:
        if len(self._named) < NAMED_MAX:
            self._named.add(item)
            wait_ms = parked.retry_ms - now_ms
            _log.warning(f"{self.what} parked", item=self._name(item), reason=parked.reason, retry_in_ms=wait_ms)
            return
        self._unnamed += 1
        if self._unnamed == 1:
            _log.warning(f"{self.what}: further parked items are not logged; see nos_ec_parked_items", parked=len(self))

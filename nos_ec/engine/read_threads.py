"""Reads sources with threads, and abandons reads that take too long.

When a copy is lost or its placement group is unavailable, the storage answers only after a time limit. A plan does not
wait for such a copy: its read is abandoned, and the copy counts as unread. The thread stays with the read, and another
thread takes over the rest of the plan.

9  at most one read per slot is in progress, plus at most LEFT_MAX abandoned reads
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

R = TypeVar("R")

CALM_S = 1.0
"""How long a read may take before it is abandoned, while all copies seem to answer."""
WARY_S = 0.03
"""The same limit for WARY_FOR_S after an abandoned read has failed, because more such copies are likely."""
WARY_FOR_S = 60.0
MEAN_FACTOR = 16
"""A read is not abandoned before this many times the mean: on a slow store such a read is normal."""
MEAN_WEIGHT = 0.1
"""The weight of the latest plan in the running mean."""
LEFT_MAX = 64
"""The most abandoned reads at a time. When it is reached, plans wait for their reads."""
LEFT_BYTES_MAX = 64 << 20
"""The most bytes that the abandoned reads may return in total."""


class ReadThreads:
    """Slots for reading, shared by all lanes of a process. Decides when a read has taken too long. Thread-safe.

    timer: returns monotonic seconds with an arbitrary origin. calm_s, wary_s: see CALM_S and WARY_S.
    """

    def __init__(self, slots: int, timer: Callable[[], float], calm_s: float = CALM_S, wary_s: float = WARY_S) -> None:
        self.slots = slots
        self._calm_s = calm_s
        self._wary_s = wary_s
        self.timer = timer
        self._free = slots
        self._queued: deque[Callable[[], object]] = deque()
        self._pool = ThreadPoolExecutor(slots + LEFT_MAX, thread_name_prefix="source")
        self._lock = threading.Lock()
        self._mean_s = 0.0
        self._wary_until_s: float | None = None
        self._left = 0
        self._left_bytes = 0

    def close(self) -> None:
        """End the threads after their reads have ended."""
        self._pool.shutdown()

    def patience_s(self) -> float:
        """Return how many seconds a read may take before it is abandoned."""
        with self._lock:
            wary = self._wary_until_s is not None and self.timer() < self._wary_until_s
            return max(self._wary_s if wary else self._calm_s, MEAN_FACTOR * self._mean_s)

    def start(self, work: Callable[[], object]) -> None:
        """Run `work` in a slot as soon as one is free. `work` frees the slot with `end`."""
        with self._lock:
            if not self._free:
                self._queued.append(work)
                return
            self._free -= 1
        self._pool.submit(work)

    def replace(self, work: Callable[[], object]) -> None:
        """Run `work` at once, in the slot of an abandoned read."""
        self._pool.submit(work)

    def end(self) -> None:
        """Free a slot. The work that has waited longest gets it."""
        with self._lock:
            if not self._queued:
                self._free += 1
                return
            work = self._queued.popleft()
        self._pool.submit(work)

    def abandon(self, size: int) -> bool:
        """Count a read of `size` bytes as abandoned. Returns False, and does not count it, if there are too many."""
        with self._lock:
            if self._left >= LEFT_MAX or (self._left and self._left_bytes + size > LEFT_BYTES_MAX):
                return False
            self._left += 1
            self._left_bytes += size
            return True

    def end_abandoned(self, size: int, *, failed: bool) -> None:
        """Count an abandoned read as ended. After a failed one, abandon reads sooner."""
        with self._lock:
            self._left -= 1
            self._left_bytes -= size
            if failed:
                self._wary_until_s = self.timer() + WARY_FOR_S

    def add_times(self, seconds: float, reads: int) -> None:
        """Add the total time of the reads of one plan to the mean, without those that failed or were abandoned."""
        with self._lock:
            mean_s = seconds / reads
            self._mean_s += (mean_s - self._mean_s) * (MEAN_WEIGHT if self._mean_s else 1.0)


class Unit(NamedTuple, Generic[R]):
    """One read."""

    read: Callable[[], tuple[R, bool]]
    """Returns the result and whether the read failed."""
    size: int
    """How many bytes it may return."""
    late: Callable[[float], R] | None
    """Returns the result of a read that was abandoned after this many seconds. None if the plan waits for the read
    however long it takes."""


class _Worker(Generic[R]):
    __slots__ = ("abandoned", "index", "started_s")

    def __init__(self) -> None:
        self.index = -1
        self.started_s = 0.0
        self.abandoned = False


class _Reading(Generic[R]):
    """The reads of one plan."""

    def __init__(self, threads: ReadThreads, units: Sequence[Unit[R]], patient_s: float) -> None:
        self._threads = threads
        self._patient_until_s = threads.timer() + patient_s
        self._units = units
        self._next = deque(range(len(units)))
        self._results: list[R | None] = [None] * len(units)
        self._unfinished = len(units)
        self._workers: set[_Worker[R]] = set()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._seconds = 0.0
        self._reads = 0

    def run(self) -> list[R]:
        """Read all units and return their results. Raises what a unit raised."""
        for _ in range(min(self._threads.slots, len(self._units))):
            self._threads.start(self._work)
        with self._changed:
            while self._unfinished and self._failure is None:
                self._changed.wait(self._until_late_s())
                self._abandon_late()
            results, self._results = self._results, []  # abandoned reads must not keep the plan's bytes in memory
            self._next.clear()
            if self._failure is not None:
                raise self._failure
        if self._reads:
            self._threads.add_times(self._seconds, self._reads)
        return [result for result in results if result is not None]

    def _until_late_s(self) -> float | None:
        """Return the seconds until the longest running read may be abandoned; None if no read may be."""
        started = [w.started_s for w in self._workers if self._units[w.index].late is not None]
        if not started:
            # Reads may begin at any time without notification.
            return self._threads.patience_s() if self._next else None
        late_s = max(min(started) + self._threads.patience_s(), self._patient_until_s)
        return max(0.001, late_s - self._threads.timer())

    def _abandon_late(self) -> None:
        now_s, patience_s = self._threads.timer(), self._threads.patience_s()
        if now_s < self._patient_until_s:
            return
        for worker in list(self._workers):
            unit = self._units[worker.index]
            seconds = now_s - worker.started_s
            if unit.late is None or seconds < patience_s or not self._threads.abandon(unit.size):
                continue
            worker.abandoned = True
            self._workers.discard(worker)
            self._finish(worker.index, unit.late(seconds))
            if self._next:
                self._threads.replace(self._work)
            else:
                self._threads.end()

    def _finish(self, index: int, result: R) -> None:
        if not self._results:
            return  # another read of the plan has raised
        self._results[index] = result
        self._unfinished -= 1
        if not self._unfinished:
            self._changed.notify()

    def _work(self) -> None:
        worker: _Worker[R] = _Worker()
        try:
            self._read_units(worker)
        except BaseException as error:  # a bug, raised in the thread that waits
            with self._changed:
                self._failure = error
                if worker.abandoned:
                    self._threads.end_abandoned(self._units[worker.index].size, failed=True)
                self._changed.notify()
        if not worker.abandoned:
            with self._changed:
                self._workers.discard(worker)
            self._threads.end()

    def _read_units(self, worker: _Worker[R]) -> None:
        timer = self._threads.timer
        with self._changed:
            self._workers.add(worker)
            worker.started_s = timer()
            if not self._take(worker):
                return
        while True:
            unit = self._units[worker.index]
            result, failed = unit.read()
            with self._changed:
                if worker.abandoned:
                    self._threads.end_abandoned(unit.size, failed=failed)
                    return
                now_s = timer()
                if not failed:
                    self._seconds += now_s - worker.started_s
                    self._reads += 1
                worker.started_s = now_s
                self._finish(worker.index, result)
                if not self._take(worker):
                    return

    def _take(self, worker: _Worker[R]) -> bool:
        if not self._next:
            self._workers.discard(worker)
            return False
        worker.index = self._next.popleft()
        return True


def read_all(threads: ReadThreads, units: Sequence[Unit[R]], patient_s: float = 0.0) -> list[R]:
    """Read all units, and return their results in the same order. Raises what a unit raises; a unit must not raise a
    NosError. patient_s: for how many seconds no read is abandoned."""
    return _Reading(threads, units, patient_s).run() if units else []

"""Reads several things in threads, and abandons reads that take too long.

When a copy is lost or its placement group is unavailable, the storage answers only after a time limit. A group of
objects to pack must not wait that long for one of them. So its read is abandoned, which means that the caller gets an
error for it, the thread stays with the read until the storage answers, and another thread takes over the rest of the
batch.

9  at most one read per slot is in progress, plus at most ABANDONED_MAX abandoned reads
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

R = TypeVar("R")

LATE_S = 1.0
"""How long a read may take before it is abandoned, while all copies seem to answer."""
LATE_S_AFTER_FAILURE = 0.03
"""The same limit for FAILURE_COUNTS_FOR_S after an abandoned read has failed, because more such copies are likely."""
FAILURE_COUNTS_FOR_S = 60.0
MEAN_FACTOR = 16
"""No read is abandoned before it has taken this many times the mean, because on a slow store such a read is normal."""
MEAN_WEIGHT = 0.1
"""The weight of the latest batch in the running mean."""
ABANDONED_MAX = 64
"""The most abandoned reads at a time. While there are that many, batches wait for their reads."""
ABANDONED_BYTES_MAX = 64 << 20
"""The most bytes that the abandoned reads may return in total. One abandoned read may always be larger."""
_WAIT_S_MIN = 0.001
"""A read that is late may not be abandoned while there are too many. The caller checks again after this time."""


class ReadThreads:
    """Slots for reading, shared by all lanes of a process. Decides when a read has taken too long. Thread-safe.

    timer: returns monotonic seconds with an arbitrary origin. late_s, late_s_after_failure: see LATE_S and
    LATE_S_AFTER_FAILURE.
    """

    def __init__(
        self,
        slots: int,
        timer: Callable[[], float],
        late_s: float = LATE_S,
        late_s_after_failure: float = LATE_S_AFTER_FAILURE,
    ) -> None:
        self.slots = slots
        self._late_s = late_s
        self._late_s_after_failure = late_s_after_failure
        self.timer = timer
        self._free_slots = slots
        self._queued: deque[Callable[[], object]] = deque()
        self._pool = ThreadPoolExecutor(slots + ABANDONED_MAX, thread_name_prefix="source")
        self._lock = threading.Lock()
        self._mean_s = 0.0
        self._failure_counts_until_s: float | None = None
        self._abandoned = 0
        self._abandoned_bytes = 0

    def close(self) -> None:
        """End the threads after their reads have ended."""
        self._pool.shutdown()

    def late_after_s(self) -> float:
        """Return how many seconds a read may take before it is abandoned."""
        with self._lock:
            failed = self._failure_counts_until_s is not None and self.timer() < self._failure_counts_until_s
            return max(self._late_s_after_failure if failed else self._late_s, MEAN_FACTOR * self._mean_s)

    def start(self, work: Callable[[], object]) -> None:
        """Run `work` in a slot as soon as one is free. `work` calls `free_slot` at its end."""
        with self._lock:
            if not self._free_slots:
                self._queued.append(work)
                return
            self._free_slots -= 1
        self._pool.submit(work)

    def start_in_same_slot(self, work: Callable[[], object]) -> None:
        """Run `work` at once, in the slot of a read that was just abandoned."""
        self._pool.submit(work)

    def free_slot(self) -> None:
        """Free a slot. The work that has waited longest gets it."""
        with self._lock:
            if not self._queued:
                self._free_slots += 1
                return
            work = self._queued.popleft()
        self._pool.submit(work)

    def abandon(self, size: int) -> bool:
        """Count a read of `size` bytes as abandoned. Returns False, and does not count it, if there are too many."""
        with self._lock:
            if self._abandoned >= ABANDONED_MAX or (
                self._abandoned and self._abandoned_bytes + size > ABANDONED_BYTES_MAX
            ):
                return False
            self._abandoned += 1
            self._abandoned_bytes += size
            return True

    def end_abandoned(self, size: int, *, failed: bool) -> None:
        """Stop counting an abandoned read that has ended. If it failed, further reads are abandoned sooner."""
        with self._lock:
            self._abandoned -= 1
            self._abandoned_bytes -= size
            if failed:
                self._failure_counts_until_s = self.timer() + FAILURE_COUNTS_FOR_S

    def add_times(self, seconds: float, reads: int) -> None:
        """Add the reads of one batch to the mean: how many there were, and how long they took in total. Reads that
        failed or were abandoned are left out."""
        with self._lock:
            mean_s = seconds / reads
            self._mean_s += (mean_s - self._mean_s) * (MEAN_WEIGHT if self._mean_s else 1.0)


class TimedRead(NamedTuple, Generic[R]):
    """One read of a batch."""

    read: Callable[[], tuple[R, bool]]
    """Returns the result and whether the read failed. It must not raise a NosError."""
    size: int
    """How many bytes it may return."""
    late_result: Callable[[float], R] | None
    """Returns the result of a read that was abandoned after this many seconds. None if the batch waits for the read
    however long it takes."""


class _Worker(Generic[R]):
    """A thread that reads for a batch, and the read that it is at."""

    __slots__ = ("abandoned", "index", "started_s")

    def __init__(self) -> None:
        self.index = -1
        self.started_s = 0.0
        self.abandoned = False


class _Batch(Generic[R]):
    """The reads that one call of `read_all` waits for. `_changed` is locked for all changes."""

    def __init__(self, threads: ReadThreads, reads: Sequence[TimedRead[R]], grace_s: float) -> None:
        self._threads = threads
        self._grace_until_s = threads.timer() + grace_s
        self._reads = reads
        self._not_started = deque(range(len(reads)))
        self._results: list[R | None] = [None] * len(reads)
        self._unfinished = len(reads)
        self._workers: set[_Worker[R]] = set()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._timed_s = 0.0
        self._timed_reads = 0

    def run(self) -> list[R]:
        """Return the results of all reads. Raises what a read raised."""
        for _ in range(min(self._threads.slots, len(self._reads))):
            self._threads.start(self._work)
        with self._changed:
            while self._unfinished and self._failure is None:
                self._changed.wait(self._until_late_s())
                self._abandon_late_reads()
            results, self._results = self._results, []  # abandoned reads must not keep the results in memory
            self._not_started.clear()
            if self._failure is not None:
                raise self._failure
        if self._timed_reads:
            self._threads.add_times(self._timed_s, self._timed_reads)
        return [result for result in results if result is not None]  # for the type checker: all are set

    def _until_late_s(self) -> float | None:
        """Return the seconds until the longest running read may be abandoned; None if no read may be."""
        started = [w.started_s for w in self._workers if self._reads[w.index].late_result is not None]
        if not started:
            # A worker that starts a read does not notify this thread. Such a read cannot be late before this time.
            return self._threads.late_after_s() if self._not_started else None
        late_s = max(min(started) + self._threads.late_after_s(), self._grace_until_s)
        return max(_WAIT_S_MIN, late_s - self._threads.timer())

    def _abandon_late_reads(self) -> None:
        now_s, late_after_s = self._threads.timer(), self._threads.late_after_s()
        if now_s < self._grace_until_s:
            return
        for worker in list(self._workers):
            read = self._reads[worker.index]
            seconds = now_s - worker.started_s
            if read.late_result is None or seconds < late_after_s or not self._threads.abandon(read.size):
                continue
            worker.abandoned = True
            self._workers.discard(worker)
            self._finish(worker.index, read.late_result(seconds))
            if self._not_started:
                self._threads.start_in_same_slot(self._work)
            else:
                self._threads.free_slot()

    def _finish(self, index: int, result: R) -> None:
        if not self._results:
            return  # another read of the batch has raised
        self._results[index] = result
        self._unfinished -= 1
        if not self._unfinished:
            self._changed.notify()

    def _work(self) -> None:
        """Read until no read of the batch is left, or until the current one is abandoned. Runs in a thread."""
        worker: _Worker[R] = _Worker()
        try:
            self._read_in_turn(worker)
        except BaseException as error:  # a bug, raised in the thread that waits
            with self._changed:
                self._failure = error
                if worker.abandoned:
                    self._threads.end_abandoned(self._reads[worker.index].size, failed=True)
                self._changed.notify()
        if not worker.abandoned:  # otherwise the slot was passed on when the read was abandoned
            with self._changed:
                self._workers.discard(worker)
            self._threads.free_slot()

    def _read_in_turn(self, worker: _Worker[R]) -> None:
        timer = self._threads.timer
        with self._changed:
            self._workers.add(worker)
            worker.started_s = timer()
            if not self._assign_next(worker):
                return
        while True:
            read = self._reads[worker.index]
            result, failed = read.read()
            with self._changed:
                if worker.abandoned:
                    self._threads.end_abandoned(read.size, failed=failed)
                    return
                now_s = timer()
                if not failed:
                    self._timed_s += now_s - worker.started_s
                    self._timed_reads += 1
                worker.started_s = now_s
                self._finish(worker.index, result)
                if not self._assign_next(worker):
                    return

    def _assign_next(self, worker: _Worker[R]) -> bool:
        """Assign the next read to a worker. Returns False, and removes the worker, if all reads have started."""
        if not self._not_started:
            self._workers.discard(worker)
            return False
        worker.index = self._not_started.popleft()
        return True


def read_all(threads: ReadThreads, reads: Sequence[TimedRead[R]], grace_s: float = 0.0) -> list[R]:
    """Carry out all reads, and return their results in the same order. Raises what a read raises. grace_s: for this
    many seconds no read is abandoned."""
    return _Batch(threads, reads, grace_s).run() if reads else []

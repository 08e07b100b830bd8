"""Several stripe writers side by side, each on its own thread.

9  at most one plan per lane is in flight and one more per lane waits; beyond that, `submit` blocks
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from nos_ec.core.histogram import Histogram
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.packable import Packable
from nos_ec.engine.stripe_writer import StripeWriter, WriteResult

WRITE_SECONDS_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Lanes:
    """Feeds plans to writers. One thread submits and collects; the writers run on their own threads.

    `timer` returns monotonic seconds, from any start. `write_seconds` has the write times of the collected groups, by
    the number of stripes in a group; any thread may read it.
    """

    def __init__(self, writers: Sequence[StripeWriter], timer: Callable[[], float]) -> None:
        self._timer = timer
        self._started_s: list[float | None] = [None] * len(writers)
        """For each lane, when it began its current group; each lane's thread sets its own."""
        self.write_seconds: dict[int, Histogram] = {}
        self._plans: queue.Queue[GroupPlan[Packable] | None] = queue.Queue(maxsize=len(writers))
        self._results: queue.SimpleQueue[tuple[WriteResult | BaseException, float]] = queue.SimpleQueue()
        self._pending = 0
        self._threads = [
            threading.Thread(target=self._run, args=(index, writer), name=f"lane-{index}", daemon=True)
            for index, writer in enumerate(writers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Plans submitted whose results have not been collected."""
        return self._pending

    @property
    def count(self) -> int:
        """Number of lanes."""
        return len(self._started_s)

    @property
    def busy(self) -> int:
        """Number of lanes that are writing a group now."""
        return sum(started is not None for started in self._started_s)

    def busy_s_max(self) -> float:
        """Seconds that the slowest lane has been writing its group; 0 when no lane is writing."""
        started = [started for started in self._started_s if started is not None]
        return max(0.0, self._timer() - min(started)) if started else 0.0

    @property
    def full(self) -> bool:
        """True when two plans per lane are pending: `submit` might block, or results should be collected first. Groups
        may fail faster than they are planned, so results that nobody has seen yet count too."""
        return self._pending >= 2 * self.count

    def submit(self, plan: GroupPlan[Packable]) -> None:
        """Hand a plan to the next free lane. Waits until there is room."""
        self._plans.put(plan)
        self._pending += 1

    def collect(self, wait_ms: int) -> list[WriteResult]:
        """The available results. While any plan is pending, waits at most `wait_ms` for the first result.

        Raises what a writer raised (LeaseLost; anything else is a bug).
        """
        results: list[WriteResult] = []
        wait = wait_ms / 1000
        while self._pending:
            try:
                result, seconds = self._results.get(timeout=wait) if wait else self._results.get_nowait()
            except queue.Empty:
                break
            self._pending -= 1
            wait = 0
            if isinstance(result, BaseException):
                raise result
            if result.stripe_count:
                self.write_seconds.setdefault(result.stripe_count, Histogram(WRITE_SECONDS_BOUNDS)).add(seconds)
            results.append(result)
        return results

    def close(self) -> list[WriteResult]:
        """Let the plans in flight finish, seal the writers' blocks and end the threads. Returns the last results."""
        for _ in self._threads:
            self._plans.put(None)
        for thread in self._threads:
            thread.join()
        return self.collect(wait_ms=0)

    def _run(self, index: int, writer: StripeWriter) -> None:
        while (plan := self._plans.get()) is not None:
            started_s = self._started_s[index] = self._timer()
            try:
                result: WriteResult | BaseException = writer.write(plan)
            except BaseException as error:
                result = error
            self._started_s[index] = None
            self._results.put((result, self._timer() - started_s))
        writer.close()

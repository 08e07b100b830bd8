"""Several stripe writers side by side, each on a thread of its own.

9  at most one plan per lane is in flight and one more per lane waits: submit blocks beyond that
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from nos_ec.core.plan import GroupPlan
from nos_ec.engine.stripe_writer import StripeWriter, WriteResult


class Lanes:
    """Feeds plans to writers. One thread submits and collects; the writers run on theirs."""

    def __init__(self, writers: Sequence[StripeWriter]) -> None:
        self._plans: queue.Queue[GroupPlan | None] = queue.Queue(maxsize=len(writers))
        self._results: queue.SimpleQueue[WriteResult | BaseException] = queue.SimpleQueue()
        self._pending = 0
        self._threads = [
            threading.Thread(target=self._run, args=(writer,), name=f"lane-{index}", daemon=True)
            for index, writer in enumerate(writers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Plans submitted whose results have not been collected."""
        return self._pending

    @property
    def full(self) -> bool:
        """True when a further `submit` might block."""
        return self._plans.full()

    def submit(self, plan: GroupPlan) -> None:
        """Hand a plan to the next free lane; waits for room."""
        self._plans.put(plan)
        self._pending += 1

    def collect(self, wait_ms: int) -> list[WriteResult]:
        """Results that are there, after waiting at most `wait_ms` for the first while any plan is pending.

        Raises what a writer raised (LeaseLost; anything else is a bug).
        """
        results: list[WriteResult] = []
        wait = wait_ms / 1000
        while self._pending:
            try:
                result = self._results.get(timeout=wait) if wait else self._results.get_nowait()
            except queue.Empty:
                break
            self._pending -= 1
            wait = 0
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def close(self) -> list[WriteResult]:
        """Let the plans in flight finish, seal the writers' blocks, end the threads; returns the last results."""
        for _ in self._threads:
            self._plans.put(None)
        for thread in self._threads:
            thread.join()
        return self.collect(wait_ms=0)

    def _run(self, writer: StripeWriter) -> None:
        while (plan := self._plans.get()) is not None:
            try:
                self._results.put(writer.write(plan))
            except BaseException as error:
                self._results.put(error)
        writer.close()

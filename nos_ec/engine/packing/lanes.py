"""Runs several stripe writers at a time, each on its own thread.

Groups are planned in an order in which neighbours belong together (core/packing/streams.py). So a lane gets a run of
consecutive groups of a stream, as many as fill a block, while another lane gets the next run. Otherwise they would be
spread over as many blocks as there are lanes. An idle lane takes a group from the end of the longest run that waits for
another lane. Groups that wait for one that takes LATE_S are taken first.

After a group that could not be written, no lane begins another until the failure was collected and acted upon.

A plan counts by its windows: the writer writes a group of at most `stripes_per_group_max` stripes at once, and a longer
one in windows of that size.

9  plans of at most PLANS_MAX windows are pending, or AHEAD_MIN for each lane; beyond that, `full` is true
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nos_ec.core.geometry import Geometry
from nos_ec.core.histogram import Histogram
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriteResult

WRITE_SECONDS_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
AHEAD_MIN = 2
"""The least number of pending plans for each lane: the one that it writes, and one that waits, so that it is never
idle."""
PLANS_MAX = 64
"""Plans that are pending for all lanes together, unless AHEAD_MIN for each are more. A plan lists its objects, at most
as many as the window of the merge list: about a megabyte. A plan counts once for each of its windows."""
LATE_S = 5.0
"""A group that takes this long for each of its windows waits for a store that hangs. The next ones of its run need not
wait for it."""

Plan = GroupPlan[Packable]


@dataclass(slots=True)
class _Run:
    """A run of groups from one stream; `stripes` are not planned yet."""

    lane: int
    stripes: int


class _Ended(NamedTuple):
    """A group that a lane has tried to write, the round in which it began, and the number of its windows."""

    result: WriteResult | BaseException
    seconds: float
    round: int
    windows: int


class Lanes:
    """Feeds plans to writers. One thread submits, collects and withdraws; the writers run on their own threads.

    `timer` returns monotonic seconds, from any start. `geometry` describes the blocks. `write_seconds` has the write
    times of the collected groups, by the number of stripes in a group; any thread may read it.
    """

    def __init__(self, writers: Sequence[StripeWriter], timer: Callable[[], float], geometry: Geometry) -> None:
        self._timer = timer
        self._run_stripes = geometry.stripes_per_block
        self._geometry = geometry
        run_windows = geometry.stripes_per_block // geometry.stripes_per_group_max if len(writers) > 1 else 0
        self._ahead = max(AHEAD_MIN, min(run_windows, PLANS_MAX // len(writers)))
        """Windows that may be pending for each lane before `full` is true: as many as fill a block, because a run is
        cut short when more wait. A single lane keeps the order anyway."""
        self._writing = [0] * len(writers)
        """For each lane, the windows of its current group; 0 while it has none."""
        self._started_s: list[float | None] = [None] * len(writers)
        """For each lane, when it began its current group; each lane's thread sets its own."""
        self.write_seconds: dict[int, Histogram] = {}
        self._changed = threading.Condition()
        self._waiting = [deque[Plan]() for _ in writers]
        """The waiting plans of each lane."""
        self._runs: dict[int, _Run] = {}
        self._writing_max = len(writers)
        self._closing = False
        self._failures = 0
        """Groups that could not be written and were not acted upon yet."""
        self._failures_collected = 0
        """How many of them the last `collect` returned."""
        self.failures_in_row = 0
        """Failures that were collected since a group was written. Groups that fail together count once."""
        self._round = 0
        """Grows whenever lanes resume after a failure."""
        self._failed_round = -1
        """The last round in which a group failed."""
        self._rounds = [0] * len(writers)
        """For each lane, the round in which it began its current group."""
        self._results: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._pending = 0
        self._windows_pending = 0
        self._threads = [
            threading.Thread(target=self._work, args=(index, writer), name=f"lane-{index}", daemon=True)
            for index, writer in enumerate(writers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Return the number of plans submitted whose results have not been collected."""
        return self._pending

    @property
    def count(self) -> int:
        """Return the number of lanes."""
        return len(self._started_s)

    @property
    def busy(self) -> int:
        """Return the number of lanes that are writing a group now."""
        return sum(started is not None for started in self._started_s)

    def busy_s_max(self) -> float:
        """Return for how many seconds the slowest lane has been writing its group; 0 if no lane is writing."""
        started = [started for started in self._started_s if started is not None]
        return max(0.0, self._timer() - min(started)) if started else 0.0

    @property
    def full(self) -> bool:
        """Return whether enough plans are pending, so that results should be collected first. Groups may fail faster
        than they are planned, so results that were not collected yet count too."""
        if self._pending < AHEAD_MIN * self._writing_max:
            return False
        return self._windows_pending >= self._ahead * self._writing_max

    def limit(self, lanes: int) -> None:
        """Allow at most this many lanes, at least one, to begin a group from now on."""
        lanes = max(1, min(lanes, self.count))
        if lanes != self._writing_max:
            with self._changed:
                self._writing_max = lanes
                self._changed.notify_all()

    def submit(self, plan: Plan) -> None:
        """Add a plan to the run of its stream, or begin another run with it."""
        self._pending += 1
        self._windows_pending += self._windows(plan)
        with self._changed:
            self._waiting[self._lane_for(plan)].append(plan)
            self._changed.notify_all()

    def withdraw(self) -> list[Plan]:
        """Take back the plans that no lane has begun."""
        with self._changed:
            plans: list[Plan] = []
            for waiting in self._waiting:
                plans += waiting
                waiting.clear()
        self._pending -= len(plans)
        self._windows_pending -= sum(map(self._windows, plans))
        return plans

    def collect(self, wait_ms: int) -> list[WriteResult]:
        """Return the available results. While any plan is pending, wait at most `wait_ms` for the first result.

        Lanes that rest after a failure resume if the previous call has returned it. Raise what a writer raised
        (LeaseLost; anything else is a bug).
        """
        self._resume()
        results: list[WriteResult] = []
        wait = wait_ms / 1000
        while self._pending:
            try:
                ended = self._results.get(timeout=wait) if wait else self._results.get_nowait()
            except queue.Empty:
                break
            self._pending -= 1
            self._windows_pending -= ended.windows
            wait = 0
            self._note_failure(ended)
            result = ended.result
            if isinstance(result, BaseException):
                raise result
            if result.stripe_count:
                self.write_seconds.setdefault(result.stripe_count, Histogram(WRITE_SECONDS_BOUNDS)).add(ended.seconds)
            results.append(result)
        return results

    def close(self) -> list[WriteResult]:
        """Let the groups under way end, seal the writers' blocks and end the threads. Return the last results. Plans
        that no lane has begun are dropped."""
        self.withdraw()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        return self.collect(wait_ms=0)

    def _resume(self) -> None:
        if self._failures_collected:
            with self._changed:
                self._failures -= self._failures_collected
                self._round += 1
                self._changed.notify_all()
            self._failures_collected = 0

    def _note_failure(self, ended: _Ended) -> None:
        if not _failed(ended.result):
            self.failures_in_row = 0
            return
        self._failures_collected += 1
        if ended.round > self._failed_round:
            self._failed_round = self._round
            self.failures_in_row += 1

    def _lane_for(self, plan: Plan) -> int:
        run = self._runs.get(plan.stream)
        if run is None or run.stripes < plan.stripe_count or len(self._waiting[run.lane]) >= self._ahead:
            lane = min(range(self.count), key=self._load)
            run = self._runs[plan.stream] = _Run(lane, max(self._run_stripes, plan.stripe_count))
        run.stripes -= plan.stripe_count
        return run.lane

    def _load(self, lane: int) -> int:
        return sum(map(self._windows, self._waiting[lane])) + self._writing[lane]

    def _windows(self, plan: Plan) -> int:
        return max(1, self._geometry.windows_for(plan.stripe_count))

    # --- the threads of the lanes -----------------------------------------------------------------
    def _work(self, index: int, writer: StripeWriter) -> None:
        while (plan := self._next(index)) is not None:
            try:
                result: WriteResult | BaseException = writer.write(plan)
            except BaseException as error:
                result = error
            self._end(index, result)
        writer.close()

    def _next(self, index: int) -> Plan | None:
        """Return the next plan of a lane, or one that waits for another lane. Return None when the lanes close."""
        with self._changed:
            while not self._closing:
                if self.busy < self._writing_max and not self._failures:
                    plan = self._take(index)
                    if plan is not None:
                        self._started_s[index] = self._timer()
                        self._writing[index] = self._windows(plan)
                        self._rounds[index] = self._round
                        self._changed.notify_all()  # another lane may take the plans that wait for it
                        return plan
                self._changed.wait()
        return None

    def _take(self, index: int) -> Plan | None:
        now_s = self._timer()
        for started_s, windows, waiting in zip(self._started_s, self._writing, self._waiting, strict=True):
            if waiting and started_s is not None and started_s + LATE_S * windows <= now_s:
                return waiting.popleft()
        if self._waiting[index]:
            return self._waiting[index].popleft()
        others = [
            waiting for lane, waiting in enumerate(self._waiting) if waiting and self._started_s[lane] is not None
        ]
        return max(others, key=len).pop() if others else None

    def _end(self, index: int, result: WriteResult | BaseException) -> None:
        with self._changed:
            started_s, self._started_s[index] = self._started_s[index], None
            windows, self._writing[index] = self._writing[index], 0
            self._failures += _failed(result)
            self._changed.notify_all()
        assert started_s is not None
        self._results.put(_Ended(result, self._timer() - started_s, self._rounds[index], windows))


def _failed(result: WriteResult | BaseException) -> bool:
    return isinstance(result, BaseException) or result.cause is not None

"""Writers in full flow, and what a fault in the middle costs: the rate before, the silence, the rate after.

Each group is one stripe with two small objects, so that the figures are those of appends and commits.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.merge_list import BestFitMergeList
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.core.states import BlockKind
from nos_ec.engine.packable import Packable

OBJECTS_PER_GROUP = 2
OBJECT_BYTES_MAX = 3000
LEASE_TTL_MS = 600_000
PUTS_PER_BATCH = 500


@dataclass(slots=True)
class Flow:
    """What has happened so far. `commits` are times in seconds of the monotonic clock; `given_back` counts groups."""

    commits: list[float] = field(default_factory=list)
    given_back: int = 0
    failures: list[BaseException] = field(default_factory=list)

    def silence_s(self, begin: float, end: float) -> float:
        """The longest time between two commits in [begin, end]."""
        times = [begin, *sorted(at for at in self.commits if begin <= at <= end), end]
        return max(later - earlier for earlier, later in pairwise(times))

    def rate(self, begin: float, end: float) -> float:
        """Groups committed a second in [begin, end]."""
        return sum(begin <= at <= end for at in self.commits) / (end - begin)


@dataclass(frozen=True, slots=True)
class Work:
    """Objects that were put, and the plans of groups of them."""

    data: dict[ObjectKey, bytes]
    plans: list[GroupPlan[Packable]]


def prepare(system: System, groups: int, seed: int = 1) -> Work:
    """PUT the objects of this many groups, and plan the groups."""
    data = _put(system, groups * OBJECTS_PER_GROUP, random.Random(seed))
    return Work(data, _plans(system, list(data)))


class WriteFlow:
    """Some lanes, each on a thread, that write prepared groups as fast as they can until `stop`."""

    def __init__(self, system: System, work: Work, lanes: int) -> None:
        self._system = system
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._plans = list(work.plans)
        self.flow = Flow()
        self._threads = [threading.Thread(target=self._run, args=(f"lane-{lane}",)) for lane in range(lanes)]

    def start(self) -> None:
        """Begin to write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the groups in flight. Raises the error of a lane; AssertionError when a lane ran out of work."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for failure in self.flow.failures:
            raise failure
        assert self._plans, "all groups were written before the end; prepare more"

    def _run(self, name: str) -> None:
        metadata = self._system.metadata
        try:
            lease = metadata.acquire_lease(name, self._system.clock.now_ms(), LEASE_TTL_MS)
            writer = self._system.worker.writer(lease, BlockKind.FRESH)
            while not self._stop.is_set() and (plan := self._next()) is not None:
                result = writer.write(plan)
                with self._lock:
                    if result.packed:
                        self.flow.commits.append(time.monotonic())
                    if result.retry or result.unread:
                        self.flow.given_back += 1
                        self._plans.append(plan)
            writer.close()
            metadata.release_lease(lease)
        except BaseException as failure:
            self.flow.failures.append(failure)

    def _next(self) -> GroupPlan[Packable] | None:
        with self._lock:
            return self._plans.pop() if self._plans else None


def _put(system: System, count: int, rng: random.Random) -> dict[ObjectKey, bytes]:
    data = {
        ObjectKey("flow", f"{number:06}"): rng.randbytes(rng.randint(1, OBJECT_BYTES_MAX)) for number in range(count)
    }
    pairs = list(data.items())
    for first in range(0, count, PUTS_PER_BATCH):
        system.client.store().put_many(pairs[first : first + PUTS_PER_BATCH])
    return data


def _plans(system: System, keys: list[ObjectKey]) -> list[GroupPlan[Packable]]:
    plans = []
    for first in range(0, len(keys), OBJECTS_PER_GROUP):
        merge_list = BestFitMergeList[Packable](system.geometry, 1000, 0)
        for key in keys[first : first + OBJECTS_PER_GROUP]:
            row = system.client.store().head(key)
            assert row.landing_id is not None
            packable = Packable(row.object_id, key, row.version, row.size, row.crc32c, row.landing_id)
            merge_list.add(packable.candidate(0))
        plan = merge_list.plan(0, flush=True)
        assert plan is not None
        assert plan.stripe_count == 1
        plans.append(plan)
    return plans

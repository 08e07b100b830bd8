"""`bench pipeline`: packing against its floor and against naive writes, on the configured Ceph, Kafka and MySQL.

One run consists of rounds of (floor, ours, naive), one after the other, so that other load on the machine affects all
three. Ratios are medians over the rounds. A first round warms up connections, caches and the servers' pools, and does
not count. In a round, every way stores objects of the same sizes.

Not timed are: the preparation of the landing copies (one set for the floor and another for ours, so that neither warms
the other's caches) and of the rows and events of ours; the sealing of the last blocks; and the deletion of the landing
copies by the reaper after each round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nos_ec.bench.bare import BareGroup, Floor, put_all, remove_all
from nos_ec.bench.figures import Run, ratio, summary
from nos_ec.bench.groups import group_latencies
from nos_ec.bench.landing import Objects, key_of
from nos_ec.bench.meter import Instruments, Meter
from nos_ec.bench.offline import measured_pack, publish, reap
from nos_ec.composition.packing import BACKLOG_WINDOWS, new_merge_list
from nos_ec.composition.wiring import System
from nos_ec.core.geometry import Geometry
from nos_ec.core.header import name_record_size
from nos_ec.core.packing.packer import size_max
from nos_ec.core.packing.plan import Candidate, MergeList
from nos_ec.core.workloads import sizes
from nos_ec.settings.sections import ConsumerSettings

CLEANUP_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """objects: number per way and round. rounds: those that count. groups: how many are timed per number of stripes.
    naive_pool: pool for the naive writes; None skips them."""

    workload: str
    objects: int
    rounds: int
    groups: int
    seed: int
    naive_pool: str | None


Tick = Callable[[str, int, int], None]
"""Progress: (what, done, total)."""
T = TypeVar("T")


class PipelineBench:
    """One run over an empty store. The store is not cleaned up, because it is removed as a whole."""

    def __init__(
        self,
        system: System,
        instruments: Instruments,
        options: PipelineOptions,
        tick: Tick,
    ) -> None:
        self._system = system
        self._instruments = instruments
        self._options = options
        self._tick = tick
        self._rng = random.Random(options.seed)
        self._objects = Objects(system, self._rng)
        self._housekeeping = system.housekeeping()
        self._runs: Mapping[str, Sequence[Run]] = {}

    def run(self) -> dict[str, Any]:
        """Run all rounds; returns the figures (docs/BENCH.md explains them). Raises NosError."""
        ceph = self._system.settings.ceph
        pools = [ceph.landing_pool, ceph.blocks_pool]
        if self._options.naive_pool is not None:
            pools.append(self._options.naive_pool)
        with self._instruments.cluster.bare_pools(ceph.namespace, *pools) as handles:
            self._runs = warmed_up(lambda: self._round(handles), self._options.rounds, self._tick)
        reap(self._system, self._housekeeping)
        self._tick("groups", 0, 1)
        latencies = group_latencies(
            self._system, self._objects, self._options.groups, self._rng, self._instruments.timer
        )
        reap(self._system, self._housekeeping)
        return self._report() | {"group_write_ms": latencies}

    def _report(self) -> dict[str, Any]:
        consumer = self._system.settings.consumer
        found: dict[str, Any] = {
            "workload": self._options.workload,
            "objects": self._options.objects,
            "rounds": self._options.rounds,
            "seed": self._options.seed,
            "lanes": consumer.lanes,
            "read_threads": consumer.read_threads,
        }
        found |= {name: summary(runs) for name, runs in self._runs.items()}
        found["ours_over_floor"] = ratio(self._runs["ours"], self._runs["floor"])
        if "naive" in self._runs:
            found["ours_over_naive"] = ratio(self._runs["ours"], self._runs["naive"])
        return found

    def _round(self, handles: Sequence[Any]) -> dict[str, Run]:
        """Run each way once, with objects of the same sizes. handles: the pools of landing copies, blocks and naive
        writes."""
        drawn = list(sizes(self._options.workload, self._options.objects, self._rng, size_max(self._system.geometry)))
        runs = {"floor": self._floor(handles[0], handles[1], drawn), "ours": self._ours(drawn)}
        if self._options.naive_pool is not None:
            runs["naive"] = self._naive(handles[2], drawn)
        return runs

    # --- the three ways -------------------------------------------------------------------------------
    def _floor(self, landing: Any, blocks: Any, drawn: Sequence[int]) -> Run:
        consumer = self._system.settings.consumer
        geometry = self._system.geometry
        names = [f"bare-{self._objects.number()}" for _ in drawn]
        put_all(landing, names, self._objects.pieces(drawn), consumer.read_threads)
        groups = planned(geometry, consumer, list(zip(names, drawn, strict=True)))
        floor = Floor(landing, blocks, consumer.lanes, consumer.read_threads)
        meter = Meter(self._instruments, drawn)
        with meter:
            floor.run(groups, geometry.stripe_size, geometry.stripes_per_block, f"bare-{self._objects.number()}")
        remove_all(landing, names, CLEANUP_IN_FLIGHT)
        remove_all(blocks, floor.block_names, CLEANUP_IN_FLIGHT)
        return meter.run

    def _ours(self, drawn: Sequence[int]) -> Run:
        self._objects.land(drawn)
        publish(self._system)
        run = measured_pack(self._system, self._instruments, drawn)
        reap(self._system, self._housekeeping)
        return run

    def _naive(self, pool: Any, drawn: Sequence[int]) -> Run:
        names = [f"naive-{self._objects.number()}" for _ in drawn]
        meter = Meter(self._instruments, drawn)
        with meter:
            put_all(pool, names, self._objects.pieces(drawn), self._system.settings.consumer.read_threads)
        remove_all(pool, names, CLEANUP_IN_FLIGHT)
        return meter.run


def warmed_up(one_round: Callable[[], Mapping[str, T]], rounds: int, tick: Tick) -> dict[str, list[T]]:
    """Return what was measured of each way in `rounds` rounds. An additional first round is discarded."""
    measured = []
    for number in range(1 + rounds):
        tick("rounds", number, 1 + rounds)
        measured.append(one_round())
    return {way: [runs[way] for runs in measured[1:]] for way in measured[0]}


def planned(geometry: Geometry, consumer: ConsumerSettings, copies: Sequence[tuple[str, int]]) -> list[BareGroup]:
    """Return the groups that the consumer would pack these copies (name, size in bytes) into if they arrived in this
    order."""
    packer: MergeList[int] = new_merge_list(consumer, geometry, consumer.linger_ms, random.Random(1))
    name_size = name_record_size(key_of(0).bucket, key_of(0).name)
    groups: list[BareGroup] = []

    def take(flush: bool) -> None:
        while (plan := packer.plan(0, flush=flush)) is not None:
            placed = [copies[one.candidate.payload] for one in plan.placed]
            groups.append(BareGroup(placed, plan.stripe_count))

    for index, (_, size) in enumerate(copies):
        packer.add(Candidate(size, name_size, index, 0))
        if len(packer) >= BACKLOG_WINDOWS * consumer.window_objects:
            take(flush=False)
    take(flush=True)
    return groups

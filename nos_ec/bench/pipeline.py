"""`bench pipeline` compares packing with its floor and with naive writes, on the configured Ceph, Kafka and MySQL.

One run consists of rounds of (floor, ours, naive), one after the other, so that other load on the machine affects all
three. Ratios are medians over the rounds. A first round warms up connections, caches and the servers' pools, and does
not count. In a round, every way stores objects of the same sizes.

Not timed are: the PUTs of the objects (one set for the floor, into a store of its own, and another for ours, so that
neither warms the other's caches) and the events of ours; the sealing of the last blocks; and the deletion of the
landing copies by the reaper after each round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nos_ec.adapters.rados.client.named_objects import object_name
from nos_ec.bench.bare import BareGroup, BareWindow, Floor, put_all, remove_all
from nos_ec.bench.figures import Run, ratio, summary
from nos_ec.bench.meter import Instruments, Meter
from nos_ec.bench.objects import Objects, key_of
from nos_ec.bench.offline import measured_pack, publish, reap
from nos_ec.bench.upkeep import LifetimesUpkeep
from nos_ec.bench.workloads import sizes
from nos_ec.composition.packing import BACKLOG_WINDOWS, new_merge_list
from nos_ec.composition.wiring import System
from nos_ec.core.formats.header import name_record_size
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import LandingId, SegmentId, in_log, record_offset, segment_of
from nos_ec.core.packing.packer import size_max
from nos_ec.core.packing.plan import Candidate, GroupPlan, MergeList
from nos_ec.core.range_coalescing import Range, merged_ranges
from nos_ec.engine.landing.log_reader import GAP_BYTES_MAX
from nos_ec.settings.sections import ConsumerSettings

CLEANUP_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of `bench pipeline`. `drawn` is the name of a workload, or the size of every object in bytes. `landing`
    is where the objects of the floor and of ours land, "store" or "log". `objects` is the number per way and round;
    `rounds` does not include the warm-up. `naive_pool` is the pool for the naive writes; None skips them."""

    drawn: str | int
    landing: str
    objects: int
    rounds: int
    seed: int
    naive_pool: str | None


Tick = Callable[[str, int, int], None]
"""Reports progress, as (what, done, total)."""
T = TypeVar("T")

Copy = tuple[LandingId, int]
"""A landed copy and its size in bytes."""


class PipelineBench:
    """A run on two empty stores with the same settings: `system` packs, and the objects of the floor land in
    `floor_system`. They are not cleaned up, because they are removed entirely."""

    def __init__(
        self,
        system: System,
        floor_system: System,
        instruments: Instruments,
        options: PipelineOptions,
        tick: Tick,
    ) -> None:
        self._system = system
        self._floor_system = floor_system
        self._instruments = instruments
        self._options = options
        self._tick = tick
        self._rng = random.Random(options.seed)
        self._objects = Objects(system, self._rng)
        self._housekeeping = system.worker.housekeeping()
        self._floor_objects = Objects(floor_system, self._rng)
        self._floor_housekeeping = floor_system.worker.housekeeping()
        self._runs: Mapping[str, Sequence[Run]] = {}

    def run(self) -> dict[str, Any]:
        """Run all rounds, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        ceph = self._floor_system.settings.ceph
        pools = [ceph.landing_pool, ceph.blocks_pool]
        if self._options.naive_pool is not None:
            pools.append(self._options.naive_pool)
        with self._instruments.cluster.bare_pools(ceph.namespace, *pools) as handles:
            self._runs = warmed_up(lambda: self._round(handles), self._options.rounds, self._tick)
        reap(self._system, self._housekeeping)
        report = self._report()
        self._tick("lifetimes", 0, 1)
        ours = report["ours"]
        upkeep = LifetimesUpkeep(self._system, self._instruments)
        return report | {"lifetimes": upkeep.figures(ours["objects_per_s"], ours["cpu_ms_per_object"]["client"])}

    def _report(self) -> dict[str, Any]:
        consumer, drawn = self._system.settings.consumer, self._options.drawn
        found: dict[str, Any] = {
            "workload": drawn if isinstance(drawn, str) else None,
            "size": drawn if isinstance(drawn, int) else None,
            "landing": self._options.landing,
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
        """Run each way once, with objects of the same sizes. `handles` are the pools of landing copies, blocks and
        naive writes, in the namespace of the floor's store."""
        drawn = list(sizes(self._options.drawn, self._options.objects, self._rng, size_max(self._system.geometry)))
        runs = {"floor": self._floor(handles[0], handles[1], drawn), "ours": self._ours(drawn)}
        if self._options.naive_pool is not None:
            runs["naive"] = self._naive(handles[2], drawn)
        return runs

    # --- the three ways -------------------------------------------------------------------------------
    def _floor(self, landing: Any, blocks: Any, drawn: Sequence[int]) -> Run:
        consumer = self._system.settings.consumer
        geometry = self._system.geometry
        rows = self._floor_objects.land(drawn)
        copies = [(row.landing_id, row.size) for row in rows if row.landing_id is not None]
        groups = planned(geometry, consumer, copies)
        floor = Floor(landing, blocks, consumer.lanes, consumer.read_threads)
        meter = Meter(self._instruments, drawn)
        with meter:
            floor.run(groups, geometry.stripe_size, geometry.stripes_per_block, f"bare-{self._objects.next_number()}")
        remove_all(blocks, floor.block_names, CLEANUP_IN_FLIGHT)
        self._floor_system.client.store().delete_many([row.key for row in rows], permanently=True)
        reap(self._floor_system, self._floor_housekeeping)
        return meter.run

    def _ours(self, drawn: Sequence[int]) -> Run:
        self._objects.land(drawn)
        publish(self._system)
        run = measured_pack(self._system, self._instruments, drawn)
        reap(self._system, self._housekeeping)
        return run

    def _naive(self, pool: Any, drawn: Sequence[int]) -> Run:
        names = [f"naive-{self._objects.next_number()}" for _ in drawn]
        meter = Meter(self._instruments, drawn)
        with meter:
            put_all(pool, names, self._objects.pieces(drawn), self._system.settings.consumer.read_threads)
        remove_all(pool, names, CLEANUP_IN_FLIGHT)
        return meter.run


def warmed_up(one_round: Callable[[], Mapping[str, T]], rounds: int, tick: Tick) -> dict[str, list[T]]:
    """Return the measurements of each way in `rounds` rounds. An additional first round is discarded."""
    measured = []
    for number in range(1 + rounds):
        tick("rounds", number, 1 + rounds)
        measured.append(one_round())
    return {way: [runs[way] for runs in measured[1:]] for way in measured[0]}


def planned(geometry: Geometry, consumer: ConsumerSettings, copies: Sequence[Copy]) -> list[BareGroup]:
    """Return the groups into which the consumer would pack these copies if they arrived in this order, divided into the
    windows in which it would write them."""
    packer: MergeList[int] = new_merge_list(consumer, geometry, consumer.linger_ms, random.Random(1))
    name_size = name_record_size(key_of(0).bucket, key_of(0).name)
    groups: list[BareGroup] = []

    def take(flush: bool) -> None:
        while (plan := packer.plan(0, flush=flush)) is not None:
            groups.append(_in_windows(geometry, plan, copies))

    for index, (_, size) in enumerate(copies):
        packer.add(Candidate(size, name_size, index, 0))
        if len(packer) >= BACKLOG_WINDOWS * consumer.window_objects:
            take(flush=False)
    take(flush=True)
    return groups


def _in_windows(geometry: Geometry, plan: GroupPlan[int], copies: Sequence[Copy]) -> BareGroup:
    """Divide a group into windows. An object is read for the window in which it begins."""
    reads: list[list[Copy]] = [[] for _ in range(geometry.windows_for(plan.stripe_count))]
    for one in plan.placed:
        reads[one.offset // geometry.group_size_max].append(copies[one.candidate.payload])
    stripes = range(plan.stripe_count, 0, -geometry.stripes_per_group_max)
    return [
        BareWindow(bare_reads(of_window), min(left, geometry.stripes_per_group_max))
        for of_window, left in zip(reads, stripes, strict=True)
    ]


def bare_reads(copies: Sequence[Copy]) -> list[tuple[str, int, int]]:
    """Return the operations that read these copies, as (name of a RADOS object, offset, length): one for each separate
    copy, and one for each run of records of the landing log, as a consumer reads them."""
    reads: list[tuple[str, int, int]] = []
    records: dict[SegmentId, list[Range]] = {}
    for landing_id, size in copies:
        if in_log(landing_id):
            place = record_offset(landing_id), RECORD_HEADER_SIZE + size
            records.setdefault(segment_of(landing_id), []).append(place)
        else:
            reads.append((object_name("landing copy", landing_id), 0, size))
    for segment, places in records.items():
        name = object_name("segment", segment)
        reads += [(name, run.offset, run.length) for run in merged_ranges(places, GAP_BYTES_MAX)]
    return reads

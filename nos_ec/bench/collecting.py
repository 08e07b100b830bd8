"""`bench gc` measures how fast GC moves live bytes, how much it reads to decide, and how it slows down GETs.

ours     one run of GC over blocks of which about half is dead: choosing, headers, rows, live bytes, new groups, reading
         them back, commits, condemned blocks. Without deleting blocks, which waits for a grace period anyway.
floor    reads of the same live bytes, block by block, and creations and appends of as many stripes, through the block
         store alone, with as many reads and groups at a time. No rows, headers, checksums or reading back; it writes
         constant bytes.
safe     the floor, but each group is read back as well, as GC must do because it moves the last copy.
same_io  the same, but each group reads the objects that GC has put into it. GC packs objects of a bucket together
         (docs/adr/0033), so it finds few of them side by side.

All ways read blocks that were just written. The floors run after GC, so that caches favour the floors. GETs are timed
without GC, and while GC runs in a separate process as it is configured and deployed: with rests, and with the priority
of its systemd unit.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from statistics import median
from typing import Any

from nos_consumer.assemble import drain
from nos_ec.bench.figures import cpu_ms_per, latency_ms
from nos_ec.bench.meter import Instruments, spent_s
from nos_ec.bench.objects import Objects
from nos_ec.bench.offline import publish
from nos_ec.bench.pipeline import Tick, warmed_up
from nos_ec.bench.workloads import sizes
from nos_ec.composition.packing import collector_options
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.packing.packer import size_max
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.gc.workers import LEASE_NAME
from nos_ec.ports.metadata import Placed
from nos_ec.settings import Settings
from nos_gc.assemble import gc_collector, gc_service

WORKLOAD = "W1"
HOLE_RATIO_MIN = 0.25
KEPT_OF = 2
"""Every other object is deleted."""
GRACE_MS = 3_600_000
EXTENTS_PER_READ = 32
"""GC reads this many extents of a block at once."""
CHILD_S_MAX = 3600.0
GC_NICE = 10
"""The priority that deploy/ gives GC."""


@dataclass(frozen=True, slots=True)
class CollectingOptions:
    """Options of `bench gc`. `objects` are packed in each round, `rounds` does not include the warm-up. `reads` GETs
    are timed without GC; with GC, GETs are timed while it runs."""

    objects: int
    rounds: int
    reads: int
    seed: int


@dataclass(frozen=True, slots=True)
class Moved:
    """The bytes that one way moved, the time that it took, and the CPU seconds of each group of processes; None for a
    group on another machine."""

    live_bytes: int
    seconds: float
    cpu_s: Mapping[str, float | None]

    @property
    def mb_per_s(self) -> float:
        """Live bytes moved per second, in units of 10^6."""
        return self.live_bytes / self.seconds / 1e6


def cpu_ms_per_mb(runs: Sequence[Moved]) -> dict[str, float | None]:
    """Return CPU milliseconds per 10^6 live bytes over all runs, by group of processes (see `cpu_ms_per`)."""
    return cpu_ms_per([run.cpu_s for run in runs], sum(run.live_bytes for run in runs) / 1e6)


def gc_settings(settings: Settings) -> Settings:
    """Return the settings of the temporary store: GC as configured, except that it collects all blocks that are about
    half dead, without rate limits."""
    gc = settings.gc.model_copy(
        update={"policy": "threshold", "hole_ratio_min": HOLE_RATIO_MIN, "bytes_per_s": 0, "operations_per_s": 0}
    )
    return settings.model_copy(update={"gc": gc})


def collect(settings: Settings) -> None:
    """Run GC once, in a process of its own. Its logs go to stderr, because stdout has the figures."""
    with redirect_stdout(sys.stderr), open_system(settings) as system:
        gc_service(system).run_once()


class CollectingBench:
    """One run over an empty store. The store is not cleaned up at the end, because it is removed as a whole."""

    def __init__(self, system: System, instruments: Instruments, options: CollectingOptions, tick: Tick) -> None:
        self._system = system
        self._timer = instruments.timer
        self._processes = instruments.processes
        self._options = options
        self._tick = tick
        self._rng = random.Random(options.seed)
        self._objects = Objects(system, self._rng)
        self._results: list[CollectionResult] = []

    def run(self) -> dict[str, Any]:
        """Run all rounds, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        rounds = warmed_up(self._round, self._options.rounds, self._tick)
        rates = {way: [moved.mb_per_s for moved in runs] for way, runs in rounds.items()}
        best = {way: max(found) for way, found in rates.items()}
        over = {way: _median_ratio(rates["ours"], rates[way]) for way in ("floor", "safe", "same_io")}
        header_bytes = sum(one.header_bytes_read for one in self._results)
        return {
            "workload": WORKLOAD,
            "objects": self._options.objects,
            "rounds": self._options.rounds,
            "seed": self._options.seed,
            "lanes": self._options_of_gc().lanes,
            "live_mb_per_s": best,
            "cpu_ms_per_mb": {way: cpu_ms_per_mb(runs) for way, runs in rounds.items()},
            "ours_over_floor": over["floor"],
            "ours_over_safe": over["safe"],
            "safe_over_floor": _median_ratio(rates["safe"], rates["floor"]),
            "ours_over_same_io": over["same_io"],
            "header_bytes_over_block_bytes": header_bytes / sum(one.block_bytes_examined for one in self._results),
            **self._gets(),
        }

    # --- moving -----------------------------------------------------------------------------------
    def _round(self) -> dict[str, Moved]:
        self._fill()
        before_gc = self._placed()
        before, started_s = self._processes.cpu_s(), self._timer()
        result = self._collect(self._options_of_gc())
        ours = Moved(result.bytes_moved, self._timer() - started_s, spent_s(self._processes, before))
        self._results.append(result)
        moved = self._moved(before_gc)
        in_blocks = sorted(moved, key=lambda one: (one.block_id, one.offset))
        floors = {
            "floor": self._floor(in_blocks, result.stripes_written, reads_back=False),
            "safe": self._floor(in_blocks, result.stripes_written, reads_back=True),
            "same_io": self._floor(moved, result.stripes_written, reads_back=True),
        }
        live_bytes = floors["floor"].live_bytes
        if ours.live_bytes != live_bytes:
            raise Transient(f"bench: GC moved {ours.live_bytes} of {live_bytes} live bytes; see the log")
        self._clear()
        return {"ours": ours, **floors}

    def _options_of_gc(self) -> CollectorOptions:
        options = collector_options(self._system.settings)
        return replace(options, block_grace_ms=GRACE_MS, slowdown_max=0.0, short_bytes=0, floor_bytes=0)

    def _fill(self) -> list[ObjectKey]:
        """Pack objects, delete every other one, and return the keys of the remaining objects."""
        system = self._system
        drawn = sizes(WORKLOAD, self._options.objects, self._rng, size_max(system.geometry))
        keys = [row.key for row in self._objects.land(list(drawn))]
        publish(system)
        drain(system)
        kept = keys[::KEPT_OF]
        system.client.store().delete_many([key for number, key in enumerate(keys) if number % KEPT_OF])
        return kept

    def _placed(self) -> list[Placed]:
        """Return the objects in blocks, in the order of their places."""
        metadata, after = self._system.metadata, None
        found: list[Placed] = []
        while page := metadata.list_blocks(after, 500):
            for row in page:
                if row.state is not BlockState.CONDEMNED:
                    found += sorted(metadata.placed_in(row.block_id), key=lambda one: one.extent.offset)
            after = page[-1].block_id
        return found

    def _moved(self, before: Sequence[Placed]) -> list[Extent]:
        """Return the old places of the objects that GC has moved, in the order of their new places. Only GC knows which
        objects it moves."""
        old = {one.object_id: one.extent for one in before}
        return [old[one.object_id] for one in self._placed() if one.extent != old[one.object_id]]

    def _collect(self, options: CollectorOptions) -> CollectionResult:
        system = self._system
        with system.contended_lease(LEASE_NAME) as held:
            collector = gc_collector(system, options)
            return collector.run(lambda: system.worker.writer(held.lease, BlockKind.SURVIVOR))

    def _floor(self, extents: Sequence[Extent], stripes: int, *, reads_back: bool) -> Moved:
        """Read the extents, in groups and in their order, and write this many stripes. With `reads_back`, read these as
        well."""
        system, geometry = self._system, self._system.geometry
        lanes, groups = self._options_of_gc().lanes, geometry.windows_for(stripes)
        bounds = [number * len(extents) // groups for number in range(groups + 1)]
        parts = [extents[first:end] for first, end in pairwise(bounds)]
        sizes_of = [
            min(geometry.stripes_per_group_max, stripes - number * geometry.stripes_per_group_max)
            for number in range(groups)
        ]
        made: list[BlockId] = []

        def lane(place: int) -> None:
            block_id, at = None, 0
            for number in range(place, groups, lanes):
                in_blocks = sorted(parts[number], key=lambda one: (one.block_id, one.offset))
                for _ in reads.map(self._read, _by_block(in_blocks)):
                    pass
                data = bytes(sizes_of[number] * geometry.stripe_size)
                if block_id is None or at + sizes_of[number] > geometry.stripes_per_block:
                    block_id, at = system.placement.new_block_id(), 0
                    made.append(block_id)
                    system.blocks.create(block_id, data)
                else:
                    system.blocks.append(block_id, at, data)
                if reads_back:
                    system.blocks.read(block_id, at * geometry.stripe_size, len(data))
                at += sizes_of[number]

        with ThreadPoolExecutor(system.read_threads.slots) as reads, ThreadPoolExecutor(lanes) as writers:
            before, started_s = self._processes.cpu_s(), self._timer()
            for _ in writers.map(lane, range(lanes)):
                pass
            live_bytes = sum(extent.length for extent in extents)
            moved = Moved(live_bytes, self._timer() - started_s, spent_s(self._processes, before))
        for block_id in made:
            system.blocks.delete(block_id)
        return moved

    def _read(self, extents: Sequence[Extent]) -> None:
        self._system.blocks.read_many(extents[0].block_id, [(one.offset, one.length) for one in extents])

    def _clear(self) -> None:
        """Delete everything, so that each round begins with an empty store."""
        store, metadata = self._system.client.store(), self._system.metadata
        for bucket in metadata.list_buckets("", 1000):
            while rows := metadata.list_objects(bucket, "", "", 1000):
                store.delete_many([row.key for row in rows])
        hurried = replace(self._options_of_gc(), block_grace_ms=0, block_grace_ms_min=0, short_bytes=1 << 60)
        self._collect(hurried)

    # --- GETs -------------------------------------------------------------------------------------
    def _gets(self) -> dict[str, Any]:
        kept = self._fill()
        without_s = [self._timed_get(kept) for _ in range(self._options.reads)]
        process = get_context("spawn").Process(target=collect, args=(self._system.settings,), daemon=True)
        process.start()
        if process.pid is not None:
            os.setpriority(os.PRIO_PROCESS, process.pid, GC_NICE)
        with_s = []
        deadline_s = self._timer() + CHILD_S_MAX
        while process.is_alive() and self._timer() < deadline_s:
            with_s.append(self._timed_get(kept))
        process.join(0)
        if process.exitcode:
            raise Transient(f"bench: GC ended with {process.exitcode}; see the log")
        without, with_gc = latency_ms(without_s), latency_ms(with_s)
        return {
            "gets": len(with_s),
            "get_ms": {"without_gc": without, "with_gc": with_gc},
            "get_p99_with_over_without": with_gc["p99"] / without["p99"],
        }

    def _timed_get(self, keys: Sequence[ObjectKey]) -> float:
        key = self._rng.choice(keys)
        started_s = self._timer()
        self._system.client.store().get(key)
        return self._timer() - started_s


def _median_ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    return median(one / other for one, other in zip(rates, others, strict=True))


def _by_block(extents: Sequence[Extent]) -> list[list[Extent]]:
    """Group consecutive extents of the same block, as GC reads them."""
    found: list[list[Extent]] = []
    for extent in extents:
        last = found[-1] if found else []
        if last and last[0].block_id == extent.block_id and len(last) < EXTENTS_PER_READ:
            last.append(extent)
        else:
            found.append([extent])
    return found

"""`bench gc-workers` measures what it costs that several workers collect one store.

Two stores get the same objects, and lose the same ones. One worker collects one of them, several the other, in runs of
the deployed service in this process: one worker after another, each of which plans over all blocks and rewrites its
own. So CPU times do not depend on how many cores are free. The wait of one worker for another is not measured.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nos_consumer.assemble import drain
from nos_ec.bench.collecting import Moved, cpu_ms_per_mb
from nos_ec.bench.meter import Instruments, spent_s
from nos_ec.bench.objects import Objects
from nos_ec.bench.offline import publish
from nos_ec.bench.pipeline import Tick, warmed_up
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.settings import Settings
from nos_gc.assemble import gc_service

ONE, SEVERAL = "one", "several"
SIZES = (2_000, 24_000)
"""The least and the greatest size of an object, in bytes. The sizes between are equally likely."""
GEOMETRY = {"chunk_size": 32 << 10, "stripes_per_block": 2, "stripes_per_group_max": 2}
"""Blocks of 8+3 have 512 KiB, so that a small store has hundreds. GC rewrites whole blocks, so the last one can bring a
store of few blocks far below its target."""
TARGET = 1.2


@dataclass(frozen=True, slots=True)
class WorkersOptions:
    """Options of `bench gc-workers`. `objects` are packed in each store in each round; `rounds` does not include the
    warm-up."""

    objects: int
    rounds: int
    workers: int
    seed: int


def workers_settings(settings: Settings, workers: int) -> dict[str, Settings]:
    """Return the settings of the temporary stores: GC brings each to TARGET, without limits and rests."""
    unlimited = {"bytes_per_s": 0, "operations_per_s": 0, "copy_bytes_max": 0, "read_slowdown_max": 0}
    runs = {
        "policy": "space-target",
        "space_amp": TARGET,
        "blocks_max_per_run": 100_000,
        "reserve_bytes": 0,
        "price_days": 0.0,
    }
    geometry = settings.geometry.model_copy(update=GEOMETRY)
    return {
        name: settings.model_copy(
            update={
                "gc": settings.gc.model_copy(update={**unlimited, **runs, "workers": number}),
                "geometry": geometry,
            }
        )
        for name, number in ((ONE, 1), (SEVERAL, workers))
    }


class WorkersBench:
    """One run over two empty stores. They are not cleaned up at the end, because they are removed as a whole."""

    def __init__(
        self, systems: Mapping[str, System], instruments: Instruments, options: WorkersOptions, tick: Tick
    ) -> None:
        self._systems = systems
        self._instruments = instruments
        self._options = options
        self._tick = tick
        self._objects = {name: Objects(system, random.Random(options.seed)) for name, system in systems.items()}
        self._rng = random.Random(options.seed)
        self._space: dict[str, list[float]] = {name: [] for name in systems}

    def run(self) -> dict[str, Any]:
        """Run all rounds, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        rounds = warmed_up(self._round, self._options.rounds, self._tick)
        space = {name: found[-self._options.rounds :] for name, found in self._space.items()}
        live_mb = {way: sum(one.live_bytes for one in runs) / 1e6 for way, runs in rounds.items()}
        cpu = {way: cpu_ms_per_mb(runs) for way, runs in rounds.items()}
        totals = {way: [_total_s(one) / one.live_bytes for one in runs] for way, runs in rounds.items()}
        return {
            **{name: getattr(self._options, name) for name in ("objects", "rounds", "workers", "seed")},
            "live_mb": live_mb,
            "cpu_ms_per_mb": cpu,
            "several_over_one": {
                "cpu_per_byte": min(totals[SEVERAL]) / min(totals[ONE]),
                "live_bytes": live_mb[SEVERAL] / live_mb[ONE],
            },
            "space_over_target": {
                way: {"least": min(found) / TARGET, "most": max(found) / TARGET} for way, found in space.items()
            },
            "block_over_target": max(map(self._block_over_target, self._systems.values())),
        }

    def _round(self) -> dict[str, Moved]:
        drawn = [self._rng.randint(*SIZES) for _ in range(self._options.objects)]
        # From block to block, more and more is dead.
        dead = [self._rng.random() < number / len(drawn) for number in range(len(drawn))]
        order = list(self._systems)
        self._rng.shuffle(order)
        for name in order:
            self._fill(name, drawn, dead)
        return {name: self._collect(name) for name in order}

    def _fill(self, name: str, drawn: Sequence[int], dead: Sequence[bool]) -> None:
        system = self._systems[name]
        keys = [row.key for row in self._objects[name].land(drawn)]
        publish(system)
        drain(system)
        system.client.store().delete_many([key for key, is_dead in zip(keys, dead, strict=True) if is_dead])

    def _collect(self, name: str) -> Moved:
        processes, timer = self._instruments.processes, self._instruments.timer
        before, started_s = processes.cpu_s(), timer()
        result = gc_service(self._systems[name]).run_once()
        moved = Moved(result.bytes_moved, timer() - started_s, spent_s(processes, before))
        if not result.bytes_moved or result.space_amplification is None:
            raise Transient(f"bench: GC of {name} moved nothing; see the log, or take more --objects")
        self._space[name].append(result.space_amplification)
        return moved

    def _block_over_target(self, system: System) -> float:
        """Return the bytes of a block / those that the store may hold at TARGET. The last victim of a run takes at most
        this share of them below its goal."""
        return system.geometry.block_size / (TARGET * system.metadata.space_use().live_bytes)


def _total_s(moved: Moved) -> float:
    return sum(one for one in moved.cpu_s.values() if one is not None)

"""`bench landing` measures the cost of making the bytes of PUTs durable, of reading them for packing, and of releasing
their space. No rows are written.

One run has a cell for each kind of objects and number of callers, and rounds in each cell. A round takes each way in
turn, with objects of the same sizes. Each way is followed by bare writes of the same bytes with the same concurrency. A
first round warms up and does not count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from nos_ec.bench.callers import call_all
from nos_ec.bench.figures import Run, cpu_ms, known_median, latency_ms
from nos_ec.bench.landing_ways import BareWriter, Copy, LandingWay
from nos_ec.bench.meter import Instruments, Meter
from nos_ec.bench.objects import Objects, Piece
from nos_ec.bench.pipeline import Tick, warmed_up
from nos_ec.bench.workloads import sizes
from nos_ec.composition.wiring import System
from nos_ec.core.errors import InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.packer import size_max

STEPS = ("put", "read", "delete")
MEAN_OF = 10_000
"""How many sizes are drawn to estimate the mean of a workload."""
LONE_SHARE = 4
"""A single caller lands a fourth of the objects, because it takes longer for each."""


@dataclass(frozen=True, slots=True)
class LandingOptions:
    """Options of `bench landing`. `drawn` has names of workloads, or sizes in bytes; `callers` has numbers of threads.
    `objects` is the number per way and round; `rounds` does not include the warm-up."""

    drawn: Sequence[str | int]
    callers: Sequence[int]
    objects: int
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True)
class LandingRound:
    """The measurements of one way in one round. `runs` are by step. `latencies_s` has the time of each PUT, `batches`
    counts the writes that landed the objects, and `bare_s` is the time of bare writes of the same bytes."""

    runs: Mapping[str, Run]
    latencies_s: Sequence[float]
    batches: int
    bare_s: float


class LandingBench:
    """A run on an empty store, which records no rows."""

    def __init__(
        self,
        system: System,
        instruments: Instruments,
        ways: Mapping[str, LandingWay],
        bare: BareWriter,
        options: LandingOptions,
        tick: Tick,
    ) -> None:
        self._system = system
        self._instruments = instruments
        self._ways = ways
        self._bare = bare
        self._options = options
        self._tick = tick
        self._rng = random.Random(options.seed)
        self._objects = Objects(system, self._rng)
        self._size_max = size_max(system.geometry)

    def run(self) -> dict[str, Any]:
        """Run all cells, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        options = self._options
        landing_pool = self._system.settings.ceph.landing_pool
        osds = self._instruments.osds
        replicas = 0 if osds is None else osds.pool_size(landing_pool)
        found: dict[str, Any] = {
            "objects": options.objects,
            "rounds": options.rounds,
            "seed": options.seed,
            "ways": list(self._ways),
            "replicas": replicas,
            "cells": {},
        }
        for drawn in options.drawn:
            cells = found["cells"][str(drawn)] = {}
            for callers in options.callers:
                rounds = warmed_up(self._round_of(drawn, callers), options.rounds, self._named(drawn, callers))
                cells[str(callers)] = cell_figures(rounds, replicas)
        return found

    def _named(self, drawn: str | int, callers: int) -> Tick:
        return lambda what, done, total: self._tick(f"{drawn}, {callers} callers: {what}", done, total)

    def _round_of(self, drawn: str | int, callers: int) -> Callable[[], dict[str, LandingRound]]:
        objects = max(callers, self._options.objects // (LONE_SHARE if callers == 1 else 1))

        def one_round() -> dict[str, LandingRound]:
            pieces = self._objects.new_pieces(list(sizes(drawn, objects, self._rng, self._size_max)))
            return {name: self._land(way, pieces, callers) for name, way in self._ways.items()}

        return one_round

    def _land(self, way: LandingWay, pieces: Sequence[Piece], callers: int) -> LandingRound:
        chosen = [len(piece.view) for piece in pieces]
        copies: list[Copy] = []
        meters = {step: Meter(self._instruments, chosen) for step in STEPS}
        way.prepare()
        with meters["put"]:
            latencies_s = call_all(
                callers, pieces, lambda piece: copies.append(way.land(piece)), self._instruments.timer
            )
        written, writers = way.writes(callers)
        with meters["read"]:
            way.read_all(copies)
        with meters["delete"]:
            way.delete_all(copies)
        return LandingRound(
            {step: meter.run for step, meter in meters.items()},
            latencies_s,
            len(written),
            self._bare_s(written, writers),
        )

    def _bare_s(self, written: Sequence[int], writers: int) -> float:
        content = self._rng.randbytes(max(written))
        timer = self._instruments.timer
        started_s = timer()
        call_all(writers, written, lambda size: self._bare.write(content[:size]), timer)
        took_s = timer() - started_s
        self._bare.clear()
        return took_s


def round_bytes_max(options: LandingOptions, geometry: Geometry) -> int:
    """Estimate the most bytes of objects in one round of a way; for random sizes, from the mean of many plus a fourth.
    Raises InvalidInput for objects that are never landed."""
    objects = max(options.objects, *options.callers)
    most = 0
    for drawn in options.drawn:
        if isinstance(drawn, int):
            if drawn > size_max(geometry):
                raise InvalidInput(f"objects of {drawn} bytes are never landed; choose at most {size_max(geometry)}")
            most = max(most, drawn * objects)
        else:
            total = sum(sizes(drawn, MEAN_OF, random.Random(options.seed), size_max(geometry)))
            most = max(most, total * objects * 5 // 4 // MEAN_OF)
    return most


# --- figures ------------------------------------------------------------------------------------------
def cell_figures(rounds: Mapping[str, Sequence[LandingRound]], replicas: int) -> dict[str, Any]:
    """Return the figures of one cell: of each way, and of each further way over the first one, as medians of the
    rounds."""
    base, *others = rounds
    found: dict[str, Any] = {name: _figures(each, replicas) for name, each in rounds.items()}
    for name in others:
        pairs = list(zip(rounds[name], rounds[base], strict=True))
        found[f"{name}_over_{base}"] = _ratios(pairs)
    return found


def _figures(rounds: Sequence[LandingRound], replicas: int) -> dict[str, Any]:
    puts = [one.runs["put"] for one in rounds]
    by_step = {step: [cpu_ms([one.runs[step]]) for one in rounds] for step in STEPS}
    found: dict[str, Any] = {
        "puts_per_s": median(run.objects_per_s for run in puts),
        "mb_per_s": median(run.bytes / run.seconds / 1e6 for run in puts),
        "put_ms": latency_ms([seconds for one in rounds for seconds in one.latencies_s]),
        "batch": median(one.runs["put"].objects / one.batches for one in rounds),
        "over_bare": median(one.bare_s / one.runs["put"].seconds for one in rounds),
        "cpu_ms_per_object": {
            step: {name: known_median([one[name] for one in each]) for name in each[0]}
            for step, each in by_step.items()
        },
        "reads_per_s": median(one.runs["read"].objects_per_s for one in rounds),
        "deletes_per_s": median(one.runs["delete"].objects_per_s for one in rounds),
        "rounds_puts_per_s": [run.objects_per_s for run in puts],
    }
    if replicas:
        found["osd_writes_over_replicas"] = median(
            one.runs["put"].store_writes / (one.batches * replicas) for one in rounds
        )
    return found


def _ratios(pairs: Sequence[tuple[LandingRound, LandingRound]]) -> dict[str, Any]:
    def times(value: Callable[[LandingRound], float]) -> float:
        return median(value(ours) / value(theirs) for ours, theirs in pairs)

    def latency(name: str) -> float:
        return times(lambda one: latency_ms(one.latencies_s)[name])

    def cpu(step: str, group: str) -> float:
        return times(lambda one: _cpu_s(one, step, group))

    groups = [name for name, seconds in pairs[0][0].runs["put"].cpu_s.items() if seconds is not None]
    return {
        "puts_per_s": times(lambda one: one.runs["put"].objects_per_s),
        "put_ms": {name: latency(name) for name in ("p50", "p99")},
        "cpu_ms_per_object": {step: {name: cpu(step, name) for name in groups} for step in (*STEPS, "life")},
    }


def _cpu_s(one: LandingRound, step: str, group: str) -> float:
    """Return CPU seconds of a group for a step, or for all steps ("life"). At least a microsecond, because it is a
    divisor."""
    steps = STEPS if step == "life" else (step,)
    return max(1e-6, sum(one.runs[name].cpu_s[group] or 0.0 for name in steps))

"""`bench life` measures the cost of an object's whole life, step by step, for each way of landing.

Each way is a separate store with its own settings. One run consists of rounds, and a round takes each way in turn, so
that other load on the machine affects all of them. A first round warms up connections, caches and the servers' pools,
and does not count. In a round, every way stores objects of the same sizes.

Steps, in this order; the callers of a step wait for each answer:

put         `Store.put`, by all callers at once
get_landed  GETs of a sample, by all callers
publish     the producer
pack        the consumer: from events to packed and committed rows and committed offsets
reap        verifying packed bytes, deleting landing copies and giving back segments of the landing log, until none is
            left
get_packed  GETs of a sample, by all callers
delete      DELETEs of all objects, by all callers

Not timed are the consumer's start, the sealing of the last blocks, and the collection of the emptied blocks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import Any

from nos_ec.bench.callers import call_all
from nos_ec.bench.figures import Run, cpu_ms, known_median, latency_ms
from nos_ec.bench.meter import Instruments, Meter
from nos_ec.bench.objects import Objects, Piece
from nos_ec.bench.offline import measured_pack, publish, reap
from nos_ec.bench.pipeline import Tick, warmed_up
from nos_ec.bench.stack import BenchStores
from nos_ec.bench.workloads import sizes
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.packing.packer import size_max
from nos_gc.assemble import gc_service

WHOLE_LIFE = ("put", "publish", "pack", "reap")
"""The steps of every object."""
IDLE_S = 3.0
"""How long the idle servers are measured."""


@dataclass(frozen=True, slots=True)
class LifeOptions:
    """Options of `bench life`. `drawn` is the name of a workload, or the size of every object in bytes. `objects` is
    the number per way and round; `rounds` does not include the warm-up. `callers` threads PUT, GET and DELETE. `reads`
    is the number of GETs of landed, and again of packed objects, per way and round."""

    drawn: str | int
    objects: int
    rounds: int
    callers: int
    reads: int
    seed: int


@dataclass(slots=True)
class Life:
    """The measurements of one round of one way. `runs` are by step. `latencies_s` has the time of each call, for the
    steps of callers. `batches` is the number of batches in which the queue has stored the PUTs."""

    runs: dict[str, Run] = field(default_factory=dict)
    latencies_s: dict[str, list[float]] = field(default_factory=dict)
    batches: int = 1

    @property
    def whole_life_cpu_ms(self) -> float:
        """CPU milliseconds per object of WHOLE_LIFE, in all known processes."""
        return sum(total_cpu_ms(self.runs[step]) for step in WHOLE_LIFE)


class LifeBench:
    """A run on empty stores. They are not cleaned up, because they are removed entirely."""

    def __init__(self, stores: BenchStores, options: LifeOptions, tick: Tick) -> None:
        self._ways = {name: _Way(system, stores.instruments, options) for name, system in stores.systems.items()}
        self._instruments = stores.instruments
        self._options = options
        self._tick = tick
        osds, first = stores.instruments.osds, next(iter(stores.systems.values()))
        self._replicas = 0 if osds is None else osds.pool_size(first.settings.ceph.landing_pool)
        self._rng = random.Random(options.seed)
        self._size_max = min(size_max(system.geometry) for system in stores.systems.values())

    def run(self) -> dict[str, Any]:
        """Run all rounds, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        lives = warmed_up(self._round, self._options.rounds, self._tick)
        options = self._options
        found: dict[str, Any] = {
            "workload": options.drawn if isinstance(options.drawn, str) else None,
            "size": options.drawn if isinstance(options.drawn, int) else None,
            "objects": options.objects,
            "rounds": options.rounds,
            "ways": list(self._ways),
            "callers": options.callers,
            "reads": options.reads,
            "seed": options.seed,
            "replicas": self._replicas,
            "idle_cpu_ms_per_s": self._idle(),
        }
        return found | life_figures(lives, self._replicas)

    def _round(self) -> dict[str, Life]:
        options = self._options
        drawn = list(sizes(options.drawn, options.objects, self._rng, self._size_max))
        return {name: way.live(drawn) for name, way in self._ways.items()}

    def _idle(self) -> dict[str, float | None]:
        """Return the CPU time that idle processes use, in milliseconds per second. It is part of all figures."""
        meter = Meter(self._instruments, [1])
        with meter:
            time.sleep(IDLE_S)
        return {name: None if cpu is None else cpu * 1000 / meter.run.seconds for name, cpu in meter.run.cpu_s.items()}


class _Way:
    """Runs the steps on one store."""

    def __init__(self, system: System, instruments: Instruments, options: LifeOptions) -> None:
        self._system = system
        self._store = system.client.store()
        self._housekeeping = system.worker.housekeeping()
        self._gc = gc_service(system)
        self._instruments = instruments
        self._options = options
        self._rng = random.Random(options.seed)
        self._objects = Objects(system, self._rng)

    def live(self, drawn: Sequence[int]) -> Life:
        """Run one round with objects of these sizes. Raises NosError."""
        pieces = self._objects.new_pieces(drawn)
        batches = self._batches()
        life = Life()
        self._call(life, "put", pieces, lambda piece: self._store.put(piece.key, piece.stream()))
        life.batches = self._batches() - batches
        self._call(life, "get_landed", self._sample(pieces), self._get)
        with Meter(self._instruments, drawn).into(life.runs, "publish"):
            published = publish(self._system)
        if published != len(drawn):
            raise Transient(f"bench: {published} of {len(drawn)} objects were published; see the log")
        life.runs["pack"] = measured_pack(self._system, self._instruments, drawn)
        with Meter(self._instruments, drawn).into(life.runs, "reap"):
            reap(self._system, self._housekeeping)
        if next(self._system.landing.list_ids(), None) is not None:
            raise Transient("bench: the reaper has left landing copies")
        self._call(life, "get_packed", self._sample(pieces), self._get)
        self._call(life, "delete", pieces, lambda piece: self._store.delete(piece.key))
        for _ in ("condemn", "delete"):
            self._gc.run_once()
        return life

    def _batches(self) -> int:
        return sum(self._system.client.puts.batch_objects.counts)

    def _get(self, piece: Piece) -> None:
        if self._store.get(piece.key) != bytes(piece.view):
            raise Transient(f"bench: {piece.key} reads back wrong")

    def _sample(self, pieces: Sequence[Piece]) -> list[Piece]:
        return self._rng.sample(pieces, min(self._options.reads, len(pieces)))

    def _call(self, life: Life, step: str, pieces: Sequence[Piece], call: Callable[[Piece], object]) -> None:
        with Meter(self._instruments, [len(piece.view) for piece in pieces]).into(life.runs, step):
            life.latencies_s[step] = call_all(self._options.callers, pieces, call, self._instruments.timer)


# --- figures ----------------------------------------------------------------------------------------
def life_figures(lives: Mapping[str, Sequence[Life]], replicas: int) -> dict[str, Any]:
    """Return the figures of each way, and of each further way over each way before it, as medians of the rounds.
    `replicas` is the number of copies that the landing pool keeps, or 0 without OSDs."""
    found: dict[str, Any] = {name: _figures(rounds, replicas) for name, rounds in lives.items()}
    for base, name in combinations(lives, 2):
        found[f"{name}_over_{base}"] = _ratios(lives[name], lives[base])
    return found


def total_cpu_ms(run: Run) -> float:
    """Return CPU milliseconds per object, of all known processes."""
    return cpu_ms([run])["total"] or 0.0


def _figures(rounds: Sequence[Life], replicas: int) -> dict[str, Any]:
    steps = list(rounds[0].runs)
    runs = {step: [life.runs[step] for life in rounds] for step in steps}
    whole_life = [life.whole_life_cpu_ms for life in rounds]
    found: dict[str, Any] = {
        "objects_per_s": {step: median(run.objects_per_s for run in runs[step]) for step in steps},
        "cpu_ms_per_object": {step: _median_cpu_ms(runs[step]) for step in steps},
        "whole_life_cpu_ms_per_object": median(whole_life),
        "osd_write_ops_per_object": {
            step: median(run.store_writes / run.objects for run in runs[step]) for step in steps
        },
        "put_batch": median(life.runs["put"].objects / life.batches for life in rounds),
        "rounds_puts_per_s": [run.objects_per_s for run in runs["put"]],
        "rounds_whole_life_cpu_ms_per_object": whole_life,
    }
    if replicas:
        found["osd_writes_over_replicas"] = median(
            life.runs["put"].store_writes / (life.batches * replicas) for life in rounds
        )
    for step in rounds[0].latencies_s:
        found[f"{step}_ms"] = latency_ms([seconds for life in rounds for seconds in life.latencies_s[step]])
    return found


def _median_cpu_ms(runs: Sequence[Run]) -> dict[str, float | None]:
    by_round = [cpu_ms([run]) for run in runs]
    return {name: known_median([one[name] for one in by_round]) for name in by_round[0]}


def _put_cpu_ms(life: Life, group: str) -> float:
    """Return CPU milliseconds of a group of processes for a PUT; 0 if they are unknown."""
    return cpu_ms([life.runs["put"]]).get(group) or 0.0


def _ratios(rounds: Sequence[Life], base: Sequence[Life]) -> dict[str, Any]:
    pairs = list(zip(rounds, base, strict=True))
    steps = list(rounds[0].runs)
    found: dict[str, Any] = {
        "objects_per_s": {
            step: median(ours.runs[step].objects_per_s / theirs.runs[step].objects_per_s for ours, theirs in pairs)
            for step in steps
        },
        "cpu_ms_per_object": {
            step: median(total_cpu_ms(ours.runs[step]) / total_cpu_ms(theirs.runs[step]) for ours, theirs in pairs)
            for step in steps
        },
        "whole_life_cpu_ms_per_object": median(
            ours.whole_life_cpu_ms / theirs.whole_life_cpu_ms for ours, theirs in pairs
        ),
    }
    for group in ("osds", "sql"):
        cpu = [(_put_cpu_ms(ours, group), _put_cpu_ms(theirs, group)) for ours, theirs in pairs]
        if all(theirs for _, theirs in cpu):
            found[f"put_{group}_cpu_ms_per_object"] = median(ours / theirs for ours, theirs in cpu)
    for step in rounds[0].latencies_s:
        both = [(latency_ms(ours.latencies_s[step]), latency_ms(theirs.latencies_s[step])) for ours, theirs in pairs]
        found[f"{step}_ms"] = {name: median(ours[name] / theirs[name] for ours, theirs in both) for name in both[0][0]}
    return found

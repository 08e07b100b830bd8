"""`bench s3` compares the S3 gateway with the engine in this process and, on Ceph, with radosgw on the same cluster.

The ways take turns in every round, so that other load on the machine affects all of them. A first round warms up
connections and caches, and does not count. Callers are threads of this process with a lean client (`s3_client`); each
makes its next call as soon as the last one has returned.

gateway                processes of `nos-ec s3 serve`
engine                 the same calls of the library, in this process, without HTTP
radosgw                with tcp_nodelay. The bytes of its objects lie in the erasure-coded pool of the blocks
radosgw_as_shipped     without tcp_nodelay; the same objects

Steps of a way in a round: `put`, objects of one size; `publish` and `pack`, of those that the store of nos_ec got;
`get`, of small objects that are packed; `list`, full pages of their names, one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import count
from statistics import median
from typing import Any, Protocol

from nos_consumer.assemble import drain
from nos_ec.bench.callers import call_all
from nos_ec.bench.figures import Run, cpu_ms, latency_ms
from nos_ec.bench.meter import Instruments, Meter
from nos_ec.bench.offline import measured_pack, publish
from nos_ec.bench.pipeline import Tick, warmed_up
from nos_ec.bench.workloads import sizes
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.packer import size_max
from nos_ec.engine.objects.store import Store

GATEWAY, ENGINE, RADOSGW, AS_SHIPPED = "gateway", "engine", "radosgw", "radosgw_as_shipped"
SMALL_WORKLOAD = "W2"
BUCKET, SMALL_BUCKET = "bench-put", "bench-small"
LOAD_BATCH = 500
"""Small objects that are stored at once, before the first round."""
PAGE_NAMES = 1000
NOISE_BYTES = 1 << 20
"""Objects are pieces of a buffer of random bytes, which is larger than the largest object by this many bytes."""
CALLED = ("put", "get", "list")
OFFLINE = ("publish", "pack")


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of `bench s3`. Each round PUTs `objects` of `size` bytes, makes `reads` GETs and `pages` LISTs; `rounds`
    does not include the warm-up. `small_objects` are read and listed. `put_callers` and `get_callers` are numbers of
    threads. Reads of OSDs are counted for `sample` GETs."""

    objects: int
    size: int
    rounds: int
    put_callers: int
    get_callers: int
    small_objects: int
    reads: int
    pages: int
    sample: int
    seed: int


class Objects(Protocol):
    """The measured calls, of an `S3Client` or of the engine. They raise NosError."""

    def put(self, bucket: str, name: str, body: bytes) -> None:
        """Store an object; durable on return."""

    def get(self, bucket: str, name: str) -> bytes:
        """Read an object."""

    def page(self, bucket: str, after: str, limit: int) -> object:
        """Read a page of the names after `after`."""


class EngineObjects:
    """The calls of the library."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, bucket: str, name: str, body: bytes) -> None:
        """See Objects."""
        self._store.put(ObjectKey(bucket, name), BytesIO(body))

    def get(self, bucket: str, name: str) -> bytes:
        """See Objects."""
        return self._store.get(ObjectKey(bucket, name))

    def page(self, bucket: str, after: str, limit: int) -> object:
        """See Objects."""
        return self._store.list_objects(bucket, "", after, limit)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to use a store. `instruments` include the processes that serve it. `packs` is whether its objects are in
    the store of nos_ec, so that they are packed."""

    objects: Objects
    instruments: Instruments
    packs: bool


@dataclass(slots=True)
class Turn:
    """The measurements of one way's turn in a round, by step. `latencies_s` has the time of each call."""

    runs: dict[str, Run] = field(default_factory=dict)
    latencies_s: dict[str, list[float]] = field(default_factory=dict)


class S3Bench:
    """A run on an empty store. It is not cleaned up, because it is removed entirely."""

    def __init__(self, system: System, ways: Mapping[str, Way], options: S3Options, tick: Tick) -> None:
        self._system = system
        self._ways = ways
        self._options = options
        self._tick = tick
        self._rng = random.Random(options.seed)
        self._noise = self._rng.randbytes(max(options.size, size_max(system.geometry)) + NOISE_BYTES)
        drawn = sizes(SMALL_WORKLOAD, options.small_objects, self._rng, size_max(system.geometry))
        starts = (self._rng.randrange(NOISE_BYTES) for _ in count())
        self._small = {f"{number:09}.bin": at for number, at in enumerate(zip(starts, drawn, strict=False))}
        self._names = count()
        self._turns = count()

    def run(self) -> dict[str, Any]:
        """Run all rounds, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        for way in self._ways.values():
            self._load(way)
        turns = warmed_up(self._round, self._options.rounds, self._tick)
        options = self._options
        found: dict[str, Any] = {
            "objects": options.objects,
            "size": options.size,
            "rounds": options.rounds,
            "put_callers": options.put_callers,
            "get_callers": options.get_callers,
            "small_objects": options.small_objects,
            "seed": options.seed,
            "ways": list(self._ways),
        }
        found |= s3_figures(turns)
        for name, way in self._ways.items():
            if way.instruments.osds is not None:
                found[name] |= self._counted(way)
        return found

    def _body_at(self, start: int, size: int) -> bytes:
        return self._noise[start : start + size]

    # --- small objects --------------------------------------------------------------------------------
    def _small_body(self, name: str) -> bytes:
        return self._body_at(*self._small[name])

    def _load(self, way: Way) -> None:
        """Store the small objects, unless another way has already stored them. In the store of nos_ec they are stored
        in batches and packed."""
        names = list(self._small)
        if not way.packs:
            if next(iter(self._ways.values())) is not way and self._has(way, names[-1]):
                return

            def put(name: str) -> None:
                way.objects.put(SMALL_BUCKET, name, self._small_body(name))

            call_all(self._options.put_callers, names, put, way.instruments.timer)
        elif not self._has(way, names[-1]):
            store = self._system.client.store()
            for first in range(0, len(names), LOAD_BATCH):
                batch = names[first : first + LOAD_BATCH]
                store.put_many([(ObjectKey(SMALL_BUCKET, name), self._small_body(name)) for name in batch])
            publish(self._system)
            drain(self._system)

    def _has(self, way: Way, name: str) -> bool:
        try:
            return bool(way.objects.get(SMALL_BUCKET, name))
        except Exception:
            return False

    # --- a round --------------------------------------------------------------------------------------
    def _round(self) -> dict[str, Turn]:
        """Run each way once. Every other round runs them in the opposite order."""
        names = list(self._ways)
        turns = {name: self._turn(self._ways[name]) for name in (names[::-1] if next(self._turns) % 2 else names)}
        return {name: turns[name] for name in names}

    def _turn(self, way: Way) -> Turn:
        options, turn = self._options, Turn()
        new = [f"{next(self._names):09}.bin" for _ in range(options.objects)]
        starts = {name: self._rng.randrange(NOISE_BYTES) for name in new}
        drawn = [options.size] * len(new)
        timer = way.instruments.timer

        def put(name: str) -> None:
            way.objects.put(BUCKET, name, self._body_at(starts[name], options.size))

        with Meter(way.instruments, drawn).into(turn.runs, "put"):
            turn.latencies_s["put"] = call_all(options.put_callers, new, put, timer)
        if way.packs:
            with Meter(way.instruments, drawn).into(turn.runs, "publish"):
                published = publish(self._system)
            if published != len(new):
                raise Transient(f"bench: {published} of {len(new)} objects were published; see the log")
            turn.runs["pack"] = measured_pack(self._system, way.instruments, drawn)
        names = self._rng.choices(list(self._small), k=options.reads)
        get = partial(self._get_small, way.objects)
        with Meter(way.instruments, [self._small[name][1] for name in names]).into(turn.runs, "get"):
            turn.latencies_s["get"] = call_all(options.get_callers, names, get, timer)
        last = max(1, len(self._small) - PAGE_NAMES)
        after = [f"{self._rng.randrange(last):09}.bin" for _ in range(options.pages)]
        with Meter(way.instruments, [0] * len(after)).into(turn.runs, "list"):
            list_page = partial(way.objects.page, SMALL_BUCKET, limit=PAGE_NAMES)
            turn.latencies_s["list"] = call_all(1, after, list_page, timer)
        return turn

    def _get_small(self, objects: Objects, name: str) -> None:
        if objects.get(SMALL_BUCKET, name) != self._small_body(name):
            raise Transient(f"bench: {name} reads back wrong")

    def _counted(self, way: Way) -> dict[str, float]:
        """Count the reads of the OSDs' stores for single GETs, by their counters. The pools must not be used otherwise
        meanwhile."""
        cluster = way.instruments.cluster
        names = self._rng.sample(list(self._small), min(self._options.sample, len(self._small)))
        reads = []
        before = cluster.counters()
        for name in names:
            self._get_small(way.objects, name)
            after = cluster.counters()
            reads.append(sum(after.store_reads.values()) - sum(before.store_reads.values()))
            before = after
        return {"osd_reads_per_get": median(reads), "osd_reads_per_get_mean": sum(reads) / len(reads)}


# --- figures ----------------------------------------------------------------------------------------
def s3_figures(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    """Return the figures of each way, and of the gateway over each other way, as medians of the rounds."""
    found: dict[str, Any] = {name: _figures(rounds) for name, rounds in turns.items()}
    for name in turns:
        if name != GATEWAY:
            found[f"{GATEWAY}_over_{name}"] = _ratios(turns[GATEWAY], turns[name])
    return found


def _figures(rounds: Sequence[Turn]) -> dict[str, Any]:
    runs = {step: [turn.runs[step] for turn in rounds] for step in rounds[0].runs}
    return {
        "per_s": {step: median(run.objects_per_s for run in runs[step]) for step in runs},
        "ms": {step: latency_ms([one for turn in rounds for one in turn.latencies_s[step]]) for step in CALLED},
        "cpu_ms_per_object": {step: cpu_ms(runs[step]) for step in runs},
        "put_and_pack_cpu_ms_per_object": median(_put_and_pack_ms(turn) for turn in rounds),
        "rounds_per_s": {step: [run.objects_per_s for run in runs[step]] for step in runs},
    }


def _ratios(rounds: Sequence[Turn], others: Sequence[Turn]) -> dict[str, Any]:
    pairs = list(zip(rounds, others, strict=True))

    def cpu(turn: Turn, step: str) -> float:
        return cpu_ms([turn.runs[step]])["total"] or 0.0

    def p50(turn: Turn, step: str) -> float:
        return latency_ms(turn.latencies_s[step])["p50"]

    return {
        "per_s": {
            step: median(one.runs[step].objects_per_s / other.runs[step].objects_per_s for one, other in pairs)
            for step in CALLED
        },
        "p50": {step: median(p50(one, step) / p50(other, step) for one, other in pairs) for step in CALLED},
        "cpu": {step: median(cpu(one, step) / cpu(other, step) for one, other in pairs) for step in CALLED},
        "put_and_pack_cpu": median(_put_and_pack_ms(one) / _put_and_pack_ms(other) for one, other in pairs),
    }


def _put_and_pack_ms(turn: Turn) -> float:
    """Return CPU milliseconds per object until it is in the erasure-coded pool."""
    steps = [step for step in ("put", *OFFLINE) if step in turn.runs]
    return sum(cpu_ms([turn.runs[step]])["total"] or 0.0 for step in steps)

"""`bench cells` measures what the cells of a store cost a gateway: the same requests to a gateway of a store without
cells, and to one of a store of three cells, in turns.

All buckets of the requests are in a cell without the directory. Two gateways of the same store differ by a few percent
for as long as they run, so several pairs are measured, one after another. The first round of each warms up connections
and caches, and does not count. Rounds are short, because other load of the machine comes and goes. Callers are threads
of this process with a lean client (`s3_client`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from nos_ec.bench.bare import Timer
from nos_ec.bench.callers import call_all
from nos_ec.bench.life.life_ways import landing_settings
from nos_ec.bench.pipeline import Tick, warmed_up
from nos_ec.bench.s3.s3_client import S3Client
from nos_ec.bench.s3.s3_servers import gateways
from nos_ec.bench.servers.processes import Processes
from nos_ec.bench.stack import AdminKey, bench_stores
from nos_ec.composition.cells import enter_buckets
from nos_ec.composition.wiring import System
from nos_ec.settings import Cell, Settings

ONE, CELLS = "one", "cells"
STEPS = ("put", "get", "head", "list", "delete")
BUCKET = "bench"
LISTED = [f"listed/{number:03}" for number in range(100)]
"""The objects that are listed, in one page."""
_WEIGHTS = {"a": 0, "b": 1, "c": 0}
"""The cells, of which the first has the directory. All buckets go to the second one."""


@dataclass(frozen=True, slots=True)
class CellsOptions:
    """Options of `bench cells`. For each of `objects` of `size` bytes, a round has a request of each kind. `rounds` of
    each of the `pairs` do not include the warm-up."""

    objects: int
    size: int
    pairs: int
    rounds: int
    callers: int
    seed: int


@dataclass(frozen=True, slots=True)
class CellsWay:
    """A gateway, and the processes that serve it."""

    client: S3Client
    processes: Processes


@dataclass(frozen=True, slots=True)
class CellsWays:
    """Empty stores by name, ONE and the cells of the other one. `pair` starts a gateway of each."""

    systems: Mapping[str, System]
    pair: Callable[[], AbstractContextManager[Mapping[str, CellsWay]]]
    timer: Timer


@dataclass(frozen=True, slots=True)
class Step:
    """The requests of one kind in a round: how many, how long they took, and the CPU seconds of the gateway."""

    requests: int
    seconds: float
    cpu_s: float


class CellsBench:
    """A run on two empty stores, which are not cleaned up, because they are removed entirely."""

    def __init__(self, found: CellsWays, options: CellsOptions, tick: Tick) -> None:
        self._pair = found.pair
        self._options = options
        self._timer = found.timer
        self._tick = tick
        self._body = random.Random(options.seed).randbytes(options.size)
        self._names = count()
        self._turns = count()

    def run(self) -> dict[str, Any]:
        """Run all rounds, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        options = self._options
        pairs = []
        for _ in range(options.pairs):
            with self._pair() as ways:
                for way in ways.values():
                    way.client.create_bucket(BUCKET)
                    for name in LISTED:
                        way.client.put(BUCKET, name, self._body)
                pairs.append(warmed_up(partial(self._round, ways), options.rounds, self._tick))
        found: dict[str, Any] = {
            "objects": options.objects,
            "size": options.size,
            "pairs": options.pairs,
            "rounds": options.rounds,
            "callers": options.callers,
            "seed": options.seed,
            "ways": list(pairs[0]),
        }
        return found | cells_figures(pairs)

    def _round(self, ways: Mapping[str, CellsWay]) -> dict[str, dict[str, Step]]:
        """Run each way once, step by step. Every other round runs them in the opposite order."""
        names = list(ways)
        order = names[::-1] if next(self._turns) % 2 else names
        objects = [f"{next(self._names):09}.bin" for _ in range(self._options.objects)]
        found: dict[str, dict[str, Step]] = {name: {} for name in names}
        for step in STEPS:
            for name in order:
                found[name][step] = self._step(ways[name], step, objects)
        return found

    def _step(self, way: CellsWay, step: str, objects: Sequence[str]) -> Step:
        client = way.client
        calls: Mapping[str, Callable[[str], object]] = {
            "put": lambda name: client.put(BUCKET, name, self._body),
            "get": lambda name: client.get(BUCKET, name),
            "head": lambda name: client.head(BUCKET, name),
            "list": lambda name: client.page(BUCKET, name, len(LISTED)),
            "delete": lambda name: client.delete(BUCKET, name),
        }
        cpu_s, started_s = self._cpu_s(way), self._timer()
        call_all(self._options.callers, objects, calls[step], self._timer)
        return Step(len(objects), self._timer() - started_s, self._cpu_s(way) - cpu_s)

    def _cpu_s(self, way: CellsWay) -> float:
        return sum(seconds or 0.0 for seconds in way.processes.cpu_s().values())


def cells_figures(pairs: Sequence[Mapping[str, Sequence[Mapping[str, Step]]]]) -> dict[str, Any]:
    """Return the figures of each way, and of three cells over one: medians of the rounds of each pair, and of these the
    mean."""
    found = [_of_pair(rounds) for rounds in pairs]
    return {
        name: {figure: {step: fmean(one[name][figure][step] for one in found) for step in STEPS} for figure in figures}
        for name, figures in found[0].items()
    }


def _of_pair(rounds: Mapping[str, Sequence[Mapping[str, Step]]]) -> dict[str, dict[str, dict[str, float]]]:
    found = {
        name: {
            "per_s": {step: median(turn[step].requests / turn[step].seconds for turn in turns) for step in STEPS},
            "cpu_ms": {step: median(turn[step].cpu_s * 1000 / turn[step].requests for turn in turns) for step in STEPS},
        }
        for name, turns in rounds.items()
    }
    both = list(zip(rounds[CELLS], rounds[ONE], strict=True))
    found[f"{CELLS}_over_{ONE}"] = {
        "per_s": {step: median(one[step].seconds / cells[step].seconds for cells, one in both) for step in STEPS},
        "cpu": {step: median(cells[step].cpu_s / one[step].cpu_s for cells, one in both) for step in STEPS},
    }
    return found


@contextmanager
def cells_ways(settings: Settings, admin: AdminKey) -> Iterator[CellsWays]:
    """Yields a store without cells and a store of three cells, which gateways serve. Raises ConfigError, Transient."""
    s3 = settings.s3.model_copy(update={"host": "127.0.0.1", "port": 0, "processes": 1})
    plain = landing_settings(settings, settings.landing.mode).model_copy(update={"s3": s3})
    with bench_stores(dict.fromkeys((ONE, *_WEIGHTS), plain), admin) as stores:
        one = stores.systems[ONE].settings
        directory = next(iter(_WEIGHTS))
        divided = one.model_copy(update={"store": one.store.model_copy(update={"directory": directory})})
        for name in _WEIGHTS:
            system = stores.systems[name]
            store = system.settings.store.model_copy(update={"directory": directory})
            system.settings = system.settings.model_copy(update={"store": store})
        of_cells = {name: Cell(stores.systems[name].settings, weight) for name, weight in _WEIGHTS.items()}
        whole = divided.with_cells(of_cells)
        for name in _WEIGHTS:
            enter_buckets(stores.systems[directory], stores.systems[name], [])
        yield CellsWays(stores.systems, partial(_pair, {ONE: one, CELLS: whole}), stores.instruments.timer)


@contextmanager
def _pair(served: Mapping[str, Settings]) -> Iterator[dict[str, CellsWay]]:
    ways = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nos-ec-bench-cells-")))
        for name, settings in served.items():
            (folder / name).mkdir(mode=0o700)
            server = stack.enter_context(gateways(settings, folder / name, 1))
            client = stack.enter_context(closing(S3Client(server.urls, server.credentials)))
            ways[name] = CellsWay(client, Processes({"server": server.pids}))
        yield ways

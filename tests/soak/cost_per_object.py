"""What requests, publishing, packing and GC cost in a small store, and in one of several cells with many more objects.

What a store holds is a matter of its metadata, so the objects are rows, made in bulk. The requests of a round go to
both stores in turns, and each round stores, publishes and packs its objects in another cell. Prints JSON: for a request
or an object the CPU time of this process, instructions of SQLite, and bytes that were read from files (mostly pages
that SQLite does not have in its cache), and the ratios of the second store to the first. All are medians of the rounds.
With --check, exits with 1 if a bar of docs/MEASUREMENTS.md is missed.

    python tests/soak/cost_per_object.py --objects 1000000 --cells 4 --cell-objects 10000000 --folder /var/tmp --check
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from nos_consumer.assemble import drain
from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.cells import open_cells
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.library.object_store import PAGE_OBJECTS, ObjectStore
from nos_ec.library.opening import log_through_logging
from nos_ec.ports.metadata import ROOT_ACCOUNT, GroupCommit
from nos_ec.settings import load_settings
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.sql.full_store import BUCKETS, FOLDERS, Shape, fill, name_of
from tests.rig.sql.instructions import Instructions

ONE, CELLS = "one", "cells"
WIDE = "wide"
OBJECT_BYTES = 2000
IDLE_TURNS = 10
ROWS_MIN = 2 * BUCKETS * PAGE_OBJECTS
"""So that half of a bucket has a page."""
RATIO_MAX = 1.1
BARS = ("put", "get", "head", "commit", "list", "status")
"""The steps whose CPU time has a bar. The bar of `list_wide` is RATIO_MAX times the number of its slices."""

CONFIG = """
[store]
{directory}
[put]
min_age_ms = 0
[reaper]
landing_grace_ms = 0
[landing]
device_bytes = "64MiB"
segment_bytes = "4MiB"
[log]
partitions = 2
[consumer]
lanes = 1
{cells}
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What all calls of a step took. `read_bytes` are those of system calls, also from the cache of the system."""

    calls: int
    cpu_s: float
    instructions: int
    read_bytes: int


@dataclass(slots=True)
class Way:
    """An open store, its cells or itself, the bucket of each in which the requests are, and the numbers of its rows."""

    store: ObjectStore
    systems: Sequence[System]
    buckets: Sequence[str]
    rows: int
    packed: list[ObjectKey] = field(default_factory=list)
    """Objects that can be read, which earlier rounds have packed."""


@contextmanager
def commits_measured(instructions: Instructions) -> Iterator[list[Cost]]:
    """Yields what each commit of a group has cost in its thread, within the `with` block."""
    commit_group, commits = SqlMetadata.commit_group, list[Cost]()

    def measured(metadata: SqlMetadata, commit: GroupCommit) -> frozenset[int]:
        cpu_s, counted, read_bytes = time.thread_time(), instructions.in_thread(), _read_bytes()
        moved = commit_group(metadata, commit)
        spent_s, counted = time.thread_time() - cpu_s, instructions.in_thread() - counted
        commits.append(Cost(len(moved), spent_s, counted, _read_bytes() - read_bytes))
        return moved

    with patch.object(SqlMetadata, "commit_group", measured):
        yield commits


class Rounds:
    """The rounds of both ways. Objects are chosen at random."""

    def __init__(self, ways: Mapping[str, Way], objects: int, instructions: Instructions) -> None:
        self._ways = ways
        self._objects = objects
        self._instructions = instructions
        self._rng = random.Random(7)
        self._turn = 0

    def run(self) -> dict[str, dict[str, Cost]]:
        """Run each step in both ways. Every other round begins with the other way."""
        self._turn += 1
        names = list(self._ways)
        order = names[::-1] if self._turn % 2 else names
        found: dict[str, dict[str, Cost]] = {name: {} for name in names}
        new = [f"{self._rng.randrange(FOLDERS):02X}/{self._rng.randbytes(8).hex()}" for _ in range(self._objects)]
        data = self._rng.randbytes(OBJECT_BYTES)
        seed = self._rng.random()
        for step, work in self._steps(new, data).items():
            for name in order:
                self._rng.seed(seed)
                with commits_measured(self._instructions) as commits:
                    found[name][step] = self._measured(self._ways[name], work)
                if step == "pack":  # GC commits groups of other sizes
                    found[name]["commit"] = _sum(commits)
        return found

    def _measured(self, way: Way, work: Callable[[Way], int | Cost]) -> Cost:
        cpu_s, instructions, read_bytes = time.process_time(), self._instructions.in_all(), _read_bytes()
        done = work(way)
        if isinstance(done, Cost):
            return done
        spent_s = time.process_time() - cpu_s
        return Cost(done, spent_s, self._instructions.in_all() - instructions, _read_bytes() - read_bytes)

    def _steps(self, new: Sequence[str], data: bytes) -> Mapping[str, Callable[[Way], int | Cost]]:
        return {
            "put": lambda way: self._put(way, new, data),
            "publish": self._publish,
            "pack": lambda way: self._pack(way, new),
            "get": self._get,
            "head": self._head,
            "list": lambda way: self._list(way, self._buckets(way, len(new) // 10)),
            "list_wide": lambda way: self._list(way, [WIDE] * (len(new) // 10)),
            "status": self._status,
            "delete": lambda way: self._delete(way, len(new) // 2),
            "idle_gc": lambda way: self._gc(way),
        }

    def _cell(self, way: Way) -> int:
        return self._turn % len(way.systems)

    def _buckets(self, way: Way, count: int) -> Sequence[str]:
        return [way.buckets[number % len(way.buckets)] for number in range(count)]

    def _put(self, way: Way, names: Sequence[str], data: bytes) -> int:
        bucket = way.buckets[self._cell(way)]
        for name in names:
            way.store.put(ObjectKey(bucket, name), data)
        return len(names)

    def _publish(self, way: Way) -> Cost:
        """Publish the objects, and then look for more, without what it takes to start and to end a producer."""
        with producer_service(way.systems[self._cell(way)]) as producer:
            return self._measured(way, lambda _: producer.drain() + 0 * sum(producer.turn() for _ in range(IDLE_TURNS)))

    def _pack(self, way: Way, names: Sequence[str]) -> Cost:
        """Pack the objects, and delete their landing copies. Surveys that are due by the clock run before. They read as
        many rows in any store, but more often in a cell, which waits longer for its turn than the small store."""
        cell = self._cell(way)
        system = way.systems[cell]
        system.worker.housekeeping().run_once()
        cost = self._measured(way, lambda _: drain(system).packed)
        if cost.calls != len(names):
            sys.exit(f"{cost.calls} of {len(names)} objects were packed")
        way.packed += [ObjectKey(way.buckets[cell], name) for name in names]
        return cost

    def _get(self, way: Way) -> int:
        keys = self._rng.choices(way.packed, k=self._objects)
        for key in keys:
            way.store.get(key)
        return len(keys)

    def _head(self, way: Way) -> int:
        """HEADs of rows from all over the table, which are in the first bucket after the wide one."""
        for bucket in self._buckets(way, self._objects):
            number = 1 + BUCKETS * self._rng.randrange(way.rows // BUCKETS)
            way.store.head(ObjectKey(bucket, name_of(number)))
        return self._objects

    def _list(self, way: Way, buckets: Sequence[str]) -> int:
        for bucket in buckets:
            after = f"{self._rng.randrange(FOLDERS // 2):02X}/"
            assert len(list(islice(way.store.list(bucket, after=after), PAGE_OBJECTS))) == PAGE_OBJECTS
        return len(buckets)

    def _status(self, way: Way) -> Cost:
        """Read the figures, while the stored sums are up to date, as a daemon keeps them."""
        for system in way.systems:
            system.operator.store_totals().keep()

        def read(_: Way) -> int:
            for number in range(self._objects // 10):
                way.systems[number % len(way.systems)].operator.figures()
            return self._objects // 10

        return self._measured(way, read)

    def _delete(self, way: Way, count: int) -> int:
        """Delete some objects of all rounds, so that no block loses all of its objects, which GC would then delete."""
        for _ in range(count):
            way.store.delete(way.packed.pop(self._rng.randrange(len(way.packed))))
        return count

    def _gc(self, way: Way) -> Cost:
        """A run of GC that finds nothing to do, because the runs before it have done it."""
        service = gc_service(way.systems[self._cell(way)])
        while service.run_once().objects_moved:
            pass
        return self._measured(way, lambda _: 1 + service.run_once().objects_moved)


def main(arguments: list[str] | None = None) -> int:
    """Make the stores, measure, print, and return the exit code."""
    options = _options(arguments)
    log_through_logging()
    instructions = Instructions()
    with tempfile.TemporaryDirectory(prefix="nos-ec-cost-", dir=options.folder) as folder, ExitStack() as stack:
        ways = {
            ONE: open_one(Path(folder), options.objects, stack),
            CELLS: _cells(Path(folder), options.cells, options.cell_objects, stack),
        }
        for way in ways.values():
            for system in way.systems:
                assert isinstance(system.metadata, SqlMetadata)
                instructions.watch(system.metadata)
        rounds = Rounds(ways, options.requests, instructions)
        for _ in range(options.cells):
            rounds.run()  # warms up the connections and caches of each cell
        found = [rounds.run() for _ in range(options.rounds)]
        instructions.start()
        exact = [rounds.run() for _ in range(options.cells)]
    figures = {
        "requests": options.requests,
        "rounds": options.rounds,
        "rows": {name: way.rows * len(way.systems) for name, way in ways.items()},
        "cpu_us": _figures(found, lambda cost: cost.cpu_s * 1e6),
        "instructions": _figures(exact, lambda cost: cost.instructions),
        "read_bytes": _figures(found, lambda cost: cost.read_bytes),
    }
    print(json.dumps(figures, indent=1))
    ratios = figures["cpu_us"]["cells_over_one"]
    met = all(ratios[step] <= RATIO_MAX for step in BARS) and ratios["list_wide"] <= RATIO_MAX * options.cells
    return int(options.check and not met)


def open_one(folder: Path, objects: int, stack: ExitStack) -> Way:
    """Make and open a store without cells, with the rows of this many objects. The stack closes it."""
    file = folder / "one.toml"
    file.write_text(CONFIG.format(directory='root = "one"', cells=""))
    settings = load_settings(file, {})
    initialise(settings)
    _fill(settings.store.url(), ONE, objects)
    system = open_system(settings)
    return Way(stack.enter_context(closing(ObjectStore(system))), [system], [f"{ONE}-1"], objects)


def _cells(folder: Path, count: int, objects: int, stack: ExitStack) -> Way:
    """A store of this many cells with this many objects each, and its wide bucket in all of them."""
    names = [f"c{number}" for number in range(count)]
    tables = "".join(f'[cells.{name}]\nstore.root = "{name}"\n' for name in names)
    file = folder / "cells.toml"
    file.write_text(CONFIG.format(directory=f'directory = "{names[0]}"', cells=tables))
    settings = load_settings(file, {})
    for name in names:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
        _fill(settings.of_cell(name).store.url(), name, objects)
    cells = open_cells(settings, SystemClock())
    store = stack.enter_context(closing(ObjectStore(cells)))
    claimed = [cells.claim_wide(WIDE, ROOT_ACCOUNT, names)]
    claimed += [cells.claim(f"{name}-1", ROOT_ACCOUNT, name) for name in names]
    for row in claimed:
        cells.record(row.home, row.bucket, row)
    return Way(store, [cells.system(name) for name in names], [f"{name}-1" for name in names], objects)


def _fill(url: str, name: str, objects: int) -> None:
    started_s = time.process_time()
    engine = make_engine(url)
    fill(engine, Shape(objects, 0, 0, objects // 1000), [WIDE, *(f"{name}-{number}" for number in range(1, BUCKETS))])
    engine.dispose()
    print(f"{name}: {objects} objects, made in {time.process_time() - started_s:.0f} s", file=sys.stderr, flush=True)


def _figures(rounds: Sequence[Mapping[str, Mapping[str, Cost]]], of: Callable[[Cost], float]) -> dict[str, Any]:
    """Medians of a figure of each step for a call, and of its ratios."""
    each = [
        {name: {step: of(cost) / cost.calls for step, cost in steps.items()} for name, steps in turn.items()}
        for turn in rounds
    ]
    steps = list(each[0][ONE])
    found: dict[str, Any] = {
        name: {step: round(median(turn[name][step] for turn in each), 1) for step in steps} for name in (ONE, CELLS)
    }
    found["cells_over_one"] = {
        step: round(median((turn[CELLS][step] + 1e-9) / (turn[ONE][step] + 1e-9) for turn in each), 3) for step in steps
    }
    return found


def _sum(costs: Sequence[Cost]) -> Cost:
    return Cost(
        sum(cost.calls for cost in costs),
        sum(cost.cpu_s for cost in costs),
        sum(cost.instructions for cost in costs),
        sum(cost.read_bytes for cost in costs),
    )


def _read_bytes() -> int:
    """Bytes that this process has read with system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--objects", type=int, default=100_000, help="rows of the store without cells")
    parser.add_argument("--cells", type=int, default=4, help="cells of the other store (default: %(default)s)")
    parser.add_argument("--cell-objects", type=int, default=1_000_000, help="rows of each cell (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=200, help="of a kind in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="after a warm-up in each cell (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--folder", type=Path, help="where the stores are made: 0.3 KB a row")
    options = parser.parse_args(arguments)
    if min(options.objects, options.cell_objects) < ROWS_MIN or options.cells < 2 or options.requests < 10:
        parser.error(f"use at least {ROWS_MIN} objects in each store and cell, 2 cells and 10 requests")
    return options


if __name__ == "__main__":
    sys.exit(main())

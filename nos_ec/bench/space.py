"""`bench space` measures raw bytes per user byte, by size of the objects.

ours        the blocks that the consumer packs the objects into, once their landing copies are deleted
simulation  what `simulate packing` predicts for the same sizes with the same settings, and room for names
each        one object in an erasure-coded pool for each of them: the profile of the blocks pool with another stripe
            unit, and allow_ec_optimizations
replicas    one object in a replicated pool for each of them

The last two are measured on Ceph only. The metadata of BlueStore and of the placement groups is in RocksDB, and is
reported separately. Packed and written data is not deleted before the end, because space that is freed late would
falsify the next figure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from nos_ec.bench.bare import put_all
from nos_ec.bench.meter import Instruments
from nos_ec.bench.objects import Objects
from nos_ec.bench.offline import measured_pack, publish, reap
from nos_ec.bench.pipeline import Tick
from nos_ec.bench.simulate import raw_bytes_per_user_byte, simulate
from nos_ec.bench.workloads import sizes
from nos_ec.composition.wiring import System
from nos_ec.core.packing.packer import size_max

DRAWN: Sequence[str | int] = (
    16 << 10,
    43_700,
    70_000,
    100_000,
    200_000,
    512 << 10,
    1 << 20,
    2 << 20,
    "W1",
    "W2",
)
STRIPE_UNITS = (4096, 16384)
"""Stripe units of the pools with one RADOS object per object: Ceph's default, and a larger one, with which a small
object is on fewer OSDs."""


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """Options of `bench space`. `drawn` has names of workloads, or sizes of all objects in bytes. The objects of each
    have at least `bytes_min` bytes together."""

    drawn: Sequence[str | int]
    bytes_min: int
    seed: int


class SpaceBench:
    """A run on an empty store and empty pools, which are not cleaned up, because they are removed entirely.

    `pools` has handles of the binding on the pools with one RADOS object per object, by way; empty unless the store is
    on Ceph.
    """

    def __init__(
        self, system: System, instruments: Instruments, pools: Mapping[str, Any], options: SpaceOptions, tick: Tick
    ) -> None:
        self._system = system
        self._instruments = instruments
        self._pools = pools
        self._options = options
        self._tick = tick
        self._rng = random.Random(options.seed)
        self._objects = Objects(system, self._rng)
        self._housekeeping = system.worker.housekeeping()
        self._size_max = size_max(system.geometry)

    def run(self) -> dict[str, Any]:
        """Run the benchmark, and return the figures (docs/BENCH.md explains them). Raises NosError."""
        options = self._options
        of_all = {
            str(drawn): drawn_sizes(drawn, options.bytes_min, self._rng, self._size_max) for drawn in options.drawn
        }
        ways: dict[str, Callable[[Sequence[int]], None]] = {"ours": self._pack}
        ways |= {way: partial(self._put_each, pool) for way, pool in self._pools.items()}
        raw: dict[str, dict[str, float]] = {drawn: {} for drawn in of_all}
        database: dict[str, float] = {}
        for way, put in ways.items():
            database_before = self._database_bytes()
            for number, (drawn, of_objects) in enumerate(of_all.items()):
                self._tick(way, number, len(of_all))
                before = self._allocated_bytes()
                put(of_objects)
                raw[drawn][way] = (self._allocated_bytes() - before) / sum(of_objects)
            database[way] = (self._database_bytes() - database_before) / sum(map(len, of_all.values()))
        osds = self._instruments.osds
        return {
            "bytes": options.bytes_min,
            "seed": options.seed,
            "ways": list(ways),
            "osds": 0 if osds is None else len(osds.osd_ports()),
            "cells": {
                drawn: space_figures(of_objects, raw[drawn], self._simulated(of_objects))
                for drawn, of_objects in of_all.items()
            },
            "database_bytes_per_object": database if self._pools else None,
        }

    def _pack(self, of_objects: Sequence[int]) -> None:
        self._objects.land(of_objects)
        publish(self._system)
        measured_pack(self._system, self._instruments, of_objects)
        reap(self._system, self._housekeeping)

    def _put_each(self, pool: Any, of_objects: Sequence[int]) -> None:
        names = [f"space-{self._objects.next_number()}" for _ in of_objects]
        put_all(pool, names, self._objects.pieces(of_objects), self._system.settings.consumer.read_threads)

    def _simulated(self, of_objects: Sequence[int]) -> float:
        geometry, timer = self._system.geometry, self._instruments.timer
        found = simulate(of_objects, self._system.settings.consumer, geometry, timer=timer, seed=self._options.seed)
        assert found.utilisation_with_names is not None
        return raw_bytes_per_user_byte(geometry, found.utilisation_with_names)

    def _allocated_bytes(self) -> int:
        if self._instruments.osds is None:
            return self._system.blocks.raw_bytes() + self._system.landing.raw_bytes()
        return self._instruments.osds.settled_counters().allocated_bytes

    def _database_bytes(self) -> int:
        return self._instruments.cluster.database_bytes() if self._pools else 0


@contextmanager
def pools_of_objects(system: System, instruments: Instruments) -> Iterator[Mapping[str, Any]]:
    """Yields handles on temporary pools with one RADOS object per object, by way. Raises ConfigError as BenchCluster's
    pools do."""
    cluster, ceph = instruments.cluster, system.settings.ceph
    with ExitStack() as stack:
        names = {
            f"each_{unit}": stack.enter_context(cluster.objects_pool(ceph.blocks_pool, unit)) for unit in STRIPE_UNITS
        }
        names["replicas"] = stack.enter_context(cluster.replicated_pool("replicas", "nos_ec"))
        handles = stack.enter_context(cluster.bare_pools(ceph.namespace, *names.values()))
        yield dict(zip(names, handles, strict=True))


def drawn_sizes(drawn: str | int, bytes_min: int, rng: random.Random, limit: int) -> list[int]:
    """Draw sizes of objects with at least `bytes_min` bytes together, and at most `limit` bytes each. Raises
    InvalidInput."""
    of_objects = sizes(drawn, bytes_min, rng, limit)
    found: list[int] = []
    while bytes_min > 0:
        found.append(next(of_objects))
        bytes_min -= found[-1]
    return found


def space_figures(of_objects: Sequence[int], raw: Mapping[str, float], simulated: float) -> dict[str, Any]:
    """Return the figures of objects of these sizes. `raw` has the raw bytes per user byte by way, and `simulated` the
    value of the simulation."""
    found: dict[str, Any] = {
        "objects": len(of_objects),
        "bytes": sum(of_objects),
        "raw_bytes_per_user_byte": raw,
        "simulated_raw_bytes_per_user_byte": simulated,
        "ours_over_simulation": raw["ours"] / simulated,
    }
    if each := [value for way, value in raw.items() if way.startswith("each_")]:
        found["each_least"] = min(each)
        found["ours_over_each"] = raw["ours"] / min(each)
    return found

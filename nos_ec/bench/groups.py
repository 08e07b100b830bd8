"""Measures the time to write a stripe group (read the sources, append, commit), by its number of stripes. One lane
writes one group at a time."""

from __future__ import annotations

import random

from nos_ec.bench.bare import Timer
from nos_ec.bench.figures import latency_ms
from nos_ec.bench.objects import Objects
from nos_ec.bench.workloads import sizes
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.best_fit import BestFitMergeList
from nos_ec.core.packing.packer import size_max
from nos_ec.core.packing.plan import GroupPlan, MergeList
from nos_ec.core.states import BlockKind
from nos_ec.engine.packable import Packable
from nos_ec.ports.metadata import ObjectRow

WORKLOAD = "W3"
"""Objects of at most one chunk, so that a group may have any number of stripes."""


def group_latencies(
    system: System, objects: Objects, groups: int, rng: random.Random, timer: Timer
) -> dict[str, dict[str, float]]:
    """Return, by number of stripes from 1 to the geometry's limit, the number of timed groups (`groups`) and
    percentiles in milliseconds. Lands the objects first. Raises NosError."""
    found: dict[str, dict[str, float]] = {}
    with system.lease(system.member_name("bench"), system.settings.store.lease_ttl_ms) as held:
        writer = system.writer(held.lease, BlockKind.FRESH)
        for stripe_count in range(1, system.geometry.stripes_per_group_max + 1):
            plans = _plans(system, objects.land(_drawn(system.geometry, groups, stripe_count, rng)), stripe_count)
            seconds: list[float] = []
            for plan in plans[:groups]:
                started_s = timer()
                result = writer.write(plan)
                seconds.append(timer() - started_s)
                if result.failed or result.unread or result.retry:
                    raise Transient(f"bench: a group of {stripe_count} stripes was not written ({result.cause})")
            found[str(stripe_count)] = {"groups": len(seconds)} | latency_ms(seconds)
        writer.close()
    return found


def _drawn(geometry: Geometry, groups: int, stripe_count: int, rng: random.Random) -> list[int]:
    """Draw sizes that fill this many groups and one more, so that any draw gives enough full groups."""
    left_bytes = (groups + 1) * stripe_count * geometry.stripe_size
    drawn: list[int] = []
    while left_bytes > 0:
        drawn += sizes(WORKLOAD, 1, rng, size_max(geometry))
        left_bytes -= drawn[-1]
    return drawn


def _plans(system: System, rows: list[ObjectRow], stripe_count: int) -> list[GroupPlan[Packable]]:
    """Return full groups of this many stripes. Objects left over at the end stay in the landing store."""
    window = system.settings.consumer.window_objects
    packer: MergeList[Packable] = BestFitMergeList(system.geometry, window, 0, stripe_count)
    for row in rows:
        packer.add(_packable(row).candidate(0))
    plans: list[GroupPlan[Packable]] = []
    while (plan := packer.plan(0, flush=True)) is not None:
        if plan.stripe_count == stripe_count:
            plans.append(plan)
    return plans


def _packable(row: ObjectRow) -> Packable:
    assert row.landing_id is not None
    return Packable(row.object_id, row.key, row.version, row.size, row.crc32c, row.landing_id)

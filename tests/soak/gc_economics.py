"""Runs workload B in a real store and in the simulation, and compares space and write amplification.

The store is a scratch store on the servers of --config (default: an embedded one), which is removed at the end. Its
clock is ahead, so that hundreds of days go by in minutes. Prints a line of JSON, and ends with 1 if the store and the
simulation differ by more than a tenth. docs/MEASUREMENTS.md has the results.

    .venv/bin/python tests/soak/gc_economics.py --folder var --blocks 60
    .venv/bin/python tests/soak/gc_economics.py --config deploy/dev/nos-ec.toml --folder var --blocks 1000
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter

import structlog

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.composition.backends import rados_options
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.settings import Settings, load_settings
from tests.rig.gc_economics import Scale, StoreRun, objects_of, simulated

DIFFERENCE_MAX = 0.1
POOL_COUNTS_S = 15.0
"""The OSDs report what they wrote every few seconds."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Compare what GC costs in a store and in the simulation.")
    parser.add_argument("--config", type=Path, help="of a store, next to which a scratch store is made")
    parser.add_argument("--folder", type=Path, required=True, help="for the embedded parts of the scratch store")
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--stripes-per-block", type=int, default=4)
    parser.add_argument("--object-bytes", type=int, default=60_000)
    parser.add_argument("--days", type=float, default=500.0)
    parser.add_argument("--space-amp", type=float, default=1.4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tick-blocks", type=int, default=1, help="as many blocks arrive between two cycles of GC")
    parser.add_argument(
        "--raw-gb-max", type=float, default=15.0, help="what the blocks may take on all shards, estimated"
    )
    given = parser.parse_args()
    scale = Scale(given.blocks, given.object_bytes, given.days, given.space_amp, given.seed, given.tick_blocks)
    settings = _settings(load_settings(given.config, os.environ), scale, given.stripes_per_block)
    geometry = settings.geometry.value()
    estimated = scale.blocks * geometry.raw_bytes(geometry.stripes_per_block) * (scale.space_amp + 0.5)
    if estimated > given.raw_gb_max * 1e9:
        parser.error(f"about {estimated / 1e9:.0f} GB on all shards, more than --raw-gb-max {given.raw_gb_max:.0f}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    log = objects_of(scale, geometry.block_size)
    expected = simulated(scale, log, geometry.block_size)
    begun = perf_counter()
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
        scratch_store(settings, Path(folder).absolute(), "gc_economics") as scratch,
        open_system(scratch) as system,
    ):
        tell = partial(_tell, system)
        books = StoreRun(system, scale, log, tell, partial(_pool_bytes, scratch)).run()
    of_store = {"space": books.space_amplification, "write": books.write_amplification}
    of_simulation = {"space": expected.space_amplification, "write": expected.write_amplification}
    differences = {name: of_store[name] / of_simulation[name] - 1 for name in of_store}
    figures = {
        "scale": asdict(scale),
        "block_size": geometry.block_size,
        "objects": len(log.objects),
        "store": asdict(books),
        "simulation": of_simulation,
        "differences": differences,
        "seconds": perf_counter() - begun,
    }
    print(json.dumps(figures))
    return int(any(abs(one) > DIFFERENCE_MAX for one in differences.values()))


def _tell(system: System, day: float) -> None:
    totals = system.metadata.totals()
    print(
        f"day {day:.0f}: {totals.live_bytes / 1e9:.2f} GB live, {totals.space_amplification}, user"
        f" {totals.user_bytes_written / 1e9:.2f} GB, copied {totals.copied_bytes_written / 1e9:.2f} GB",
        file=sys.stderr,
    )


def _pool_bytes(settings: Settings) -> int:
    """What clients have written into the pool of blocks by the OSDs' counts, which are some seconds old."""
    if settings.store.backend != "ceph":
        return 0
    time.sleep(POOL_COUNTS_S)
    with closing(RadosCluster(rados_options(settings))) as cluster:
        pools = cluster.command("df", detail="detail")["pools"]
    return next(int(pool["stats"]["wr_bytes"]) for pool in pools if pool["name"] == settings.ceph.blocks_pool)


def _settings(settings: Settings, scale: Scale, stripes_per_block: int) -> Settings:
    """One landing copy for each object, because a landing log holds a lease, which would end with each day."""
    gc = {
        "policy": "space-target",
        "space_amp": scale.space_amp,
        "price_days": 0.0,
        "streams": 1,
        "block_grace_ms": 0,
    }
    return settings.model_copy(
        update={
            "gc": settings.gc.model_copy(update=gc),
            "landing": settings.landing.model_copy(update={"mode": "store"}),
            "put": settings.put.model_copy(update={"min_age_ms": 0}),
            "reaper": settings.reaper.model_copy(update={"landing_grace_ms": 0}),
            "geometry": settings.geometry.model_copy(update={"stripes_per_block": stripes_per_block}),
        }
    )


if __name__ == "__main__":
    sys.exit(main())

"""What it costs to verify packed objects and to delete their landing copies, on the configured Ceph, MySQL or MariaDB.

Lands and packs objects in a store of its own, which is removed at the end, and times the reaper over them: milliseconds
of CPU per object, by group of processes. `verify` is the same with a landing store that deletes nothing, as if the
copies were records of the landing log. Prints one line of JSON for each workload.

    python tests/soak/cost_of_reaping.py --config deploy/dev/nos-ec.toml --workload W1 --objects 2000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from nos_consumer.assemble import consumer_service
from nos_ec.bench.objects import Objects
from nos_ec.bench.servers.cluster import BenchCluster
from nos_ec.bench.servers.processes import Processes, listeners
from nos_ec.bench.stack import AdminKey, admin_options
from nos_ec.bench.workloads import sizes
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.packing.packer import size_max
from nos_ec.ports.landing_store import LandingStore
from nos_ec.settings import Settings, load_settings
from nos_producer.assemble import producer_service


class KeepsCopies:
    """A landing store that only pretends to delete copies."""

    def __init__(self, landing: LandingStore) -> None:
        self._landing = landing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._landing, name)

    def delete_many(self, *_: object) -> Mapping[object, object]:
        """See LandingStore."""
        return {}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _options(arguments)
    settings = _settings(load_settings(options.config, os.environ))
    admin = AdminKey("client.admin", None)
    with (
        tempfile.TemporaryDirectory(prefix="nos-ec-reaping-") as folder,
        BenchCluster(admin_options(settings, admin)) as cluster,
        scratch_store(settings, Path(folder) / "store", "reaping") as scratch,
        open_system(scratch) as system,
    ):
        sql_port = urlsplit(settings.store.url()).port or 3306
        processes = Processes(
            {"client": [os.getpid()], "osds": listeners(cluster.osd_ports()), "sql": listeners([sql_port])}
        )
        objects = Objects(system, random.Random(options.seed))
        for workload in options.workload:
            runs: dict[str, list[Mapping[str, float]]] = {"reap": [], "verify": []}
            for _ in range(options.rounds):
                for way, measured in runs.items():
                    drawn = _drawn(workload, options.objects, system)
                    _pack(system, objects, drawn)
                    measured.append(_reap(system, processes, len(drawn), keeps=way == "verify"))
            print(
                json.dumps({"workload": workload} | {way: _medians(found) for way, found in runs.items()}), flush=True
            )
    return 0


def _settings(settings: Settings) -> Settings:
    return settings.model_copy(
        update={
            "put": settings.put.model_copy(update={"min_age_ms": 0}),
            "reaper": settings.reaper.model_copy(update={"landing_grace_ms": 0}),
        }
    )


def _drawn(workload: str, count: int, system: System) -> list[int]:
    if workload.isdigit():
        return [int(workload)] * count
    return list(sizes(workload, count, random.Random(1), size_max(system.geometry)))


def _pack(system: System, objects: Objects, drawn: Sequence[int]) -> None:
    objects.land(drawn)
    with producer_service(system) as producer:
        producer.drain()
    with consumer_service(system) as consumer:
        while consumer.counters.packed < len(drawn):
            consumer.turn(flush=True)


def _reap(system: System, processes: Processes, count: int, *, keeps: bool) -> Mapping[str, float]:
    """CPU milliseconds per object by group, and objects a second."""
    kept = system.landing
    if keeps:
        system.landing = cast(LandingStore, KeepsCopies(kept))
    housekeeping = system.worker.housekeeping()
    system.landing = kept
    before, started = processes.cpu_s(), time.perf_counter()
    result = housekeeping.run_once().reaper
    seconds, after = time.perf_counter() - started, processes.cpu_s()
    if result.deleted != count:
        raise SystemExit(f"{result} instead of {count} deleted")
    cpu = {name: 1000 * ((after[name] or 0) - (before[name] or 0)) / count for name in before}
    return cpu | {"objects_per_s": count / seconds}


def _medians(found: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return {name: round(statistics.median(one[name] for one in found), 4) for name in found[0]}


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--workload", nargs="+", default=["W1", "65536", "4096"], help="name, or size in bytes")
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""What publishing and packing an object costs in a nearly empty store and in a full one: it must not grow.

Times the real `nos-ec producer --once` and `nos-ec consumer --once` on the same number of new objects, in a store with
few packed objects and in one with many (their rows, in bulk; what a store holds is a matter of its metadata). Prints
JSON: seconds of wall clock and of processor per 10,000 objects, start-up taken off, and the ratio of the two stores.

    python tests/soak/cost_per_object.py --packed 10000 500000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nos_ec.composition.wiring import initialise
from nos_ec.settings import Settings, load_settings, without_settings
from tests.rig.backlog import Backlog

UNIT_OBJECTS = 10_000
PACKED_SIZE = 1000

CONFIG = """
[store]
root = "store"
[reaper]
landing_grace_ms = 0
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one run of a command."""

    wall: float
    processor: float


def main(arguments: list[str] | None = None) -> int:
    """Measure each store, print, and return the exit code."""
    options = _options(arguments)
    stores = []
    for packed in options.packed:
        with tempfile.TemporaryDirectory(prefix="nos-ec-cost-", dir=options.folder) as folder:
            stores.append({"packed_rows": packed, **measure(Path(folder), packed, options)})
        print(json.dumps(stores[-1]), file=sys.stderr, flush=True)
    ratios = {name: round(stores[-1][name] / stores[0][name], 3) for name in stores[0] if name != "packed_rows"}
    print(json.dumps({"objects": options.objects, "repeats": options.repeats, "stores": stores, "ratios": ratios}))
    return 0


def measure(folder: Path, packed: int, options: argparse.Namespace) -> Mapping[str, float]:
    """Seconds per UNIT_OBJECTS of each command in a store with `packed` rows: the median of the repeats."""
    config = folder / "nos-ec.toml"
    config.write_text(CONFIG)
    settings = load_settings(config, {})
    initialise(settings)
    _land(settings, packed=packed, landed=0)
    idle: dict[str, list[Cost]] = {"producer": [], "consumer": []}
    busy: dict[str, list[Cost]] = {"producer": [], "consumer": []}
    for _ in range(options.repeats):
        for name, costs in idle.items():
            costs.append(_run(config, name))
        _land(settings, packed=0, landed=options.objects)
        os.sync()
        for name, costs in busy.items():
            costs.append(_run(config, name))
    figures = {}
    for name in busy:
        start_up, whole = _median(idle[name]), _median(busy[name])
        figures[f"{name}_wall_seconds"] = whole.wall - start_up.wall
        figures[f"{name}_processor_seconds"] = whole.processor - start_up.processor
    return {name: round(seconds * UNIT_OBJECTS / options.objects, 3) for name, seconds in figures.items()}


def _land(settings: Settings, *, packed: int, landed: int) -> None:
    """Every call starts from another seed, so that no landing id and no name comes twice."""
    now_ms = time.time_ns() // 1_000_000
    backlog = Backlog(settings.store.url(), settings.store.root / "landing", now_ms, seed=now_ms)
    try:
        backlog.add_packed(packed, PACKED_SIZE, settings.geometry.value())
        backlog.land(landed, 64, 2000, None)
    finally:
        backlog.close()


def _run(config: Path, name: str) -> Cost:
    environment = without_settings(os.environ)
    command = [sys.executable, "-m", "nos_ec", "--config", str(config), name, "--once", "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"nos-ec {name} ended with {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime)


def _median(costs: Sequence[Cost]) -> Cost:
    walls, processors = [cost.wall for cost in costs], [cost.processor for cost in costs]
    return Cost(statistics.median(walls), statistics.median(processors))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--packed", type=int, nargs="+", default=[10_000, 500_000], help="packed objects, by store")
    parser.add_argument("--objects", type=int, default=UNIT_OBJECTS, help="new objects a run (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs in each store (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args(arguments)
    if min(options.packed) < 0 or min(options.objects, options.repeats) < 1:
        parser.error("--packed is at least 0, --objects and --repeats at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

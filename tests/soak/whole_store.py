"""Measures what commands cost that read a whole store: check, metadata dump, metadata rebuild, and a check of what it
made.

Makes an embedded store of small packed objects in a temporary folder, a small one and one ten times as large, runs the
real commands on each, and takes CPU time and peak memory of each process from the kernel. Prints JSON. Exits with 1
when a check takes more than 200 MiB, when its cost an object, without that of a check of an empty store, is more than
1.2 times as high in the large store as in the small one, or when a command fails or finds something wrong.

    python tests/soak/whole_store.py --objects 1000000 --folder /dev/shm
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nos_ec.library.opening import open_store

CHECK_MIB_MAX = 200
COST_RATIO_MAX = 1.2
BATCH, ROUND = 1000, 100_000
BUCKETS = 50
SIZES = (200, 1800)

CONFIG = """
[store]
root = "store"
[landing]
device_bytes = "1GiB"
[reaper]
landing_grace_ms = 0
[gc]
policy = "threshold"
reserve_bytes = "64MiB"
[logging]
level = "error"
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one command."""

    command: str
    exit_code: int
    cpu_seconds: float
    seconds: float
    peak_rss_mib: float


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--objects", type=int, default=1_000_000, help="objects of the large store")
    parser.add_argument("--folder", help="where the temporary stores are made: needs 4 KB an object")
    options = parser.parse_args(arguments)
    runs = {}
    for objects in (max(BATCH, options.objects // 10), options.objects):
        with tempfile.TemporaryDirectory(prefix="nos-ec-whole-", dir=options.folder) as folder:
            runs[objects] = measure(Path(folder), objects)
        print(json.dumps({objects: [asdict(cost) for cost in runs[objects]]}), file=sys.stderr, flush=True)
    small, large = (check_us(objects, costs) for objects, costs in runs.items())
    costs = [cost for found in runs.values() for cost in found]
    checks = [cost.peak_rss_mib for cost in costs if cost.command == "check"]
    fine = (
        all(cost.exit_code == 0 for cost in costs) and max(checks) <= CHECK_MIB_MAX and large <= COST_RATIO_MAX * small
    )
    costs_by_size = {size: [asdict(cost) for cost in found] for size, found in runs.items()}
    print(json.dumps({"ok": fine, "check_us_per_object": [small, large], "costs": costs_by_size}))
    return 0 if fine else 1


def check_us(objects: int, costs: Sequence[Cost]) -> float:
    """Microseconds of CPU an object, without what a check of an empty store takes."""
    empty, full, *_ = costs
    return round((full.cpu_seconds - empty.cpu_seconds) / objects * 1e6, 1)


def measure(folder: Path, objects: int) -> list[Cost]:
    """Make a store with this many objects, and run the commands."""
    config = folder / "nos-ec.toml"
    config.write_text(CONFIG)
    required(config, "init")
    empty = run(config, "check")
    fill(config, objects)
    costs = [empty, run(config, "check"), run(config, "metadata", "dump")]
    for file in (folder / "store").glob("metadata.db*"):
        file.unlink()
    return [*costs, run(config, "metadata", "rebuild"), run(config, "check")]


def fill(config: Path, objects: int) -> None:
    """Put and pack, in rounds that fit into the landing log."""
    choices = random.Random(1)
    for start in range(0, objects, ROUND):
        end = min(objects, start + ROUND)
        with open_store(config) as store:
            for first in range(start, end, BATCH):
                store.put_many(
                    [
                        (f"b{number % BUCKETS}/o{number:08d}", choices.randbytes(choices.randint(*SIZES)))
                        for number in range(first, min(end, first + BATCH))
                    ]
                )
        required(config, "producer", "--once")
        required(config, "consumer", "--once")


def required(config: Path, *words: str) -> None:
    cost = run(config, *words)
    if cost.exit_code:
        raise SystemExit(f"{cost.command} ended with {cost.exit_code}")


def run(config: Path, *words: str) -> Cost:
    """Run a command of nos-ec to its end."""
    begun = time.monotonic()
    process = subprocess.Popen(nos_ec(config, words), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_seconds = round(usage.ru_utime + usage.ru_stime, 2)
    seconds = round(time.monotonic() - begun, 2)
    return Cost(" ".join(words), process.returncode, cpu_seconds, seconds, round(usage.ru_maxrss / 1024, 1))


def nos_ec(config: Path, words: Sequence[str]) -> list[str]:
    """The command line of a command."""
    return [sys.executable, "-m", "nos_ec", "--config", str(config), *words]


if __name__ == "__main__":
    sys.exit(main())

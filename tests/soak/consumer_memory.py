"""How much memory `nos-ec consumer` takes for a large backlog: it must not grow with the backlog (invariant 9).

Makes a store in a temporary folder with a backlog of landed objects whose events lie in the message log, then runs
the real command on it, in a process of its own, until it has packed them all and deleted their landing copies, and
watches VmHWM in /proc/PID/status. Does so for a tenth of the backlog as well, to show that the peak is the same.
Prints JSON; exits with 1 when a run took more than the bound, or did not pack everything.

    python tests/soak/consumer_memory.py --events 1000000 --lanes 1 4
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nos_ec.adapters.local.message_log import LocalMessageLog
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.wiring import initialise
from nos_ec.settings import load_settings, without_settings
from tests.rig.backlog import Backlog

BOUND_MIB = 300
SAMPLE_S = 0.1
CURVE_POINTS = 10

# Defaults all through, but for the grace of landing copies: without one the same process also reads everything back.
CONFIG = """
[store]
root = "store"
[consumer]
lanes = {lanes}
window_objects = {window}
[reaper]
landing_grace_ms = 0
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the consumer. rss_mib: resident memory at even distances in time, from start to end."""

    events: int
    lanes: int
    bytes: int
    packed: int
    stripes: int
    exit_code: int
    peak_rss_mib: float
    rss_mib: list[float]
    set_up_seconds: float
    seconds: float
    objects_per_second: float


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    options = _options(arguments)
    runs = []
    for lanes in options.lanes:
        for events in sorted({max(1, options.events // 10), options.events}):
            with tempfile.TemporaryDirectory(prefix="nos-ec-memory-", dir=options.folder) as folder:
                runs.append(measure(Path(folder), events, lanes, options))
            print(json.dumps(asdict(runs[-1])), file=sys.stderr, flush=True)
    fine = [run.exit_code == 0 and run.packed == run.events and run.peak_rss_mib < options.bound_mib for run in runs]
    print(json.dumps({"bound_mib": options.bound_mib, "ok": all(fine), "runs": [asdict(run) for run in runs]}))
    return 0 if all(fine) else 1


def measure(folder: Path, events: int, lanes: int, options: argparse.Namespace) -> Run:
    """Make a store with that backlog in `folder` and let a consumer empty it."""
    start = time.monotonic()
    config = folder / "nos-ec.toml"
    config.write_text(CONFIG.format(lanes=lanes, window=options.window))
    size = _make_backlog(config, events, options)
    # What making it left in the page cache to be written must not slow down what is measured.
    os.sync()
    set_up_seconds = time.monotonic() - start
    environment = without_settings(os.environ)
    command = [sys.executable, "-m", "nos_ec", "--config", str(config), "consumer", "--once", "--json"]
    start = time.monotonic()
    with (folder / "counters.json").open("w+") as output:
        process = subprocess.Popen(command, env=environment, stdout=output)
        samples, peak = _watch(process, start + options.seconds_max)
        seconds = time.monotonic() - start
        output.seek(0)
        counters: dict[str, Any] = json.load(output) if process.returncode == 0 else {}
    packed = counters.get("packed", 0)
    return Run(
        events=events,
        lanes=lanes,
        bytes=size,
        packed=packed,
        stripes=counters.get("stripes", 0),
        exit_code=process.returncode,
        peak_rss_mib=round(peak, 1),
        rss_mib=_curve(samples),
        set_up_seconds=round(set_up_seconds, 1),
        seconds=round(seconds, 1),
        objects_per_second=round(packed / seconds, 1),
    )


def _make_backlog(config: Path, events: int, options: argparse.Namespace) -> int:
    settings = load_settings(config, {})
    initialise(settings)
    root = settings.store.root
    publisher = LocalMessageLog(root / "log.db").publisher(SystemClock())
    backlog = Backlog(settings.store.url(), root / "landing", time.time_ns() // 1_000_000)
    try:
        return backlog.land(events, options.size_min, options.size_max, publisher)
    finally:
        backlog.close()
        publisher.close()


def _watch(process: subprocess.Popen[bytes], until: float) -> tuple[list[float], float]:
    """Samples of resident memory until the process ends, and its peak, MiB each. Stops it when `until` has come."""
    samples: list[float] = []
    peak = 0.0
    while process.poll() is None:
        if (memory := _memory_mib(process.pid)) is not None:
            samples.append(memory[0])
            peak = max(peak, memory[1])
        if time.monotonic() > until:
            process.terminate()
            until += 60.0
        time.sleep(SAMPLE_S)
    return samples, peak


def _memory_mib(pid: int) -> tuple[float, float] | None:
    """VmRSS and VmHWM; None when the process has just ended and has none any more."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(":", 1) for line in text.splitlines())
    if "VmHWM" not in fields:
        return None
    now, peak = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


def _curve(samples: list[float]) -> list[float]:
    step = max(1, len(samples) // CURVE_POINTS)
    return [round(sample, 1) for sample in samples[::step]]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="size of the backlog (default: %(default)s)")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1], help="consumer.lanes, a run for each")
    parser.add_argument("--size-min", type=int, default=64, help="bytes of the smallest object (default: %(default)s)")
    parser.add_argument("--size-max", type=int, default=2000, help="and of the largest (default: %(default)s)")
    parser.add_argument("--window", type=int, default=1000, help="consumer.window_objects (default: %(default)s)")
    parser.add_argument("--bound-mib", type=float, default=BOUND_MIB, help="fail above it (default: %(default)s)")
    parser.add_argument("--seconds-max", type=float, default=3600.0, help="stop a run then (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made; needs about 8 KiB an object")
    options = parser.parse_args(arguments)
    if options.events < 1 or not 1 <= options.size_min <= options.size_max or min(options.lanes) < 1:
        parser.error("events, lanes and sizes are at least 1, and --size-min is at most --size-max")
    folder = options.folder or Path(tempfile.gettempdir())
    if not folder.is_dir():
        parser.error(f"--folder {folder} is not a folder")
    needed = options.events * (6000 + 3 * options.size_max)
    if shutil.disk_usage(folder).free < needed:
        parser.error(f"{folder} has less than the {needed} bytes free that {options.events} events take; use --folder")
    return options


if __name__ == "__main__":
    sys.exit(main())

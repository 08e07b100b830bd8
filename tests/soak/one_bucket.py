"""How much faster three consumers pack a store with most of its objects in one bucket than one consumer does.

Runs the real daemons on Kafka, MariaDB and the embedded block and landing stores. The consumers reach MariaDB through
a TCP proxy that passes on what they send after a delay, as a database far away would answer. So they spend their time
waiting, and not computing: three of them would not find three processors on a small machine. Prints JSON: objects
packed a second between two points of the run, the shares of the consumers, the utilisation of the stripes written
meanwhile, the processors in use, and the ratios to one consumer. With --check, exits with 1 if a bar of
docs/MEASUREMENTS.md is missed.

    python tests/soak/one_bucket.py --objects 12000 --delay 0.15 --check
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from nos_ec.adapters.sql.driver.databases import create_database
from nos_ec.bench.servers.processes import Processes
from nos_ec.composition.backends import remove_log
from nos_ec.composition.wiring import initialise
from nos_ec.settings import load_settings
from tests.rig.backlog import Backlog
from tests.rig.daemons import DaemonProcess
from tests.rig.dev_servers import DevServer
from tests.rig.switched_proxy import SwitchedProxy
from tests.rig.waiting import until

PARTITIONS = 12
LARGE_SHARE = 0.9
SIZE_MAX = 8000
WAIT_S_MAX = 3600.0
RATIO_MIN = 2.2
UTILISATION_OFF_MAX = 0.002

CONFIG = """
[store]
root = "store"
metadata_url = "{url}"
[geometry]
chunk_size = 16384
[consumer]
window_objects = {window}
[log]
backend = "kafka"
partitions = {partitions}
spread = {spread}
[kafka]
servers = "{servers}"
topic = "{tag}"
replication = 1
in_sync_min = 1
"""


@dataclass(frozen=True, slots=True)
class Servers:
    """The addresses of Kafka, of MariaDB, and of the proxy in front of MariaDB."""

    kafka: str
    database: str
    slow_database: str


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums over all consumers at some time, and what each of them has packed."""

    at_s: float
    packed: Sequence[float]
    packed_bytes: float
    written_bytes: float
    processor_s: float


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="nos-ec-bucket-", dir=options.folder) as folder, ExitStack() as stack:
        servers = _servers(Path(folder), options.delay, stack)
        runs = {
            name: _measure(Path(folder) / name, servers, spread, consumers, options)
            for name, spread, consumers in (("one", '"auto"', 1), ("three", '"auto"', 3), ("three_unspread", "1", 3))
        }
    one, three = runs["one"], runs["three"]
    figures = {
        "objects": options.objects,
        "delay_s": options.delay,
        "runs": runs,
        "three_over_one": round(three["objects_per_s"] / one["objects_per_s"], 2),
        "three_unspread_over_one": round(runs["three_unspread"]["objects_per_s"] / one["objects_per_s"], 2),
        "utilisation_off": round(three["utilisation"] - one["utilisation"], 5),
    }
    print(json.dumps(figures))
    met = figures["three_over_one"] >= RATIO_MIN and abs(figures["utilisation_off"]) <= UTILISATION_OFF_MAX
    return int(options.check and not met)


def _servers(folder: Path, delay_s: float, stack: ExitStack) -> Servers:
    """Start the servers. They are stopped at the end of the stack."""
    started = {}
    for name in ("kafka", "mariadb"):
        server = started[name] = DevServer(name, folder)
        server.start()
        stack.callback(server.stop)
    url = urlsplit(started["mariadb"].url)
    assert url.port is not None
    proxy = stack.enter_context(SwitchedProxy(url.port, delay_s=delay_s).running())
    slow = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{proxy.port}"))
    return Servers(started["kafka"].url, url.geturl(), slow.geturl())


def _measure(
    folder: Path, servers: Servers, spread: str, consumers: int, options: argparse.Namespace
) -> dict[str, Any]:
    tag = f"bucket-{uuid4().hex[:12]}"
    folder.mkdir()
    config = folder / "nos-ec.toml"
    config.write_text(
        CONFIG.format(
            url=_with_database(servers.database, tag),
            window=options.window,
            partitions=PARTITIONS,
            spread=spread,
            servers=servers.kafka,
            tag=tag,
        )
    )
    create_database(_with_database(servers.database, tag))
    settings = load_settings(config, {})
    initialise(settings)
    now_ms = time.time_ns() // 1_000_000
    with closing(Backlog(settings.store.url(), settings.store.root / "landing", now_ms, 1, LARGE_SHARE)) as backlog:
        backlog.land(options.objects, 1, SIZE_MAX, None)
    daemons: list[DaemonProcess] = []
    try:
        slow = {"NOS_EC_STORE__METADATA_URL": _with_database(servers.slow_database, tag)}
        daemons += [DaemonProcess(config, "consumer", f"consumer-{number}", **slow) for number in range(consumers)]
        shares = [PARTITIONS // consumers] * consumers
        until(lambda: [len(one.partitions()) for one in daemons] == shares, "equal shares", wait_s=WAIT_S_MAX)
        producer = DaemonProcess(config, "producer", "producer")
        daemons.append(producer)
        figures = _rates(daemons[:consumers], options.objects)
        producer_s = Processes({"producer": [producer.process.pid]}).cpu_s()["producer"] or 0
        figures["producer_processor_ms_per_object"] = round(1000 * producer_s / options.objects, 3)
    finally:
        for daemon in daemons:
            daemon.stop()
        remove_log(settings)
    print(json.dumps({folder.name: figures}), file=sys.stderr, flush=True)
    return figures


def _rates(consumers: Sequence[DaemonProcess], objects: int) -> dict[str, Any]:
    """Figures of the time in which the consumers pack the objects from a sixth to three quarters of all."""
    first, last = _sums_at(consumers, objects / 6), _sums_at(consumers, objects * 3 / 4)
    taken_s = last.at_s - first.at_s
    packed = [after - before for before, after in zip(first.packed, last.packed, strict=True)]
    return {
        "objects_per_s": round(sum(packed) / taken_s, 1),
        "shares": [round(one / sum(packed), 3) for one in packed],
        "seconds": round(taken_s, 1),
        "utilisation": round((last.packed_bytes - first.packed_bytes) / (last.written_bytes - first.written_bytes), 5),
        "processors_busy": round((last.processor_s - first.processor_s) / taken_s, 2),
    }


def _sums_at(consumers: Sequence[DaemonProcess], packed_min: float) -> Sums:
    """The sums as soon as the consumers have packed this many objects."""
    processes = Processes({"consumers": [one.process.pid for one in consumers]})
    found: list[Sums] = []

    def reached() -> bool:
        metrics = [one.metrics() for one in consumers]
        packed = [one.get("nos_ec_consumer_packed_objects_total", 0) for one in metrics]
        if sum(packed) < packed_min:
            return False
        found.append(
            Sums(
                time.monotonic(),
                packed,
                _total(metrics, "nos_ec_consumer_packed_bytes_total"),
                _total(metrics, "nos_ec_consumer_written_bytes_total"),
                processes.cpu_s()["consumers"] or 0,
            )
        )
        return True

    until(reached, f"{packed_min:.0f} objects are packed", wait_s=WAIT_S_MAX)
    return found[0]


def _total(metrics: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(one[name] for one in metrics)


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path="/" + name.replace("-", "_")))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--objects", type=int, default=12_000, help="objects a run (default: %(default)s)")
    parser.add_argument("--window", type=int, default=500, help="consumer.window_objects (default: %(default)s)")
    parser.add_argument(
        "--delay", type=float, default=0.15, help="seconds a request takes longer (default: %(default)s)"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args(arguments)
    if options.objects < 12 * options.window:
        parser.error(f"{options.objects} objects are too few: use at least {12 * options.window}")
    return options


if __name__ == "__main__":
    sys.exit(main())

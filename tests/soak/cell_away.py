"""Measures what clients of one cell notice while the database of another one hangs (SIGSTOP), or was killed, or while
that cell has no space left.

Starts a MySQL server for each of two cells in a temporary folder, one process of `nos-ec s3 serve`, and a process of
clients for each cell. The clients send GETs and PUTs in turn at a fixed rate, however long answers take, and each time
counts from the moment when the request was due. A round has two strikes. Each of them is measured before it, while the
database is away, and after it is back. Prints a line for each of these, and the medians of all rounds at the end.
Exits with 1 if a request to the healthy cell failed, or if one to the other was not refused within 10 seconds. A cell
without space must serve all GETs. Its disk is a tmpfs, which only root can mount.

On a machine that is too busy, requests also fail without a strike. So a strike counts only between two parts without a
strike in which no request fails: it begins after such a part, and if a request to the healthy cell fails during it,
another part shows whether the machine was at fault. A strike that does not count is repeated. Exits with 3 if one never
counted.

    python tests/soak/cell_away.py --rounds 2
    python tests/soak/cell_away.py --rounds 2 --strikes full
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.bench.s3.s3_client import Credentials, S3Client
from nos_ec.bench.s3.s3_servers import Server, gateways
from nos_ec.bench.servers.processes import Processes
from nos_ec.cli.commands.cells import enter_cell
from nos_ec.composition.cells import open_cells
from nos_ec.composition.wiring import initialise
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.ports.metadata import ROOT_ACCOUNT
from nos_ec.settings import Settings, load_settings
from tests.rig.dev_servers import WHOLE, DevServer
from tests.rig.small_disk import SmallDisk, small_disk
from tests.service.s3.cell_stores import cells_config

WELL, AWAY = "a", "b"
"""The cells. The first one has the directory."""
SIZE = 1000
REFUSED_S_MAX = 10.0
BACK_S_MAX = 60.0
TRIES = 5
"""How often a strike begins until it counts."""
EXIT_FAILED, EXIT_TOO_BUSY = 1, 3
REQUESTS_MIN = 200
"""A percentile of fewer means nothing."""
DISK_BYTES = 128 << 20
RESERVE_BYTES = 4 << 20
"""PUTs are refused while the disk of the cell has less space than this."""
THREADS = 128
"""How many requests of one process of clients may wait at once. Later ones are sent late, which counts as waiting."""


@dataclass(frozen=True, slots=True)
class Times:
    """The latencies of requests that were answered with 200, and of those that were refused, in seconds."""

    get_s: Sequence[float]
    put_s: Sequence[float]
    refused_s: Sequence[float]
    wrong: Sequence[str]
    """Answers other than 200 and 503."""

    @property
    def served_s(self) -> list[float]:
        """The latencies of both kinds of requests."""
        return [*self.get_s, *self.put_s]


# --- clients --------------------------------------------------------------------------------------
def send(server: Server, bucket: str, rate: float, seconds: float, threads_max: int = THREADS) -> Times:
    """Send requests in this process, `rate` of them per second, and wait for all answers."""
    get_s: list[float] = []
    put_s: list[float] = []
    refused_s: list[float] = []
    wrong: list[str] = []
    numbers, begin_s = count(), time.monotonic() + 0.2
    lock = threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                number = next(numbers)
            if number >= rate * seconds:
                return
            due_s = begin_s + number / rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            is_put = number % 2 == 1
            try:
                answer = client.send("PUT" if is_put else "GET", f"/{bucket}/k", "", b"x" * SIZE if is_put else b"")
                status = answer.status
            except Transient as error:
                wrong.append(str(error))
                continue
            took_s = time.monotonic() - due_s
            if status == 200:
                (put_s if is_put else get_s).append(took_s)
            elif status == 503:
                refused_s.append(took_s)
            else:
                wrong.append(f"{answer.status}: {answer.body[:200]!r}")

    with closing(S3Client(server.urls, server.credentials)) as client:
        threads = [threading.Thread(target=ask) for _ in range(threads_max)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return Times(get_s, put_s, refused_s, wrong)


def clients(server: Server, bucket: str, rate: float, seconds: float) -> subprocess.Popen[str]:
    """Start a process that sends requests."""
    sent = {
        "url": server.urls[0],
        "access_key": server.credentials.access_key,
        "secret": server.credentials.secret,
        "bucket": bucket,
        "rate": rate,
        "seconds": seconds,
    }
    process = subprocess.Popen(
        [sys.executable, __file__, "--clients", json.dumps(sent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def begin(process: subprocess.Popen[str]) -> None:
    """Let a process of clients begin. Starting one takes so much CPU that the others would notice."""
    assert process.stdin is not None
    process.stdin.close()


def be_clients(asked: dict[str, Any]) -> int:
    """Do what `clients` asks, once stdin is closed, and print the times."""
    print("ready", flush=True)
    sys.stdin.read()
    server = Server([asked["url"]], Credentials(asked["access_key"], asked["secret"]), [])
    print(json.dumps(asdict(send(server, asked["bucket"], asked["rate"], asked["seconds"]))))
    return 0


def times_of(process: subprocess.Popen[str]) -> Times:
    """Wait for a process of clients."""
    assert process.stdout is not None
    with process:
        return Times(**json.loads(process.stdout.read()))


# --- the stack ------------------------------------------------------------------------------------
def settings_of(folder: Path, databases: Mapping[str, DevServer], own: str = "") -> Settings:
    """The settings of a new store of two cells, both initialised. `own` is added to those of the one that goes away."""
    config = cells_config(folder, **dict.fromkeys(databases, 1))
    text = config.read_text()
    for name, database in databases.items():
        head = f"[cells.{name}]\n"
        text = text.replace(head, f'{head}store.metadata_url = "{database.url}"\n')
    config.write_text(f"{text}{own}\n")
    settings = load_settings(config, {})
    for name in settings.cells:
        initialise(settings.of_cell(name))
        enter_cell(settings, name)
    with open_cells(settings, SystemClock()) as cells:
        for name in settings.cells:
            cells.claim(_bucket(name), ROOT_ACCOUNT, name)
    return settings


def _bucket(cell: str) -> str:
    return f"bucket-of-{cell}"


@dataclass(frozen=True, slots=True)
class Away:
    """What a cell loses. It has a disk of its own only if that is to be full."""

    database: DevServer
    disk: SmallDisk | None


@contextmanager
def stack(folder: Path, *, with_disk: bool) -> Iterator[tuple[Away, Server]]:
    """Yields what goes away, and the gateway."""
    with ExitStack() as opened:
        disk, own = None, ""
        if with_disk:
            disk = opened.enter_context(small_disk(folder / AWAY, DISK_BYTES))
            if not (folder / AWAY).is_mount():
                raise ConfigError("a small disk cannot be mounted; run as root")
            own = f'landing.mode = "store"\ngc.reserve_bytes = {RESERVE_BYTES}'
        databases = {name: DevServer("mysql", folder / f"database-{name}", fast=False) for name in (WELL, AWAY)}
        for database in databases.values():
            opened.callback(database.stop)
            database.start()
        settings = settings_of(folder, databases, own)
        (folder / "gateway").mkdir(mode=0o700)
        server = opened.enter_context(gateways(settings, folder / "gateway", 1))
        with closing(S3Client(server.urls, server.credentials)) as client:
            for name in databases:
                client.create_bucket(_bucket(name))
                client.put(_bucket(name), "k", b"x" * SIZE)
        yield Away(databases[AWAY], disk), server


# --- measuring ------------------------------------------------------------------------------------
def hang(away: Away) -> Callable[[], object]:
    """Make the database hang. Return what ends that."""
    away.database.put_to_sleep(WHOLE)
    return lambda: away.database.wake(WHOLE)


def kill(away: Away) -> Callable[[], object]:
    """Kill the database. Return what starts it again."""
    away.database.kill(WHOLE)
    return away.database.start


def fill(away: Away) -> Callable[[], object]:
    """Leave less space than PUTs need. Return what frees it."""
    assert away.disk is not None
    away.disk.fill(RESERVE_BYTES - 4096)
    return away.disk.clear


FULL = "full"
STRIKES = {"hang": hang, "kill": kill, FULL: fill}


@dataclass(frozen=True, slots=True)
class Phase:
    """What clients of both cells saw, and the CPU seconds of the gateway per second."""

    well: Times
    away: Times
    cpu: float

    @property
    def failed(self) -> list[str]:
        """What failed in the healthy cell."""
        refused = [f"{len(self.well.refused_s)} refused in the healthy cell"] if self.well.refused_s else []
        return refused + sorted({f"healthy cell: {line}" for line in self.well.wrong})


class Run:
    """Rounds of strikes on one stack."""

    def __init__(self, away: Away, server: Server, options: argparse.Namespace) -> None:
        self._away = away
        self._server = server
        self._options = options
        self._processes = Processes({"server": server.pids})
        self.ratios: dict[str, list[float]] = {}
        self.problems: list[str] = []
        self.uncounted: list[str] = []
        """Strikes that never counted."""

    def strike(self, name: str) -> None:
        """Measure before and during a strike, and how soon the cell is served after it, until the strike counts."""
        for _ in range(TRIES):
            before = self._phase(f"before {name}")
            if not (before.failed or before.away.refused_s or before.away.wrong):
                during = self._struck(name)
                if not during.failed or not self._phase(f"after {name}").failed:
                    self._judge(name, before, during)
                    return
            print(f"{name}: does not count, because requests fail without a strike", flush=True)
        self.uncounted.append(name)

    def _struck(self, name: str) -> Phase:
        mend = STRIKES[name](self._away)
        try:
            during = self._phase(name)
        finally:
            mend()
        print(f"served again after {self._back():.1f} s", flush=True)
        return during

    def _judge(self, name: str, before: Phase, during: Phase) -> None:
        for line in during.failed:
            self._check(False, f"{name}: {line}")
        for line in sorted({*during.away.wrong}):
            self._check(False, f"{name}: other cell: {line}")
        self._check(max(during.away.refused_s, default=0.0) < REFUSED_S_MAX, f"{name}: not refused within 10 s")
        self._check(during.away.refused_s != [], f"{name}: nothing was refused")
        if name == FULL:
            due = self._options.rate_away * self._options.seconds
            self._check(len(during.away.get_s) >= due // 2, f"{name}: a GET was refused")
            self._check(during.away.put_s == [], f"{name}: a PUT succeeded, which proves nothing")
        for which in ("get_s", "put_s", "served_s"):
            for what, share in (("p50", 50), ("p99", 99)):
                over = _percentile(getattr(during.well, which), share) / _percentile(getattr(before.well, which), share)
                self.ratios.setdefault(f"{name} {which.removesuffix('_s')} {what}", []).append(over)

    def _phase(self, name: str) -> Phase:
        options = self._options
        of_well = clients(self._server, _bucket(WELL), options.rate, options.seconds)
        of_away = clients(self._server, _bucket(AWAY), options.rate_away, options.seconds)
        cpu_s, began_s = self._cpu_s(), time.monotonic()
        begin(of_away)
        begin(of_well)
        well = times_of(of_well)
        cpu = (self._cpu_s() - cpu_s) / (time.monotonic() - began_s)
        found = Phase(well, times_of(of_away), cpu)
        for line in found.failed:
            print(f"{name}: {line}", flush=True)
        waited = found.away.refused_s
        print(
            f"{name}: GET {_figures(well.get_s)}, PUT {_figures(well.put_s)}; CPU of the gateway {cpu:.2f}; other cell:"
            f" {len(found.away.served_s)} served, {len(waited)} refused"
            + (f" after {statistics.median(waited) * 1000:.1f} ms, at most {max(waited):.1f} s" if waited else ""),
            flush=True,
        )
        return found

    def _back(self) -> float:
        """Wait until a request to the cell is served again. Return how long that took."""
        begun_s = time.monotonic()
        with closing(S3Client(self._server.urls, self._server.credentials)) as client:
            while client.send("PUT", f"/{_bucket(AWAY)}/k", "", b"x" * SIZE).status != 200:
                if time.monotonic() - begun_s > BACK_S_MAX:
                    self._check(False, "not served again")
                    break
                time.sleep(0.2)
        return time.monotonic() - begun_s

    def _cpu_s(self) -> float:
        return sum(seconds or 0.0 for seconds in self._processes.cpu_s().values())

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


def _percentile(times_s: Sequence[float], share: int) -> float:
    return statistics.quantiles(times_s, n=100)[share - 1]


def _figures(times_s: Sequence[float]) -> str:
    p50, p99 = (_percentile(times_s, share) * 1000 for share in (50, 99))
    return f"p50 {p50:.1f} ms p99 {p99:.1f} ms"


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="(default 2)")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long each part lasts (default 25)")
    parser.add_argument("--rate", type=float, default=40.0, help="requests/s to the healthy cell (default 40)")
    parser.add_argument("--rate-away", type=float, default=10.0, help="requests/s to the other one (default 10)")
    parser.add_argument("--strikes", nargs="+", choices=STRIKES, default=["hang", "kill"], help="(default: hang kill)")
    parser.add_argument("--clients", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.clients:
        return be_clients(options.clients)
    if options.rounds < 1 or options.rate * options.seconds < REQUESTS_MIN or options.rate_away <= 0:
        parser.error(f"use at least one round, and a rate and a time for {REQUESTS_MIN} requests to the healthy cell")
    with (
        tempfile.TemporaryDirectory(prefix="nos-ec-cell-away-") as folder,
        stack(Path(folder), with_disk=FULL in options.strikes) as (away, server),
    ):
        run = Run(away, server, options)
        for number in range(options.rounds):
            for name in options.strikes[:: -1 if number % 2 else 1]:
                run.strike(name)
    for what, ratios in run.ratios.items():
        print(f"{what} over that before: {statistics.median(ratios):.2f} ({', '.join(f'{x:.2f}' for x in ratios)})")
    for problem in run.problems:
        print(problem, file=sys.stderr)
    for name in run.uncounted:
        print(f"{name}: requests fail without a strike, too; use a lower --rate, or a quieter machine", file=sys.stderr)
    if run.problems:
        return EXIT_FAILED
    return EXIT_TOO_BUSY if run.uncounted else 0


if __name__ == "__main__":
    sys.exit(main())

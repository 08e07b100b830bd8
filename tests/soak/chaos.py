"""Chaos on the real stack, for as long as you like: nothing that was acknowledged may be lost, corrupt or leaked.

Starts Ceph, Kafka and MySQL, or Vitess, of its own in a temporary folder, then daemons and clients on them, kills one
of them every few seconds, and in the end reads and compares everything (docs/OPERATIONS.md#chaos). Exits with 1 when
anything was not as it must be. The seed repeats what is done to whom, not its timing.

    python tests/soak/chaos.py --seconds 600 --seed 7
    python tests/soak/chaos.py --seconds 600 --database vitess
    python tests/soak/chaos.py --seconds 600 --cells 3
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase

from tests.rig.chaos.chaos_run import Report, run_chaos
from tests.rig.chaos.chaos_strikes import Servers
from tests.rig.dev_servers import DevServer
from tests.rig.vitess_server import VitessServer

SECONDS_MIN = 60.0
"""A shorter run does not reach every kind of strike."""
CELLS_MAX = 4
POLL_S = 0.2
INTERRUPTED = 130
"""The exit code that a shell reports for a command that Ctrl-C ended."""


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"chaos of {options.seconds:.0f} s, a strike every {options.every:.0f} s, seed {options.seed}", flush=True)
    with _folder(options) as folder, _servers(folder, options.database, options.cells) as servers:
        report = run_chaos(folder, servers, seed=options.seed, seconds=options.seconds, every_s=options.every, say=_say)
    _print(report)
    if options.json is not None:
        options.json.write_text(report.as_json() + "\n")
    return 0 if report.ok else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="how long clients and strikes continue (default 600)"
    )
    parser.add_argument("--every", type=float, default=20.0, help="seconds between strikes (default 20)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 32))
    parser.add_argument("--database", choices=("mysql", "vitess"), default="mysql", help="(default mysql)")
    parser.add_argument("--cells", type=int, default=1, help="divide the store into this many cells (default 1)")
    parser.add_argument("--folder", type=Path, help="make the folder of servers and logs here (default: $TMPDIR)")
    parser.add_argument("--keep", action="store_true", help="leave that folder, with all logs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON to this file")
    options = parser.parse_args(arguments)
    if options.seconds < SECONDS_MIN:
        parser.error(f"--seconds {options.seconds:g}: too short a run proves nothing; use {SECONDS_MIN:g} at least")
    if options.cells not in range(1, CELLS_MAX + 1):
        parser.error(f"--cells {options.cells}: use 1 to {CELLS_MAX}")
    if options.cells > 1 and options.database == "vitess":
        parser.error("--cells: with Vitess, the store has one cell; leave out --database vitess")
    if options.every < 1:
        parser.error(f"--every {options.every:g}: give servers time to come back; use 1 at least")
    return options


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[Path]:
    """A new folder, removed at the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="nos-ec-chaos-", dir=options.folder))
    try:
        yield folder
    finally:
        if options.keep:
            _say(f"logs and data are in {folder}")
        else:
            shutil.rmtree(folder)


@contextmanager
def _servers(folder: Path, database: str, cells: int) -> Iterator[Servers]:
    """The stack with durable commits, started all at once and stopped at the end. With several cells, the last one has
    its own database server."""
    ceph, kafka = (DevServer(name, folder, fast=False) for name in ("ceph", "kafka"))
    vitess = VitessServer(folder, fast=False) if database == "vitess" else None
    servers = Servers(ceph, kafka, vitess or DevServer(database, folder, fast=False))
    if cells > 1:
        last_database = DevServer(database, folder / "last-cell", fast=False)
        servers = replace(servers, cells=tuple(ascii_lowercase[:cells]), last_database=last_database)
    with ExitStack() as stack:
        for server in servers.all():
            stack.callback(server.stop)
            server.begin_start()
        while not all(server.settled() for server in servers.all()):
            time.sleep(POLL_S)
        _say(f"{', '.join(server.name for server in servers.all())} run")
        yield servers


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def _print(report: Report) -> None:
    print("clients:", ", ".join(f"{what} {count}" for what, count in report.clients.items()))
    print("S3 clients:", ", ".join(f"{what} {count}" for what, count in report.s3_clients.items()))
    print("PUTs resumed after:", ", ".join(f"{kind} {seconds} s" for kind, seconds in report.resumed_s.items()))
    if report.outage is not None:
        print(
            f"{report.outage.kind} of the database of one cell: {report.outage.refused} of its calls failed, none of"
            f" {report.outage.elsewhere} elsewhere; served again after {report.outage.resumed_s} s"
            if not report.outage.problems
            else f"the database of one cell: {len(report.outage.problems)} problems"
        )
    if report.moves:
        print("moves of buckets:", ", ".join(f"{what} {count}" for what, count in report.moves.items()))
    print("daemons ended with:", ", ".join(f"{code}: {count}" for code, count in report.exit_codes.items()))
    print(
        f"packed at the end: {report.packed_objects} objects; GC moved {report.gc_moved_objects} and deleted"
        f" {report.gc_deleted_blocks} blocks"
    )
    print(f"landing.mode became {', '.join(report.modes)}; {report.logged_objects} objects were written to the log")
    verdict, wrong = report.verdict, len(report.problems)
    for what, lines in (
        ("lost", verdict.lost),
        ("corrupt", verdict.corrupt),
        ("leaked", report.leaked),
        ("wrong", report.problems),
    ):
        for line in lines:
            print(f"{what}: {line}", file=sys.stderr)
    print(
        f"seed {report.seed}: {len(report.strikes)} strikes, {verdict.objects} objects compared,"
        f" {verdict.uncertain} of {verdict.keys} keys uncertain:"
        f" {len(verdict.lost)} lost, {len(verdict.corrupt)} corrupt, {len(report.leaked)} leaked, {wrong} problems"
    )


if __name__ == "__main__":
    sys.exit(main())

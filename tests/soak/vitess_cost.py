"""Compares what the metadata costs through vtgate and on the MySQL server of the primary itself, in turns.

Starts Vitess, and records PUTs, looks up objects, commits groups of 100 objects and lists pages of 1000 rows both ways
on the same server. Prints as JSON, for each operation, the median latency and the mean CPU time without vtgate, and how
many times as much it is through vtgate. The CPU time is that of this process, of vtgate, and of the vttablet and the
MySQL server of the primary, also for what they do meanwhile of their own accord.

    python tests/soak/vitess_cost.py --rounds 10
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.core.ids import ObjectKey
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.sql.sql_servers import empty_metadata
from tests.rig.vitess_server import VitessServer

PAGE_ROWS = 1000
GROUP_OBJECTS = 100
COUNTS = {"PUT": 100, "GET": 500, "commit": 10, "list": 20}
"""How often each operation runs in a round, each way."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cost:
    """The latencies of an operation, and the CPU time that all of them took, in seconds."""

    latencies_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def latency_ms(self) -> float:
        """The median."""
        return 1000 * statistics.median(self.latencies_s)

    @property
    def cpu_ms(self) -> float:
        """The mean."""
        return 1000 * self.cpu_s / len(self.latencies_s)


class Way:
    """One way to the server. It prepares each operation, and measures it."""

    def __init__(self, name: str, metadata: SqlMetadata, pids: list[int]) -> None:
        self._bench = MetadataBench(metadata)
        self._pids = pids
        self._names = (f"{name}-{number:06}" for number in count())
        self.costs = {what: Cost() for what in COUNTS}

    def measure(self, what: str) -> None:
        """Run an operation as often as a round does."""
        calls = list(self._calls(what))
        cost = self.costs[what]
        cpu_before_s = _cpu_s(self._pids)
        for call in calls:
            start_s = time.monotonic()
            call()
            cost.latencies_s.append(time.monotonic() - start_s)
        cost.cpu_s += _cpu_s(self._pids) - cpu_before_s

    def _calls(self, what: str) -> Iterator[Callable[[], object]]:
        bench = self._bench
        if what == "commit":
            lease = bench.lease(next(self._names))
        for number in range(COUNTS[what]):
            if what == "PUT":
                new = bench.new(next(self._names))
                yield partial(bench.record, [new])
            elif what == "GET":
                key = ObjectKey("page", f"{number:06}")
                yield partial(bench.metadata.get, key)
            elif what == "commit":
                rows = bench.put_all([next(self._names) for _ in range(GROUP_OBJECTS)], 100)
                group = bench.group(lease, bench.block(lease), rows)
                yield partial(bench.metadata.commit_group, group)
            else:
                yield partial(bench.metadata.list_objects, "page", "", "", PAGE_ROWS)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="(default 10)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="nos-ec-vitess-") as folder:
        vitess = VitessServer(Path(folder), fast=False)
        vitess.start()
        try:
            costs = _measure(vitess, options.rounds)
        finally:
            vitess.stop()
    print(json.dumps(_figures(costs), indent=2))
    return 0


def _measure(vitess: VitessServer, rounds: int) -> dict[str, dict[str, Cost]]:
    with (
        empty_metadata(vitess.url) as through,
        closing(open_metadata(vitess.url_of_primary())) as direct,
    ):
        _fill_page(through)
        pids = [os.getpid(), *vitess.pids_to_primary()]
        ways = {"vtgate": Way("v", through, pids), "direct": Way("d", direct, pids)}
        for _ in range(rounds):
            for what in COUNTS:
                for way in ways.values():
                    way.measure(what)
    return {name: way.costs for name, way in ways.items()}


def _fill_page(metadata: SqlMetadata) -> None:
    bench = MetadataBench(metadata)
    bench.record([bench.new(f"{number:06}", bucket="page") for number in range(PAGE_ROWS)])


def _cpu_s(pids: list[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) * TICK_S


def _figures(costs: dict[str, dict[str, Cost]]) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    for what in COUNTS:
        through, direct = costs["vtgate"][what], costs["direct"][what]
        figures[what] = {
            "latency_ms": round(direct.latency_ms, 2),
            "latency_ratio": round(through.latency_ms / direct.latency_ms, 2),
            "cpu_ms": round(direct.cpu_ms, 2),
            "cpu_ratio": round(through.cpu_ms / direct.cpu_ms, 2),
        }
    return figures


if __name__ == "__main__":
    sys.exit(main())

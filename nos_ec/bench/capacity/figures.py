"""The figures that `nos-ec capacity` stands on: measured ones of the pages in docs, or of one's own cluster.

Each measured figure of the pages is in `COEFFICIENTS`, with the place where it is printed.
`tests/unit/bench/test_capacity.py` compares it with the page.
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from pathlib import Path
from statistics import fmean
from typing import Any

from nos_ec.bench.workloads import WORKLOADS, sizes
from nos_ec.core.errors import InvalidInput

_MEAN_OF = 20_000
"""How many sizes are drawn to estimate the mean of a workload."""
_W1, _W2 = 262_144, 22_937
"""Mean sizes of these workloads with the default geometry, in bytes."""
_W1_SMALL = 148_000
"""The mean size of the objects of W1 below 1 MiB, in bytes."""
_W1_READ = 314 << 10
"""The mean size of the objects that the measurement of reads drew from W1 (docs/MEASUREMENTS.md), in bytes."""

_LAST_NUMBER = re.compile(r"[\d,.]*\d$")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, its unit, and where it comes from."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A measured cost. Between two sizes it is a straight line; with one size it is the same for all.

    `section` is a page of docs and a heading on it. `quotes` are by the mean size of the measured objects in bytes,
    smallest first (0: any): each is what the section says, up to and including the figure. `paths` lead to the same
    figure in the JSON of benches; WAY stands for the last way that was measured, and terms that are joined by + are
    added. `scale` converts the figures to `unit`.
    """

    name: str
    unit: str
    section: str
    quotes: Mapping[int, str]
    paths: Sequence[str] = ()
    scale: float = 1.0

    def at(self, size_bytes: float) -> float:
        """Return the cost for objects of this size, from the figures of the page."""
        points = [(size, self._figure(quote)) for size, quote in self.quotes.items()]
        if len(points) == 1:
            return points[0][1]
        last = min(max(1, bisect_left(points, (size_bytes, -inf))), len(points) - 1)
        (low, cost_low), (high, cost_high) = points[last - 1], points[last]
        # Below the smallest size, a steep line could end below zero.
        return max(min(cost_low, cost_high) / 2, cost_low + (cost_high - cost_low) * (size_bytes - low) / (high - low))

    def _figure(self, quote: str) -> float:
        found = _LAST_NUMBER.search(quote)
        assert found is not None, quote
        return float(found[0].replace(",", "")) * self.scale


def _cost(
    name: str, unit: str, section: str, quotes: Mapping[int, str], *paths: str, scale: float = 1.0
) -> Coefficient:
    return Coefficient(name, unit, section, quotes, paths, scale)


_M, _CPU = "MEASUREMENTS.md, ", "CPU ms"
_PACK, _REAP, _S3 = _M + "bench pipeline", _M + "Cost of reaping", _M + "bench s3"
_GC, _FULL = "BENCH.md, Results of bench gc", _M + "Commands that read a whole store"
_PACK_MS, _LIFE_MS, _S3_MS = "ours.cpu_ms_per_object.", "WAY.cpu_ms_per_object.", "gateway.cpu_ms_per_object."
_4K_REAP = "| 4 KiB | verify | 0.30, 0.32 | 0.15, 0.16 | **0.09, 0.13"
_64K_REAP = "| 64 KiB | verify | 0.40, 0.43 | 0.28, 0.25 | **0.23"
_W1_REAP = "| W1 | verify | 1.19, 1.13 | 0.40, 0.38 | **0.88"


def _packing(name: str, group: str, floor_w1: str, w1: str, floor_w2_w2: str) -> Coefficient:
    """Return the CPU time of a group of processes for packing, from a row of the page."""
    quotes = {_W2: f"{floor_w1} / {w1} | {floor_w2_w2}", _W1: f"{floor_w1} / {w1}"}
    return Coefficient(name, _CPU, _PACK, quotes, (_PACK_MS + group, f"{_LIFE_MS}pack.{group}"))


COEFFICIENTS: Sequence[Coefficient] = (
    _cost("put.gateway", _CPU, _S3, {65536: "| CPU of a PUT, ms (server, OSDs) | 2.4 (1.22"}, _S3_MS + "put.server"),
    _cost(
        "put.osds",
        _CPU,
        _M + "Landing segments on Ceph",
        {4096: "| 4 KiB | 8 | 1.8 -> 0.31", 65536: "| 64 KiB | 8 | 2.4 -> 0.55", _W1_SMALL: "| W1 | 8.8 | 2.4 -> 0.79"},
        _LIFE_MS + "put.osds",
    ),
    _cost(
        "put.sql",
        _CPU,
        _M + "bench life, and landing without rows, on a faster machine",
        {0: "| `put.sql`, ms | 0.82 / 0.24 / 0.184"},
        _LIFE_MS + "put.sql",
    ),
    _cost(
        "put.batch",
        "objects",
        _M + "Writes of the landing log on Ceph",
        {65536: "| `log.batch` | 1.0 | 1.0 | 1.0 | 5.4 | 5.1"},
        "WAY.put_batch",
    ),
    _cost("publish.rate", "objects/s", _M + "bench read", {0: "19,565 and 17,416"}, "WAY.objects_per_s.publish"),
    _packing("pack.consumer", "client", "| of which the consumer | 0.33", "0.57", "0.13 / 0.15"),
    _packing("pack.osds", "osds", "| of which OSDs | 1.47", "1.54", "0.32 / 0.31"),
    _packing("pack.sql", "sql", "| of which MariaDB | 0.00", "0.09", "0.00 / 0.03"),
    _packing("pack.kafka", "kafka", "| of which Kafka | 0.03", "0.05", "0.00 / 0.01"),
    _cost(
        "pack.writes",
        "operations",
        _PACK,
        {
            _W2: "| OSD store transactions per object, floor / ours | 1.36 / 1.26 | 0.12 / 0.12",
            _W1: "| OSD store transactions per object, floor / ours | 1.36 / 1.26",
        },
        "ours.osd_write_ops_per_object",
        "WAY.osd_write_ops_per_object.pack",
    ),
    _cost(
        "reap.consumer",
        _CPU,
        _REAP,
        {4096: _4K_REAP + "** | 0.09", 65536: _64K_REAP + ", 0.22** | 0.16", _W1: _W1_REAP + ", 0.79** | 0.48"},
        _LIFE_MS + "reap.client",
    ),
    _cost("reap.osds", _CPU, _REAP, {4096: _4K_REAP, 65536: _64K_REAP, _W1: _W1_REAP}, _LIFE_MS + "reap.osds"),
    _cost("reap.sql", _CPU, _REAP, {65536: _64K_REAP + ", 0.22** | 0.16, 0.15 | 0.03"}, _LIFE_MS + "reap.sql"),
    _cost("get.gateway", _CPU, _S3, {_W2: "| CPU of a GET, ms (server) | 1.48 (0.69"}, _S3_MS + "get.server"),
    _cost(
        "get.osds",
        _CPU,
        _M + "Reading many ranges of a block",
        {4096: "| 4 KiB | 0.146", 65536: "| 64 KiB | 0.428", _W1_READ: "| W1 (mean 314 KiB) | 1.03"},
        _LIFE_MS + "get_packed.osds",
    ),
    _cost("get.sql", _CPU, _S3, {0: "The database took 0.13 to 0.16"}, _LIFE_MS + "get_packed.sql", _S3_MS + "get.sql"),
    _cost(
        "consumer.memory",
        "bytes",
        _M + "Memory of a consumer (invariant 9)",
        {0: "exits with 1 if the peak is over 300"},
        scale=1 << 20,
    ),
    _cost(
        "gc.rate",
        "bytes/s",
        _GC,
        {0: "| 178 / 146 / 125 / 108 | 167 / 123 / 119 / 106"},
        "live_mb_per_s.ours",
        scale=1e6,
    ),
    _cost(
        "gc.worker",
        "CPU ms/MB",
        _GC,
        {0: "| of which GC and database | 1.6 / 6.0, 1.6 / 5.7, 1.6 / 5.6 | 1.6 / 3.0 / 6.3"},
        "cpu_ms_per_mb.ours.client + cpu_ms_per_mb.ours.sql",
    ),
    _cost(
        "gc.osds",
        "CPU ms/MB",
        _GC,
        {0: "| of which OSDs | 10.3 / 14.9, 10.3 / 14.5, 10.9 / 14.4 | 11.2 / 16.0 / 16.5"},
        "cpu_ms_per_mb.ours.osds",
    ),
    _cost(
        "space.over_simulation",
        "",
        "BENCH.md, Results of bench space",
        {0: "| W1 | 483 | 1.396 | 1.385 | 1.406 | 1.461 | 3.022 | 1.008"},
        "ours_over_simulation",
    ),
    _cost("row.bytes", "bytes", _M + "Figures and listings in a full store", {0: "All tables together take 197"}),
    _cost("event.bytes", "bytes", "KAFKA.md, Sizing", {0: "An event has about 200"}),
    _cost("check.cpu", "CPU s/object", _FULL, {0: "| `check` | 49 to 53 | 12 to 15"}, scale=1e-6),
    _cost(
        "dump.cpu",
        "CPU s/object",
        _FULL,
        {0: "| `metadata dump`, stored and read back | 18 to 33 | 10 to 12"},
        scale=1e-6,
    ),
    _cost(
        "rebuild.cpu",
        "CPU s/object",
        _FULL,
        {0: "since the database searches for what to look at (20,001 objects) | | 50 to 58"},
        scale=1e-6,
    ),
)

AMPLIFICATIONS = ("space_amplification", "write_amplification")
"""The figures of `simulate gc` that replace those of objects that all die at one rate."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The JSON that a bench has printed for objects of this mean size in bytes."""

    file: str
    size_bytes: float
    figures: Mapping[str, Any]

    def at(self, paths: Sequence[str]) -> float | None:
        """Return the first figure that one of these paths leads to; None if there is none above 0."""
        for path in paths:
            found = [self._one(term.strip()) for term in path.split("+")]
            if all(value is not None for value in found):
                return sum(value for value in found if value is not None)
        return None

    def _one(self, path: str) -> float | None:
        ways = self.figures.get("ways")
        value: Any = self.figures
        for part in path.split("."):
            if part == "WAY":
                part = ways[-1] if isinstance(ways, list) and ways else ""
            value = value.get(part) if isinstance(value, Mapping) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and isfinite(value) and value > 0 else None


def read_measured(path: Path, size_max: int) -> list[Measured]:
    """Read the JSON of a bench; `bench space` has a part for each size. `size_max` is the size in bytes of the largest
    object that is packed. Raises InvalidInput if the file cannot be read, or has no figure that is used."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}; give a file with the output of nos-ec bench --json") from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInput(f"{path}: it is not the output of nos-ec bench --json; give a file with that line of JSON")
    cells = found.get("cells")
    parts = cells.items() if isinstance(cells, dict) else [(found.get("size") or found.get("workload"), found)]
    read = [
        Measured(str(path), _mean(str(drawn), size_max), part) for drawn, part in parts if isinstance(part, Mapping)
    ]
    used = [*(coefficient.paths for coefficient in COEFFICIENTS), AMPLIFICATIONS]
    if all(one.at(paths) is None for one in read for paths in used):
        raise InvalidInput(
            f"{path}: it has no figure that capacity uses; give the JSON of bench pipeline, life, s3, gc or space, or"
            " of simulate gc"
        )
    return read


def _mean(drawn: str, size_max: int) -> float:
    """Return the mean size of a workload, or the size that is printed in digits."""
    if drawn in WORKLOADS:
        return fmean(sizes(drawn, _MEAN_OF, random.Random(1), size_max))
    return max(1.0, float(drawn)) if drawn.isascii() and drawn.isdigit() else 1.0


def coefficient_figures(size_bytes: float, measured: Sequence[Measured]) -> dict[str, Figure]:
    """Return all coefficients for objects of this mean size.

    A measured figure replaces that of the page. Of several files with it, the one with the nearest size counts. Between
    its size and `size_bytes`, the figure changes in proportion to that of the page.
    """
    found = {}
    for one in COEFFICIENTS:
        having = [(other, value) for other in measured if (value := other.at(one.paths)) is not None]
        if having:
            nearest, value = min(having, key=lambda pair: abs(log(pair[0].size_bytes / size_bytes)))
            value *= one.scale * one.at(size_bytes) / one.at(nearest.size_bytes)
            source = f"{nearest.file}, measured with {nearest.size_bytes:,.0f} bytes"
            if len(one.quotes) > 1 and nearest.size_bytes != size_bytes:
                source += f", adjusted to {size_bytes:,.0f}"
        else:
            value, source = one.at(size_bytes), f"docs/{one.section}"
        found[one.name] = Figure(value, one.unit, source)
    return found

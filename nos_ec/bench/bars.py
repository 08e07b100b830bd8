"""The performance that the product promises, as limits on the figures of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nos_ec.composition.landing import BYPASS_BYTES


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit of a figure: a minimum or a maximum. `figure` is its path in the JSON, separated by dots."""

    figure: str
    limit: float
    at_least: bool

    def missed(self, figures: Mapping[str, Any]) -> str | None:
        """Return a sentence about how the bar is missed, or None if it is met. A missing figure misses its bar."""
        value: Any = figures
        for part in self.figure.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            return f"{self.figure} was not measured"
        if value >= self.limit if self.at_least else value <= self.limit:
            return None
        return f"{self.figure} is {value:.3f}, the bar is {'at least' if self.at_least else 'at most'} {self.limit:g}"


OVER_FLOOR = Bar("ours_over_floor", 0.8, at_least=True)


def _pipeline(over_naive: float) -> tuple[Bar, ...]:
    return (
        OVER_FLOOR,
        Bar("ours_over_naive", over_naive, at_least=True),
        Bar("ours.raw_bytes_per_user_byte", 1.40, at_least=False),
        Bar("lifetimes.share_of_consumer", 0.02, at_least=False),
    )


PIPELINE: Mapping[str | int, Sequence[Bar]] = {
    "W1": _pipeline(1.8),
    "W2": _pipeline(5.0),
    70_000: (OVER_FLOOR,),
    1 << 20: (OVER_FLOOR,),
}
"""Bars by workload, or by size of all objects in bytes. Other workloads have no bars."""

READ: Sequence[Bar] = (
    Bar("osds_per_get", 1, at_least=False),
    Bar("read_bytes_over_pages", 1.0, at_least=False),
    Bar("p50_over_bare", 1.15, at_least=False),
)
READ_OF_ONE_SIZE: Sequence[Bar] = (*READ[1:], Bar("split_over_whole", 1.35, at_least=False))
"""Bars if all objects have the same size. Some of them are split, with chunks on two or more OSDs."""
WHOLE_LIFE_MS: Mapping[str | int, float] = {"W1": 6.0, 65536: 2.0}
"""CPU milliseconds of all processes for PUT, publish, pack and reap; by workload or size of the objects. They hold for
a machine on which `single` takes SINGLE_LIFE_MS."""
SINGLE_LIFE_MS: Mapping[str | int, float] = {"W1": 11.9, 65536: 6.9}
"""docs/BENCH.md explains the source of these values."""
SQL_CALLERS, SQL_MS, SINGLE_SQL_MS = 16, 0.4, 1.1
"""CPU milliseconds of the database per PUT, with this many callers, and the same for `single` with W1 on the machine of
SINGLE_LIFE_MS."""
PUTS_ON_CEPH: Mapping[tuple[str | int, int], float] = {
    (4096, 16): 2.5,
    (4096, 64): 4.5,
    (65536, 16): 1.7,
    (65536, 64): 3.0,
    ("W1", 16): 2.0,
}
PUTS_EMBEDDED: Mapping[tuple[str | int, int], float] = {(4096, 1): 1.5, (4096, 16): 4.0, (4096, 64): 7.0}
"""PUTs/s divided by the PUTs/s of the first way, by workload or size, and number of callers."""
PUT_OSDS: Mapping[tuple[str | int, int], float] = {
    (4096, 16): 3.5,
    (4096, 64): 7.0,
    (65536, 16): 2.3,
    (65536, 64): 3.5,
    ("W1", 16): 1.6,
}
"""On Ceph, by workload or size, and number of callers: how many times less CPU time the OSDs take for a PUT than with
the first way."""

GC: Sequence[Bar] = (
    Bar("ours_over_floor", 0.8, at_least=True),
    Bar("header_bytes_over_block_bytes", 1 / 200, at_least=False),
    Bar("get_p99_with_over_without", 2.0, at_least=False),
)
GC_WORKERS: Sequence[Bar] = (
    Bar("several_over_one.cpu_per_byte", 1.1, at_least=False),
    Bar("space_over_target.several.most", 1.01, at_least=False),
    Bar("space_over_target.several.least", 0.99, at_least=True),
)
GETS_OVER_RADOSGW: Mapping[int, float] = {1: 0.6, 2: 0.8}
"""Limits by number of gateway processes; two stands for more, too."""


def s3_bars(processes: int, *, on_ceph: bool, with_radosgw: bool) -> list[Bar]:
    """Return the bars of `bench s3`, with this many processes of the gateway."""
    bars = [Bar("gateway.ms.list.p50", 20.0, at_least=False)]
    if on_ceph:
        bars.append(Bar("gateway.osd_reads_per_get", 1, at_least=False))
    if with_radosgw:
        bars += [
            Bar("gateway_over_radosgw.per_s.get", GETS_OVER_RADOSGW[min(processes, 2)], at_least=True),
            Bar("gateway_over_radosgw_as_shipped.per_s.get", 1.5, at_least=True),
            Bar("gateway_over_radosgw.per_s.put", 1.5, at_least=True),
            Bar("gateway_over_radosgw.cpu.put", 0.7, at_least=False),
        ]
    return bars


CELLS_CPU, CELLS_RATE = 1.03, 0.97
"""Limits of a gateway of three cells over one of a store without cells: CPU time of a request, and requests/s."""


def cells_bars(steps: Sequence[str]) -> list[Bar]:
    """Return the bars of `bench cells`, for its steps."""
    bars = [Bar(f"cells_over_one.cpu.{step}", CELLS_CPU, at_least=False) for step in steps]
    return bars + [Bar(f"cells_over_one.per_s.{step}", CELLS_RATE, at_least=True) for step in ("put", "get")]


OURS_OVER_SIMULATION = 1.03
OURS_OVER_EACH, WASTEFUL = 1.04, 1.45
"""Limit of our raw bytes over the raw bytes of one RADOS object per object. If the latter takes more than WASTEFUL raw
bytes per user byte, the limit is 1."""


def space_bars(figures: Mapping[str, Any]) -> list[Bar]:
    """Return the bars of `bench space`, for the cells of these figures."""
    bars = []
    for drawn, cell in figures["cells"].items():
        bars.append(Bar(f"cells.{drawn}.ours_over_simulation", OURS_OVER_SIMULATION, at_least=False))
        if "each_least" in cell:
            limit = 1.0 if cell["each_least"] > WASTEFUL else OURS_OVER_EACH
            bars.append(Bar(f"cells.{drawn}.ours_over_each", limit, at_least=False))
    return bars


def life_bars(ways: Sequence[str], drawn: str | int, callers: int, *, on_ceph: bool) -> list[Bar]:
    """Return the bars of `bench life`: of the last of these ways, and of its ratios to the first way if there are
    several. The cost of a whole life is compared with the first way, because machines differ, and one machine differs
    from day to day.

    `drawn` is the name of a workload, or the size of all objects in bytes.
    """
    base, way = ways[0], ways[-1]
    bars = []
    if on_ceph and drawn in WHOLE_LIFE_MS:
        limit = WHOLE_LIFE_MS[drawn]
        if way == base:
            bars.append(Bar(f"{way}.whole_life_cpu_ms_per_object", limit, at_least=False))
        else:
            times = limit / SINGLE_LIFE_MS[drawn]
            bars.append(Bar(f"{way}_over_{base}.whole_life_cpu_ms_per_object", times, at_least=False))
    if on_ceph and callers == SQL_CALLERS:
        bars.append(Bar(f"{way}.cpu_ms_per_object.put.sql", SQL_MS, at_least=False))
        if way != base:
            bars.append(Bar(f"{way}_over_{base}.put_sql_cpu_ms_per_object", SQL_MS / SINGLE_SQL_MS, at_least=False))
    if on_ceph and way == "log" and isinstance(drawn, int) and drawn < BYPASS_BYTES:
        bars.append(Bar("log.osd_writes_over_replicas", 1.05, at_least=False))
    if way != base:
        if on_ceph and (less := PUT_OSDS.get((drawn, callers))):
            bars.append(Bar(f"{way}_over_{base}.put_osds_cpu_ms_per_object", 1 / less, at_least=False))
            bars.append(Bar(f"{way}_over_{base}.put_ms.p99", 0.7, at_least=False))
        faster = (PUTS_ON_CEPH if on_ceph else PUTS_EMBEDDED).get((drawn, callers))
        if faster is not None:
            bars.append(Bar(f"{way}_over_{base}.objects_per_s.put", faster, at_least=True))
        if not on_ceph and (drawn, callers) == (4096, 16):
            bars.append(Bar(f"{way}_over_{base}.put_ms.p50", 1 / 3, at_least=False))
    return bars


def missed(bars: Sequence[Bar], figures: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each missed bar."""
    return [sentence for bar in bars if (sentence := bar.missed(figures)) is not None]

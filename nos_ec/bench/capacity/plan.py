"""Computes what a load needs, line by line.

Each line names the figures and the other lines that it was computed from. docs/CAPACITY.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from time import perf_counter

from nos_ec.bench.capacity.figures import AMPLIFICATIONS, Figure, Measured, coefficient_figures
from nos_ec.bench.gc.bound import amplification_at, live_share_at
from nos_ec.bench.simulate import raw_bytes_per_user_byte, simulate
from nos_ec.core.gc.gc_policy import SealedBlock, break_even_days
from nos_ec.core.ids import BlockId
from nos_ec.settings import Settings

_DAY_S = 86_400
_MONTH_DAYS = 30
_REPLICAS = 3
"""Copies in the landing pool (docs/CEPH.md)."""
_CPU_SHARE = 0.6
"""The share of the cores that is planned for. The rest is for peaks."""
_IO_SHARE = 0.5
"""The same for the operations of disks and for the network."""
_MEMORY_SHARE = 0.7
"""The share of a database host's memory that its buffer pool takes."""
_FILL = 0.7
"""How full OSDs may be (docs/CAPACITY.md)."""
_RUN_BYTES = 2 << 20
"""Neighbouring objects are read in runs of this size (docs/MEASUREMENTS.md, Reading many ranges of a block)."""
_GC_HOURS = 20
"""Hours a day that GC may work."""
_DAILY_HOURS = 24
"""Hours that a daily dump or check may take."""
_PARTITIONS_PER_CONSUMER, _PARTITIONS_MIN, _PARTITIONS_MAX = 4, 12, 1024
"""docs/KAFKA.md, Partitions; the last one is the limit of log.partitions."""
_SHARE_MIN = 1e-9
"""The least live share at which a block is collected. At 0, nothing would ever be."""
_BLOCK_BYTES = 1 << 40
"""The size of the block whose break-even price is computed: large, so that rounding its live bytes does not matter."""


@dataclass(frozen=True, slots=True)
class Load:
    """What users do. `sizes` are object sizes in bytes, as many as are simulated; `sizes_from` says where they are
    from. Deletes include overwrites."""

    objects: float
    mean_bytes: float
    sizes: Sequence[int]
    sizes_from: str
    puts_per_s: float
    gets_per_s: float
    deletes_per_month: float


@dataclass(frozen=True, slots=True)
class Line:
    """One result. `basis` has the names of figures and of other lines; `note` says what limits it, if anything."""

    part: str
    value: float
    unit: str
    basis: tuple[str, ...]
    note: str = ""


class Plan:
    """All results by name, in order, and the figures that they stand on."""

    def __init__(self, figures: Mapping[str, Figure]) -> None:
        self.figures = figures
        self.lines: dict[str, Line] = {}
        self._part = ""
        self._used: dict[str, None] = {}

    def begin(self, part: str) -> None:
        """Begin a part with this heading."""
        self._part = part

    def of(self, name: str) -> float:
        """Return a figure or an earlier result. The next line that is added names it as its basis."""
        self._used[name] = None
        return self.figures[name].value if name in self.figures else self.lines[name].value

    def add(self, name: str, value: float, unit: str, note: str = "") -> None:
        """Add a line."""
        self.lines[name] = Line(self._part, value, unit, tuple(self._used), note)
        self._used = {}

    def add_most(self, name: str, unit: str, needs: Mapping[str, float]) -> None:
        """Add a line for the largest of several needs, rounded up, and say which one limits it."""
        binding = max(needs, key=lambda one: needs[one])
        others = ", ".join(f"{ceil(value):,} for {one}" for one, value in needs.items() if one != binding)
        self.add(name, ceil(needs[binding]), unit, f"limited by {binding}; {others}")


def figures_of(
    load: Load, options: Mapping[str, Figure], settings: Settings, measured: Sequence[Measured]
) -> dict[str, Figure]:
    """Return all figures that a plan stands on: coefficients, settings, `options` with one host of each kind and with
    how long work may take, and what the product's own packing and GC cost. Raises InvalidInput if no object can be
    packed."""
    geometry = settings.geometry.value()
    packed = simulate(load.sizes, settings.consumer, geometry, timer=perf_counter, seed=1)
    assert packed.utilisation_with_names is not None
    found = coefficient_figures(load.mean_bytes, measured)
    by_simulation = f"simulate packing with {packed.objects:,} objects: {load.sizes_from}"
    found |= {
        "space.raw": Figure(raw_bytes_per_user_byte(geometry, packed.utilisation_with_names), "", by_simulation),
        "space.shard_reads": Figure(packed.shard_reads, "", by_simulation),
        "space.group_objects": Figure(packed.objects / packed.groups, "objects", by_simulation),
    }
    found |= _gc_figures(load, settings, measured)
    for name, value, unit in (
        ("objects", load.objects, "objects"),
        ("size", load.mean_bytes, "bytes"),
        ("puts", load.puts_per_s, "objects/s"),
        ("gets", load.gets_per_s, "objects/s"),
        ("deletes", load.deletes_per_month, "objects a month"),
    ):
        found[name] = Figure(value, unit, f"the load: {load.sizes_from}" if name == "size" else "the load")
    for setting, value, unit in (
        ("geometry.k", geometry.k, "chunks"),
        ("geometry.m", geometry.m, "chunks"),
        ("geometry.chunk_size", geometry.chunk_size, "bytes"),
        ("reaper.landing_grace_ms", settings.reaper.landing_grace_ms, "ms"),
        ("trash.keep_days", settings.trash.keep_days, "days"),
        ("gc.workers", settings.gc.workers, "workers"),
        ("kafka.retention_ms", settings.kafka.retention_ms, "ms"),
        ("kafka.replication", settings.kafka.replication, "replicas"),
        ("scrub.bytes_per_s", settings.scrub.bytes_per_s, "bytes/s"),
        ("scrub.pass_days", settings.scrub.pass_days, "days"),
    ):
        found[setting] = Figure(value, unit, "setting")
    return found | dict(options)


def _gc_figures(load: Load, settings: Settings, measured: Sequence[Measured]) -> dict[str, Figure]:
    """Return space and write amplification: of a simulation that was given, or of objects that all die at one rate."""
    own = [one for one in measured if all(one.at((name,)) is not None for name in AMPLIFICATIONS)]
    if own:
        return {
            f"gc.{name}": Figure(own[-1].at((name,)) or 1.0, "", f"{own[-1].file}, simulate gc")
            for name in AMPLIFICATIONS
        }
    if not load.deletes_per_month:
        return {f"gc.{name}": Figure(1.0, "", "nothing is deleted") for name in AMPLIFICATIONS}
    mean_days = load.objects / load.deletes_per_month * _MONTH_DAYS
    live_share, limit = live_share_of(settings, mean_days)
    source = f"docs/GC.md, The two figures: objects that live {mean_days:,.0f} days; {limit}"
    values = (amplification_at(live_share), 1 / (1 - live_share))
    return {f"gc.{name}": Figure(value, "", source) for name, value in zip(AMPLIFICATIONS, values, strict=True)}


def live_share_of(settings: Settings, mean_days: float) -> tuple[float, str]:
    """Return the live share at which GC collects the blocks of a store whose objects all die at one rate, and the
    setting that determines it. Their mean life is `mean_days`."""
    gc = settings.gc
    if gc.policy == "threshold":
        return max(_SHARE_MIN, 1 - gc.hole_ratio_min), f"gc.hole_ratio_min {gc.hole_ratio_min}"
    low, high = _SHARE_MIN, 1 - _SHARE_MIN
    for _ in range(60):
        share = (low + high) / 2
        live = round(share * _BLOCK_BYTES)
        block = SealedBlock(BlockId(b""), live, _BLOCK_BYTES - live, -log(share) * mean_days)
        low, high = (share, high) if break_even_days(block) > gc.price_days_min else (low, share)
    priced = (low, f"gc.price_days {gc.price_days_min:g} binds")
    if gc.policy == "price":
        return priced
    return min((live_share_at(gc.space_amp), f"gc.space_amp {gc.space_amp}"), priced)


def plan_of(figures: Mapping[str, Figure]) -> Plan:
    """Compute all lines."""
    plan = Plan(figures)
    for part in (_space, _work, _cells, _disks, _hosts, _upkeep):
        part(plan)
    return plan


def _space(plan: Plan) -> None:
    plan.begin("Space")
    add, of = plan.add, plan.of
    add("deletes a day", of("deletes") / _MONTH_DAYS, "objects")
    add("growth a day", of("puts") * _DAY_S - of("deletes a day"), "objects", "not planned for")
    add(
        "objects with rows",
        of("objects") + of("deletes a day") * of("trash.keep_days"),
        "objects",
        "with those in the trash",
    )
    add("user bytes", of("objects with rows") * of("size"), "bytes")
    raw = of("space.raw") * of("space.over_simulation") * of("gc.space_amplification")
    add("raw bytes per live byte", raw, "")
    add("block pool, raw", of("user bytes") * of("raw bytes per live byte"), "bytes")
    k, m = of("geometry.k"), of("geometry.m")
    add("block pool, usable", of("block pool, raw") * k / (k + m), "bytes")
    waits_s = of("reaper.landing_grace_ms") / 1000 + of("--outage-hours") * 3600
    add("landing pool, usable", of("puts") * of("size") * waits_s, "bytes")
    add("landing pool, raw", of("landing pool, usable") * _REPLICAS, "bytes", f"{_REPLICAS} copies")
    both = of("block pool, raw") + of("landing pool, raw")
    add("capacity of OSDs", both / _FILL, "bytes", f"at most {_FILL:.0%} full")


def _work(plan: Plan) -> None:
    """CPU time of each kind of process, as cores that are always busy."""
    plan.begin("Work")
    add, of = plan.add, plan.of
    add("deletes a second", of("deletes a day") / _DAY_S, "objects/s")
    copies = max(0.0, of("gc.write_amplification") - 1)
    add("GC copies", of("deletes a second") * of("size") * copies, "bytes/s")

    def cores(name: str, *terms: tuple[str, str]) -> None:
        add(name, sum(of(rate) * of(cost) / 1000 for rate, cost in terms), "cores")

    def gc_cores(cost: str) -> float:
        return of("GC copies") / 1e6 * of(cost) / 1000

    cores("cores of gateways", ("puts", "put.gateway"), ("gets", "get.gateway"))
    cores("cores of consumers", ("puts", "pack.consumer"), ("puts", "reap.consumer"))
    add("cores of GC", gc_cores("gc.worker"), "cores", "with the work of the databases for it")
    sql = ("put.sql", "pack.sql", "reap.sql")
    cores("cores of databases", *(("puts", cost) for cost in sql), ("gets", "get.sql"), ("deletes a second", "put.sql"))
    cores("cores of Kafka", ("puts", "pack.kafka"))
    osds = [of("puts") * of(cost) / 1000 for cost in ("put.osds", "pack.osds", "reap.osds")]
    osds += [of("gets") * of("get.osds") / 1000, gc_cores("gc.osds")]
    add("cores of OSDs", sum(osds), "cores")


def _cells(plan: Plan) -> None:
    plan.begin("Cells")
    add, of = plan.add, plan.of

    def hours(cost: str) -> float:
        return of("objects with rows") * of(cost) / 3600

    add("cells for a rebuild in --rebuild-hours", hours("rebuild.cpu") / of("--rebuild-hours"), "cells")
    add(f"cells for a dump in {_DAILY_HOURS} h", hours("dump.cpu") / _DAILY_HOURS, "cells")
    add(f"cells for a check in {_DAILY_HOURS} h", hours("check.cpu") / _DAILY_HOURS, "cells")
    gc_hours = of("GC copies") / of("gc.rate") / of("gc.workers") * 24
    add(
        f"cells for GC in {_GC_HOURS} h a day",
        gc_hours / _GC_HOURS,
        "cells",
        "gc.workers in each, at one worker's rate",
    )
    cores = of("--cores") * _CPU_SHARE
    add("cells for the CPU of a database host", of("cores of databases") / cores, "cells")
    memory = of("--memory") * _MEMORY_SHARE
    rows_bytes = of("objects with rows") * of("row.bytes")
    add("cells for the memory of a database host", rows_bytes / memory, "cells", "all rows in the buffer pool")
    partitions = of("cores of consumers") / _CPU_SHARE * _PARTITIONS_PER_CONSUMER
    add("cells for the partitions of a topic", partitions / _PARTITIONS_MAX, "cells")
    needs = [name for name in plan.lines if name.startswith("cells for ")]
    binding = max(needs, key=of)
    add("cells", ceil(of(binding)), "cells", f"limited by{binding.removeprefix('cells for')}")
    plan.begin("Each cell")
    add("objects of a cell", of("objects with rows") / of("cells"), "objects")
    add(
        "database",
        of("objects of a cell") * of("row.bytes"),
        "bytes",
        "rows and indexes, without the logs of the server",
    )
    add("memory of the database", of("database") / _MEMORY_SHARE, "bytes", "all rows in its buffer pool")
    groups = (of("puts") + of("GC copies") / of("size")) / of("space.group_objects")
    commits = of("puts") / of("put.batch") + groups + of("deletes a second")
    add("commits of the database", commits / of("cells"), "operations/s", "each syncs its log; page writes not counted")
    add("consumers of a cell", ceil(of("cores of consumers") / of("cells") / _CPU_SHARE) + 1, "processes", "one spare")
    partitions = max(_PARTITIONS_MIN, _PARTITIONS_PER_CONSUMER * of("consumers of a cell"))
    add("log.partitions", min(partitions, _PARTITIONS_MAX), "partitions")
    producers = max(2, ceil(of("puts") / of("cells") / of("publish.rate")) + 1)
    add("producers of a cell", producers, "processes", "one spare")
    gc_hours = of("GC copies") * 24 / of("cells") / of("gc.rate") / of("gc.workers")
    add("GC a day", gc_hours, "h", "of each worker of a cell")


def _upkeep(plan: Plan) -> None:
    plan.begin("Upkeep of each cell")
    add, of = plan.add, plan.of
    for name in ("dump", "check", "rebuild"):
        add(
            name,
            of("objects of a cell") * of(f"{name}.cpu") / 3600,
            "h",
            "CPU time; the clock shows more on a busy host",
        )
    stored = of("user bytes") / of("cells")
    if rate := of("scrub.bytes_per_s"):
        add("scrub", stored / rate / _DAY_S, "days")
        stored = of("user bytes") / of("cells")
    if days := of("scrub.pass_days"):
        add("scrub.bytes_per_s to set", stored / days / _DAY_S, "bytes/s", "to end in scrub.pass_days")


def _disks(plan: Plan) -> None:
    plan.begin("Disks and network")
    add, of = plan.add, plan.of
    moved = of("GC copies") / of("size")
    landed = of("puts") / of("put.batch") * _REPLICAS
    add("writes of OSDs", landed + (of("puts") + moved) * of("pack.writes"), "operations/s")
    verified = of("size") / of("geometry.chunk_size")
    packed = of("puts") * (of("size") / _RUN_BYTES + verified)
    moved = of("GC copies") / of("size") * (of("space.shard_reads") + verified)
    add("reads of OSDs", of("gets") * of("space.shard_reads") + packed + moved, "operations/s")
    capacity, operations = of("capacity of OSDs"), of("writes of OSDs") + of("reads of OSDs")
    needs = {
        "capacity": capacity / of("--disk-size"),
        "operations": operations / (of("--disk-iops") * _IO_SHARE),
        "k + m + 1 OSDs": of("geometry.k") + of("geometry.m") + 1,
    }
    plan.add_most("disks", "disks", needs)
    add("network, clients", (of("puts") + of("gets")) * of("size"), "bytes/s")
    k, m = of("geometry.k"), of("geometry.m")
    stripes = of("space.raw") * (2 * k + m - 1) / (k + m)
    users = of("puts") * (_REPLICAS + 1 + 2 + stripes) + 2 * of("gets")
    add("network, storage", users * of("size") + of("GC copies") * (4 + stripes), "bytes/s")


def _hosts(plan: Plan) -> None:
    plan.begin("Hosts")
    of, most = plan.of, plan.add_most

    def cores(name: str) -> float:
        return of(f"cores of {name}") / (of("--cores") * _CPU_SHARE)

    def network(name: str) -> float:
        return of(f"network, {name}") / (of("--network") * _IO_SHARE)

    most("gateway hosts", "hosts", {"CPU": cores("gateways") + 1, "network": network("clients") + 1, "a spare": 2})
    memory = of("cells") * of("consumers of a cell") * of("consumer.memory") / (of("--memory") * _MEMORY_SHARE)
    most("consumer hosts", "hosts", {"CPU": cores("consumers") + 1, "memory": memory + 1, "a spare": 2})
    most("GC hosts", "hosts", {"CPU": cores("GC") + 1, "a spare": 2})
    on_a_host = max(1, of("--memory") // of("memory of the database"))
    needs = {"CPU": 2 * cores("databases"), "memory": 2 * of("cells") / on_a_host, "a primary and a replica": 2}
    most("database hosts", "hosts", needs)
    most("Kafka hosts", "hosts", {"CPU": cores("Kafka"), "kafka.replication": of("kafka.replication")})
    events = of("puts") * of("event.bytes") * of("kafka.retention_ms") / 1000 * of("kafka.replication")
    plan.add("Kafka disks", events, "bytes", "all brokers, before compression")
    needs = {
        "disks": of("disks") / of("--disks"),
        "CPU": cores("OSDs"),
        "network": network("storage"),
        "k + m + 1 hosts": of("geometry.k") + of("geometry.m") + 1,
    }
    most("OSD hosts", "hosts", needs)

"""The commands of `nos-ec bench`. Their options end with the same five, which `_shared_options` adds."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from nos_ec.bench.bars import (
    GC,
    GC_WORKERS,
    PIPELINE,
    READ,
    READ_OF_ONE_SIZE,
    Bar,
    cells_bars,
    life_bars,
    missed,
    s3_bars,
    space_bars,
)
from nos_ec.bench.collecting import CollectingBench, CollectingOptions, gc_settings
from nos_ec.bench.gc_workers import WorkersBench, WorkersOptions, workers_settings
from nos_ec.bench.life.life_bench import LifeBench, LifeOptions
from nos_ec.bench.life.life_ways import landing_settings, life_stores
from nos_ec.bench.pipeline import PipelineBench, PipelineOptions
from nos_ec.bench.reads import WORKLOAD, ReadBench, ReadOptions
from nos_ec.bench.s3.cells_bench import STEPS, CellsBench, CellsOptions, cells_ways
from nos_ec.bench.s3.s3_bench import S3Bench, S3Options
from nos_ec.bench.s3.s3_ways import s3_ways
from nos_ec.bench.space import DRAWN, SpaceBench, SpaceOptions, pools_of_objects
from nos_ec.bench.stack import AdminKey, bench_stores, require_servers
from nos_ec.bench.workloads import WORKLOADS
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.errors import EXIT_BAR_MISSED
from nos_ec.cli.terminal.output import emit, err, facts, out, ticking
from nos_ec.cli.terminal.values import Seed, size_option
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.share import WORKERS_MAX

bench_app = typer.Typer(
    help="Measure a temporary store on the configured servers. These are Ceph, Kafka and MySQL.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Rounds = Annotated[int, typer.Option(min=1, help="Rounds, after a warm-up round that does not count.")]
OneWorkload = Annotated[str | None, typer.Option("--workload", help="W1 to W7 (docs/PACKING.md). Default: W1.")]
OneSize = Annotated[
    int | None,
    typer.Option(
        "--size", parser=size_option, metavar="SIZE", help="Objects of this many bytes, instead of a workload."
    ),
]


@dataclass(frozen=True, slots=True)
class Shared:
    """The options that all benchmarks have. `admin` is the key with which the OSDs' counters are read."""

    admin: AdminKey
    seed: int
    check: bool
    as_json: bool

    def finish(self, figures: Mapping[str, Any], bars: Sequence[Bar]) -> None:
        """Print the figures. With --check, exit with EXIT_BAR_MISSED if a bar was missed."""
        emit(figures, self.as_json, lambda: _print(figures))
        sentences = missed(bars, figures) if self.check else []
        for sentence in sentences:
            err.print(f"bar missed: {sentence}", markup=False)
        if sentences:
            raise typer.Exit(EXIT_BAR_MISSED)


def _shared(
    admin_user: Annotated[
        str, typer.Option(help="Ceph user that may read the OSDs' counters and create a pool.")
    ] = "client.admin",
    admin_keyring: Annotated[
        Path | None,
        typer.Option(
            help="Keyring of the admin user. Default: ceph.admin_keyring_file, else admin.keyring next to ceph.conf."
        ),
    ] = None,
    seed: Seed = 1,
    check: Annotated[bool, typer.Option("--check", help="Exit with 10 if a bar of docs/BENCH.md is missed.")] = False,
    as_json: AsJson = False,
) -> Shared:
    return Shared(AdminKey(admin_user, admin_keyring), seed, check, as_json)


def _shared_options(benchmark: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the options of the benchmark and then those of `_shared`."""
    own, shared = (signature(one, eval_str=True).parameters for one in (benchmark, _shared))

    @wraps(benchmark)
    def command(**given: Any) -> None:
        benchmark(shared=_shared(**{name: given.pop(name) for name in shared}), **given)

    options = [one for name, one in (*own.items(), *shared.items()) if name != "shared"]
    command.__signature__ = Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in options}
    return command


def pipeline(
    ctx: typer.Context,
    shared: Shared,
    workload: OneWorkload = None,
    size: OneSize = None,
    objects: Annotated[int, typer.Option(min=100, help="Objects written each way in each round.")] = 4000,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of floor, ours and naive, after a warm-up round that does not count.")
    ] = 3,
    landing: Annotated[
        Literal["store", "log"], typer.Option(help="Where the objects to be packed land (landing.mode).")
    ] = "store",
    naive: Annotated[bool, typer.Option(help="Also measure naive writes, into a temporary pool.")] = True,
) -> None:
    """Measure packing. Compares it with the same bare reads and appends (floor), and with one write per object
    (naive)."""
    drawn = _drawn(workload, size)
    settings = context(ctx).settings()
    with ExitStack() as stack:
        tick = stack.enter_context(ticking())
        require_servers(settings)
        both = dict.fromkeys(("ours", "floor"), landing_settings(settings, landing))
        stores = stack.enter_context(bench_stores(both, shared.admin))
        ours, floor, instruments = stores.systems["ours"], stores.systems["floor"], stores.instruments
        pool = stack.enter_context(instruments.cluster.plain_pool(settings.ceph.blocks_pool)) if naive else None
        options = PipelineOptions(drawn, landing, objects, rounds, shared.seed, pool)
        figures = PipelineBench(ours, floor, instruments, options, tick).run()
    shared.finish(figures, PIPELINE.get(drawn, ()))


def read(
    ctx: typer.Context,
    shared: Shared,
    size: Annotated[
        int | None,
        typer.Option(
            parser=size_option, metavar="SIZE", help="Objects of this many bytes, instead of small ones (W2)."
        ),
    ] = None,
    objects: Annotated[int, typer.Option(min=100, help="Objects to pack.")] = 2000,
    reads: Annotated[int, typer.Option(min=10, help="GETs timed each way.")] = 2000,
    sample: Annotated[int, typer.Option(min=1, help="GETs for which the reading OSDs are counted separately.")] = 50,
) -> None:
    """Measure GETs of small packed objects. Compares them with bare reads of the same bytes plus one row look-up. With
    --size, also compares GETs of split objects with GETs of the others."""
    options = ReadOptions(size or WORKLOAD, objects, reads, sample, shared.seed)
    settings = context(ctx).settings()
    require_servers(settings)
    with bench_stores({"read": landing_settings(settings, "store")}, shared.admin) as stores:
        figures = ReadBench(stores.systems["read"], stores.instruments, options).run()
    bars = READ_OF_ONE_SIZE if size else READ
    shared.finish(figures, bars)


def life(
    ctx: typer.Context,
    shared: Shared,
    workload: OneWorkload = None,
    size: OneSize = None,
    objects: Annotated[int, typer.Option(min=100, help="Objects of each round.")] = 3000,
    rounds: Rounds = 3,
    callers: Annotated[int, typer.Option(min=1, max=256, help="Threads that PUT, GET and DELETE.")] = 16,
    landing: Annotated[
        Literal["store", "log", "both"],
        typer.Option(help="Where PUTs land. both: each of them, and also without the queue of PUTs."),
    ] = "both",
    reads: Annotated[int, typer.Option(min=1, help="GETs of landed and of packed objects in each round.")] = 500,
) -> None:
    """Measure the cost of an object's whole life, step by step. Also works on an embedded store."""
    drawn = _drawn(workload, size)
    options = LifeOptions(drawn, objects, rounds, callers, reads, shared.seed)
    settings = context(ctx).settings()
    with ticking() as tick, life_stores(settings, landing, shared.admin) as stores:
        figures = LifeBench(stores, options, tick).run()
    bars = life_bars(figures["ways"], drawn, callers, on_ceph=settings.store.backend == "ceph")
    shared.finish(figures, bars)


def s3(
    ctx: typer.Context,
    shared: Shared,
    radosgw: Annotated[bool, typer.Option("--radosgw", help="Also measure radosgw, on the same cluster.")] = False,
    ceph_programs: Annotated[
        str, typer.Option(help="Words before the names of Ceph programs, such as 'chroot /srv/ceph'.")
    ] = "",
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes of the gateway.")] = 1,
    objects: Annotated[int, typer.Option(min=16, help="PUTs of each way in each round.")] = 1000,
    size: Annotated[
        int, typer.Option(parser=size_option, metavar="SIZE", help="Bytes of each object that is PUT.")
    ] = 65536,
    rounds: Rounds = 3,
    put_callers: Annotated[int, typer.Option(min=1, max=256, help="Threads that PUT.")] = 16,
    get_callers: Annotated[int, typer.Option(min=1, max=256, help="Threads that GET.")] = 8,
    small_objects: Annotated[int, typer.Option(min=1001, help="Small objects to GET and LIST.")] = 2000,
    reads: Annotated[int, typer.Option(min=10, help="GETs of each way in each round.")] = 2000,
    pages: Annotated[int, typer.Option(min=1, help="LISTs of each way in each round.")] = 30,
    sample: Annotated[int, typer.Option(min=1, help="GETs for which the reads of OSDs are counted.")] = 50,
) -> None:
    """Measure the S3 gateway. Compares it with the engine without HTTP, and with radosgw. Also works on an embedded
    store."""
    settings = context(ctx).settings()
    options = S3Options(
        objects, size, rounds, put_callers, get_callers, small_objects, reads, pages, sample, shared.seed
    )
    programs = shlex.split(ceph_programs) if radosgw else None
    with ticking() as tick, s3_ways(settings, shared.admin, processes, programs) as found:
        figures = {"processes": processes} | S3Bench(found.system, found.ways, options, tick).run()
    bars = s3_bars(processes, on_ceph=settings.store.backend == "ceph", with_radosgw=radosgw)
    shared.finish(figures, bars)


def cells(
    ctx: typer.Context,
    shared: Shared,
    objects: Annotated[int, typer.Option(min=1, help="Objects of each round.")] = 10,
    size: Annotated[int, typer.Option(parser=size_option, metavar="SIZE", help="Bytes of each object.")] = 4096,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of gateways, one after another.")] = 10,
    rounds: Rounds = 80,
    callers: Annotated[int, typer.Option(min=1, max=64, help="Threads that send requests.")] = 1,
) -> None:
    """Measure what cells cost a gateway: requests to a store of three cells, compared with a store without cells. Also
    works on an embedded store."""
    options = CellsOptions(objects, size, pairs, rounds, callers, shared.seed)
    settings = context(ctx).settings()
    with ticking() as tick, cells_ways(settings, shared.admin) as found:
        figures = CellsBench(found, options, tick).run()
    shared.finish(figures, cells_bars(STEPS))


def gc_command(
    ctx: typer.Context,
    shared: Shared,
    objects: Annotated[int, typer.Option(min=200, help="Objects packed in each round; half are deleted.")] = 2000,
    rounds: Rounds = 3,
    reads: Annotated[int, typer.Option(min=10, help="GETs timed without GC.")] = 2000,
) -> None:
    """Measure GC, and GETs while it runs. Compares GC with bare reads and appends. Also works on an embedded store."""
    settings = gc_settings(landing_settings(context(ctx).settings(), "log"))
    options = CollectingOptions(objects, rounds, reads, shared.seed)
    with ticking() as tick, bench_stores({"gc": settings}, shared.admin) as stores:
        figures = CollectingBench(stores.systems["gc"], stores.instruments, options, tick).run()
    shared.finish(figures, GC)


def gc_workers(
    ctx: typer.Context,
    shared: Shared,
    objects: Annotated[int, typer.Option(min=200, help="Objects packed in each store in each round.")] = 20_000,
    rounds: Rounds = 3,
    workers: Annotated[int, typer.Option(min=2, max=WORKERS_MAX, help="Workers of the second store.")] = 4,
) -> None:
    """Measure what it costs that several GC workers collect one store, compared with one worker. Also works on an
    embedded store."""
    settings = workers_settings(landing_settings(context(ctx).settings(), "log"), workers)
    options = WorkersOptions(objects, rounds, workers, shared.seed)
    with ticking() as tick, bench_stores(settings, shared.admin) as stores:
        figures = WorkersBench(stores.systems, stores.instruments, options, tick).run()
    shared.finish(figures, GC_WORKERS)


def space(
    ctx: typer.Context,
    shared: Shared,
    sizes: Annotated[
        str | None, typer.Option(help="Sizes of objects, separated by commas, such as 70000,512KiB.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Workloads (docs/PACKING.md), separated by commas, such as W1,W2.")
    ] = None,
    bytes_min: Annotated[
        int,
        typer.Option(
            "--bytes", parser=size_option, metavar="SIZE", help="Total bytes of the objects of each size or workload."
        ),
    ] = 64 << 20,
    pools: Annotated[
        bool,
        typer.Option(
            help="On Ceph: also measure one RADOS object per object, in temporary erasure-coded and replicated pools."
        ),
    ] = True,
) -> None:
    """Measure raw bytes per user byte, by size of the objects. Compares them with the simulation, and with one RADOS
    object per object in pools of the same cluster. Also works on an embedded store. Without --sizes and --workload, it
    measures some of each."""
    drawn: list[str | int] = [size_option(word) for word in sizes.split(",")] if sizes else []
    drawn += [_known(word) for word in workload.split(",")] if workload else []
    options = SpaceOptions(drawn or DRAWN, bytes_min, shared.seed)
    settings = landing_settings(context(ctx).settings(), "store")
    with ExitStack() as stack:
        tick = stack.enter_context(ticking())
        stores = stack.enter_context(bench_stores({"space": settings}, shared.admin))
        system, instruments = stores.systems["space"], stores.instruments
        apart = pools and settings.store.backend == "ceph"
        of_objects = stack.enter_context(pools_of_objects(system, instruments)) if apart else {}
        figures = SpaceBench(system, instruments, of_objects, options, tick).run()
    shared.finish(figures, space_bars(figures))


for _name, _command in (
    ("pipeline", pipeline),
    ("read", read),
    ("life", life),
    ("s3", s3),
    ("cells", cells),
    ("gc", gc_command),
    ("gc-workers", gc_workers),
    ("space", space),
):
    bench_app.command(_name)(_shared_options(_command))


def _drawn(workload: str | None, size: int | None) -> str | int:
    """Return the name of a workload, or the size of all objects in bytes. Raises InvalidInput."""
    if workload is not None and size is not None:
        raise InvalidInput("--workload and --size cannot be given together; choose one")
    return _known(workload or "W1") if size is None else size


def _known(workload: str) -> str:
    """Return the name of a workload. Raises InvalidInput if it is unknown."""
    if workload not in WORKLOADS:
        raise InvalidInput(f"unknown workload {workload!r}; choose one of: {', '.join(WORKLOADS)}")
    return workload


def _print(figures: Mapping[str, Any]) -> None:
    """Print figures under the names that docs/BENCH.md explains, those of all ways next to each other. The figures of
    each round are only in the JSON."""
    parts = {name: value for name, value in figures.items() if isinstance(value, Mapping)}
    facts("Figures (docs/BENCH.md explains them)", {n: _text(v) for n, v in figures.items() if n not in parts})
    alike: dict[object, dict[str, Mapping[str, Any]]] = {}
    for name, part in parts.items():
        if all(isinstance(value, Mapping) for value in part.values()):
            alike[name] = {one: dict(_leaves(value)) for one, value in part.items()}
        else:
            leaves = dict(_leaves(part))
            kind = "ways" if name in figures.get("ways", ()) else tuple(leaves)
            alike.setdefault(kind, {})[name] = leaves
    for group, columns in alike.items():
        table = Table(title=str(group) if group in parts else None, title_justify="left")
        table.add_column(overflow="fold")
        for name in columns:
            table.add_column(name, justify="right")
        for path in dict.fromkeys(path for leaves in columns.values() for path in leaves):
            table.add_row(path, *(_text(leaves[path]) if path in leaves else "" for leaves in columns.values()))
        out.print(table)


def _leaves(part: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the figures in a part, with their paths in it."""
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        elif not isinstance(value, list):
            yield before + name, value


def _text(value: object) -> str:
    """Format a figure; '-' if it is unknown."""
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) >= 1 else f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

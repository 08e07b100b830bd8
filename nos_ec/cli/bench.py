"""bench pipeline, bench read, bench scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nos_ec.bench.bars import PIPELINE, READ, SCAN, Bar, missed
from nos_ec.bench.pipeline import PipelineBench, PipelineOptions
from nos_ec.bench.reads import ReadBench, ReadOptions
from nos_ec.bench.scan import ScanOptions, scan
from nos_ec.bench.stack import AdminKey, bench_stack
from nos_ec.cli.context import AsJson, context
from nos_ec.cli.errors import EXIT_BAR_MISSED
from nos_ec.cli.output import emit, err, facts, out, ticking
from nos_ec.core.errors import InvalidInput
from nos_ec.core.workloads import WORKLOADS

bench_app = typer.Typer(
    help="Measure a temporary store on the configured servers. They are Ceph, Kafka and MySQL.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AdminUser = Annotated[str, typer.Option(help="Ceph user that may read the OSDs' counters and create a pool.")]
AdminKeyring = Annotated[
    Path | None,
    typer.Option(
        help="Keyring of the admin user. Default: ceph.admin_keyring_file, else admin.keyring next to ceph.conf."
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Exit with 10 if a bar of docs/BENCH.md is missed.")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench_app.command("pipeline")(pipeline)
    bench_app.command("read")(read)
    bench_app.command("scan")(scan_command)
    app.add_typer(bench_app, name="bench")


def pipeline(
    ctx: typer.Context,
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)} (docs/PACKING.md).")] = "W1",
    objects: Annotated[int, typer.Option(min=100, help="Objects written each way in each round.")] = 4000,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of floor, ours and naive, after a warm-up round that does not count.")
    ] = 3,
    groups: Annotated[int, typer.Option(min=1, help="Groups timed for each number of stripes.")] = 25,
    naive: Annotated[bool, typer.Option(help="Also measure naive writes, into a temporary pool.")] = True,
    admin_user: AdminUser = "client.admin",
    admin_keyring: AdminKeyring = None,
    seed: Seed = 1,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Measure packing. Against the same bare reads and appends (floor), and against one write per object (naive)."""
    if workload not in WORKLOADS:
        raise InvalidInput(f"unknown workload {workload!r}; choose one of: {', '.join(WORKLOADS)}")
    settings = context(ctx).settings()
    with ExitStack() as stack:
        tick = stack.enter_context(ticking())
        bench = stack.enter_context(bench_stack(settings, AdminKey(admin_user, admin_keyring)))
        pool = stack.enter_context(bench.instruments.cluster.plain_pool(settings.ceph.blocks_pool)) if naive else None
        options = PipelineOptions(workload, objects, rounds, groups, seed, pool)
        figures = PipelineBench(bench.system, bench.instruments, options, tick).run()
    _finish(figures, PIPELINE.get(workload, ()) if check else (), as_json, lambda: _print_pipeline(figures))


def read(
    ctx: typer.Context,
    objects: Annotated[int, typer.Option(min=100, help="Small objects to pack.")] = 2000,
    reads: Annotated[int, typer.Option(min=10, help="GETs timed each way.")] = 2000,
    sample: Annotated[int, typer.Option(min=1, help="GETs for which the OSDs that read are counted one by one.")] = 50,
    admin_user: AdminUser = "client.admin",
    admin_keyring: AdminKeyring = None,
    seed: Seed = 1,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Measure GETs of small packed objects. Against bare reads of the same bytes plus one row look-up."""
    with bench_stack(context(ctx).settings(), AdminKey(admin_user, admin_keyring)) as bench:
        figures = ReadBench(bench.system, bench.instruments, ReadOptions(objects, reads, sample, seed)).run()
    _finish(figures, READ if check else (), as_json, lambda: _print_read(figures))


def scan_command(
    ctx: typer.Context,
    few_rows: Annotated[int, typer.Option(min=10_000, help="Rows waiting in the first measurement.")] = 100_000,
    many_rows: Annotated[int, typer.Option(min=10_000, help="Rows waiting in the second measurement.")] = 2_000_000,
    batches: Annotated[int, typer.Option(min=1, help="Batches timed, each of producer.batch_objects rows.")] = 20,
    admin_user: AdminUser = "client.admin",
    admin_keyring: AdminKeyring = None,
    seed: Seed = 1,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Measure how many rows per second a producer publishes. With few and with many rows waiting."""
    with bench_stack(context(ctx).settings(), AdminKey(admin_user, admin_keyring)) as bench:
        figures = scan(bench.system, ScanOptions(few_rows, many_rows, batches, seed), bench.instruments.timer)
    _finish(figures, SCAN if check else (), as_json, lambda: _print_scan(figures))


def _finish(figures: Mapping[str, Any], bars: Sequence[Bar], as_json: bool, human: Any) -> None:
    """Print the figures, then exit with EXIT_BAR_MISSED if a bar was missed."""
    emit(figures, as_json, human)
    sentences = missed(bars, figures)
    for sentence in sentences:
        err.print(f"bar missed: {sentence}", markup=False)
    if sentences:
        raise typer.Exit(EXIT_BAR_MISSED)


def _print_pipeline(figures: Mapping[str, Any]) -> None:
    ways = [way for way in ("floor", "ours", "naive") if way in figures]
    table = Table(
        title=f"{figures['workload']}: {figures['objects']:,} objects, {figures['rounds']} rounds,"
        f" {figures['lanes']} lanes, {figures['read_threads']} concurrent reads",
        title_justify="left",
    )
    for column in ("", *ways):
        table.add_column(column, justify="right" if column else "left")
    rows = {
        "objects/s": ("objects_per_s", ".0f"),
        "MB/s": ("mb_per_s", ".1f"),
        "raw bytes per user byte": ("raw_bytes_per_user_byte", ".3f"),
        "client writes per object": ("client_write_ops_per_object", ".3f"),
        "OSD writes per object": ("osd_write_ops_per_object", ".2f"),
    }
    for title, (key, form) in rows.items():
        table.add_row(title, *(format(figures[way][key], form) for way in ways))
    for name in figures["ours"]["cpu_ms_per_object"]:
        table.add_row(
            f"CPU ms per object: {name}", *(_optional(figures[way]["cpu_ms_per_object"][name], ".3f") for way in ways)
        )
    out.print(table)
    out.print(f"ours over floor: [bold]{figures['ours_over_floor']:.3f}[/]")
    if "ours_over_naive" in figures:
        out.print(f"ours over naive: [bold]{figures['ours_over_naive']:.2f}[/]")
    latencies = Table(title="Writing a group, milliseconds", title_justify="left")
    for column in ("stripes", "groups", "p50", "p90", "p99"):
        latencies.add_column(column, justify="right")
    for stripes, one in figures["group_write_ms"].items():
        latencies.add_row(stripes, f"{one['groups']:.0f}", *(f"{one[p]:.1f}" for p in ("p50", "p90", "p99")))
    out.print(latencies)


def _print_read(figures: Mapping[str, Any]) -> None:
    rows = {
        f"{way}, ms": ", ".join(f"{name} {value:.2f}" for name, value in figures[f"{way}_ms"].items())
        for way in ("ours", "bare")
    }
    rows["p50, ours over bare"] = f"{figures['p50_over_bare']:.3f}"
    rows["OSDs that read per GET"] = f"{figures['osds_per_get']}, {figures['osds_per_get_mean']:.2f} on average"
    rows["bytes the OSDs read / bytes of the pages touched"] = f"{figures['read_bytes_over_pages']:.3f}"
    rows["bytes the OSDs read / size in whole pages"] = f"{figures['read_bytes_over_rounded']:.3f}"
    facts(f"GETs of {figures['objects']:,} small objects", rows)


def _print_scan(figures: Mapping[str, Any]) -> None:
    rows = {
        f"rows/s, {figures[name]:,} waiting": f"{figures[f'rows_per_s_{name[:-5]}']:,.0f}"
        for name in ("few_rows", "many_rows")
    }
    facts("producer", rows | {"many over few": f"{figures['many_over_few']:.3f}"})


def _optional(value: float | None, form: str) -> str:
    """A figure, or '-' if it is not available because the server is on another machine."""
    return "-" if value is None else format(value, form)

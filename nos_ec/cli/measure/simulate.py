"""The commands of `nos-ec simulate`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.table import Table

from nos_ec.bench.simulate import SimulationResult, parse_sizes, raw_bytes_per_user_byte, read_sizes, simulate
from nos_ec.bench.workloads import WORKLOADS, sizes
from nos_ec.cli.measure.simulate_gc import gc_command
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, facts, out
from nos_ec.cli.terminal.streams import Source
from nos_ec.cli.terminal.values import Seed
from nos_ec.core.errors import InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS
from nos_ec.core.packing.packer import size_max

REPLICAS = 3
"""The number of copies of each byte in a replicated pool."""
_READ_BYTES = 1 << 20

simulate_app = typer.Typer(
    help="Try packing (the default) or GC; stores nothing.", invoke_without_command=True, rich_markup_mode=None
)


@simulate_app.callback()
@simulate_app.command("packing")
def simulate_command(
    ctx: typer.Context,
    workload: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(WORKLOADS)}; docs/PACKING.md describes them.")
    ] = None,
    sizes_file: Annotated[
        Path | None, typer.Option("--sizes", help="File with one object size in bytes per line; '-' for stdin.")
    ] = None,
    policy: Annotated[str, typer.Option(help="best, or nos (the published policy).")] = "best",
    window: Annotated[int, typer.Option(min=1, help="Number of waiting objects that the packer chooses from.")] = 1000,
    objects: Annotated[int, typer.Option(min=1, help="Number of objects to draw from the workload.")] = 100_000,
    streams: Annotated[
        int, typer.Option(min=1, max=len(STREAM_CUTS_DAYS), help="Number of streams the objects are spread over.")
    ] = 1,
    split_bytes: Annotated[
        str | None,
        typer.Option(
            help="How many bytes may be left empty to save one shard read. Several numbers, separated by commas, show"
            " a curve. Default: consumer.split_bytes."
        ),
    ] = None,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Pack object sizes without storing anything. Shows the utilisation next to the proven upper bound, and the raw
    bytes per user byte next to three replicas. Empty objects, and objects that are too large to be packed, do not
    count."""
    if ctx.invoked_subcommand is not None:
        _refuse_options_before(ctx, ctx.invoked_subcommand)
        return
    if workload is None and sizes_file is None:
        raise InvalidInput("give --workload or --sizes")
    if workload is not None and sizes_file is not None:
        raise InvalidInput("give --workload or --sizes, not both")
    settings = context(ctx).settings()
    geometry = settings.geometry.value()
    consumer = settings.consumer.model_copy(update={"policy": policy, "window_objects": window})
    prices = [consumer.split_bytes] if split_bytes is None else _prices(split_bytes)
    if workload is not None:
        drawn: Iterable[int] = sizes(workload, objects, random.Random(seed), size_max(geometry))
    else:
        assert sizes_file is not None
        drawn = sizes_in(sizes_file)
    all_sizes = list(drawn)
    results = [
        simulate(
            all_sizes,
            consumer.model_copy(update={"split_bytes": price}),
            geometry,
            timer=perf_counter,
            seed=seed,
            streams=streams,
        )
        for price in prices
    ]
    source = {
        "workload": workload,
        "sizes": str(sizes_file) if sizes_file else None,
        "seed": seed,
        "streams": streams,
    }
    found = [asdict(result) | _raw_figures(geometry, result) for result in results]
    title = f"{workload or sizes_file}, policy {policy}, window {window}"
    if len(results) == 1:
        emit(source | found[0], as_json, lambda: _print(title, results[0], geometry))
    else:
        emit(source | {"curve": found}, as_json, lambda: _print_curve(title, results, geometry))


simulate_app.command("gc")(gc_command)


def _prices(text: str) -> list[int]:
    """Parse the values of --split-bytes. Raises InvalidInput."""
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() for word in words):
        raise InvalidInput(f"--split-bytes {text!r} is not a list of bytes; write numbers such as 4096,16384")
    return [int(word) for word in words]


def _refuse_options_before(ctx: typer.Context, subcommand: str) -> None:
    """Refuse options between `simulate` and a subcommand, which would be ignored. Raises InvalidInput."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidInput(f"put options of `simulate {subcommand}` after it")


def sizes_in(path: Path) -> list[int]:
    """Read sizes in bytes from a file, or from stdin if `path` is '-'. Raises InvalidInput."""
    return _sizes_of_stdin() if path == Path("-") else read_sizes(path)


def _sizes_of_stdin() -> list[int]:
    name = "standard input"
    with Source(Path("-")) as source:
        data = b"".join(iter(lambda: source.read(_READ_BYTES), b""))
    try:
        return parse_sizes(data.decode().splitlines(), name)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name}: it is not text; give one size in bytes per line") from error


def _raw_figures(geometry: Geometry, result: SimulationResult) -> dict[str, float]:
    assert result.utilisation_with_names is not None
    return {
        "raw_bytes_per_user_byte": raw_bytes_per_user_byte(geometry, result.utilisation),
        "raw_bytes_per_user_byte_with_names": raw_bytes_per_user_byte(geometry, result.utilisation_with_names),
    }


def _print_curve(title: str, results: Sequence[SimulationResult], geometry: Geometry) -> None:
    curve = Table(title=title, title_justify="left")
    for heading in ("price", "utilisation", "raw/user byte", "shard reads", "extra reads", "cost", "at least"):
        curve.add_column(heading, justify="right")
    for one in results:
        curve.add_row(
            f"{one.split_bytes:,}",
            f"{one.utilisation:.2%}",
            f"{raw_bytes_per_user_byte(geometry, one.utilisation):.3f}",
            f"{one.shard_reads:.3f}",
            f"{one.extra_reads:.3f}",
            f"{one.cost:,.0f}",
            f"{one.cost_bound:,.0f}",
        )
    out.print(curve)


def _print(title: str, result: SimulationResult, geometry: Geometry) -> None:
    bare, with_names = (f"{value:.3f}" for value in _raw_figures(geometry, result).values())
    rows = {
        "utilisation": f"{result.utilisation:.2%}  of {result.bound:.2%} possible"
        f" ({result.utilisation_with_names:.2%} with room for names)",
        "raw bytes per user byte": f"{bare}  ({with_names} with room for names; {REPLICAS:.3f} with three replicas)",
        "packed": f"{count_text(result.objects, 'object')} into {count_text(result.stripes, 'stripe')}"
        f" in {count_text(result.groups, 'group')}",
        "small objects in one chunk": f"{result.single_chunk_ratio:.2%}",
        "shard reads per object": f"{result.shard_reads:.3f}  ({result.extra_reads:.3f} beyond the fewest possible)",
        "cost per object": f"{result.cost:,.0f} bytes  (at least {result.cost_bound:,.0f};"
        f" {result.split_bytes:,} for an extra read)",
        "headers": f"{result.header_overhead:.2%}",
        "longest wait": f"{result.max_wait_windows:.2f} windows of arrivals",
        "speed": f"{result.objects_per_s:,.0f} objects/s",
        "left out": f"{result.left_waiting:,} still waiting at the end, {result.skipped_empty:,} empty,"
        f" {result.skipped_large:,} too large to be packed",
    }
    facts(title, rows)

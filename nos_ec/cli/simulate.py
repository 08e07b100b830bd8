"""simulate."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from nos_ec.bench.simulate import SimulationResult, read_sizes, simulate
from nos_ec.cli.context import AsJson, context
from nos_ec.cli.output import count_text, emit, facts
from nos_ec.core.errors import InvalidInput
from nos_ec.core.packing.packer import size_max
from nos_ec.core.workloads import WORKLOADS, sizes


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate_command)


def simulate_command(
    ctx: typer.Context,
    workload: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(WORKLOADS)}; docs/PACKING.md describes them.")
    ] = None,
    sizes_file: Annotated[
        Path | None, typer.Option("--sizes", help="File with one object size in bytes per line.")
    ] = None,
    policy: Annotated[str, typer.Option(help="best, or nos (the published policy).")] = "best",
    window: Annotated[int, typer.Option(min=1, help="Number of waiting objects that the packer chooses from.")] = 1000,
    objects: Annotated[int, typer.Option(min=1, help="Number of objects to draw from the workload.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Pack object sizes without storing anything, and show the utilisation next to the proven upper bound."""
    if workload is None and sizes_file is None:
        raise InvalidInput("give --workload or --sizes")
    if workload is not None and sizes_file is not None:
        raise InvalidInput("give --workload or --sizes, not both")
    geometry = context(ctx).settings().geometry.value()
    if workload is not None:
        drawn: Iterable[int] = sizes(workload, objects, random.Random(seed), size_max(geometry))
    else:
        assert sizes_file is not None
        drawn = read_sizes(sizes_file)
    result = simulate(drawn, policy, window, geometry, timer=perf_counter, seed=seed)
    data = {"workload": workload, "sizes": str(sizes_file) if sizes_file else None, "seed": seed, **asdict(result)}
    emit(data, as_json, lambda: _print(f"{workload or sizes_file}, policy {policy}, window {window}", result))


def _print(title: str, result: SimulationResult) -> None:
    named = "-" if result.utilisation_with_names is None else f"{result.utilisation_with_names:.2%}"
    rows = {
        "utilisation": f"{result.utilisation:.2%}  of {result.bound:.2%} possible ({named} with room for names)",
        "packed": f"{count_text(result.objects, 'object')} into {count_text(result.stripes, 'stripe')}"
        f" in {count_text(result.groups, 'group')}",
        "small objects in one chunk": f"{result.single_chunk_ratio:.2%}",
        "headers": f"{result.header_overhead:.2%}",
        "longest wait": f"{result.max_wait_windows:.2f} windows of arrivals",
        "speed": f"{result.objects_per_s:,.0f} objects/s",
        "left out": f"{result.left_waiting:,} still waiting at the end, {result.skipped_empty:,} empty,"
        f" {result.skipped_large:,} too large to be packed",
    }
    facts(title, rows)

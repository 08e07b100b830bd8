"""The command capacity."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from nos_ec.bench.capacity.figures import Figure, read_measured
from nos_ec.bench.capacity.plan import Load, Plan, figures_of, plan_of
from nos_ec.cli.measure.simulate import sizes_in
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import emit, facts, print_lines
from nos_ec.cli.terminal.values import size_option
from nos_ec.core.errors import InvalidInput
from nos_ec.core.packing.packer import size_max
from nos_ec.core.ratios import rounded
from nos_ec.engine.texts import size_text

_SIMULATED_BYTES = 4 << 30
_SIMULATED_MAX = 50_000
"""Enough objects of one size for a figure that does not depend on their number."""


def capacity(
    ctx: typer.Context,
    objects: Annotated[float, typer.Option(min=1, help="Objects that the store holds, such as 2e9.")],
    puts: Annotated[float, typer.Option(min=0, help="PUTs a second, those of overwrites included.")],
    gets: Annotated[float, typer.Option(min=0, help="GETs a second.")] = 0.0,
    deletes: Annotated[
        str, typer.Option(help="Deletes and overwrites a month: a number, or a share of the objects such as 20%.")
    ] = "0",
    mean_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Mean size of an object, such as 90000 or 64KiB.")
    ] = None,
    sizes_file: Annotated[
        Path | None,
        typer.Option("--sizes", help="Instead of --mean-size: a file with one object size in bytes per line."),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(help="JSON of `bench` or `simulate gc` to replace figures of docs/. May be repeated."),
    ] = None,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a host.")] = 16,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of a host.")] = "128GiB",
    disk_size: Annotated[str, typer.Option(metavar="SIZE", help="Size of a disk of an OSD.")] = "14000000000000",
    disk_iops: Annotated[int, typer.Option(min=1, help="Operations a second of such a disk.")] = 150,
    disks: Annotated[int, typer.Option(min=1, help="Disks of an OSD host.")] = 12,
    network: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes a second of a host's network, one way.")
    ] = "3125000000",
    rebuild_hours: Annotated[
        float, typer.Option(min=0.1, help="Hours in which `metadata rebuild` must end after a database is lost.")
    ] = 24.0,
    outage_hours: Annotated[
        float, typer.Option(min=0, help="Hours without consumers that the landing pool must bear.")
    ] = 4.0,
    as_json: AsJson = False,
) -> None:
    """Compute the hosts, disks and databases of a load.

    Also shows which limit determines each, and the figures that each line stands on. Reads settings, but no store.
    docs/CAPACITY.md has the formulas.
    """
    if (mean_size is None) == (sizes_file is None):
        raise InvalidInput("give either --mean-size or --sizes")
    if not all(map(isfinite, (objects, puts, gets, rebuild_hours, outage_hours))):
        raise InvalidInput("give finite numbers for --objects, --puts, --gets, --rebuild-hours and --outage-hours")
    settings = context(ctx).settings()
    limit = size_max(settings.geometry.value())
    if sizes_file is not None:
        sizes, sizes_from = sizes_in(sizes_file), str(sizes_file)
    else:
        size = size_option(mean_size)
        if size > limit:
            raise InvalidInput(
                f"objects of {size:,} bytes are not packed; give --mean-size up to {limit:,}, or --sizes"
            )
        sizes = [size] * max(1, min(_SIMULATED_MAX, _SIMULATED_BYTES // size))
        sizes_from = f"every object has {size:,} bytes"
    load = Load(objects, fmean(sizes), sizes, sizes_from, puts, gets, _deletes(deletes, objects))
    options = {
        "--cores": Figure(cores, "cores", "option"),
        "--memory": Figure(size_option(memory), "bytes", "option"),
        "--disk-size": Figure(size_option(disk_size), "bytes", "option"),
        "--disk-iops": Figure(disk_iops, "operations/s", "option"),
        "--disks": Figure(disks, "disks", "option"),
        "--network": Figure(size_option(network), "bytes/s", "option"),
        "--rebuild-hours": Figure(rebuild_hours, "h", "option"),
        "--outage-hours": Figure(outage_hours, "h", "option"),
    }
    of_files = [one for path in measured or () for one in read_measured(path, limit)]
    plan = plan_of(figures_of(load, options, settings, of_files))
    emit(_data(plan), as_json, lambda: _print(plan))


def _deletes(text: str, objects: float) -> float:
    """Parse --deletes: objects a month. Raises InvalidInput."""
    try:
        found = objects * float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < inf:
        raise InvalidInput(
            f"--deletes {text!r}: give objects a month such as 4e8, or a share of the objects such as 20%"
        )
    return found


def _data(plan: Plan) -> dict[str, object]:
    """Return the plan as JSON."""
    return {
        "lines": {name: asdict(line) | {"value": rounded(line.value)} for name, line in plan.lines.items()},
        "figures": {name: asdict(figure) | {"value": rounded(figure.value)} for name, figure in plan.figures.items()},
    }


def _print(plan: Plan) -> None:
    """Print the lines with the numbers of the figures that they stand on, and then these figures."""
    used = dict.fromkeys(name for line in plan.lines.values() for name in line.basis if name in plan.figures)
    numbers = {name: f"[{number}]" for number, name in enumerate(used, 1)}
    for part, lines in groupby(plan.lines.items(), lambda item: item[1].part):
        rows = {}
        for name, line in lines:
            basis = " ".join(numbers.get(one, one.join("()")) for one in line.basis)
            rows[name] = f"{plan_text(line.value, line.unit, line.note)}  {basis}"
        facts(part, rows)
        print_lines([""])
    facts(
        "Figures",
        {
            f"{numbers[name]} {name}": f"{_text(one.value, one.unit)}  {one.source}"
            for name in used
            for one in [plan.figures[name]]
        },
    )


def plan_text(value: float, unit: str, note: str = "") -> str:
    """Format a value with its unit, and its note in brackets."""
    return _text(value, unit) + (f" ({note})" if note else "")


def _text(value: float, unit: str) -> str:
    if unit in ("bytes", "bytes/s"):
        return size_text(value) + unit.removeprefix("bytes")
    if not unit:
        return f"{value:.3f}"
    form = ",.0f" if value >= 100 or value == int(value) else ".2f" if value >= 1 else ".3g"
    return f"{value:{form}} {unit}"

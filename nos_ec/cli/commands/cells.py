"""The commands of `nos-ec cells`, and what init does for a store of several cells. Moves: cell_moves.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.table import Table

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.commands.cell_moves import drain, move, moves, open_directory, purge, whole_store
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, err, out
from nos_ec.composition.cells import (
    begin_entering,
    cell_of,
    enter_buckets,
    entered_cells,
    is_rebuilt,
    known_cells,
    open_cells,
    require_same_store,
    slices_by_weight,
)
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import NosError
from nos_ec.gateway.auth.accounts import Accounts, require_account, require_new_bucket
from nos_ec.ports.metadata import ROOT_ACCOUNT, BucketRow, DirectoryRow
from nos_ec.settings import Settings

_PAGE = 1000

cells_app = typer.Typer(help="The cells of a store, and its directory.", no_args_is_help=True, rich_markup_mode=None)


cells_app.command("move")(move)
cells_app.command("drain")(drain)
cells_app.command("moves")(moves)
cells_app.command("purge")(purge)


@cells_app.command("list")
def cells_list(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the cells, their weights, and how many buckets are in each, wholly or in slices."""
    settings = whole_store(context(ctx).settings())
    buckets, wide = dict.fromkeys(settings.cells, 0), dict.fromkeys(settings.cells, 0)
    with open_directory(settings) as directory:
        after = ""
        while page := directory.metadata.directory_page(after, _PAGE):
            for row in page:
                counts = wide if row.slices else buckets
                for name in () if row.is_deleted else row.cells:
                    counts[name] = counts.get(name, 0) + 1
            after = page[-1].bucket
        entered = entered_cells(directory)
    found: list[dict[str, Any]] = []
    for name in {**buckets, **wide}:
        cell = settings.cells.get(name)
        found.append(
            {
                "cell": name,
                "weight": None if cell is None else cell.weight,
                "buckets": buckets.get(name, 0),
                "wide_buckets": wide.get(name, 0),
                "has_directory": name == settings.store.directory,
                "is_entered": name in entered,
            }
        )
    emit({"cells": found}, as_json, lambda: _print_cells(found))


def _print_cells(found: list[dict[str, Any]]) -> None:
    table = Table("cell", "weight", "buckets", "wide buckets", "", box=None, pad_edge=False)
    for cell in found:
        about = ["has the directory"] if cell["has_directory"] else []
        if cell["weight"] is None:
            about.append("not in the settings")
        if not cell["is_entered"]:
            about.append("run `nos-ec init`")
        weight = "" if cell["weight"] is None else str(cell["weight"])
        table.add_row(cell["cell"], weight, str(cell["buckets"]), str(cell["wide_buckets"]), ", ".join(about))
    out.print(table)


@cells_app.command("create-wide")
def create_wide(
    ctx: typer.Context,
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="Its name, which no bucket has ever had.")],
    owner: Annotated[str, typer.Option("--owner", help="The account that owns it.")] = ROOT_ACCOUNT,
    slices: Annotated[
        str,
        typer.Option(
            help="The cells of its slices, separated by commas, such as a,b,b; the first has its documents. By default,"
            " each cell has as many slices as its weight says."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Create a bucket whose objects lie in several cells, by their names.

    The number of its slices never changes, not even if it is deleted and created again, and what a cell has of it moves
    only as a whole, so choose enough cells (docs/CELLS.md). Do nothing if its owner already has it.
    """
    settings = whole_store(context(ctx).settings())
    require_account(owner)
    require_new_bucket(bucket)
    chosen = tuple(slices.split(",")) if slices else slices_by_weight(settings)
    with open_cells(settings, SystemClock()) as cells:
        row = cells.claim_wide(bucket, owner, chosen)
        system = cells.system(row.home)
        Accounts(system.metadata, system.clock, os.urandom, cells.state_of(row)).create_bucket(bucket, owner)
    data = {"bucket": bucket, "owner": owner, "slices": list(row.slices)}
    text = f"bucket {bucket} belongs to {owner}; its slices are in the cells {', '.join(row.slices)}"
    emit(data, as_json, lambda: out.print(text, markup=False))


@cells_app.command("rebuild-directory")
def rebuild_directory(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Enter the buckets of all cells into the directory, after its database was lost or restored from a backup."""
    settings = whole_store(context(ctx).settings())
    fill_directory(settings, as_json)


def enter_cell(settings: Settings, name: str) -> None:
    """Enter the buckets of a cell into the directory, unless they are there. Names those that another cell has as well.
    If the directory cannot be reached, says that the cell is not served yet. Raises what
    `require_same_store` raises."""
    try:
        directory = open_directory(settings)
    except NosError as error:
        err.print(f"cell {name} is not served yet; run `nos-ec init` again, because: {error}", markup=False)
        return
    with directory:
        if name in entered_cells(directory):
            with open_system(settings.of_cell(name)) as system:
                require_same_store(directory, system)
            return
        known = known_cells(directory)
        _, elsewhere = _fill(settings, directory, name, is_new=bool(known) and name not in known)
    for row in elsewhere:
        err.print(_not_served(name, row), markup=False)


def fill_directory(settings: Settings, as_json: bool) -> None:
    """Enter the buckets of all cells into the directory. A cell that cannot be opened does not stop the others; its
    error is raised at the end. Cells that were rebuilt are entered last."""
    entered: dict[str, int] = {}
    elsewhere: list[tuple[str, DirectoryRow]] = []
    failure: NosError | None = None
    with open_directory(settings) as directory:
        begin_entering(directory, settings.cells)
        for name in sorted(settings.cells, key=lambda name: _is_rebuilt(settings, name)):
            try:
                entered[name], others = _fill(settings, directory, name)
            except NosError as error:
                failure = failure or error
            else:
                elsewhere += [(name, row) for row in others]
    data = {
        "entered": entered,
        "elsewhere": [{"bucket": row.bucket, "cell": name, "home": row.home} for name, row in elsewhere],
    }

    def show() -> None:
        for name, count in entered.items():
            out.print(f"cell {name}: {count_text(count, 'bucket')} in the directory", markup=False)
        for name, row in elsewhere:
            out.print(_not_served(name, row), markup=False)

    emit(data, as_json, show)
    if failure is not None:
        raise failure


def _is_rebuilt(settings: Settings, cell: str) -> bool:
    """Return whether a cell can be opened, and its database was rebuilt."""
    try:
        with open_system(settings.of_cell(cell)) as system:
            return is_rebuilt(system)
    except NosError:
        return False  # entering it fails, too


def _not_served(cell: str, row: DirectoryRow) -> str:
    return f"bucket {row.bucket} of cell {cell} is not served: its home is {row.home}"


def _fill(settings: Settings, directory: System, name: str, *, is_new: bool = False) -> tuple[int, list[DirectoryRow]]:
    with ExitStack() as stack:
        is_directory = name == cell_of(directory)
        system = directory if is_directory else stack.enter_context(open_system(settings.of_cell(name)))
        accounts = Accounts(system.metadata, system.clock, os.urandom)
        count = 0

        def buckets() -> Iterator[BucketRow]:
            nonlocal count
            for row, _ in accounts.buckets(None):
                count += 1
                yield row

        elsewhere = enter_buckets(directory, system, buckets(), is_new=is_new)
        return count, elsewhere

"""The commands cells list and cells rebuild-directory, and what init does for a store of several cells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import typer
from rich.table import Table

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, err, out
from nos_ec.composition.cells import begin_entering, cell_of, enter_buckets, entered_cells, require_same_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import InvalidInput, NosError
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.ports.metadata import BucketRow, DirectoryRow
from nos_ec.settings import Settings

_PAGE = 1000

cells_app = typer.Typer(help="The cells of a store, and its directory.", no_args_is_help=True, rich_markup_mode=None)


@cells_app.command("list")
def cells_list(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the cells, their weights, and how many buckets are in each."""
    settings = _whole(context(ctx).settings())
    buckets = dict.fromkeys(settings.cells, 0)
    with _open_directory(settings) as directory:
        after = ""
        while page := directory.metadata.directory_page(after, _PAGE):
            for row in page:
                if not row.is_deleted:
                    buckets[row.home] = buckets.get(row.home, 0) + 1
            after = page[-1].bucket
        entered = entered_cells(directory)
    found: list[dict[str, Any]] = []
    for name, count in buckets.items():
        cell = settings.cells.get(name)
        found.append(
            {
                "cell": name,
                "weight": None if cell is None else cell.weight,
                "buckets": count,
                "has_directory": name == settings.store.directory,
                "is_entered": name in entered,
            }
        )
    emit({"cells": found}, as_json, lambda: _print_cells(found))


def _print_cells(found: list[dict[str, Any]]) -> None:
    table = Table("cell", "weight", "buckets", "", box=None, pad_edge=False)
    for cell in found:
        about = ["has the directory"] if cell["has_directory"] else []
        if cell["weight"] is None:
            about.append("not in the settings")
        if not cell["is_entered"]:
            about.append("run `nos-ec init`")
        weight = "" if cell["weight"] is None else str(cell["weight"])
        table.add_row(cell["cell"], weight, str(cell["buckets"]), ", ".join(about))
    out.print(table)


@cells_app.command("rebuild-directory")
def rebuild_directory(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Enter the buckets of all cells into the directory, after its database was lost or restored from a backup."""
    settings = _whole(context(ctx).settings())
    fill_directory(settings, as_json)


def enter_cell(settings: Settings, name: str) -> None:
    """Enter the buckets of a cell into the directory, unless they are there. Names those that another cell has as well.
    If the directory cannot be reached, says that the cell is not served yet. Raises what
    `require_same_store` raises."""
    try:
        directory = _open_directory(settings)
    except NosError as error:
        err.print(f"cell {name} is not served yet; run `nos-ec init` again, because: {error}", markup=False)
        return
    with directory:
        if name in entered_cells(directory):
            with open_system(settings.of_cell(name)) as system:
                require_same_store(directory, system)
            return
        _, elsewhere = _fill(settings, directory, name)
    for row in elsewhere:
        err.print(_not_served(name, row), markup=False)


def fill_directory(settings: Settings, as_json: bool) -> None:
    """Enter the buckets of all cells into the directory. A cell that cannot be opened does not stop the others; its
    error is raised at the end."""
    entered: dict[str, int] = {}
    elsewhere: list[tuple[str, DirectoryRow]] = []
    failure: NosError | None = None
    with _open_directory(settings) as directory:
        begin_entering(directory, settings.cells)
        for name in settings.cells:
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


def _not_served(cell: str, row: DirectoryRow) -> str:
    return f"bucket {row.bucket} of cell {cell} is not served: its home is {row.home}"


def _fill(settings: Settings, directory: System, name: str) -> tuple[int, list[DirectoryRow]]:
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

        elsewhere = enter_buckets(directory, system, buckets())
        return count, elsewhere


def _open_directory(settings: Settings) -> System:
    assert settings.store.directory is not None
    return open_system(settings.of_cell(settings.store.directory))


def _whole(settings: Settings) -> Settings:
    if not settings.cells:
        raise InvalidInput("this is about all cells of a store: leave out --cell, and see docs/CELLS.md")
    return settings

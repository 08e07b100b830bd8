"""Commands on a store of several cells (docs/CELLS.md) that are given without --cell: some do their work in each cell,
one after another; some try the cells until one knows what they ask for; those that would have to guess are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import structlog
import typer

from nos_ec.cli.terminal.context import Context, context, logs_json
from nos_ec.cli.terminal.errors import exit_code, most_severe, report
from nos_ec.cli.terminal.output import facts, stdout
from nos_ec.core.errors import ConfigError, InvalidInput, NosError, NotFound

if TYPE_CHECKING:
    from nos_ec.settings import Settings


class Scope(Enum):
    """Which cells a command is about if none is given."""

    EACH = auto()
    """All, one after another. A failure in one does not stop the others."""
    FINDER = auto()
    """The first that has what the command is to find."""
    DIRECTORY = auto()
    """The cell of the directory, which has the accounts and keys of the whole store."""
    ONE = auto()
    """One, which the user must name."""
    STORE = auto()
    """The command itself deals with the cells, or needs none."""


def _each_unless(*names: str) -> Callable[[Mapping[str, Any]], Scope]:
    """Return the scope of a command that is about one cell if one of these parameters is given, and not
    empty."""
    return lambda given: (
        Scope.ONE if any(given[name] not in (None, False, "", [], ()) for name in names) else Scope.EACH
    )


def _explained(given: Mapping[str, Any]) -> Scope:
    return Scope.STORE if "/" in given["target"] else Scope.FINDER


def _of_bucket_or(scope: Scope) -> Callable[[Mapping[str, Any]], Scope]:
    """Return the scope of a command that finds the cell of a bucket itself if one is given."""
    return lambda given: Scope.STORE if given["where"] else scope


def _each_if_once(given: Mapping[str, Any]) -> Scope:
    return Scope.EACH if given["once"] else Scope.STORE


_SCOPES: Mapping[str, Scope | Callable[[Mapping[str, Any]], Scope]] = {
    "init": _each_unless("new_shard", "new_device"),
    "producer": _each_if_once,
    "consumer": _each_if_once,
    "gc run": _each_if_once,
    "gc limit": lambda given: Scope.EACH if given["bytes_per_s"] is given["operations_per_s"] is None else Scope.ONE,
    "s3 lifecycle list": Scope.EACH,
    "s3 bucket list": Scope.EACH,
    "s3 lifecycle run": _each_unless("bucket"),
    "check": _each_unless("plan"),
    "scrub": _each_unless("plan"),
    "trash list": _of_bucket_or(Scope.EACH),
    "trash empty": _of_bucket_or(Scope.ONE),
    "metadata dump": _each_unless("to"),
    "config check": lambda given: Scope.EACH if given["connect"] else Scope.STORE,
    "explain": _explained,
    **dict.fromkeys(
        ("usage", "s3 quota set", "s3 quota show", "s3 quota remove"),
        lambda given: Scope.STORE if given["bucket"] else Scope.EACH,
    ),
    **dict.fromkeys(("gc plan", "gc pause", "gc resume", "gc status", "status", "quarantine list"), Scope.EACH),
    **dict.fromkeys(("events", "daemons", "audit", "shards rebuild", "metadata dumps", "dead-letters"), Scope.EACH),
    "metadata ship-journal": Scope.EACH,
    **dict.fromkeys(("apply", "quarantine release"), Scope.ONE),
    **dict.fromkeys(("metadata rebuild", "export events"), Scope.ONE),
    **dict.fromkeys(("bench pipeline", "bench life", "bench s3", "bench gc", "bench space", "bench read"), Scope.ONE),
    **dict.fromkeys(("bench cells", "bench gc-workers"), Scope.ONE),
    **dict.fromkeys(("s3 key create", "s3 key list", "s3 key disable", "s3 key enable"), Scope.DIRECTORY),
    **dict.fromkeys(("s3 key rotate", "s3 key remove", "s3 key end-sessions", "s3 key reencrypt"), Scope.DIRECTORY),
    **dict.fromkeys(("s3 encryption-key add", "s3 encryption-key rewrap"), Scope.DIRECTORY),
}
"""The scope of a command, by its words and what is given to it. The scope of all others is STORE."""


Command = Callable[..., Any]
"""A function that carries out a command. Its first parameter is `ctx`."""
Sum = Callable[[Mapping[str, dict[str, Any]]], tuple[dict[str, Any], Mapping[str, str]]]
"""Returns the sum of what a command has kept of each cell: as JSON, and as names and values for people."""


@cache
def knowing_cells(group: typer.Typer, *words: str) -> typer.Typer:
    """Make the commands of a group, which begin with these words, work on a store of several cells, and return it."""
    for one in group.registered_commands:
        assert one.name is not None
        assert one.callback is not None
        one.callback = over_cells(one.callback, *words, one.name)
    for inner in group.registered_groups:
        assert isinstance(inner.name, str)
        assert inner.typer_instance is not None
        knowing_cells(inner.typer_instance, *words, inner.name)
    return group


def over_cells(run: Command, *words: str, sum_up: Sum | None = None) -> Command:
    """Return a function that carries out the command of these words on a store of one cell or several. `sum_up` is
    called after the last of all cells."""
    scope = _SCOPES.get(" ".join(words), Scope.STORE)
    if scope is Scope.STORE:
        return run

    @wraps(run)
    def call(ctx: typer.Context, **given: Any) -> None:
        found = context(ctx)
        if scope is Scope.DIRECTORY and found.cell is not None:
            _require_directory(found)
        if found.cell is not None or (settings := _settings(found)) is None or not settings.cells:
            run(ctx=ctx, **given)
            return

        def once(name: str) -> None:
            _in_cell(ctx, replace(found, cell=name), run, given)

        match scope if isinstance(scope, Scope) else scope(given):
            case Scope.STORE:
                run(ctx=ctx, **given)
            case Scope.ONE:
                raise _names_no_cell(found, settings)
            case Scope.DIRECTORY:
                assert settings.store.directory is not None
                once(settings.store.directory)
            case Scope.FINDER:
                _find(once, list(settings.cells), as_json=given["as_json"])
            case Scope.EACH if words == ("audit",) and _have_one_trail(settings):
                once(next(iter(settings.cells)))
            case Scope.EACH:
                # The cell of the directory is created first: without it no bucket can get a home.
                cells = sorted(settings.cells, key=lambda name: name != settings.store.directory)
                total = None if sum_up is None else lambda: sum_up(found.kept)
                _each_cell(once, cells, total, as_json=given["as_json"])

    return call


def _require_directory(found: Context) -> None:
    """Raise InvalidInput if a cell was given that is not the one of the directory."""
    directory = found.whole().store.directory if found.whole().cells else found.cell
    if found.cell != directory:
        raise InvalidInput(f"keys are those of the whole store, in cell {directory}; leave out --cell")


def _settings(found: Context) -> Settings | None:
    """Return the settings; None if they are wrong, which the command itself reports."""
    with suppress(ConfigError):
        return found.settings()
    return None


def _in_cell(ctx: typer.Context, of_cell: Context, run: Command, given: Mapping[str, Any]) -> None:
    whole, ctx.obj = ctx.obj, of_cell
    try:
        with structlog.contextvars.bound_contextvars(cell=of_cell.cell):
            run(ctx=ctx, **given)
    finally:
        ctx.obj = whole


def _names_no_cell(found: Context, settings: Settings) -> NosError:
    commands = "\n".join(f"  {replace(found, cell=name).command(*found.words)}" for name in settings.cells)
    return InvalidInput(f"the store has several cells, and this command is about one; choose its command:\n{commands}")


def _have_one_trail(settings: Settings) -> bool:
    """Return whether all cells write their audit trail into one folder."""
    found = [cell.settings for cell in settings.cells.values()]
    return len({one.audit.folder_in(one.store.root, one.store.backend) for one in found}) == 1


def _find(once: Callable[[str], None], cells: list[str], *, as_json: bool) -> None:
    """Run a command in one cell after another until one has what it is to find. If none has, and some could not be
    asked, raises the error of the first of these."""
    failed: list[NosError] = []
    for name in cells:
        with stdout.of_cell(name, max(map(len, cells)), as_json=as_json) as output:
            try:
                once(name)
            except NosError as error:
                failed.append(error)
                continue
            if as_json:
                output.write_json("", "\n")
            return
    raise next((error for error in failed if not isinstance(error, NotFound)), failed[0])


def _each_cell(
    once: Callable[[str], None],
    cells: list[str],
    total: Callable[[], tuple[dict[str, Any], Mapping[str, str]]] | None,
    *,
    as_json: bool,
) -> None:
    """Run a command in each cell. People get the name of the cell before each line, and programs one object,
    {"cells": {NAME: what the command prints}}, with null for a cell in which it printed nothing. The total, if there is
    one, is called "sum". Ends with the most severe of the exit codes, so that a cell in which another process already
    works does not hide a failure of the next one."""
    width, codes = max(map(len, cells)), []
    for number, name in enumerate(cells):
        with stdout.of_cell(name, width, as_json=as_json) as output:
            try:
                once(name)
            except NosError as error:
                codes.append(exit_code(error))
                report(error, as_json or logs_json(), cell=name)
            except typer.Exit as ended:
                codes.append(ended.exit_code)
            if as_json:
                start = ", " if number else '{"cells": {'
                output.write_json(f"{start}{json.dumps(name)}: ", "")
    if as_json:
        stdout.write("}" + ("" if total is None else f', "sum": {json.dumps(total()[0])}') + "}\n")
    elif total is not None:
        with stdout.of_cell("*", width, as_json=False):
            facts("all cells" if not codes else "all cells that answered", total()[1])
    if code := most_severe(codes):
        raise typer.Exit(code)

"""The command line: commands, global options, exit codes.

Loading the modules of all commands takes 1.5 times as long as loading one, so only the module of the requested command
is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from nos_ec import __version__
from nos_ec.cli.terminal.cells import knowing_cells, over_cells
from nos_ec.cli.terminal.context import Context, log_for_people, logs_json
from nos_ec.cli.terminal.errors import EXIT_BUG, EXIT_READER_GONE, report
from nos_ec.cli.terminal.output import stdout
from nos_ec.cli.terminal.streams import ReaderGone
from nos_ec.core.errors import InvalidInput, NosError

MODULES = {
    "commands.objects": ("put", "get", "rm", "ls", "stat"),
    "commands.services": ("init", "producer", "consumer", "gc"),
    "commands.api": ("api", "console"),
    "commands.s3": ("s3",),
    "commands.cells": ("cells",),
    "operator.status": ("status",),
    "operator.usage": ("usage",),
    "operator.check": ("check", "apply"),
    "operator.quarantine": ("quarantine",),
    "commands.trash": ("undelete", "trash"),
    "operator.scrub": ("scrub",),
    "operator.explain": ("explain",),
    "operator.events": ("events",),
    "operator.daemons": ("daemons",),
    "operator.audit": ("audit",),
    "operator.shards": ("shards",),
    "operator.metadata": ("metadata",),
    "operator.dead_letters": ("dead-letters",),
    "operator.export": ("export",),
    "measure.simulate": ("simulate",),
    "measure.capacity": ("capacity",),
    "operator.config": ("config",),
    "commands.demo": ("demo",),
    "measure.bench": ("bench",),
}
"""The commands in each module of nos_ec.cli, in the order of `nos-ec --help`. A command is a function of that name, a
group of commands a Typer of that name with _app. A function of that name with _of_cells sums up what the command has
kept of each cell."""
_MODULE_OF = {command: module for module, names in MODULES.items() for command in names}


def root(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            readable=False,  # checked when the file is read, which ends with exit code 3 on failure
            help="TOML file. Default: $NOS_EC_CONFIG, else ./nos-ec.toml or /etc/nos-ec/nos-ec.toml if it exists, else"
            " the default settings.",
        ),
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            "--cell", envvar="NOS_EC_CELL", show_envvar=False, help="Cell of the store that the command is about."
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Apply the global options."""
    if version:
        typer.echo(f"nos-ec {__version__}")
        raise typer.Exit
    log_for_people()
    if cell == "":
        raise InvalidInput("--cell needs the name of a cell; leave it out for the whole store")
    ctx.obj = Context(config, cell, _command_words(ctx.obj or ()))


def commands(arguments: Sequence[str]) -> typer.core.TyperGroup:
    """Return `nos-ec` with only the commands of the module that these arguments need. If they do not begin with a
    command, as in `nos-ec --help`, all commands are registered; `nos-ec --version` needs none."""
    words = _command_words(arguments)
    if words == ["--version"]:
        return _registered()
    module = _MODULE_OF.get(words[0]) if words else None
    return all_commands() if module is None else _registered(module)


def _command_words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments after the global options."""
    words = list(arguments)
    while words and words[0].partition("=")[0] in ("--config", "--cell"):
        del words[: 1 if "=" in words[0] else 2]
    return words


def all_commands() -> typer.core.TyperGroup:
    """Return `nos-ec` with all its commands."""
    return _registered(*MODULES)


@cache
def _registered(*modules: str) -> typer.core.TyperGroup:
    """Return `nos-ec` with the commands of these modules. It is cached, because building it takes longer than some
    commands do."""
    app = typer.Typer(
        name="nos-ec",
        help="Packs small objects into full erasure-coded stripes, and reclaims the holes that deletes leave.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    for module in modules:
        found = import_module(f"nos_ec.cli.{module}")
        for name in MODULES[module]:
            group: typer.Typer | None = getattr(found, f"{name}_app", None)
            if group is None:
                sum_up = getattr(found, f"{name}_of_cells", None)
                app.command(name)(over_cells(getattr(found, name.replace("-", "_")), name, sum_up=sum_up))
            else:
                app.add_typer(knowing_cells(group, name), name=name, help=group.info.help)
    made = typer.main.get_command(app)
    assert isinstance(made, typer.core.TyperGroup)
    return made


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = _run(arguments)
        stdout.flush()
    except NosError as error:
        return report(error, as_json="--json" in arguments or logs_json())
    except ReaderGone:
        return EXIT_READER_GONE
    return code


def _run(arguments: list[str]) -> int:
    try:
        commands(arguments)(args=arguments, prog_name="nos-ec", obj=arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_BUG
    return 0

"""The command line: commands, global options, exit codes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from nos_ec import __version__
from nos_ec.cli import (
    api,
    audit,
    bench,
    check,
    config,
    dead_letters,
    demo,
    explain,
    export,
    metadata,
    objects,
    quarantine,
    s3,
    scrub,
    services,
    shards,
    simulate,
    status,
    trash,
)
from nos_ec.cli.context import Context, log_for_people, logs_json
from nos_ec.cli.errors import EXIT_BUG, EXIT_READER_GONE, report
from nos_ec.cli.output import stdout
from nos_ec.cli.streams import ReaderGone
from nos_ec.core.errors import NosError

app = typer.Typer(
    name="nos-ec",
    help="Packs small objects into full erasure-coded stripes, and reclaims the holes that deletes leave.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="TOML file. Default: $NOS_EC_CONFIG, else ./nos-ec.toml if it exists, else the default settings.",
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Global options."""
    if version:
        typer.echo(f"nos-ec {__version__}")
        raise typer.Exit
    log_for_people()
    ctx.obj = Context(config)


objects.register(app)
services.register(app)
api.register(app)
s3.register(app)
status.register(app)
check.register(app)
quarantine.register(app)
trash.register(app)
scrub.register(app)
explain.register(app)
audit.register(app)
shards.register(app)
metadata.register(app)
dead_letters.register(app)
export.register(app)
simulate.register(app)
config.register(app)
demo.register(app)
bench.register(app)


@cache
def all_commands() -> typer.core.TyperGroup:
    """`nos-ec` with its commands. Made once, because that takes longer than some commands do."""
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
        all_commands()(args=arguments, prog_name="nos-ec")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_BUG
    return 0

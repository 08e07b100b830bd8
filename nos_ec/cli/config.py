"""config check, config show."""

from __future__ import annotations

import os

import typer

from nos_ec.cli.context import AsJson, context
from nos_ec.cli.output import emit, facts, out
from nos_ec.settings import check_settings, refusal, shown_settings

config_app = typer.Typer(help="Inspect the configuration.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    config_app.command("check")(check)
    config_app.command("show")(show)
    app.add_typer(config_app, name="config")


def check(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List every wrong key and value in the file and the environment."""
    file = context(ctx).config_file()
    problems = check_settings(file, os.environ)
    lines = [problem.text for problem in problems]
    data = {"file": str(file) if file else None, "problems": lines}
    emit(data, as_json, lambda: out.print("\n".join(lines) or "the configuration is fine", markup=False))
    if problems:
        raise refusal(f"{len(problems)} problem(s) in the configuration", problems)


def show(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the settings in force, including defaults. Passwords and other secrets are masked."""
    data = shown_settings(context(ctx).settings())
    flat = {f"{section}.{key}": value for section, fields in data.items() for key, value in fields.items()}
    emit(data, as_json, lambda: facts("settings", flat))

"""The commands config check and config show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, facts, out
from nos_ec.composition.connection_check import Check, Outcome, Result, try_all, worst
from nos_ec.composition.connections import DATABASE_LIMIT_MS, FOLDER_LIMIT_MS, NOT_INITIALISED, Connections
from nos_ec.core.errors import ConfigError, NosError
from nos_ec.settings import Problem, Settings, check_settings, refusal, shown_settings

config_app = typer.Typer(help="Inspect the configuration.", no_args_is_help=True, rich_markup_mode=None)


@config_app.command("check")
def check(
    ctx: typer.Context,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Also try every configured server and folder: login, rights, pools, topics, free space, clocks, and"
            " whether data and metadata belong together. Changes nothing; works before `nos-ec init`.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List every wrong key and value in the file and the environment. With --connect, also try the servers and folders
    that they name."""
    file = context(ctx).config_file()
    problems = check_settings(file, os.environ)
    settings = None if problems else context(ctx).settings()
    if settings is not None:
        problems = list(_secret_problems(settings))
    if problems or settings is None:
        _report_problems(file, problems, connect, as_json)
    elif connect:
        _try_connections(file, settings, as_json)
    else:
        emit({"file": _name(file), "problems": []}, as_json, lambda: out.print("the configuration is fine"))


def _secret_problems(settings: Settings) -> Iterator[Problem]:
    """Yields the problems of secrets that are in the settings themselves, found by the code that uses them: of the
    common ones, and of those that cells have for themselves."""
    from nos_ec.api.access import find_token
    from nos_ec.gateway.auth.master_keys import find_master_keys

    looks: tuple[Callable[[Settings], object], ...] = (
        lambda one: one.s3.master_key is not None and find_master_keys(one.s3),
        lambda one: one.api.token is not None and find_token(one.api),
    )
    found: set[str] = set()
    for prefix, one in (("", settings), *((f"cells.{name}.", cell.settings) for name, cell in settings.cells.items())):
        for look in looks:
            try:
                look(one)
            except ConfigError as error:
                if str(error) not in found:
                    found.add(str(error))
                    yield Problem(f"{prefix}{error}", error.settings[0])


def _start_checks(settings: Settings, connections: Connections) -> Iterator[Check]:
    """Yields the checks that the gateway, the API and the console make when they start."""
    from nos_ec.adapters.sql.metadata import open_metadata
    from nos_ec.api.access import find_token
    from nos_ec.console.access.login_token import find_login_tokens
    from nos_ec.gateway.auth.accounts import Accounts
    from nos_ec.gateway.auth.key_ring import KeyRing
    from nos_ec.gateway.auth.key_service import find_key_service
    from nos_ec.gateway.auth.master_keys import find_master_keys
    from nos_ec.gateway.server.certificate import find_certificate

    def master_key() -> str:
        masters = find_master_keys(settings.s3)
        if not connections.initialised:
            return "it can be used"
        with closing(open_metadata(settings.store.url(), replica=settings.store.metadata_replica)) as metadata:
            Accounts(metadata, SystemClock(), os.urandom).require_known_secrets(masters)
            KeyRing(metadata, masters, SystemClock()).require_all()
        find_key_service(settings.s3, SystemClock())
        return "it fits the access keys"

    def certificate() -> str:
        find_certificate(settings.s3)
        return f"{settings.s3.certificate_file} can be used"

    def token() -> str:
        find_token(settings.api)
        return f"{settings.api.token_file} can be used"

    def login_tokens() -> str:
        find_login_tokens(settings, settings.console.host, anonymous=False)
        return f"{' and '.join(map(str, login_files))} can be used"

    if settings.s3.master_key is not None or settings.s3.master_key_file is not None:
        yield Check("S3 master key", DATABASE_LIMIT_MS, master_key)
    if settings.s3.certificate_file is not None or settings.s3.key_file is not None:
        yield Check("S3 certificate", FOLDER_LIMIT_MS, certificate)
    if settings.api.token_file is not None:
        yield Check("API token", FOLDER_LIMIT_MS, token)
    login_files = [one for one in (settings.console.token_file, settings.console.operators_file) if one is not None]
    if login_files or settings.console.changes:
        yield Check("console token", FOLDER_LIMIT_MS, login_tokens)


def _name(file: Path | None) -> str | None:
    return str(file) if file else None


def _report_problems(file: Path | None, problems: list[Problem], connect: bool, as_json: bool) -> None:
    """Print the problems, and raise them as one ConfigError."""
    lines = [problem.text for problem in problems]
    data: dict[str, Any] = {"file": _name(file), "problems": lines}
    if connect:
        data |= {"initialised": None, "checks": []}
        lines = [*lines, "no connection was tried; correct the settings first"]
    emit(data, as_json, lambda: out.print("\n".join(lines), markup=False))
    raise refusal(f"{count_text(len(problems), 'problem')} in the configuration", problems)


def _try_connections(file: Path | None, settings: Settings, as_json: bool) -> None:
    """Run all checks, print the result of each at once, and raise the worst failure."""
    outcomes: list[Outcome] = []
    with Connections(settings, SystemClock()) as connections:
        for outcome in try_all(chain(connections.checks(), _start_checks(settings, connections))):
            outcomes.append(outcome)
            if not as_json:
                out.print(f"{outcome.result:<9}  {outcome.name:<19}  {outcome.detail}", markup=False)
                out.file.flush()
        if any(outcome.left_behind for outcome in outcomes):
            connections.abandon()
    failed = sum(outcome.result is Result.FAILED for outcome in outcomes)
    initialised = connections.initialised
    data = {
        "file": _name(file),
        "problems": [],
        "initialised": initialised,
        "checks": [_data(outcome) for outcome in outcomes],
    }
    emit(data, as_json, lambda: out.print(_summary(outcomes, failed, initialised=initialised), markup=False))
    if (found := worst(outcomes)) is not None:
        if found.error is None:
            raise RuntimeError(f"{found.name}: {found.detail}")
        raise _with_check_name(found, found.error)


def _summary(outcomes: list[Outcome], failed: int, *, initialised: bool | None) -> str:
    ok = sum(outcome.result is Result.OK for outcome in outcomes)
    rest = len(outcomes) - ok - failed
    text = f"{count_text(len(outcomes), 'check')}: {ok} ok, {failed} failed, {rest} not tried"
    return text if initialised is not False else f"{text}; {NOT_INITIALISED}"


def _with_check_name(found: Outcome, error: NosError) -> NosError:
    """Return the error of a check, with the name of the check in its message."""
    return type(error)(
        f"{found.name}: {error}",
        key=error.key,
        block_id=error.block_id,
        landing_id=error.landing_id,
        settings=error.settings,
    )


def _data(outcome: Outcome) -> dict[str, Any]:
    error = {} if outcome.error is None else {"error": type(outcome.error).__name__, **outcome.error.facts()}
    return {
        "name": outcome.name,
        "result": outcome.result.value,
        "detail": outcome.detail,
        "took_ms": outcome.took_ms,
        **error,
    }


@config_app.command("show")
def show(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the settings in force, including defaults. Passwords and other secrets are masked."""
    data = shown_settings(context(ctx).settings())
    emit(data, as_json, lambda: facts("settings", dict(_lines(data))))


def _lines(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields names and values of settings; of each cell, its weight and what it does not have in common."""
    cells = data.get("cells", {})
    common = {name: value for name, value in data.items() if name != "cells"}
    for section, fields in common.items():
        yield from ((f"{section}.{key}", value) for key, value in fields.items())
    for name, cell in cells.items():
        yield f"cells.{name}.weight", cell["weight"]
        for section, fields in common.items():
            for key, value in fields.items():
                if cell[section][key] != value:
                    yield f"cells.{name}.{section}.{key}", cell[section][key]

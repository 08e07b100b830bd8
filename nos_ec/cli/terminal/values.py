"""Options that several commands share, and parsers of their values."""

from __future__ import annotations

import getpass
import os
import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from nos_ec.core.errors import InvalidInput
from nos_ec.settings.values import bytes_of

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="A time in UTC such as 2026-05-31 or 2026-05-31T14:00, or an age such as 90m, 12h or 7d.",
    ),
]
MaxDuration = Annotated[
    int | None,
    typer.Option("--max-duration", min=1, metavar="SECONDS", help="End after this time. The next run continues."),
]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="As --since.")]

_AGE = re.compile(r"(\d{1,9})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def size_option(value: object) -> int:
    """Parse the value of an option as a number of bytes, or as a size such as 512MiB. Raises BadParameter."""
    try:
        size = bytes_of(str(value))
    except ValueError as error:
        raise typer.BadParameter(f"{str(value)!r} is {error}; give bytes, or a size such as 512MiB") from error
    if size < 1:
        raise typer.BadParameter("give at least 1 byte")
    return size


def rate_of(text: str, option: str = "--rate") -> int:
    """Parse a rate in bytes per second, such as 64MiB. Raises InvalidInput."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise InvalidInput(f"{option} {text!r}: {error}; give bytes per second, such as 64MiB") from error


def duration_ms(seconds: int | None) -> int | None:
    """Convert the value of --max-duration to milliseconds; None means no limit."""
    return None if seconds is None else 1000 * seconds


def time_of(text: str, option: str, now_ms: int) -> int:
    """Parse a time or an age, and return it in milliseconds of Unix time. Raises InvalidInput."""
    if age := _AGE.fullmatch(text):
        return now_ms - int(age[1]) * _UNIT_MS[age[2]]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r}: give a time such as 2026-05-31T14:00, or an age such as 12h") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def user_name() -> str:
    """Return the name of the user who runs this command, as the system or sudo knows it: a hint, which users can
    forge."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # the user has no entry in the password database
        return f"user {os.getuid()}"

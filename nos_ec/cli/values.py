"""Values of options."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from nos_ec.core.errors import InvalidInput
from nos_ec.settings.values import size_of

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="A time in UTC such as 2026-05-31 or 2026-05-31T14:00, or an age such as 90m, 12h or 7d.",
    ),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="As --since.")]

_AGE = re.compile(r"(\d{1,9})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def rate_of(text: str, option: str = "--rate") -> int:
    """Bytes in a second, as --rate takes them. Raises InvalidInput."""
    try:
        rate = size_of(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise InvalidInput(f"{option} {text!r}: {error}; give bytes in a second, such as 64MiB") from error
    assert isinstance(rate, int)
    return rate


def time_of(text: str, option: str, now_ms: int) -> int:
    """Unix milliseconds, as --since and --until take them. Raises InvalidInput."""
    if age := _AGE.fullmatch(text):
        return now_ms - int(age[1]) * _UNIT_MS[age[2]]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r}: give a time such as 2026-05-31T14:00, or an age such as 12h") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)

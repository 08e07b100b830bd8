"""Renders pages. Names of objects and buckets are text and never HTML: templates escape every value, and show the
control characters of a name."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from nos_ec import __version__
from nos_ec.core.errors import InvalidInput
from nos_ec.engine import texts
from nos_ec.engine.texts import printable, shortened, size_text

_Choice = TypeVar("_Choice", bound=StrEnum)

NAVIGATION = (
    ("/", "Overview"),
    ("/blocks", "Blocks"),
    ("/space", "Space and GC"),
    ("/flow", "Flow"),
    ("/objects", "Objects"),
    ("/buckets", "Buckets"),
    ("/simulator", "Simulator"),
    ("/last-night", "Last night"),
)
"""The pages that the bar at the top lists: path and title. A page below a path belongs to it."""
CELLS = "/cells"
"""Below this path and the name of a cell are the pages of that cell."""
UNKNOWN = "\N{EN DASH}"
QUOTED_CHARS_MAX = 80
VIEW = "nos_ec.console.view"
"""The key of a request's scope that holds the View of its cell, if it is about one."""
_OF_CELL = re.compile("^nos-ec (?!cells )")
VISITOR = "nos_ec.console.visitor"
"""The key of a request's scope that holds its Visitor."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The browser that sent a request: its session id, the value that its forms must carry, whether it has logged in,
    and as which operator ("": with the token that only shows the pages). All are empty for a console without login."""

    session_id: str = ""
    csrf: str = ""
    is_logged_in: bool = False
    operator: str = ""


class View:
    """Renders templates. `base` is what the paths of its pages begin with. Safe to call from several threads."""

    def __init__(
        self, store: str, *, changes: bool = False, cells: Collection[str] = (), cell: str | None = None
    ) -> None:
        """`store` is the place of the store, which each page shows. `changes`: whether operators may make changes.
        `cells` are the names of the cells of a store that is divided into several, and `cell` the one whose pages these
        are: None for the page of all cells."""
        command = "nos-ec" if cell is None else f"nos-ec --cell {cell}"
        self._jinja = Environment(
            loader=PackageLoader("nos_ec.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.filters |= {
            "commands": lambda text: with_commands(text, command),
            "count": count_text,
            "counted": counted_text,
            "duration": duration_text,
            "percent": percent_text,
            "rate": rate_text,
            "ratio": ratio_text,
            "seconds": seconds_text,
            "size": size_or_unknown,
            "utc": utc_text,
            "visible": printable,
        }
        self.changes = changes
        self.base = "" if cell is None else f"{CELLS}/{cell}"
        self._jinja.globals |= {
            "base": self.base,
            "cells": list(cells),
            "in_cell": cell,
            "navigation": NAVIGATION,
            "nos_ec": command,
            "page_of": page_of,
            "store": store,
            "version": __version__,
        }

    def page(self, request: Request, template: str, title: str, *, status: int = 200, **values: object) -> HTMLResponse:
        """Return a page that was rendered from a template with these values."""
        visitor = request.scope.get(VISITOR, Visitor())
        values |= {"title": title, "path": request.scope["path"].removeprefix(self.base), "visitor": visitor}
        values["may_change"] = self.changes and bool(visitor.operator)
        text = self._jinja.get_template(template).render(values)
        return HTMLResponse(text, status)


def with_commands(text: str, command: str) -> list[tuple[str, bool]]:
    """Return the parts of a text, and whether each stands between backticks, so that it is code. Commands of `nos-ec`
    become those of `command`, such as `nos-ec --cell NAME`, but for `nos-ec cells`, which is about all cells."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:  # a name has a backtick
        return [("`".join(parts), False)]
    return [
        (_OF_CELL.sub(f"{command} ", part) if number % 2 else part, number % 2 == 1)
        for number, part in enumerate(parts)
        if part
    ]


def page_of(path: str) -> str:
    """Return the page of NAVIGATION to which a path belongs; "" if it belongs to none."""
    return next((page for page, _ in NAVIGATION if path == page or (page != "/" and path.startswith(f"{page}/"))), "")


def size_or_unknown(size_bytes: float | None) -> str:
    """Format a number of bytes: '12.3 MiB'."""
    return UNKNOWN if size_bytes is None else size_text(size_bytes)


def rate_text(bytes_per_s: float | None) -> str:
    """Format a rate: '12.3 MiB/s'."""
    return UNKNOWN if bytes_per_s is None else f"{size_text(bytes_per_s)}/s"


def count_text(count: float | None) -> str:
    """Format a number: '12,345'."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def counted_text(count: float | None, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: '1 object', '2,000 objects'."""
    return UNKNOWN if count is None else texts.count_text(count, noun, plural)


def ratio_text(ratio: float | None) -> str:
    """Format a ratio: '1.391'."""
    return UNKNOWN if ratio is None else f"{ratio:.3f}"


def percent_text(share: float | None) -> str:
    """Format a share: '98.84 %'."""
    return UNKNOWN if share is None else f"{100 * share:.2f} %"


def duration_text(duration_ms: float | None) -> str:
    """Format a duration for people, in its largest suitable unit: '90 s', '12.5 min'."""
    if duration_ms is None:
        return UNKNOWN
    for unit_ms, unit in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min")):
        if abs(duration_ms) >= 2 * unit_ms:
            return f"{duration_ms / unit_ms:.1f} {unit}"
    return f"{duration_ms / 1000:.1f} s" if duration_ms % 1000 else f"{duration_ms / 1000:.0f} s"


def seconds_text(duration_s: float | None) -> str:
    """Format the duration of a request: '1.2 ms', '12.3 s'."""
    if duration_s is None:
        return UNKNOWN
    return f"{1000 * duration_s:.3g} ms" if duration_s < 1 else f"{duration_s:.3g} s"


def utc_text(time_ms: int) -> str:
    """Format a time, given in milliseconds of Unix time, as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def query_number(request: Request, name: str, digits_max: int = 10) -> int | None:
    """Return the number in a field of the address, or None without it. Raises InvalidInput."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > digits_max:
        raise InvalidInput(f"{name}={quoted(text)} is not a number of at most {digits_max} digits")
    return int(text)


def query_choice(request: Request, name: str, default: _Choice) -> _Choice:
    """Return which member of an enumeration a field of the address names; `default` without it. Raises InvalidInput."""
    text = request.query_params.get(name, default.value)
    try:
        return type(default)(text)
    except ValueError as error:
        raise InvalidInput(f"{name}={quoted(text)} is none of {', '.join(type(default))}") from error


def quoted(text: str) -> str:
    """Return the beginning of a text that somebody has sent, in quotation marks, for a message about it."""
    return repr(shortened(text, QUOTED_CHARS_MAX))

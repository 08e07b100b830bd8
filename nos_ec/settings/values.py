"""Validates the values of settings, from TOML and from the environment.

TOML has its own numbers and booleans, so a string in their place is refused: "10" is not 10. The environment has only
strings; `from_text` converts them to the type of the setting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_WHOLE_PATTERN = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL_PATTERN = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})(e[+-]?[0-9]{1,2})?")
_SPREAD = int | Literal["auto"]
_SIZE_PATTERN = re.compile(r"\s*(\d{1,18})\s*([A-Za-z]*)\s*")


def from_text(field: FieldInfo, text: str) -> object:
    """Convert a string of the environment to the type of the field. If it does not fit, return the string itself."""
    if field.annotation is bool:
        return {"true": True, "false": False}.get(text, text)
    if field.annotation in (int, _SPREAD) and _WHOLE_PATTERN.fullmatch(text):
        return int(text)
    if field.annotation in (float, Ratio | None) and _DECIMAL_PATTERN.fullmatch(text):
        return float(text)
    return text


def _count(value: object) -> object:
    """Return a whole number. Raises ValueError for 2.0, and for TOML's `true`, which Python would take for 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("not a whole number")
    return value


def _ratio(value: object) -> object:
    """Return a whole or decimal number. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    return value


def size_of(value: object) -> object:
    """Return a number of bytes, given as a number or as a string such as "512MiB". Raises ValueError."""
    if not isinstance(value, str):
        return _count(value)
    match = _SIZE_PATTERN.fullmatch(value)
    if match is None or match[2] not in UNITS:
        raise ValueError("not a size")
    return int(match[1]) * UNITS[match[2]]


def bytes_of(text: str) -> int:
    """Parse a number of bytes that a user has typed, such as 4096 or 64MiB. Raises ValueError."""
    size = size_of(int(text) if text.isdecimal() else text)
    assert isinstance(size, int)
    return size


def _path(value: object) -> object:
    """Return a path. Raises ValueError for an empty path, which would mean the current folder, and for one with a
    NUL."""
    if value == "" or "\0" in str(value):
        raise ValueError("not a path")
    return value


def _flag(value: object) -> object:
    """Return a boolean. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError("not true or false")
    return value


def _table(value: object) -> object:
    """Return a table, given in TOML, or as JSON in the environment. TOML nests an unquoted `a.b = 1`; here it means the
    key "a.b". Raises ValueError."""
    if isinstance(value, str):
        value = json.loads(value, object_pairs_hook=_distinct)
    if not isinstance(value, dict):
        raise ValueError("not a table")
    return _distinct(list(_flattened("", value)))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a table. Raises ValueError for a duplicate key, whose first values would be ignored."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is given twice")
    return table


def _flattened(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value


def _spread(value: object) -> object:
    """Return "auto" or a number of partitions. Raises ValueError."""
    if value == "auto":
        return value
    number = _count(value)
    if not isinstance(number, int) or not 1 <= number <= SPREAD_MAX:
        raise ValueError("not a spread")
    return number


SPREAD_MAX = 1024
Spread = Annotated[_SPREAD, BeforeValidator(_spread)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, BeforeValidator(_count)]
Ratio = Annotated[float, BeforeValidator(_ratio)]
Size = Annotated[int, BeforeValidator(size_of)]
NonEmptyPath = Annotated[Path, BeforeValidator(_path)]
Table = BeforeValidator(_table)

"""How the values of settings are read, from TOML and from the environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE_PATTERN = re.compile(r"\s*(\d{1,18})\s*([A-Za-z]*)\s*")


def _number(value: object) -> object:
    """Refuse TOML's `true`, which Python would take for 1."""
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


def size_of(value: object) -> object:
    """Bytes: a number, or a string such as "512MiB"."""
    if not isinstance(value, str):
        return _number(value)
    match = _SIZE_PATTERN.fullmatch(value)
    if match is None or match[2] not in UNITS:
        raise ValueError("not a size")
    return int(match[1]) * UNITS[match[2]]


def _path(value: object) -> object:
    """Refuse an empty path, which would mean the current folder. That is never intended."""
    if value == "":
        raise ValueError("not a path")
    return value


def _flag(value: object) -> object:
    """A boolean, or `true` or `false` as a string, as it arrives from the environment."""
    if value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise ValueError("not true or false")
    return value


def _table(value: object) -> object:
    """A TOML table, or JSON in the environment. TOML nests an unquoted `a.b = 1`; here it means the key "a.b"."""
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError("not a table")
    return dict(_flattened("", value))


def _flattened(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value


Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, BeforeValidator(_number)]
Ratio = Annotated[float, BeforeValidator(_number)]
Size = Annotated[int, BeforeValidator(size_of)]
NonEmptyPath = Annotated[Path, BeforeValidator(_path)]
Table = BeforeValidator(_table)

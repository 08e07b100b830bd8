"""Describes settings: the values that a field accepts, and docs/CONFIG.md."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from nos_ec.settings.sections import Settings, fields_of
from nos_ec.settings.values import UNITS, size_of


def allowed(field: FieldInfo) -> str:
    """Return the values that a field accepts, in words."""
    if field.title:
        return field.title
    choices = get_args(field.annotation)
    if field.annotation is Path:
        return "a path"
    if field.annotation is bool:
        return "true or false"
    if choices:
        return " or ".join(f'"{choice}"' for choice in choices)
    if field.annotation is str:
        return "a string of 1 to 200 characters"
    low = next((f"{m.ge}" for m in field.metadata if hasattr(m, "ge")), "more than 0")
    high = next(m.le for m in field.metadata if hasattr(m, "le"))
    kind = "a number" if field.annotation is float else "a whole number"
    if any(isinstance(m, BeforeValidator) and m.func is size_of for m in field.metadata):
        return f'a size from {_shown_size(int(low))} to {_shown_size(int(high))}: bytes, or a string such as "512MiB"'
    return f"{kind}, {low} to {high}"


def _shown_size(size_bytes: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % UNITS[unit] == 0:
            return f"{size_bytes // UNITS[unit]}{unit}"
    return str(size_bytes)


def _shown_default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is None or default in ("", {}):
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if any(isinstance(m, BeforeValidator) and m.func is size_of for m in field.metadata):
        shown = _shown_size(default)
        return f"`{shown}`" if shown.isdecimal() else f'`"{shown}"`'
    return f'`"{default}"`' if isinstance(default, str | Path) else f"`{default}`"


def reference() -> str:
    """Return docs/CONFIG.md: every section and key with its default, allowed values and meaning."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from nos_ec/settings/sections.py by `make reference`; edit it there. -->",
        "",
        "One TOML file (`nos-ec --config FILE`), overridden by environment variables: the key `lanes` of the section",
        "`[consumer]` is `NOS_EC_CONSUMER__LANES`. Every setting has a default. `nos-ec config check` reports every",
        "wrong key and value at once, each with its place. Times are in milliseconds; sizes are bytes, or strings",
        'such as `"512MiB"` (units B, KiB, MiB, GiB, TiB). In the file, numbers and true/false are TOML\'s own; `"10"`',
        "is refused. `nos-ec config check --connect` also tries the servers and folders that the settings name.",
        "",
        "A store of several cells has a table `[cells.NAME]` for each, with the cell's `weight` and its own value of",
        "any setting but `store.directory` and `[logging]`: [CELLS.md](CELLS.md#configuration).",
    ]
    for section, info in Settings.model_fields.items():
        assert isinstance(info.annotation, type)
        lines += ["", f"## [{section}]", "", str(info.annotation.__doc__), ""]
        lines += ["| key | default | allowed | meaning |", "|---|---|---|---|"]
        for key, field in fields_of(section).items():
            lines.append(f"| `{key}` | {_shown_default(field)} | {allowed(field)} | {field.description} |")
    return "\n".join(lines) + "\n"

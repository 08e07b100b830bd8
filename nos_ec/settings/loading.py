"""Reads settings from one TOML file and the environment, and writes them."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from nos_ec.settings.checks import COMMON, UTF8_ADVICE, Problem, check_cells, cross_check, is_utf8, refusal
from nos_ec.settings.reference import allowed
from nos_ec.settings.retired import RETIRED
from nos_ec.settings.sections import Cell, Settings, fields_of
from nos_ec.settings.values import NonEmptyPath, from_text

_log = structlog.get_logger(__name__)

CELLS = "cells"
"""The table of a file that has the cells."""
CELL_NAME = re.compile(r"(?=.{1,32}\Z)[a-z0-9]+(-[a-z0-9]+)*")
"""Two hyphens in a row would be the two underscores that separate the parts of a variable."""
WEIGHT_MAX = 1000
_DATABASE = ("metadata_url", "metadata_url_file")
"""The keys that name the database. A cell that has one has no use for the other one that is common."""
ENV_PREFIX = "NOS_EC_"
ENV_OTHERS = frozenset({"NOS_EC_CONFIG", "NOS_EC_CELL", "NOS_EC_SUPERVISED", "NOS_EC_KILL_AT"})
"""Variables with our prefix that are not settings: the settings file, the cell, the mark of a process that another one
of ours has started, and the kill point of a crash test."""
ENV_DEV_PREFIX = "NOS_EC_DEV_"
"""Prefix of the variables that configure the development scripts in deploy/."""


def load_settings(path: Path | None, env: Mapping[str, str]) -> Settings:
    """Return the settings of the file (None: no file), overridden by settings of the environment. Settings that are
    RETIRED are ignored, with a warning for each in the log.

    Raises ConfigError with one line per problem (its place, the value, and what is allowed) and the settings concerned.
    """
    settings, problems = _load(path, env)
    wrong = [problem for problem in problems if not problem.is_harmless]
    if settings is None or wrong:
        raise refusal("\n".join(problem.text for problem in wrong), wrong)
    for problem in problems:
        _log.warning("a setting is ignored", setting=problem.setting, problem=problem.text)
    return settings


def check_settings(path: Path | None, env: Mapping[str, str]) -> list[Problem]:
    """Return the problems that `load_settings` would raise or log; an empty list if there are none."""
    return _load(path, env)[1]


def _load(path: Path | None, env: Mapping[str, str]) -> tuple[Settings | None, list[Problem]]:
    problems: list[Problem] = []
    tables = {} if path is None else _parse(path, problems)
    has_cells = CELLS in tables
    cells = _cell_tables(path, tables.pop(CELLS, {}), problems)
    common = _Values()
    of_cells = _split_env(env, cells)
    for one in (*_from_file(path, tables, problems), *_from_env(of_cells.pop(None), problems)):
        common.add(one, problems)
    settings = common.settings(problems)
    if not cells:
        if settings is not None:
            problems += common.contradictions(
                settings, *(() if has_cells else check_cells(settings.store.directory, {}))
            )
        return settings, problems
    found: dict[str, Cell] = {}
    for name, table in cells.items():
        prefix = f"{CELLS}.{name}."
        weight = _weight(path, prefix, table, problems)
        own = _Values(common, prefix)
        for given in (_from_file(path, table, problems, prefix), _from_env(of_cells[name], problems, name)):
            values = list(given)
            if any(section == "store" and key in _DATABASE for _, section, key, _ in values):
                own.forget("store", _DATABASE)
            for one in values:
                own.add(one, problems)
        if (of_cell := own.settings(problems)) is not None:
            problems += own.contradictions(of_cell)
            found[name] = Cell(of_cell, weight)
    problems = list(dict.fromkeys(problems))  # what is wrong with the common settings was found for each cell
    if settings is None:
        return None, problems
    return settings.with_cells(found), problems + list(check_cells(settings.store.directory, found))


class _Values:
    """The values that are given, and where each was given: of the common settings, or of a cell, which begin as the
    common ones."""

    def __init__(self, common: _Values | None = None, prefix: str = "") -> None:
        self._prefix = prefix
        self._given: dict[str, dict[str, Any]] = {}
        self._places: dict[tuple[str, str], str] = {}
        if common is not None:
            self._given = {section: dict(values) for section, values in common._given.items()}
            self._places = dict(common._places)

    def add(self, given: tuple[str, str, str, Any], problems: list[Problem]) -> None:
        """Set a value, in place of an earlier one."""
        place, section, key, value = given
        if isinstance(value, str | Path) and not is_utf8(value):
            why = f"{_shown(section, key, value)} is not valid UTF-8; {UTF8_ADVICE}"
            problems.append(Problem(f"{place}: {why}", f"{section}.{key}"))
            return
        self._given.setdefault(section, {})[key] = value
        self._places[section, key] = place

    def forget(self, section: str, keys: Iterable[str]) -> None:
        """Let these settings have their default values."""
        for key in keys:
            self._given.get(section, {}).pop(key, None)
            self._places.pop((section, key), None)

    def settings(self, problems: list[Problem]) -> Settings | None:
        """Return the settings; None if a value is not allowed."""
        try:
            return Settings.model_validate(self._given)
        except ValidationError as error:
            problems += [_describe(details, self._places) for details in error.errors()]
            return None

    def contradictions(self, settings: Settings, *others: Problem) -> list[Problem]:
        """Return the contradictions between these settings, and these other ones, with their places."""
        return [_placed(problem, self._places, self._prefix) for problem in (*cross_check(settings), *others)]


def _placed(problem: Problem, places: Mapping[tuple[str, str], str], prefix: str) -> Problem:
    """Add to a problem where its setting was set, or at least the cell if it has its default value."""
    section, _, key = (problem.setting or "").partition(".")
    place = places.get((section, key))
    if place is None:
        return Problem(f"{prefix}{problem.text}", problem.setting, problem.is_harmless)
    return Problem(f"{place}: {problem.text.removeprefix(f'{problem.setting}: ')}", problem.setting)


def write_settings(settings: Settings, path: Path) -> None:
    """Write a file that `load_settings` reads back as these settings. It includes secrets, so only its owner may read
    it."""
    lines = _differences(settings, Settings(), "")
    for name, cell in settings.cells.items():
        lines += [f"[{CELLS}.{name}]", f"weight = {cell.weight}"]
        lines += _differences(cell.settings, settings, f"{CELLS}.{name}.")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")


def _differences(settings: Settings, common: Settings, prefix: str) -> list[str]:
    """Return the lines of a file for the settings that differ from those that they have in common."""
    lines = []
    for section in Settings.model_fields:
        values, others = getattr(settings, section), getattr(common, section)
        lines.append(f"[{prefix}{section}]")
        for key in fields_of(section):
            value = getattr(values, key)
            if f"{section}.{key}" == "store.directory" and settings.cell is not None:
                continue  # as a store of its own, a cell has no directory
            if value != getattr(others, key) and value is not None:
                lines.append(f"{key} = {_toml(value)}")
    return lines


def _toml(value: object) -> str:
    """Format a value as TOML. A string that is escaped as in JSON is a valid basic string of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, SecretStr):
        return json.dumps(value.get_secret_value())
    return json.dumps(value if isinstance(value, bool | int | float) else str(value))


def without_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that are settings."""
    return {name: value for name, value in env.items() if name in ENV_OTHERS or not name.startswith(ENV_PREFIX)}


# --- sources: each yields (place, section, key, value) for known keys, and reports the others ----------------------
_Given = Iterator[tuple[str, str, str, Any]]


def _from_file(path: Path | None, tables: Mapping[str, Any], problems: list[Problem], prefix: str = "") -> _Given:
    """Yields the settings in the sections of a file, or in those of a cell, whose names begin with `prefix`."""
    for section, table in tables.items():
        if section not in Settings.model_fields:
            hint = _hint(section, list(Settings.model_fields))
            problems.append(Problem(f"{path}: [{prefix}{section}]: no such section{hint}"))
        elif not isinstance(table, dict):
            why = f"{section} is a section; write [{prefix}{section}] and its keys below"
            problems.append(Problem(f"{path}: {prefix}{section}: {why}", section))
        else:
            for key, value in table.items():
                place = f"{path}: {prefix}{section}.{key}"
                if (name := f"{section}.{key}") in RETIRED:
                    problems.append(_retired(place, name))
                elif key not in fields_of(section):
                    hint = _hint(f"{section}.{key}", _all_keys())
                    problems.append(Problem(f"{place}: no such setting{hint}"))
                elif prefix and name in COMMON:
                    problems.append(
                        Problem(f"{place}: all cells have this setting in common; set it in [{section}]", name)
                    )
                elif path is not None and _is_path(section, key) and isinstance(value, str) and value:
                    yield place, section, key, path.absolute().parent / Path(value).expanduser()
                else:
                    yield place, section, key, value


def _cell_tables(path: Path | None, tables: object, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    """Return the tables of the cells by name, without those that are not valid."""
    if not isinstance(tables, dict):
        problems.append(Problem(f"{path}: {CELLS}: write [{CELLS}.NAME] for each cell, and its settings below", CELLS))
        return {}
    found = {}
    for name, table in tables.items():
        place = f"{path}: [{CELLS}.{name}]"
        if not CELL_NAME.fullmatch(name):
            problems.append(
                Problem(
                    f"{place}: name a cell with 1 to 32 of the characters a-z and 0-9, and single hyphens between them",
                    CELLS,
                )
            )
        elif not isinstance(table, dict):
            problems.append(Problem(f"{place}: write [{CELLS}.{name}], and the settings of the cell below", CELLS))
        else:
            found[name] = table
    return found


def _weight(path: Path | None, prefix: str, table: dict[str, Any], problems: list[Problem]) -> int:
    """Take the weight of a cell out of its table."""
    weight = table.pop("weight", 1)
    if type(weight) is int and 0 <= weight <= WEIGHT_MAX:
        return weight
    why = f"{weight!r} is not allowed; use a whole number, 0 to {WEIGHT_MAX}"
    problems.append(Problem(f"{path}: {prefix}weight: {why}", CELLS))
    return 1


def _is_path(section: str, key: str) -> bool:
    """Return whether a setting is a path. A relative path in a file starts at the file's folder."""
    return fields_of(section)[key].annotation in (Path, NonEmptyPath | None)


def _parse(path: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        problems.append(Problem(f"{path}: no such file; create it, or give another path"))
    except OSError as error:
        problems.append(Problem(f"{path}: cannot be read ({error.strerror}); check its permissions"))
    except UnicodeDecodeError as error:
        problems.append(Problem(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(f"{path}: not valid TOML: {error}{_key_on_line(path, str(error))}"))
    return {}


_LINE_PATTERN = re.compile(r"at line (\d+)")
_KEY_PATTERN = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?|\[+[^\]]*\]+)\s*(?:=|$)")


def _key_on_line(path: Path, error: str) -> str:
    """Return the key or section on the line that the parser names. The value is left out, because it may be a
    secret."""
    where = _LINE_PATTERN.search(error)
    lines = path.read_text(errors="replace").splitlines()
    if where is None or not 1 <= int(where[1]) <= len(lines):
        return ""
    key = _KEY_PATTERN.match(lines[int(where[1]) - 1])
    return f": {key[1]}" if key is not None else ""


def _split_env(env: Mapping[str, str], cells: Collection[str]) -> dict[str | None, dict[str, str]]:
    """Return the variables of each cell, which begin with ENV_PREFIX, CELLS and its name, and with None the others."""
    found: dict[str | None, dict[str, str]] = {name: {} for name in (None, *cells)}
    for variable, value in env.items():
        owner = next((name for name in cells if variable.startswith(_cell_prefix(name))), None)
        found[owner][variable] = value
    return found


def _cell_prefix(cell: str | None) -> str:
    """Return the beginning of a cell's variables. In the names of variables, shells allow no hyphen."""
    return ENV_PREFIX if cell is None else f"{ENV_PREFIX}{CELLS}__{cell}__".upper().replace("-", "_")


def _from_env(env: Mapping[str, str], problems: list[Problem], cell: str | None = None) -> _Given:
    """Yields the settings in the environment: the common ones, or those of a cell, whose variables are given."""
    prefix = _cell_prefix(cell)
    keys = [name for name in _all_keys() if cell is None or name not in COMMON]
    known = {_variable(prefix, name): name.split(".") for name in keys}
    retired = {_variable(prefix, name): name for name in RETIRED}
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX) or variable in ENV_OTHERS or variable.startswith(ENV_DEV_PREFIX):
            continue
        if variable in retired:
            problems.append(_retired(f"environment variable {variable}", retired[variable]))
        elif variable not in known:
            problems.append(Problem(f"environment variable {variable}: no such setting{_hint(variable, list(known))}"))
        else:
            section, key = known[variable]
            value = from_text(fields_of(section)[key], env[variable])
            yield f"environment variable {variable}", section, key, value


def _retired(place: str, name: str) -> Problem:
    return Problem(f"{place}: no longer a setting, and ignored: {RETIRED[name]}; remove it", name, is_harmless=True)


def _variable(prefix: str, name: str) -> str:
    return prefix + name.replace(".", "__").upper()


def _all_keys() -> list[str]:
    return [f"{section}.{key}" for section in Settings.model_fields for key in fields_of(section)]


def _hint(wrong: str, known: list[str]) -> str:
    """Suggest the right name, if the wrong one is similar or in the wrong section."""
    key = wrong.rpartition(".")[2]
    near = [name for name in known if "." in name and name.endswith(f".{key}")]
    near = near or difflib.get_close_matches(wrong, known, n=1, cutoff=0.7)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return "; remove it, or see docs/CONFIG.md for all settings"


def _describe(details: Mapping[str, Any], places: Mapping[tuple[str, str], str]) -> Problem:
    section, key = details["loc"][:2]
    field = fields_of(section)[key]
    if _is_secret(field):
        what = "not allowed (the value is not shown, because it is or contains a secret)"
    else:
        what = f"{details['input']!r} is not allowed"
    return Problem(f"{places[section, key]}: {what}; use {allowed(field)}", f"{section}.{key}")


def _shown(section: str, key: str, value: object) -> str:
    return "the value (secret, not shown)" if _is_secret(fields_of(section)[key]) else repr(str(value))


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation in (SecretStr | None, dict[str, SecretStr])

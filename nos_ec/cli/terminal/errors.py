"""Exit codes, and the errors that lead to them (docs/CLI.md lists them)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from nos_ec.cli.terminal.output import err
from nos_ec.core.errors import (
    Blocklisted,
    ConfigError,
    Conflict,
    Corrupt,
    InvalidInput,
    LeaseLost,
    NosError,
    NoSpace,
    NotFound,
    PreconditionFailed,
    QuotaExceeded,
    Transient,
)

EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_BAR_MISSED = 10
"""`bench --check` found a missed bar."""
EXIT_READER_GONE = 141
"""The exit code that a shell reports for a command that a closed pipe has ended. It does not mean that we failed."""


class Incomplete(NosError):
    """A command on many objects could not process some of them, which it has named."""


class ProblemsFound(NosError):
    """`check` found inconsistencies, or `scrub` found damage that it did not mend."""


_EXIT_CODES: tuple[tuple[type[NosError], int], ...] = (
    (InvalidInput, EXIT_USAGE),
    (ConfigError, 3),
    (NotFound, 4),
    (LeaseLost, 9),
    (Conflict, 5),
    (PreconditionFailed, 5),
    (Corrupt, 6),
    (QuotaExceeded, 8),
    (NoSpace, 8),
    (Blocklisted, 11),
    (Transient, 7),
    (Incomplete, 12),
    (ProblemsFound, 13),
)
"""Exit codes by error class. Each class comes before its base class, because the first match counts."""


def exit_code(error: NosError) -> int:
    """Return the documented exit code of an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_BUG)


_MILDEST_FIRST = tuple(
    exit_code(error)
    for error in (
        *(Conflict(), NotFound(), Incomplete(), Transient(), LeaseLost(), Blocklisted(), NoSpace()),
        *(ConfigError(), InvalidInput(), ProblemsFound(), Corrupt()),
    )
)
"""Exit codes in order of severity. A command on several cells returns the most severe one that occurred. Codes that are
not listed are more severe than these; of several such codes, the first counts."""


def most_severe(codes: Sequence[int]) -> int:
    """Return the exit code of a command that ended with these codes in several cells; 0 if it did not fail in any."""
    failures = [code for code in codes if code]
    if unlisted := [code for code in failures if code not in _MILDEST_FIRST]:
        return unlisted[0]
    return max(failures, key=_MILDEST_FIRST.index, default=0)


def report(error: NosError, as_json: bool, cell: str | None = None) -> int:
    """Print an error on stderr and return its exit code. `cell` is the cell in which it happened, if a command works in
    several."""
    code = exit_code(error)
    if as_json:
        detail = {"error": type(error).__name__, "message": str(error), "exit_code": code, **error.facts()}
        if cell is not None:
            detail["cell"] = cell
        sys.stderr.write(json.dumps(detail, ensure_ascii=False) + "\n")
    else:
        err.print("[bold red]error:[/] ", end="")
        if cell is not None:
            err.print(f"cell {cell}: ", end="", markup=False)
        err.print(str(error), markup=False)
    return code

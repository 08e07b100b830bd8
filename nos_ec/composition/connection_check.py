"""Runs checks one after another, each within its own time limit, and continues when one fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter

import structlog

from nos_ec.core.errors import Blocklisted, ConfigError, Corrupt, NosError, NoSpace, Transient

_log = structlog.get_logger(__name__)


class Result(StrEnum):
    """The result of a check."""

    OK = "ok"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class NotTried(Exception):
    """Raised by a check that cannot run now. Its text has the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check to run. run: returns a sentence about what it found; raises NosError, or NotTried. limit_ms: how long it
    may take, in milliseconds. needs: the names of checks that must have succeeded; otherwise it is not tried."""

    name: str
    limit_ms: int
    run: Callable[[], str]
    needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a check. error: the error of a failed check; None for a bug."""

    name: str
    result: Result
    detail: str
    took_ms: int
    error: NosError | None = None
    left_behind: bool = False
    """Whether it is still running on its thread."""


def try_all(checks: Iterable[Check]) -> Iterator[Outcome]:
    """Run the checks one after another, and yield each outcome as soon as it is known. A check that exceeds its limit
    keeps running on a daemon thread."""
    succeeded: set[str] = set()
    for check in checks:
        missing = [name for name in check.needs if name not in succeeded]
        why = f"needs: {', '.join(missing)}"
        outcome = Outcome(check.name, Result.NOT_TRIED, why, 0) if missing else _run(check)
        if outcome.result is Result.OK:
            succeeded.add(check.name)
        yield outcome


def _run(check: Check) -> Outcome:
    ended: list[str | BaseException] = []

    def run() -> None:
        try:
            ended.append(check.run())
        except BaseException as error:
            ended.append(error)

    began_s = perf_counter()
    thread = threading.Thread(target=run, name=f"check-{check.name}", daemon=True)
    thread.start()
    thread.join(check.limit_ms / 1000)
    took_ms = round((perf_counter() - began_s) * 1000)
    found = ended[0] if ended else _too_late(check)
    if isinstance(found, str):
        return Outcome(check.name, Result.OK, found, took_ms)
    if isinstance(found, NotTried):
        return Outcome(check.name, Result.NOT_TRIED, str(found), took_ms)
    if isinstance(found, OSError):
        found = _file_error(found)
    if isinstance(found, NosError):
        return Outcome(check.name, Result.FAILED, str(found), took_ms, found, left_behind=not ended)
    _log.error("check failed because of a bug", check=check.name, exc_info=found)
    return Outcome(check.name, Result.FAILED, f"a bug: {found!r}; please report it, with the trace in the log", took_ms)


def _too_late(check: Check) -> Transient:
    return Transient(
        f"no answer within {check.limit_ms / 1000:g} s; check that the server runs (a server that is stopped or hangs"
        " still accepts connections), and the network to it"
    )


def _file_error(error: OSError) -> NosError:
    """Return the error for a file or folder that cannot be accessed."""
    where = f"{error.filename}: {error.strerror}"
    if isinstance(error, PermissionError):
        return ConfigError(f"{where}; give the user with the id {os.getuid()} access to it, or run as its owner")
    return Transient(f"{where}; check that its disk is mounted")


_WORST_FIRST = (Corrupt, ConfigError, Blocklisted, NoSpace, Transient)
"""The errors in the order in which an operator should solve them. A bug is worse than all of them."""


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the worst failure; None without one. Of equal failures it is the first, which may explain the others."""
    failed = [outcome for outcome in outcomes if outcome.result is Result.FAILED]
    return min(failed, key=_rank, default=None)


def _rank(outcome: Outcome) -> int:
    if outcome.error is None:
        return -1
    return next((rank for rank, kind in enumerate(_WORST_FIRST) if isinstance(outcome.error, kind)), len(_WORST_FIRST))

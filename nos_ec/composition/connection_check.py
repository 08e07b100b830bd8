"""Tries one thing after another, each within its own time limit, and goes on when one fails."""

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
    """How a check ended."""

    OK = "ok"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class NotTried(Exception):
    """Raised by a check that cannot be tried now; its text says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to try. run: returns what it found, in words; raises NosError, or NotTried. limit_ms: how long it may
    take. needs: the names of checks that must have ended well, or it is not tried."""

    name: str
    limit_ms: int
    run: Callable[[], str]
    needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a check. error: of a failed one; None for a bug."""

    name: str
    result: Result
    detail: str
    took_ms: int
    error: NosError | None = None
    left_behind: bool = False
    """It still runs, on its thread."""


def try_all(checks: Iterable[Check]) -> Iterator[Outcome]:
    """Try all of them, one after another, and yield each outcome as it is known. A check that takes too long is left
    behind on a daemon thread."""
    well: set[str] = set()
    for check in checks:
        missing = [name for name in check.needs if name not in well]
        outcome = _tried(check) if not missing else _not_tried(check, f"needs: {', '.join(missing)}")
        if outcome.result is Result.OK:
            well.add(check.name)
        yield outcome


def _not_tried(check: Check, why: str) -> Outcome:
    return Outcome(check.name, Result.NOT_TRIED, why, 0)


def _tried(check: Check) -> Outcome:
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
        found = _of_the_system(found)
    if isinstance(found, NosError):
        return Outcome(check.name, Result.FAILED, str(found), took_ms, found, left_behind=not ended)
    _log.error("check failed because of a bug", check=check.name, exc_info=found)
    return Outcome(check.name, Result.FAILED, f"a bug: {found!r}; please report it, with the trace in the log", took_ms)


def _too_late(check: Check) -> Transient:
    return Transient(
        f"no answer within {check.limit_ms / 1000:g} s; check that the server runs (one that is stopped or hangs still"
        " accepts connections), and the network to it"
    )


def _of_the_system(error: OSError) -> NosError:
    """The error for a file or folder that cannot be looked at."""
    where = f"{error.filename}: {error.strerror}"
    if isinstance(error, PermissionError):
        return ConfigError(f"{where}; let the user with the id {os.getuid()} use it, or run as its owner")
    return Transient(f"{where}; check that its disk is there")


_WORST_FIRST = (Corrupt, ConfigError, Blocklisted, NoSpace, Transient)
"""What needs a person first. A bug is worse than all of them."""


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The failure that counts most; None if nothing failed. Of equal ones the first, which may explain the others."""
    failed = [outcome for outcome in outcomes if outcome.result is Result.FAILED]
    return min(failed, key=_rank, default=None)


def _rank(outcome: Outcome) -> int:
    if outcome.error is None:
        return -1
    return next((rank for rank, kind in enumerate(_WORST_FIRST) if isinstance(outcome.error, kind)), len(_WORST_FIRST))

"""The answer to a question about an object or a block."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

LATE_MS = 300_000
"""An event that is overdue by more than this will not happen unless an operator acts."""

_R = TypeVar("_R", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[_R]):
    """A reason, with sentences for people: why it is so, what happens next, and what to do if it is stuck (None when
    there is nothing to do). `next_ms` is the time of the next event in Unix milliseconds, if a time decides it."""

    reason: _R
    why: str
    next: str
    advice: str | None = None
    next_ms: int | None = None


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]

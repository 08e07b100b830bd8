"""Functions that are called from C code, which swallows their exceptions.

A signal that arrives in one must not raise KeyboardInterrupt: SQLite, for example, would report an error of the
statement instead, and the interrupt would be lost. `cli/terminal/signals.py` raises it a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TypeVar

_F = TypeVar("_F", bound=Callable[..., object])

CALLED_BACK: set[CodeType] = set()
"""The code of these functions, added when their modules are loaded."""


def called_back(function: _F) -> _F:
    """Mark a function that C code calls. It should call no other Python function."""
    CALLED_BACK.add(function.__code__)
    return function

"""Functions that C code calls, and that lose what is raised in them.

A signal that comes there must not raise KeyboardInterrupt: SQLite, for example, would report an error of the statement
instead, and the interrupt would be lost. `cli/terminal/signals.py` raises it a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TypeVar

_F = TypeVar("_F", bound=Callable[..., object])

CALLED_BACK: set[CodeType] = set()
"""The code of those functions. Added to when modules are loaded."""


def called_back(function: _F) -> _F:
    """Mark a function that C code calls. It should call no other Python function."""
    CALLED_BACK.add(function.__code__)
    return function

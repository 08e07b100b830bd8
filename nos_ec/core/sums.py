"""Adds and subtracts dataclasses of counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Self


class Summed:
    """A dataclass whose fields are numbers, or dataclasses of this kind. `+` and `-` work field by field."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        return type(self)(*(left + right for left, right in _pairs(self, other)))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*(left - right for left, right in _pairs(self, other)))


def _pairs(left: Any, right: Any) -> Iterator[tuple[Any, Any]]:
    return ((getattr(left, one.name), getattr(right, one.name)) for one in fields(left))

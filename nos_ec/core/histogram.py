"""Counts values by size, to show what a mean would hide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise


class Histogram:
    """How many values were at most each bound, and their sum.

    One thread adds. Others may read at any time; at worst they see a sum that is one value ahead of the counts.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are inclusive upper bounds in rising order. One more bucket counts the values above the last.

        Raises ValueError when the bounds do not rise.
        """
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"bounds {list(bounds)}: give at least one, in rising order")
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or `count` equal ones."""
        self.sum += value * count
        self._counts[bisect_left(self.bounds, value)] += count

    @property
    def counts(self) -> list[int]:
        """Values in each bucket: one bucket per bound, then one for the values above all bounds."""
        return list(self._counts)

    def cumulative(self) -> list[int]:
        """Number of values up to each bound, then the number of all values."""
        return list(accumulate(self._counts))

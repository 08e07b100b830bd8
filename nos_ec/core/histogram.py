"""Counting values by size, for figures that a mean would hide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise


class Histogram:
    """How many values were at most each bound, and their sum.

    One thread adds; others may read at any time and see, at worst, a sum that is one value ahead of the counts.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are inclusive upper bounds in rising order; above the last one there is one bucket more.

        Raises ValueError when they do not rise.
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
        """Values in each bucket: one per bound, and last those above all bounds."""
        return list(self._counts)

    def cumulative(self) -> list[int]:
        """Values up to each bound, and last all of them."""
        return list(accumulate(self._counts))

"""Counts values by size, to show the distribution that a mean would hide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise


class Histogram:
    """Counts how many values were at most each bound, and their sum.

    One thread adds. Others may read at any time; at worst they see a sum that is one value ahead of the counts.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are inclusive upper bounds in rising order. One more bucket counts the values above the last.

        Raise ValueError if the bounds do not rise.
        """
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"bounds {list(bounds)}: give at least one, in rising order")
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Sequence[int], total: float) -> Histogram:
        """Return a histogram with these `bounds`, `counts` and `sum`. Raise ValueError if they do not fit."""
        made = cls(bounds)
        if len(counts) != len(made._counts):
            raise ValueError(f"{len(counts)} counts for {len(bounds)} bounds")
        made._counts, made.sum = list(counts), total
        return made

    def plus(self, other: Histogram) -> Histogram:
        """Return the sum of two histograms. Raise ValueError if their bounds differ."""
        if self.bounds != other.bounds:
            raise ValueError(f"bounds {list(self.bounds)} and {list(other.bounds)}: cannot be added")
        counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        return Histogram.of(self.bounds, counts, self.sum + other.sum)

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or `count` equal ones."""
        self.sum += value * count
        self._counts[bisect_left(self.bounds, value)] += count

    @property
    def counts(self) -> list[int]:
        """Return the values in each bucket: one bucket per bound, then one for the values above all bounds."""
        return list(self._counts)

    def cumulative(self) -> list[int]:
        """Return the number of values up to each bound, then the number of all values."""
        return list(accumulate(self._counts))

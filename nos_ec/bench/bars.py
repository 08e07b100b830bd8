"""The performance that the product promises, as limits on the figures of a bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure (its path in the JSON, separated by dots) and its limit: a minimum or a maximum."""

    figure: str
    limit: float
    at_least: bool

    def missed(self, figures: Mapping[str, Any]) -> str | None:
        """Return a sentence that says how the bar is missed, or None if it is met. A missing figure misses its bar."""
        value: Any = figures
        for part in self.figure.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            return f"{self.figure} was not measured"
        if value >= self.limit if self.at_least else value <= self.limit:
            return None
        return f"{self.figure} is {value:.3f}, the bar is {'at least' if self.at_least else 'at most'} {self.limit:g}"


def _pipeline(over_naive: float) -> tuple[Bar, ...]:
    return (
        Bar("ours_over_floor", 0.8, at_least=True),
        Bar("ours_over_naive", over_naive, at_least=True),
        Bar("ours.raw_bytes_per_user_byte", 1.40, at_least=False),
    )


PIPELINE: Mapping[str, Sequence[Bar]] = {"W1": _pipeline(1.8), "W2": _pipeline(5.0)}
"""By workload. The other workloads have no bars."""

READ: Sequence[Bar] = (
    Bar("osds_per_get", 1, at_least=False),
    Bar("read_bytes_over_pages", 1.0, at_least=False),
    Bar("p50_over_bare", 1.15, at_least=False),
)
SCAN: Sequence[Bar] = (Bar("many_over_few", 0.8, at_least=True),)


def missed(bars: Sequence[Bar], figures: Mapping[str, Any]) -> list[str]:
    """One sentence for each missed bar."""
    return [sentence for bar in bars if (sentence := bar.missed(figures)) is not None]

"""Ratios: when there is none, and how outputs round them."""

from __future__ import annotations

DIGITS = 6
"""Digits behind the point in JSON."""


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None when there is nothing to divide by."""
    return part / whole if whole else None


def rounded(value: float | None) -> float | None:
    """A ratio as JSON shows it."""
    return None if value is None else round(value, DIGITS)

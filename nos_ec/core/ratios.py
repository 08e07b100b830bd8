"""Ratios: the definition of the hole ratio, ratios without a value, and how outputs round them."""

from __future__ import annotations

DIGITS = 6
"""Digits after the decimal point in JSON."""


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, or None if the whole is 0."""
    return part / whole if whole else None


def hole_ratio(live_bytes: int, dead_bytes: int) -> float | None:
    """Return dead / (live + dead): the share of the bytes written for objects that no object uses any more. None
    without such bytes. Headers and padding do not count; the share of dead bytes in all stripes is another figure."""
    return ratio(dead_bytes, live_bytes + dead_bytes)


def rounded(value: float | None) -> float | None:
    """Return a ratio as JSON shows it."""
    return None if value is None else round(value, DIGITS)

"""Usage of the last day and week: bytes written to blocks for users and by GC, and the space they took.

The processes that update the store totals (store_totals.py) record them every few hours, and keep the records of
slightly more than a week. They are one note of bounded size, changed by compare-and-set.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from nos_ec.core.ratios import ratio
from nos_ec.ports.metadata import Notes, Totals

USAGE_NOTE = "usage"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
POINT_MS = 3 * HOUR_MS
"""The shortest time between two points."""
KEPT_MS = 8 * DAY_MS
SPANS_MS = {"day": DAY_MS, "week": 7 * DAY_MS}


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """The totals at one time: bytes ever written for users and copied by GC, and stored and live bytes without
    condemned blocks."""

    at_ms: int
    user_bytes: int
    copied_bytes: int
    stored_bytes: int
    live_bytes: int

    @classmethod
    def of(cls, totals: Totals, at_ms: int) -> UsagePoint:
        """Return the point for the totals at `at_ms`."""
        stored_bytes = totals.live_bytes + totals.dead_bytes - totals.condemned_dead_bytes
        return cls(at_ms, totals.user_bytes_written, totals.copied_bytes_written, stored_bytes, totals.live_bytes)


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage in a span of time, which may be shorter than requested if no older point is known. An amplification is
    None if its divisor is 0; write_amplification also if rows were lost or restored meanwhile."""

    span_ms: int
    user_bytes: int
    copied_bytes: int
    write_amplification: float | None
    space_amplification: float | None


def read_points(notes: Notes, now_ms: int) -> list[UsagePoint]:
    """Return the points of the last KEPT_MS, oldest first. Raises Transient."""
    return [one for one in _loaded(notes.note(USAGE_NOTE)) if 0 <= now_ms - one.at_ms <= KEPT_MS]


def note_point(notes: Notes, point: UsagePoint) -> None:
    """Record a point if the last one is old enough. Forgets points that are too old, or that lie in the future because
    of a wrong clock. If several processes record one at the same time, one succeeds. Raises Transient."""
    stored = notes.note(USAGE_NOTE)
    kept = [one for one in _loaded(stored) if 0 <= point.at_ms - one.at_ms <= KEPT_MS]
    if not kept or point.at_ms - kept[-1].at_ms >= POINT_MS:
        notes.store_note(USAGE_NOTE, json.dumps([astuple(one) for one in (*kept, point)]), stored)


def usage(points: Sequence[UsagePoint], now: UsagePoint, span_ms: int) -> Usage | None:
    """Return the usage in the last `span_ms`, or None if no earlier point is known."""
    earlier = [one for one in points if one.at_ms < now.at_ms]
    if not earlier:
        return None
    within = [one for one in earlier if now.at_ms - one.at_ms < span_ms]
    before = [one for one in earlier if now.at_ms - one.at_ms >= span_ms]
    first = before[-1] if before else earlier[0]
    user, copied = now.user_bytes - first.user_bytes, now.copied_bytes - first.copied_bytes
    counted = user >= 0 and copied >= 0
    seen = [first, *within, now]
    return Usage(
        span_ms=now.at_ms - first.at_ms,
        user_bytes=max(0, user),
        copied_bytes=max(0, copied),
        write_amplification=ratio(user + copied, user) if counted else None,
        space_amplification=ratio(sum(one.stored_bytes for one in seen), sum(one.live_bytes for one in seen)),
    )


def usage_spans(notes: Notes, totals: Totals, at_ms: int) -> dict[str, Usage | None]:
    """Return the usage of the last day and week before `at_ms`, given the totals at that time. Raises Transient."""
    points, now = read_points(notes, at_ms), UsagePoint.of(totals, at_ms)
    return {span: usage(points, now, span_ms) for span, span_ms in SPANS_MS.items()}


def _loaded(text: str | None) -> list[UsagePoint]:
    """Decode a note into points in the order of their times. Returns no points for a malformed note."""
    try:
        points = [UsagePoint(*one) for one in json.loads(text or "[]")]
    except (ValueError, TypeError, RecursionError):
        return []
    if any(type(value) is not int for one in points for value in astuple(one)):
        return []
    return sorted(points, key=lambda one: one.at_ms)

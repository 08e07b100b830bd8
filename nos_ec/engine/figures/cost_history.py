"""What a live byte has cost in the last day and month: what the blocks held, hour by hour and day by day.

The processes that update the store totals (store_totals.py) record a point at most once an hour. Points older than a
day are thinned out to one a day. They are one note of bounded size, changed by compare-and-set. Points hold bytes, not
ratios, so that a later release can show other parts.

A process whose clock is wrong must not drop the points of the others. So points are dropped by their number, not by
their age, and those that lie in the future stay as they are; they are not shown. At worst, a clock that is ahead thins
out the last day.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from nos_ec.core.gc.raw_cost import StoredParts
from nos_ec.engine.figures.header_survey import read_headers_found
from nos_ec.engine.figures.usage import DAY_MS, HOUR_MS
from nos_ec.ports.metadata import Notes, Totals

HISTORY_NOTE = "cost history"
DAYS_KEPT = 32
_FUTURE_MAX = 24
_PAST_MAX = 24 + DAYS_KEPT + 2 + _FUTURE_MAX
"""How many points are kept that lie in the future or in the past by the clock of the recording process. The past has
room for _FUTURE_MAX more than a right clock needs, because a process whose clock is ahead sees its own points, too, as
past ones, which other processes keep as future ones."""
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Bytes in blocks at one time, without coding chunks, and the bytes of the objects that waited to be packed.
    `header_permille` is the share of the overhead that was headers and names; -1 if it was not known."""

    at_ms: int
    live_bytes: int
    sealed_dead_bytes: int
    open_dead_bytes: int
    condemned_dead_bytes: int
    overhead_bytes: int
    header_permille: int
    waiting_bytes: int

    @classmethod
    def of(cls, totals: Totals, at_ms: int, header_share: float | None) -> CostPoint:
        """Return the point for the totals at `at_ms`."""
        return cls(
            at_ms,
            totals.live_bytes,
            totals.dead_bytes - totals.open_dead_bytes - totals.condemned_dead_bytes,
            totals.open_dead_bytes,
            totals.condemned_dead_bytes,
            totals.overhead_bytes,
            _UNKNOWN if header_share is None else round(1000 * header_share),
            totals.waiting_bytes,
        )

    @property
    def stored(self) -> StoredParts:
        """The bytes in blocks."""
        return StoredParts(
            self.live_bytes,
            self.sealed_dead_bytes,
            self.open_dead_bytes,
            self.condemned_dead_bytes,
            self.overhead_bytes,
            None if self.header_permille == _UNKNOWN else self.header_permille / 1000,
        )


def read_history(notes: Notes, now_ms: int) -> list[CostPoint]:
    """Return the points of the last DAYS_KEPT days, oldest first. Raises Transient."""
    past, _ = _thinned(_loaded(notes.note(HISTORY_NOTE)), now_ms)
    return [one for one in past if now_ms - one.at_ms <= DAYS_KEPT * DAY_MS]


def note_cost(notes: Notes, totals: Totals, at_ms: int) -> int:
    """Record a point if the last one is an hour old. If several processes record one at the same time, one succeeds.
    Returns the time at which the next one is due. Raises Transient."""
    stored = notes.note(HISTORY_NOTE)
    past, future = _thinned(_loaded(stored), at_ms)
    if past and at_ms - past[-1].at_ms < HOUR_MS:
        return past[-1].at_ms + HOUR_MS
    headers = read_headers_found(notes)
    point = CostPoint.of(totals, at_ms, None if headers is None else headers.share)
    kept = (*past[-_PAST_MAX:], point, *future[:_FUTURE_MAX])
    notes.store_note(HISTORY_NOTE, json.dumps([astuple(one) for one in kept]), stored)
    return at_ms + HOUR_MS


def _thinned(points: Sequence[CostPoint], now_ms: int) -> tuple[list[CostPoint], list[CostPoint]]:
    """Return the points up to now, and those that lie in the future. Of those older than a day, all but the first of
    each day are left out."""
    past: list[CostPoint] = []
    for one in points:
        is_of_new_day = not past or past[-1].at_ms // DAY_MS != one.at_ms // DAY_MS
        if one.at_ms <= now_ms and (now_ms - one.at_ms <= DAY_MS or is_of_new_day):
            past.append(one)
    return past, [one for one in points if one.at_ms > now_ms]


def _loaded(text: str | None) -> list[CostPoint]:
    """Decode a note into points in the order of their times. Returns no points for a malformed note."""
    try:
        points = [CostPoint(*one) for one in json.loads(text or "[]")]
    except (ValueError, TypeError, RecursionError):
        return []
    if any(type(value) is not int for one in points for value in astuple(one)):
        return []
    return sorted(points, key=lambda one: one.at_ms)

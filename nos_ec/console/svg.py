"""The geometry of charts: numbers for the templates in charts.html, which draw them as SVG with classes for colours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

WIDTH, HEIGHT = 640, 220
"""The units of an area chart, with the room for its axes."""
LEFT, BOTTOM, TOP = 44, 24, 8
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar, from `start` with a length of `size`, both in thousandths of the longest bar."""

    part: str
    value: float
    start: float
    size: float


def segments(parts: Mapping[str, float], most: float) -> list[Segment]:
    """Return the segments of a bar in the order of its parts. A bar with a sum of `most` has the full length."""
    made: list[Segment] = []
    start = 0.0
    for part, value in parts.items():
        if value > 0:
            size = 1000 * value / most
            made.append(Segment(part, value, round(start, 2), round(size, 2)))
            start += size
    return made


@dataclass(frozen=True, slots=True)
class Shape:
    """The area or line of a part between two gaps; `points` are in the form of SVG."""

    part: str
    points: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its place and its text."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Area:
    """A chart of stacked areas, or of lines, over time. Empty without two points."""

    shapes: Sequence[Shape]
    times: Sequence[Tick]
    values: Sequence[Tick]


def stacked_area(series: Sequence[tuple[int, Mapping[str, float]]], gap_ms: int) -> Area:
    """Return the chart of (time in ms, value of each part) in the order of times. All have the same parts. Where two
    points are more than `gap_ms` apart, nothing is known between them, and the chart has a gap."""
    if len(series) < 2:
        return Area((), (), ())
    axes = _Axes.of(series[0][0], series[-1][0], max(sum(parts.values()) for _, parts in series))
    return axes.chart([shape for run in _runs(series, gap_ms) for shape in _shapes(run, axes)])


def lines(series: Sequence[tuple[int, Mapping[str, float | None]]], gap_ms: int) -> Area:
    """Return the chart of lines over time, from the same series as `stacked_area`. A line has a gap where its value is
    None as well."""
    known = [value for _, parts in series for value in parts.values() if value is not None]
    if len(series) < 2 or not known:
        return Area((), (), ())
    axes = _Axes.of(series[0][0], series[-1][0], max(known))
    shapes = []
    for part in series[0][1]:
        own = [(at_ms, {part: value}) for at_ms, parts in series if (value := parts[part]) is not None]
        for run in _runs(own, gap_ms):
            places = [(axes.x(at_ms), axes.y(parts[part])) for at_ms, parts in run]
            shapes.append(Shape(part, _points(places)))
    return axes.chart(shapes)


@dataclass(frozen=True, slots=True)
class _Axes:
    """The axes of a chart: times from left to right, values from 0 to `top` in steps."""

    first_ms: int
    last_ms: int
    step: float
    count: int

    @classmethod
    def of(cls, first_ms: int, last_ms: int, most: float) -> _Axes:
        step = _step(most)
        return cls(first_ms, last_ms, step, max(1, ceil(most / step)))

    def x(self, at_ms: int) -> float:
        return round(LEFT + (WIDTH - LEFT) * (at_ms - self.first_ms) / (self.last_ms - self.first_ms), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / (self.step * self.count), 1)

    def chart(self, shapes: Sequence[Shape]) -> Area:
        values = [Tick(self.y(number * self.step), f"{number * self.step:g}") for number in range(self.count + 1)]
        times = [Tick(self.x(at_ms), text) for at_ms, text in _times(self.first_ms, self.last_ms)]
        return Area(shapes, times, values)


def _step(most: float) -> float:
    """Return the distance of the marks of an axis: 1, 2 or 5 times a power of ten, for at most six marks."""
    step = 1e-3
    while most / step > 5:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    return step


def _runs(
    series: Sequence[tuple[int, Mapping[str, float]]], gap_ms: int
) -> Iterator[Sequence[tuple[int, Mapping[str, float]]]]:
    """Yield the stretches without a gap, of at least two points."""
    begin = 0
    for index in range(1, len(series) + 1):
        if index == len(series) or series[index][0] - series[index - 1][0] > gap_ms:
            if index - begin > 1:
                yield series[begin:index]
            begin = index


def _shapes(run: Sequence[tuple[int, Mapping[str, float]]], axes: _Axes) -> Iterator[Shape]:
    below = [0.0] * len(run)
    for part in run[0][1]:
        above = [low + parts[part] for low, (_, parts) in zip(below, run, strict=True)]
        if above != below:
            places = [axes.x(at_ms) for at_ms, _ in run]
            upper, lower = (list(zip(places, map(axes.y, edge), strict=True)) for edge in (above, below))
            yield Shape(part, _points([*upper, *reversed(lower)]))
        below = above


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{across:g},{down:g}" for across, down in places)


def _times(first_ms: int, last_ms: int) -> Iterator[tuple[int, str]]:
    """Yield marks in UTC: hours for up to two days, else days."""
    span_hours = (last_ms - first_ms) / HOUR_MS
    hours = next(step for step in (1, 3, 6, 24, 7 * 24, 10**9) if span_hours / step <= 8)
    form = "%H:%M" if hours < 24 else "%-d %b"
    step_ms = hours * HOUR_MS
    for at_ms in range(-(-first_ms // step_ms) * step_ms, last_ms + 1, step_ms):
        yield at_ms, datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)

"""How objects of similar sizes are packed at least cost, at a price for each extra read.

If no small objects wait that could fill the gaps, it matters which objects share a row. A row of `span` chunks with m
objects that fill it costs price x (span - 1), and their mean is span x C / m. So objects of about that size should be
in such rows: from 30 to 45 KiB, with a price of 16 KiB, those up to 34 KiB four to a chunk, those from 39 KiB three to
a chunk, and the others seven to two chunks. Larger objects in rows of four would be missing where three fill a chunk.

`cheapest_ranges` cuts the sorted list of waiting sizes into ranges. A range whose mean is at most span x C / m can be
in rows of that kind: objects larger than the mean make up for smaller ones. So

    cost of a range = objects x min((span x C + price x (span - 1)) / m), over all rows with span x C / m >= its mean

and the cheapest ranges are a shortest path over the places where the list may be cut. The packer comes within a few per
cent of the result of a search with a linear program over all rows (docs/PACKING.md). The weights of that program were
seen to be a concave function of the size, as in bounds.py, and then the objects of a row are best of one size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf
from typing import NamedTuple

CUTS = 48
"""The list may be cut into this many parts of equally many objects."""
SPAN_MAX = 24
"""Rows of more chunks gain little. From 65 to 70 KiB, objects cost 2 % more with 12 instead of 24."""


class SizeRange(NamedTuple):
    """Objects of `least` bytes to less than `below` are in rows of `objects` objects and `span` chunks."""

    least: int
    below: float
    span: int
    objects: int


class _Kind(NamedTuple):
    """A kind of row: the mean bytes of its objects when they fill it, and the cost of each with its bytes."""

    mean: float
    cost: float
    span: int
    objects: int


@lru_cache(maxsize=256)
def _kinds(chunk_size: int, price: int, least: int, most: int) -> list[_Kind]:
    """Return the kinds of rows for objects of `least` to `most` bytes by their mean, without those that cost no less
    than one of larger objects."""
    found = [
        _Kind(span * chunk_size / objects, (span * chunk_size + price * (span - 1)) / objects, span, objects)
        for span in range(1, SPAN_MAX + 1)
        for objects in range(max(1, span * chunk_size // most), span * chunk_size // least + 1)
    ]
    cheaper: list[_Kind] = []
    for kind in sorted(found, key=lambda one: (-one.mean, one.cost)):
        if not cheaper or kind.cost < cheaper[-1].cost:
            cheaper.append(kind)
    return cheaper[::-1]


def cheapest_ranges(sizes: Sequence[int], chunk_size: int, price: int) -> list[SizeRange]:
    """Return the ranges in which objects of these sizes (bytes, at most a chunk, at least one of them) cost least."""
    ordered = sorted(sizes)
    kinds = _kinds(chunk_size, price, ordered[0], ordered[-1])
    means = [kind.mean for kind in kinds]
    total = list(accumulate(ordered, initial=0))
    count = len(ordered)
    cuts = sorted({part * count // CUTS for part in range(CUTS + 1)})
    path: list[tuple[float, int, _Kind]] = [(0.0, 0, kinds[-1])]
    for end in cuts[1:]:
        best = (inf, 0, kinds[-1])
        for place, begin in enumerate(cuts[: len(path)]):
            kind = kinds[bisect_left(means, (total[end] - total[begin]) / (end - begin))]
            cost = path[place][0] + (end - begin) * kind.cost
            if cost < best[0]:
                best = (cost, place, kind)
        path.append(best)
    found: list[SizeRange] = []
    place = len(path) - 1
    while place:
        _, begin, kind = path[place]
        below = ordered[cuts[place]] if found else inf
        found.append(SizeRange(ordered[cuts[begin]], below, kind.span, kind.objects))
        place = begin
    return found[::-1]


def row_of(ranges: Sequence[SizeRange], size: int, chunks: int, chunk_size: int, price: int) -> tuple[int, int]:
    """Return how many chunks and objects a row should have that begins with an object of `size` bytes, if the group has
    `chunks` left. `size` is at least that of the first range; then one chunk or more can be filled.

    The result is the row of its range, if the group then has none left, or enough for another row. Otherwise it is one
    that leaves as many, of objects that differ least from this one: a byte less or more counts like one that stays
    empty.
    """
    span_min = min(one.span for one in ranges)

    def is_possible(span: int, objects: int) -> bool:
        others = (objects - 1) * ranges[0].least
        return size + others <= span * chunk_size and (span == chunks or span <= chunks - span_min)

    of_range = next(one for one in ranges if size < one.below)
    if is_possible(of_range.span, of_range.objects):
        return of_range.span, of_range.objects
    found = [
        (price * (span - 1) / objects + abs(span * chunk_size / objects - size), span, objects)
        for span in range(1, chunks + 1)
        for objects in (span * chunk_size // size, span * chunk_size // size + 1)
        if is_possible(span, objects)
    ]
    return min(found)[1:]

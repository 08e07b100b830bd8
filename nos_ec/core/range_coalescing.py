"""Joins ranges that are close together into runs, which are read with one operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

RUN_BYTES_MAX = 4 << 20
"""The usual limit of a run: long enough that an operation costs little compared with its bytes, and small in memory."""

Piece = TypeVar("Piece", bytes, memoryview)
Range = tuple[int, int]
"""(offset, length), both in bytes and not negative."""


@dataclass(frozen=True, slots=True)
class MergedRange:
    """`length` bytes from `offset`, which contain several ranges. `ranges` has for each its index in the caller's list,
    and its offset in the run."""

    offset: int
    length: int
    ranges: tuple[tuple[int, int], ...]


def merged_ranges(ranges: Sequence[Range], gap_max: int, bytes_max: int = RUN_BYTES_MAX) -> list[MergedRange]:
    """Join ranges, in any order, into runs in order of offset. Each range is in exactly one run.

    Two neighbours are joined if at most `gap_max` bytes are between them and the run stays within `bytes_max`. Ranges
    may overlap. A range longer than `bytes_max` is a run of its own, together with ranges inside it. Raise ValueError
    for a range with a negative number.
    """
    for offset, length in ranges:
        if offset < 0 or length < 0:
            raise ValueError(f"range of {length} bytes at {offset}")
    return list(_runs(ranges, gap_max, bytes_max))


def _runs(ranges: Sequence[Range], gap_max: int, bytes_max: int) -> Iterator[MergedRange]:
    start = end = 0
    members: list[tuple[int, int]] = []
    for index in sorted(range(len(ranges)), key=lambda index: ranges[index]):
        offset, length = ranges[index]
        reach = max(end, offset + length)
        if members and (offset - end > gap_max or (reach > end and reach - start > bytes_max)):
            yield MergedRange(start, end - start, tuple(members))
            members = []
        if not members:
            start, reach = offset, offset + length
        members.append((index, offset - start))
        end = reach
    if members:
        yield MergedRange(start, end - start, tuple(members))


def cut_ranges(ranges: Sequence[Range], runs: Sequence[MergedRange], found: Iterable[Piece]) -> list[Piece]:
    """Return the bytes of each range, cut out of the bytes of the runs; views of them if they are views. If a run was
    read short, the bytes past its end are missing in its ranges as well. If `found` is read lazily, one run is in
    memory at a time in addition to the ranges."""
    cut: list[Piece | None] = [None] * len(ranges)
    for run, data in zip(runs, found, strict=True):
        for index, at in run.ranges:
            cut[index] = data[at : at + ranges[index][1]]
    return [piece for piece in cut if piece is not None]

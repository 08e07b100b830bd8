"""How objects of one size are packed at least cost, at a price for each extra read.

The cost of a group is its empty bytes, including the front, and for each extra read the price. A row of `span` chunks
in addition to full ones (packer.py) holds span x C // rest objects at most, and costs

    span x C - sum(rests) + price x (span - 1)

With objects of at most a chunk, it is cheapest with as many as it holds. Each larger object also takes its full chunks,
which the group may lack, so fewer may be better. A group is a sequence of rows, one of which also holds the front,
and its last stripes may stay unwritten. So the cheapest rows are a shortest path over the number of remaining chunks.
Objects may change places between rows at no cost, so only one row need hold fewer than it can: the packer fills each.
The cost per object, a ratio, is minimised with Dinkelbach's method: minimise `cost - value x objects`, where `value` is
the least cost per object found so far, until that finds nothing better (W. Dinkelbach, "On nonlinear fractional
programming", 1967). It converges superlinearly.

Looking at one gap at a time is not enough. Objects of 512 KiB should begin at the first border after the front, so that
none is split. At 70,000 bytes and a price of 64 KiB each gap alone is below the price, although rows with splits cost
half as much.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import NamedTuple

_ROUNDS = 4
_PLANS_KEPT = 256
"""A plan takes up to 60 ms. It depends on the size, and on the pages of the front."""


class EqualRows(NamedTuple):
    """The cheapest rows of objects of one size.

    `stripes` is the size of the group. For each number of chunks that a group has left, `spans` has the span of the row
    to open next, or 0 for none, and `last` whether that row is the last one, which also holds the front. `cost` is that
    of the whole group, in bytes per object.
    """

    stripes: int
    spans: tuple[int, ...]
    last: tuple[bool, ...]
    cost: float


class _Row(NamedTuple):
    chunks: int
    span: int
    objects: int
    cost: int


class _Rest(NamedTuple):
    """The best use of the chunks that are left: the span of the next row, whether it is the last one and holds the
    front, and the totals of all rows."""

    total: float
    span: int
    last: bool
    objects: int
    cost: int


@lru_cache(maxsize=_PLANS_KEPT)
def cheapest_rows(stripes: int, k: int, chunk_size: int, size: int, front: int, price: int) -> EqualRows | None:
    """Return the cheapest rows of objects of `size` bytes in a group of at most `stripes` stripes of k chunks, after a
    front of `front` bytes; None if not even one object fits. `price` is how many bytes may be left empty to save one
    read."""
    full = (size - 1) // chunk_size
    rest = size - full * chunk_size

    def rows(front: int) -> list[_Row]:
        found = []
        chunks = stripes * k
        for span in range(1, chunks + 1):
            room = span * chunk_size - front
            most = max(0, room) // rest
            # A row of so few objects that a smaller span holds them is never cheaper.
            fewest = max(1, most if not full else (room - chunk_size) // rest + 1)
            for count in range(min(most, (chunks - span) // full) if full else most, fewest - 1, -1):
                cost = room - count * rest + front + price * (span - 1)
                found.append(_Row(span + count * full, span, count, cost))
        return found

    plain, behind_front = rows(0), rows(front)
    best: EqualRows | None = None
    for _ in range(_ROUNDS):
        path = _shortest_path(stripes * k, k, chunk_size, front, plain, behind_front, best.cost if best else size)
        objects, cost = path[-1].objects, path[-1].cost
        if not objects or (best is not None and cost / objects >= best.cost):
            break
        written = min(range(1, stripes + 1), key=lambda stripe: path[stripe * k].total)
        best = EqualRows(written, tuple(rest.span for rest in path), tuple(rest.last for rest in path), cost / objects)
    return best


def _shortest_path(
    chunks: int, k: int, chunk_size: int, front: int, plain: list[_Row], behind_front: list[_Row], value: float
) -> list[_Rest]:
    """Return, for each number of chunks left up to `chunks`, the rows for which cost - value x objects is least. The
    row next to the front is opened last; without one, the front has chunks of its own."""
    path: list[_Rest] = []
    weighed = [(row.chunks, row.cost - value * row.objects, row) for row in plain]
    for left in range(chunks + 1):
        alone = -(-front // chunk_size)
        best = _Rest(inf, 0, False, 0, 0)
        if alone <= left:
            cost = (alone + (left - alone) % k) * chunk_size
            best = _Rest(cost, 0, False, 0, cost)
        for used, weight, row in weighed:
            if used <= left:
                after = path[left - used]
                total = weight + after.total
                if total < best.total:
                    best = _Rest(total, row.span, False, row.objects + after.objects, row.cost + after.cost)
        for row in behind_front:
            if row.chunks <= left:
                cost = row.cost + (left - row.chunks) % k * chunk_size
                total = cost - value * row.objects
                if total < best.total:
                    best = _Rest(total, row.span, True, row.objects, cost)
        path.append(best)
    return path

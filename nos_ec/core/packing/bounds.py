"""How well a set of objects can be packed: bounds that no policy can beat, with their proofs.

Rules (packer.py): an object is contiguous. At a price of a chunk or more, it touches the fewest chunks possible, so an
object of at most a chunk lies in one. Every group of up to G = stripes_per_block stripes begins with a header. Let T
be the number of stripes used, S the bytes of a stripe, C the bytes of a chunk, k = S / C, n the number of objects and
D their bytes.

Volume. There are at least T / G groups. A header takes at least a page, and at least a preamble and its entries. So all
headers together take at least H = max(PAGE x T / G, PREAMBLE x T / G + ENTRY x n). Headers and objects must fit in the
stripes: T x S >= D + H. Hence (even if page rounding cost nothing)

    T >= D / (S - PAGE / G)    and    T >= (D + ENTRY x n) / (S - PREAMBLE / G)

When names are counted, their bytes are added to D in both.

Groups. A group of t stripes holds at most q(t) = floor((t x S - PAGE) / w) objects of at least w bytes. So n(w) of them
take at least n(w) x min(t / q(t)) stripes, over 1 <= t <= G. Every w gives a valid bound. For objects of 1 MiB, 32
stripes hold at most 31.

Chunks, where no object is split. Write size = full x C + rest with 1 <= rest <= C. Claim: a layout that obeys the rules
uses at least sum(full) + B chunks, where B is the fewest bins of C bytes that hold all the rests. Proof: a chunk
contains the end of at most one larger object that began before it, and the beginning of at most one that continues
after it. So chunks and larger objects form rows: a row of m larger objects, each sharing a chunk with the next, takes
sum(full) + 1 chunks by the rule of fewest chunks (object i takes full_i + 1, and m - 1 are shared). The row has
(sum(full) + 1) x C bytes, of which the full parts of its larger objects take sum(full) x C. So their rests and all the
small objects in the same chunks sum to at most C: one bin. A chunk without a larger object is itself a bin. Hence the
layout gives a packing of all rests into (chunks - sum(full)) bins, so chunks - sum(full) >= B. (An object of a whole
number of chunks has rest = C and fits: it takes full + 1 chunks.)

B is bounded by L2 of Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990. Take
any w with 0 <= w <= C/2. An item over C - w shares its bin with no item of at least w (N1 such bins). Each item over
C/2, up to C - w, needs a bin of its own as well (N2). Items from w to C/2 (volume V3) fit only in what the N2 bins
leave, or in further bins:

    L(w) = N1 + N2 + max(0, ceil((V3 - (N2 x C - V2)) / C))

Every w gives a valid bound; the code takes the largest over a grid of w.

Cost, where objects are split at a price of p bytes for each extra read. Any layout is a set of rows (packer.py), in
which a row of span R costs R x C - sum(rests) + p x (R - 1). Give every object a weight, so that the weights of the
objects of any row of span R sum to at most R x C + p x (R - 1). Then the rows cost at least sum(weights) - sum(rests).
Here, objects whose rest is below some w weigh nothing, and the weight of the others is u(rest) for a function u that is
concave and grows. Let W be the largest rest. A row of span R holds m of them, m <= R x C / w, whose rests sum to at
most R x C; as u is concave, they weigh at most m x u(min(W, R x C / m)). So u is valid if, for all R and m,

    u(min(W, R x C / m)) <= (R x C + p x (R - 1)) / m

For R above some r, this follows from u(x) / x <= 1 + p x r / ((r + 1) x C) for all x, which for a function with one
bend holds everywhere if it holds at w, at W and at the bend. The code tries such functions, as high as this allows. For
objects of one size the cheapest group is known (equal_sizes.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, combinations_with_replacement
from math import inf

from nos_ec.core.formats.header import ENTRY_SIZE, PREAMBLE_SIZE
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.packing.equal_sizes import cheapest_rows

L2_STEPS = 1024
"""The steps of w that are tried, spread evenly over half a chunk."""
BENDS = 8
"""The places of the bend that are tried in the bound of the cost."""
_SLOPES = [step / 8 for step in (20, 16, 12, 10, 8, 7, 4, 2, 1, 0)]
"""Slopes of the weights before and after the bend, steep ones first."""
LEAST_STEPS = 64
"""How many candidates there are for the smallest object that counts. They are spread evenly over all objects."""
LEAST_TRIED = 4
"""How many of these are tried for the cost, from the smallest."""
SPANS_TRIED = 32
"""Rows up to this span are examined one by one."""
REST_SHARE_MIN = 8
"""Rests below one part in this many of a chunk fill every gap, so the cost of other objects is then a weak bound."""


def stripes_min(sizes: Sequence[int], geometry: Geometry, split_bytes: int) -> float:
    """Return the fewest stripes that can hold objects of these sizes (bytes, each at least 1) without their names; not
    rounded up. `split_bytes` is the price of an extra read; at a chunk or more, no object is split."""
    found = max(stripes_by_volume(sizes, geometry, 0), stripes_by_groups(sizes, geometry))
    if split_bytes < geometry.chunk_size:
        return found
    return max(found, chunks_min(sizes, geometry.chunk_size) / geometry.k)


def utilisation_max(sizes: Sequence[int], geometry: Geometry, split_bytes: int) -> float:
    """Return the user bytes per byte of stripe that no packing of these objects can exceed; 0.0 without objects.
    `split_bytes` is as in `stripes_min`."""
    if not sizes:
        return 0.0
    return sum(sizes) / (stripes_min(sizes, geometry, split_bytes) * geometry.stripe_size)


def cost_min(sizes: Sequence[int], geometry: Geometry, split_bytes: int) -> float:
    """Return the least cost, in bytes, of packing objects of these sizes: the bytes of their stripes that hold no
    object, and `split_bytes` for each chunk that an object touches beyond the fewest possible. Names are not counted.
    """
    empty = stripes_min(sizes, geometry, split_bytes) * geometry.stripe_size - sum(sizes)
    if split_bytes >= geometry.chunk_size or not sizes:
        return empty
    if min(sizes) == max(sizes):
        rows = cheapest_rows(geometry.stripes_per_block, geometry.k, geometry.chunk_size, sizes[0], PAGE, split_bytes)
        return max(empty, rows.cost * len(sizes) if rows else 0.0)
    return max(empty, cost_of_rows([(size - 1) % geometry.chunk_size + 1 for size in sizes], geometry, split_bytes))


def cost_of_rows(rests: Sequence[int], geometry: Geometry, price: int) -> float:
    """Return a lower bound on the cost of rows of objects with these rests (bytes), whatever groups they are in."""
    if not price:
        return 0.0  # Rows cost nothing if they are long enough.
    ordered = sorted(rests)
    chunk, most = geometry.chunk_size, ordered[-1]
    firsts = range(0, len(ordered), -(-len(ordered) // LEAST_STEPS))
    heavy = [first for first in firsts if ordered[first] >= chunk // REST_SHARE_MIN][:LEAST_TRIED]
    best = 0.0
    for weighing in (ordered[first:] for first in heavy):
        least, total = weighing[0], sum(weighing)
        wide = 1 + price * SPANS_TRIED / ((SPANS_TRIED + 1) * chunk)
        limits = [*_limits(chunk, price, least, most), (least, least * wide), (most, most * wide)]
        for step in range(BENDS):
            bend = least + (most - least) * step / BENDS
            below = sum(min(rest, bend) for rest in weighing)
            parts = [(weight, min(x, bend), max(0.0, x - bend)) for x, weight in (*limits, (bend, bend * wide))]
            for steep, flat in combinations_with_replacement(_SLOPES, 2):
                base = min([weight - steep * lower - flat * upper for weight, lower, upper in parts])
                best = max(best, base * len(weighing) + steep * below + flat * (total - below))
    return max(0.0, best - sum(ordered))


def _limits(chunk: int, price: int, least: int, most: int) -> list[tuple[float, float]]:
    """Return the limits that rows of up to SPANS_TRIED set on the weight of a rest, for rests from `least` to `most`,
    as (rest, weight). A limit is left out if another one implies it, because weights grow with the rest."""
    limits: dict[float, float] = {}
    for span in range(1, SPANS_TRIED + 1):
        for number in range(span * chunk // most, span * chunk // least + 1):
            rest = min(most, span * chunk / number)
            limits[rest] = min(limits.get(rest, inf), (span * chunk + price * (span - 1)) / number)
    found: list[tuple[float, float]] = []
    for rest, weight in sorted(limits.items(), reverse=True):
        if not found or weight < found[-1][1]:
            found.append((rest, weight))
    return found


def stripes_by_groups(sizes: Sequence[int], geometry: Geometry) -> float:
    """Return the fewest stripes for objects of these sizes because a group holds a whole number of them; not rounded
    up."""
    ordered = sorted(sizes)
    best = 0.0
    for first in range(0, len(ordered), -(-len(ordered) // LEAST_STEPS) or 1):
        holds = [
            (stripes, (stripes * geometry.stripe_size - PAGE) // ordered[first])
            for stripes in range(1, geometry.stripes_per_block + 1)
        ]
        best = max(best, (len(ordered) - first) * min((t / q for t, q in holds if q), default=0.0))
    return best


def stripes_by_volume(sizes: Sequence[int], geometry: Geometry, names_bytes: int) -> float:
    """Return the fewest stripes that hold the bytes of these objects, of their headers and of their names; not rounded
    up."""
    data, stripe, group = sum(sizes), geometry.stripe_size, geometry.stripes_per_block
    by_page = (data + names_bytes) / (stripe - PAGE / group)
    by_entry = (data + names_bytes + ENTRY_SIZE * len(sizes)) / (stripe - PREAMBLE_SIZE / group)
    return max(by_page, by_entry)


def chunks_min(sizes: Sequence[int], chunk_size: int) -> int:
    """Return the fewest chunks that can hold objects of these sizes: the full ones, and bins for the rests."""
    full = sum((size - 1) // chunk_size for size in sizes)
    return full + bins_min([(size - 1) % chunk_size + 1 for size in sizes], chunk_size)


def bins_min(items: Sequence[int], bin_size: int) -> int:
    """Return Martello and Toth's L2: a lower bound on the bins of `bin_size` for items of 1 to `bin_size`. O(n log
    n)."""
    ordered = sorted(items)
    total = [0, *accumulate(ordered)]
    half = bisect_right(ordered, bin_size // 2)
    best = 0
    for step in range(L2_STEPS + 1):
        w = step * bin_size // (2 * L2_STEPS)
        small = bisect_left(ordered, w)
        alone = max(half, bisect_right(ordered, bin_size - w))
        left_over = (alone - half) * bin_size - (total[alone] - total[half])
        volume = total[half] - total[min(small, half)] - left_over
        best = max(best, len(ordered) - half + max(0, -(-volume // bin_size)))
    return best

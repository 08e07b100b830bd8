"""How well a set of objects can be packed: a bound that no policy can beat, with its proof.

Rules (packer.py): an object of at most a chunk lies in one chunk; a larger one is contiguous and touches
ceil(size / chunk) chunks; every group of up to G = stripes_per_group_max stripes begins with a header. Let T be the
number of stripes used, S the bytes of a stripe, C the bytes of a chunk, k = S / C, n the number of objects and D their
bytes.

Volume. There are at least T / G groups. A header takes at least a page, and at least a preamble and its entries. So all
headers together take at least H = max(PAGE x T / G, PREAMBLE x T / G + ENTRY x n). Headers and objects must fit in the
stripes: T x S >= D + H. Hence (even if page rounding cost nothing)

    T >= D / (S - PAGE / G)    and    T >= (D + ENTRY x n) / (S - PREAMBLE / G)

When names are counted, their bytes are added to D in both.

Chunks. Write size = full x C + rest with 1 <= rest <= C. Claim: a layout that obeys the rules uses at least
sum(full) + B chunks, where B is the fewest bins of C bytes that hold all the rests. Proof: a chunk contains the end of
at most one larger object that began before it, and the beginning of at most one that continues after it. So chunks and
larger objects form rows: a row of m larger objects, each sharing a chunk with the next, takes sum(full) + 1 chunks by
the rule of fewest chunks (object i takes full_i + 1, and m - 1 are shared). The row has (sum(full) + 1) x C bytes, of
which the full parts of its larger objects take sum(full) x C. So their rests and all the small objects in the same
chunks sum to at most C: one bin. A chunk without a larger object is itself a bin. Hence the layout gives a packing of
all rests into (chunks - sum(full)) bins, so chunks - sum(full) >= B. (An object of a whole number of chunks has
rest = C and fits: it takes full + 1 chunks.)

B is bounded by L2 of Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem", 1990. Take
any w with 0 <= w <= C/2. An item over C - w shares its bin with no item of at least w (N1 such bins). Each item over
C/2, up to C - w, needs a bin of its own as well (N2). Items from w to C/2 (volume V3) fit only in what the N2 bins
leave, or in further bins:

    L(w) = N1 + N2 + max(0, ceil((V3 - (N2 x C - V2)) / C))

Every w gives a valid bound; the code takes the largest over a grid of w.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.header import ENTRY_SIZE, PREAMBLE_SIZE

L2_STEPS = 1024
"""Steps of w that are tried, spread evenly over half a chunk."""


def stripes_min(sizes: Sequence[int], geometry: Geometry) -> float:
    """The fewest stripes that can hold objects of these sizes (bytes, each at least 1) without their names; not rounded
    up."""
    return max(stripes_by_volume(sizes, geometry, 0), chunks_min(sizes, geometry.chunk_size) / geometry.k)


def utilisation_max(sizes: Sequence[int], geometry: Geometry) -> float:
    """User bytes per byte of stripe that no packing of these objects can exceed; 0.0 without objects."""
    if not sizes:
        return 0.0
    return sum(sizes) / (stripes_min(sizes, geometry) * geometry.stripe_size)


def stripes_by_volume(sizes: Sequence[int], geometry: Geometry, names_bytes: int) -> float:
    """The fewest stripes that hold the bytes of these objects, of their headers and of their names; not rounded up."""
    data, stripe, group = sum(sizes), geometry.stripe_size, geometry.stripes_per_group_max
    by_page = (data + names_bytes) / (stripe - PAGE / group)
    by_entry = (data + names_bytes + ENTRY_SIZE * len(sizes)) / (stripe - PREAMBLE_SIZE / group)
    return max(by_page, by_entry)


def chunks_min(sizes: Sequence[int], chunk_size: int) -> int:
    """The fewest chunks that can hold objects of these sizes: the full ones, and bins for the rests."""
    full = sum((size - 1) // chunk_size for size in sizes)
    return full + bins_min([(size - 1) % chunk_size + 1 for size in sizes], chunk_size)


def bins_min(items: Sequence[int], bin_size: int) -> int:
    """Martello and Toth's L2: a lower bound on the bins of `bin_size` for items of 1 to `bin_size`. O(n log n)."""
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

"""When an object continues in the next chunk, while objects of different sizes wait.

A split costs one more shard read; its price is the number of bytes that may be left empty to save one. If a chunk of C
bytes would leave a gap of g bytes, its objects take (C - g) / C of a chunk where they are packed end to end, with as
many extra reads. So this pays if g > price x (C - g) / C.

That alone is not enough reason: in a mix of sizes, later objects fill the next chunks better if the one that would be
split stays for them. So objects are split only while chunks without splits leave more than MEAN_MIN of the price empty
on average. The mixes of docs/PACKING.md leave 1 to 7 KB, although with a window of 30 a tenth of the single gaps is
above the default price.
"""

from __future__ import annotations

SPLIT_BYTES = 16 * 1024
"""Bytes of a chunk that may be left empty to save one shard read, by default. On a disk of 14 TB that does 150
operations a second, the raw space for this (22 KiB with 8+3) is worth one read in 48 days."""

MEAN_MIN = 0.6
"""Share of the price. W1 with a window of 30 was seen to leave half of the default price on average."""
_MEMORY_GAPS = 1000
"""The mean is taken over about this many gaps."""
_PRIOR_GAPS = 64
"""The mean begins as if this many chunks had been filled completely."""


class Splits:
    """Decides for each gap whether an object is split there. `price` is how many bytes may be left empty to save one
    read."""

    def __init__(self, price: int, chunk_size: int) -> None:
        self.price = price
        self._gap_min = price * chunk_size / (chunk_size + price)
        self._gap_mean = 0.0
        self._gaps = _PRIOR_GAPS

    def pays(self, gap: int, *, first: bool) -> bool:
        """Return whether an object should continue in the next chunk where otherwise `gap` bytes stay empty.

        `first`: the row has not been widened, so that the gap is the one that a chunk without splits leaves.
        """
        if first:
            self._gaps = min(self._gaps + 1, _MEMORY_GAPS)
            self._gap_mean += (gap - self._gap_mean) / self._gaps
        return gap > self._gap_min and self._gap_mean > MEAN_MIN * self.price

    @property
    def gap_ratio(self) -> float:
        """Return the mean number of bytes that chunks without splits leave empty, as a share of the price; 0.0 at a
        price of 0."""
        return self._gap_mean / self.price if self.price else 0.0

"""The shape of stripes and blocks. A value, never a constant in code.

chunk   = chunk_size bytes, the part of one stripe on one shard (OSD)
stripe  = k chunks of data (the store adds m coding chunks)
group   = 1 .. stripes_per_block stripes after one header, written at most stripes_per_group_max at a time
block   = up to stripes_per_block stripes, one object of the erasure-coded store
"""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.errors import ConfigError
from nos_ec.core.ratios import ratio

PAGE = 4096
"""Bytes. The sizes of headers and chunks are multiples of it. It is the allocation unit of BlueStore."""

# The limits of a geometry. Settings have the same limits, and a header outside them is not valid (docs/FORMAT.md).
K_MAX = 32
M_MAX = 8
CHUNK_SIZE_MIN = 4 * PAGE
CHUNK_SIZE_MAX = 4 << 20
STRIPES_PER_BLOCK_MAX = 1024
BLOCK_SIZE_MAX = 1 << 30
"""Bytes. Keeps every offset in a block well within 32 bits."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Geometry of an erasure-coded store. Raises ConfigError if a field is out of range.

    The default is 8+3 with 128 KiB chunks: 1 MiB stripes, written up to 4 MiB at a time, blocks of up to 32 MiB.
    """

    k: int = 8
    m: int = 3
    chunk_size: int = 128 * 1024
    stripes_per_block: int = 32
    stripes_per_group_max: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.k <= K_MAX:
            raise ConfigError(f"geometry: k is {self.k}; it must be 1 to {K_MAX}")
        if not 1 <= self.m <= M_MAX:
            raise ConfigError(f"geometry: m is {self.m}; it must be 1 to {M_MAX}")
        if not is_chunk_size(self.chunk_size):
            raise ConfigError(
                f"geometry: chunk_size is {self.chunk_size}; it must be a multiple of {PAGE}"
                f" from {CHUNK_SIZE_MIN} to {CHUNK_SIZE_MAX}"
            )
        if not 1 <= self.stripes_per_group_max <= self.stripes_per_block <= STRIPES_PER_BLOCK_MAX:
            raise ConfigError(
                f"geometry: stripes_per_group_max is {self.stripes_per_group_max} and stripes_per_block is"
                f" {self.stripes_per_block}; needed: 1 <= stripes_per_group_max <= stripes_per_block <="
                f" {STRIPES_PER_BLOCK_MAX}"
            )
        if self.block_size > BLOCK_SIZE_MAX:
            raise ConfigError(f"geometry: a block of {self.block_size} bytes is over {BLOCK_SIZE_MAX >> 30} GiB")

    @property
    def stripe_size(self) -> int:
        """Return the user-visible bytes of one stripe: k chunks."""
        return self.k * self.chunk_size

    @property
    def block_size(self) -> int:
        """Return the bytes of a full block, without coding chunks."""
        return self.stripes_per_block * self.stripe_size

    @property
    def group_size_max(self) -> int:
        """Return the most bytes of a group that are written at a time. No packed object is larger."""
        return self.stripes_per_group_max * self.stripe_size

    def raw_bytes(self, stripes: int) -> int:
        """Return the bytes that `stripes` stripes take on all shards: k + m chunks each."""
        return stripes * (self.k + self.m) * self.chunk_size

    def share(self, size_bytes: int, stripes: int) -> float | None:
        """Return the share of `stripes` stripes that `size_bytes` bytes take: for user bytes, the utilisation. None
        without stripes."""
        return ratio(size_bytes, stripes * self.stripe_size)

    def stripes_for(self, size_bytes: int) -> int:
        """Return the stripes needed to hold `size_bytes`."""
        return -(-size_bytes // self.stripe_size)

    def windows_for(self, stripes: int) -> int:
        """Return the number of windows in which a group of `stripes` stripes is written."""
        return -(-stripes // self.stripes_per_group_max)

    def is_split(self, offset: int, length: int) -> bool:
        """Return whether the range [offset, offset + length) of a block overlaps more chunks than its length needs."""
        return self.chunks_touched(offset, length) > self.chunks_touched(0, length)

    def chunks_touched(self, offset: int, length: int) -> int:
        """Return the number of chunks that the range [offset, offset + length) of a block overlaps."""
        if length == 0:
            return 0
        return (offset + length - 1) // self.chunk_size - offset // self.chunk_size + 1

    def shards_touched(self, offset: int, length: int) -> int:
        """Return the number of shards to read for the range [offset, offset + length) of a block."""
        return min(self.k, self.chunks_touched(offset, length))


def is_chunk_size(size_bytes: int) -> bool:
    """Return whether chunks may have this size: whole pages, within the limits."""
    return CHUNK_SIZE_MIN <= size_bytes <= CHUNK_SIZE_MAX and size_bytes % PAGE == 0

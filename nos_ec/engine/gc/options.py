"""The options of GC, which composition makes from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nos_ec.core.gc.gc_policy import GcPolicy
from nos_ec.core.packing.plan import MergeList
from nos_ec.engine.packable import Packable
from nos_ec.engine.retry_queue import BackOff

COOL_DOWN_FIRST_MS = 600_000
"""How long a block is left alone after its first failure. The time doubles with each further failure in a row."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """How GC chooses blocks, how much it rewrites at a time, and how long it waits before it deletes."""

    policy: GcPolicy | None
    """Chooses the blocks to rewrite by their dead bytes; None to choose them by `waste_ratio_min`."""
    price_days_min: float
    """The lowest break-even price, in days, of a block that the policy chooses while enough space is free."""
    waste_ratio_min: float
    """GC rewrites blocks that waste at least this share of their bytes. With a `policy`, only headers and padding
    count as waste here."""
    copy_bytes_max: float
    """The most live bytes that one run rewrites; infinity for no limit."""
    block_grace_ms: int
    """Grace period between condemning and deleting a block; longer than the longest read."""
    block_grace_ms_min: int
    """The grace period while space is short."""
    blocks_max: int
    """The most blocks that one run of a worker rewrites."""
    floor_bytes: int
    """Free space that GC does not use unless no victim fits otherwise."""
    short_bytes: int
    """With less free space, PUTs are refused, and a run cuts the grace period of condemned blocks short."""
    cool_down_ms_max: int
    """The longest time for which a block that could not be collected is left alone."""
    lanes: int
    """The most groups that are written at a time."""
    header_blocks: int
    """The most blocks whose headers and rows are read ahead of their turn."""
    bytes_per_s: int
    """The most bytes read and written per second; 0 for no limit. `gc limit` changes this limit and the next one during
    a run."""
    operations_per_s: int
    """The most operations per second: reads of objects and headers, and appends; 0 for no limit."""
    slowdown_max: float
    """How many times longer small reads may take while GC works; 0 for no limit."""
    workers: int
    """How many workers may collect at the same time. Each rewrites the blocks of its share, and has that share of the
    free space and of the limits of bytes and operations."""
    density: float
    """The least number of stripes that objects need, divided by the number that the packing policy uses."""
    split_bytes: int
    """The price of an extra shard read at which the packer splits an object, in bytes left empty."""
    new_merge_list: Callable[[], MergeList[Packable]]
    """Makes an empty merge list that packs as runs do, but does not sort objects into streams."""

    @property
    def cool_down(self) -> BackOff:
        """How long a block is left alone after each failure in a row."""
        return BackOff(min(COOL_DOWN_FIRST_MS, self.cool_down_ms_max), self.cool_down_ms_max)

"""The settings of GC, as the engine gets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nos_ec.core.gc.gc_policy import GcPolicy, Price
from nos_ec.core.packing.plan import MergeList
from nos_ec.engine.packable import Packable
from nos_ec.engine.retry_queue import BackOff

LEASE_NAME = "gc"
"""Only one GC runs in a store at a time, because two would rewrite the same survivors."""
COOL_DOWN_FIRST_MS = 600_000
"""How long a block is left alone after its first failure. The time doubles with each further failure in a row."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """How GC chooses blocks, how much it rewrites at a time, and how long it waits before it deletes."""

    policy: GcPolicy | None
    """Chooses the blocks to rewrite by what is dead in them; None: `waste_ratio_min` does."""
    price_days_min: float
    """The least break-even price of a block that the policy takes, while there is free space."""
    waste_ratio_min: float
    """GC rewrites blocks that waste at least this share of their bytes; with a policy, those of which headers and
    padding alone take it."""
    copy_bytes_max: float
    """The most live bytes that one run rewrites; infinite for no limit."""
    block_grace_ms: int
    """Grace period between condemning and deleting a block; longer than the longest read."""
    block_grace_ms_min: int
    """The grace period when space is short."""
    blocks_max: int
    """The most blocks that one run rewrites."""
    floor_bytes: int
    """Free space that GC leaves alone while it can."""
    short_bytes: int
    """With less free space than this PUTs are refused, and a run cuts the grace period of condemned blocks short."""
    cool_down_ms_max: int
    """The longest time that a block that could not be collected is left alone."""
    lanes: int
    """The most groups that are written at a time."""
    header_blocks: int
    """The most blocks whose headers and rows are read at a time, and held until their turn comes."""
    bytes_per_s: int
    """Read and written in a second; 0 for no limit. Operators may change it and the next one while a run goes on."""
    operations_per_s: int
    """Reads of objects and headers, and appends; 0 for no limit."""
    slowdown_max: float
    """How many times longer than otherwise small reads may take while GC works; 0 for any time."""
    density: float
    """The least number of stripes that objects need, divided by the number that the packing policy takes."""
    split_bytes: int
    """The price of an extra shard read at which the packer splits an object, in bytes left empty."""
    new_merge_list: Callable[[], MergeList[Packable]]
    """Makes an empty merge list that packs as runs do, but does not sort objects into streams."""

    @property
    def price_setting(self) -> str:
        """The setting of `[gc]` that price_days_min comes from."""
        return "price_days" if isinstance(self.policy, Price) else "price_days_min"

    @property
    def cool_down(self) -> BackOff:
        """How long a block is left alone after each failure in a row."""
        return BackOff(min(COOL_DOWN_FIRST_MS, self.cool_down_ms_max), self.cool_down_ms_max)

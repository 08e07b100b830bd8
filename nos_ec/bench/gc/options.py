"""How a simulated store is run."""

from __future__ import annotations

from dataclasses import dataclass, field

from nos_ec.bench.gc.packer import PackerOptions
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_policy import GcPolicy, SpaceTarget
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS, STREAMS

BLOCKS_MIN = 10


@dataclass(frozen=True, slots=True)
class GcOptions:
    """How the simulated store is run.

    blocks: live bytes / block size, in equilibrium (in a growing store, when measuring begins). block_bytes: the size
    of a block; objects of a workload count 1, those of events their bytes. large_bytes: larger objects have a block of
    their own, which GC does not rewrite; None: all share blocks. min_age_days: how long objects stay in the landing
    store before they are packed. sort_window_blocks: how many blocks of arrivals are packed in order; 0 packs them as
    they arrive. sort_survivors: whether those of a cycle are. hints: whether expiry is known from lifecycle rules.
    days: None for those of the workload. packer: packs objects as in a store, in its order, whatever else is said of
    order here; None: objects are written one after the other, each as large as it is.
    """

    policy: GcPolicy = field(default_factory=SpaceTarget)
    streams: int = STREAMS
    blocks: int = 2000
    block_bytes: int = 128
    large_bytes: int | None = None
    min_age_days: float = 0.0
    sort_window_blocks: int = 0
    sort_survivors: bool = True
    hints: bool = False
    days: float | None = None
    seed: int = 1
    packer: PackerOptions | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= len(STREAM_CUTS_DAYS):
            raise InvalidInput(f"{self.streams} streams; give 1 to {len(STREAM_CUTS_DAYS)}")
        if self.blocks < BLOCKS_MIN or self.block_bytes < 1 or self.min_age_days < 0 or self.sort_window_blocks < 0:
            raise InvalidInput(
                f"give at least {BLOCKS_MIN} blocks, with room for 1 object, and no negative delay or window"
            )
        if self.days is not None and self.days <= 0:
            raise InvalidInput(f"{self.days} days are too few")

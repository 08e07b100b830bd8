"""The options of `simulate gc`."""

from __future__ import annotations

from dataclasses import dataclass, field

from nos_ec.bench.gc.packer import PackerOptions
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_policy import GcPolicy, SpaceTarget
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS, STREAMS

BLOCKS_MIN = 10


@dataclass(frozen=True, slots=True)
class GcOptions:
    """The options of a simulated store.

    `blocks` is live bytes / block size, in equilibrium (in a growing store, when measuring begins). `block_bytes` is
    the size of a block; objects of a workload count 1, objects of events count their bytes. Objects above `large_bytes`
    have a block of their own, which GC does not rewrite; None means that all share blocks. Objects stay in the landing
    store for `min_age_days` before they are packed. `sort_window_blocks` blocks of arrivals are sorted before they are
    packed; 0 packs them as they arrive. `sort_survivors` sorts the survivors of a cycle. With `hints`, expiry is known
    from lifecycle rules. `days` is None for the days of the workload. `packer` packs objects as a store does, in its
    own order, which overrides the sorting options; None writes objects one after the other, without padding.
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

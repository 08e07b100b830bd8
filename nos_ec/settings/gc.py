"""The settings of GC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nos_ec.core.gc.gc_policy import HOLE_RATIO_MIN, PRICE_DAYS, PRICE_FLOOR_DAYS, SPACE_AMP
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS, STREAMS
from nos_ec.settings.section import DAY, MINUTE, Section
from nos_ec.settings.values import Count, Ratio, Size


class GcSettings(Section):
    """Reclaiming the space of deleted and overwritten objects."""

    policy: Literal["space-target", "price", "threshold"] = Field(
        default="space-target",
        description="Which blocks GC collects (GC.md). space-target: the blocks in which copying gains most, while"
        " more than space_amp is stored. price: all blocks in which copying gains enough (price_days). threshold: all"
        " blocks that waste enough (hole_ratio_min).",
    )
    space_amp: Ratio = Field(
        default=SPACE_AMP,
        gt=1,
        le=100,
        description="Limit that the policy space-target keeps: bytes stored per live byte. Headers, padding and"
        " redundancy are not counted. A lower value saves space and rewrites more.",
    )
    price_days_min: Ratio = Field(
        default=PRICE_FLOOR_DAYS,
        ge=0,
        le=100_000,
        description="Break-even price in days from which the policy space-target collects a block: copying one live"
        " byte may cost as much as holding one dead byte for that long. In a younger store, GC frees mostly entirely"
        " dead blocks. Blocks are repacked for their padding at the same price. When PUTs are refused for lack of"
        " space, or less than floor_bytes is free, GC ignores the price.",
    )
    price_days: Ratio = Field(
        default=PRICE_DAYS,
        gt=0,
        le=100_000,
        description="Break-even price in days from which the policy price collects a block, however much is stored. A"
        " lower value saves space and copies more. As with price_days_min, blocks are repacked at the same price, and"
        " GC ignores the price when space is short.",
    )
    copy_bytes_max: Size = Field(
        default=0,
        ge=0,
        le=1 << 60,
        description="Maximum bytes of live objects that one run rewrites. 0: no limit. A value below the size of a"
        " block is refused.",
    )
    lanes: Count = Field(
        default=4,
        ge=1,
        le=64,
        description="Groups of survivors that GC writes at the same time, each into a block of its own. GC uses fewer"
        " lanes while there is little free space.",
    )
    memory_bytes_max: Size = Field(
        default=128 << 20,
        ge=1 << 20,
        le=1 << 40,
        description="Maximum bytes of groups that GC holds in memory: it limits how many groups are written at the"
        " same time. A group takes six times its size, or six times geometry.stripes_per_group_max stripes if it is"
        " longer. One group is always written.",
    )
    header_blocks: Count = Field(
        default=4,
        ge=1,
        le=64,
        description="Blocks whose headers and rows GC reads at the same time, ahead of rewriting them.",
    )
    bytes_per_s: Size = Field(
        default=0,
        ge=0,
        le=1 << 40,
        description="Maximum bytes per second that GC reads and writes; 0: no limit. `nos-ec gc limit` changes it,"
        " even for a run in progress. It is ignored while PUTs are refused for lack of space.",
    )
    operations_per_s: Count = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="Maximum operations per second of GC on the block store; 0: no limit. An operation is a read of an"
        " object or of the headers of a block, or an append. Changed and ignored like bytes_per_s.",
    )
    read_slowdown_max: Ratio = Field(
        default=1.5,
        ge=0,
        le=1000,
        description="How many times longer small reads may take while GC works, before GC slows down. GC times reads"
        " of its own. 0: GC always works at full speed. Also ignored below twice the free space at which PUTs are"
        " refused.",
    )
    streams: Count = Field(
        default=STREAMS,
        ge=1,
        le=len(STREAM_CUTS_DAYS),
        description="Maximum number of streams into which consumers and GC sort objects by their expected lifetime"
        " (GC.md). A stream that collects less than 50 MiB in consumer.linger_ms is folded into its neighbour. 1: pack"
        " objects in the order of arrival, without learning their lifetimes.",
    )
    hole_ratio_min: Ratio = Field(
        default=HOLE_RATIO_MIN,
        gt=0,
        le=1,
        description="The policy threshold collects a block when at least this share of it is not used by live objects"
        " (dead bytes, padding and headers). A lower value saves more space and rewrites more: break-even with 3"
        " replicas is near 0.45 for 8+3. The other policies also collect blocks in which padding and headers alone"
        " take this share, to merge stripes that were written before they were full.",
    )
    block_grace_ms: Count = Field(
        default=10 * MINUTE,
        ge=0,
        le=30 * DAY,
        description="Milliseconds between emptying a block and deleting it. Keep it above the longest read.",
    )
    block_grace_ms_min: Count = Field(
        default=MINUTE,
        ge=0,
        le=30 * DAY,
        description="Grace period in milliseconds that replaces block_grace_ms when space is so short that GC could"
        " not continue, or that PUTs are refused. Keep it above the longest read, too: above the sum of"
        " ceph.op_timeout_ms and get.location_cache_ms. A value above block_grace_ms counts as block_grace_ms.",
    )
    floor_bytes: Size = Field(
        default=16 << 20,
        ge=0,
        le=1 << 50,
        description="Free space that GC leaves unused while it can, because the metadata database may be on the same"
        " disk and needs some space to record what GC does.",
    )
    reserve_bytes: Size = Field(
        default=256 << 20,
        ge=0,
        le=1 << 50,
        description="Free space that only GC may use, so that it can always make progress. Packing stops when free"
        " space falls to this value, and PUTs stop at twice this value, so that landed objects can always be packed."
        " Use at least a few blocks; less than one block is refused. 0 reserves nothing; use it only for trials,"
        " because GC may then be unable to free space in a full store.",
    )
    blocks_max_per_run: Count = Field(
        default=1000, ge=1, le=1_000_000, description="Maximum number of blocks rewritten in one run."
    )
    cool_down_ms_max: Count = Field(
        default=DAY,
        ge=0,
        le=30 * DAY,
        description="Longest time in milliseconds for which GC skips a block that it could not collect, so that the"
        " other blocks get their turn. The time starts at 10 minutes and doubles with each failure in a row. Lowering"
        " this setting brings such blocks back sooner, for example after a repair; with 0 no block is skipped.",
    )
    wait_ms: Count = Field(
        default=10 * MINUTE,
        ge=1,
        le=30 * DAY,
        description="Milliseconds between runs of `gc run --loop`. Runs started by cron do not use it.",
    )

    @property
    def target_space_amp(self) -> float | None:
        """The target of space amplification; None if the policy has none."""
        return self.space_amp if self.policy == "space-target" else None

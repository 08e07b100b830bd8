"""The settings of GC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nos_ec.core.gc.gc_policy import HOLE_RATIO_MIN, PRICE_DAYS, PRICE_FLOOR_DAYS, SPACE_AMP
from nos_ec.core.gc.share import WORKERS_MAX
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
    price_days: Ratio | None = Field(
        default=None,
        ge=0,
        le=100_000,
        title="a number, 0 to 100000",
        description="Break-even price in days from which GC collects a block: copying one live byte may cost as much as"
        " holding one dead byte for that long. The policy space-target does so while more than space_amp is stored"
        f" (default {PRICE_FLOOR_DAYS:g}); in a younger store, it frees mostly entirely dead blocks. The policy"
        f" price does so however much is stored (default {PRICE_DAYS:g}). A lower value saves space and copies more."
        " Blocks are repacked for their padding at the same price. When PUTs are refused for lack of space, GC ignores"
        " the price.",
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
        " (GC.md). A stream that collects less than 50 MiB (or 50 stripes) in consumer.linger_ms is folded into its"
        " neighbour. 1: pack objects in the order of arrival, without learning their lifetimes.",
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
        default=1000,
        ge=1,
        le=1_000_000,
        description="Maximum number of blocks rewritten in one run of a worker. It bounds the memory of a run. A daemon"
        " begins the next run at once when this ended one.",
    )
    workers: Count = Field(
        default=1,
        ge=1,
        le=WORKERS_MAX,
        description="Maximum number of GC runs at the same time. Each rewrites blocks of its own, with an equal part of"
        " the limits and of the free space. Start as many GC processes, on any hosts, with the same value."
        " Raise it when one run cannot keep up (GC.md).",
    )
    wait_ms: Count = Field(
        default=10 * MINUTE,
        ge=1,
        le=30 * DAY,
        description="Milliseconds between runs of `gc run --loop`. Runs started by cron do not use it.",
    )

    @property
    def price_days_min(self) -> float:
        """price_days, or the default of the policy."""
        if self.price_days is not None:
            return self.price_days
        return PRICE_DAYS if self.policy == "price" else PRICE_FLOOR_DAYS

    @property
    def target_space_amp(self) -> float | None:
        """The target of space amplification; None if the policy has none."""
        return self.space_amp if self.policy == "space-target" else None

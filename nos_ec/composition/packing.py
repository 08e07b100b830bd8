"""The packer that the settings ask for, and the rules of GC, which packs alike."""

from __future__ import annotations

import random
from math import inf

from nos_ec.core.gc_policy import GcPolicy, Price, SpaceTarget
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.merge_list import DENSITY, merge_list
from nos_ec.core.packing.plan import Linger, MergeList, P
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.room import PUT_RESERVES
from nos_ec.settings import Settings
from nos_ec.settings.gc import GcSettings
from nos_ec.settings.sections import ConsumerSettings

BACKLOG_WINDOWS = 4
"""How many windows of objects a consumer holds before it polls no more. With this many, lanes never wait for a poll.
Where more objects of one bucket wait, one consumer is not enough for it."""

GROUP_COPIES = 5
"""How often the bytes of a group that GC writes are in memory at once, at most: as they were read, assembled, cut into
shards with their coding chunks, and read back."""


def new_merge_list(
    settings: ConsumerSettings, geometry: Geometry, linger: Linger | int, rng: random.Random
) -> MergeList[P]:
    """An empty merge list of the configured policy and window: the consumer and GC pack alike, and differ only in how
    long an object waits."""
    return merge_list(settings.policy, geometry, settings.window_objects, linger, rng)


def collector_options(settings: Settings) -> CollectorOptions:
    """How GC chooses blocks."""
    gc = settings.gc
    copy_bytes_max = gc.copy_bytes_max or inf
    return CollectorOptions(
        policy=_policy(gc, copy_bytes_max),
        price_days_min=gc.price_days if gc.policy == "price" else gc.price_days_min,
        waste_ratio_min=gc.hole_ratio_min,
        copy_bytes_max=copy_bytes_max,
        block_grace_ms=gc.block_grace_ms,
        block_grace_ms_min=gc.block_grace_ms_min,
        blocks_max=gc.blocks_max_per_run,
        floor_bytes=gc.floor_bytes,
        short_bytes=PUT_RESERVES * gc.reserve_bytes,
        cool_down_ms_max=gc.cool_down_ms_max,
        lanes=max(1, min(gc.lanes, gc.memory_bytes_max // (GROUP_COPIES * settings.geometry.value().group_size_max))),
        header_blocks=gc.header_blocks,
        bytes_per_s=gc.bytes_per_s,
        operations_per_s=gc.operations_per_s,
        slowdown_max=gc.read_slowdown_max,
        density=DENSITY[settings.consumer.policy],
    )


def _policy(gc: GcSettings, copy_bytes_max: float) -> GcPolicy | None:
    if gc.policy == "space-target":
        return SpaceTarget(
            gc.space_amp,
            floor_days=gc.price_days_min,
            budget_bytes=copy_bytes_max,
            victims_max=gc.blocks_max_per_run,
        )
    if gc.policy == "price":
        return Price(gc.price_days, copy_bytes_max, gc.blocks_max_per_run)
    return None

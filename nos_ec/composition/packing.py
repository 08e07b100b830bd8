"""The packer that the settings ask for, and the rules of GC, which packs alike."""

from __future__ import annotations

import random

from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.merge_list import DENSITY, merge_list
from nos_ec.core.packing.plan import Linger, MergeList, P
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.room import PUT_RESERVES
from nos_ec.settings import Settings
from nos_ec.settings.sections import ConsumerSettings

BACKLOG_WINDOWS = 4
"""How many windows of objects a consumer holds before it polls no more. With this many, lanes never wait for a poll.
Where more objects of one bucket wait, one consumer is not enough for it."""


def new_merge_list(
    settings: ConsumerSettings, geometry: Geometry, linger: Linger | int, rng: random.Random
) -> MergeList[P]:
    """An empty merge list of the configured policy and window: the consumer and GC pack alike, and differ only in how
    long an object waits."""
    return merge_list(settings.policy, geometry, settings.window_objects, linger, rng)


def collector_options(settings: Settings) -> CollectorOptions:
    """How GC chooses blocks."""
    gc = settings.gc
    return CollectorOptions(
        waste_ratio_min=gc.hole_ratio_min,
        block_grace_ms=gc.block_grace_ms,
        block_grace_ms_min=gc.block_grace_ms_min,
        blocks_max=gc.blocks_max_per_run,
        floor_bytes=gc.floor_bytes,
        short_bytes=PUT_RESERVES * gc.reserve_bytes,
        cool_down_ms_max=gc.cool_down_ms_max,
        density=DENSITY[settings.consumer.policy],
    )

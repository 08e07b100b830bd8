"""The packer that the settings ask for."""

from __future__ import annotations

import random

from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.merge_list import merge_list
from nos_ec.core.packing.plan import Linger, MergeList, P
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

"""The packing policies there are, by name."""

from __future__ import annotations

import random

from nos_ec.core.errors import InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.best_fit import BestFitMergeList
from nos_ec.core.packing.nos_policy import NosMergeList
from nos_ec.core.packing.plan import Linger, MergeList, lingering

POLICIES = ("best", "nos")
"""The default comes first."""

DENSITY = {"best": 0.95, "nos": 0.6}
"""Share of the stripes that the proven bound asks for, of those a policy takes: at least this, with any window."""

__all__ = ["DENSITY", "POLICIES", "BestFitMergeList", "NosMergeList", "merge_list"]


def merge_list(
    policy: str, geometry: Geometry, window: int, linger: Linger | int, rng: random.Random, *, names: bool = True
) -> MergeList:
    """An empty merge list of that policy. `window` counts objects; `rng` is used by "nos" alone. A `linger` that is a
    number of milliseconds holds however little waits.

    Raises InvalidInput for an unknown policy, a window below 1 or a negative linger.
    """
    if window < 1:
        raise InvalidInput(f"window is {window}; give the number of objects to choose from, at least 1")
    if lingering(linger).wait_ms < 0:
        raise InvalidInput(f"linger is {lingering(linger).wait_ms} ms; it cannot be negative")
    if policy == "best":
        return BestFitMergeList(geometry, window, linger, names=names)
    if policy == "nos":
        return NosMergeList(geometry, window, linger, rng, names=names)
    raise InvalidInput(f"unknown packing policy {policy!r}; choose one of: {', '.join(POLICIES)}")

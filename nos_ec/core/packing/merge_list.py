"""The packing policies by name."""

from __future__ import annotations

import random

from nos_ec.core.errors import InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.best_fit import BestFitMergeList
from nos_ec.core.packing.nos_policy import NosMergeList
from nos_ec.core.packing.plan import Linger, MergeList, P, lingering
from nos_ec.core.packing.splits import SPLIT_BYTES

POLICIES = ("best", "nos")
"""The default comes first."""

DENSITY = {"best": 0.95, "nos": 0.6}
"""For each policy, the least ratio of the stripes of the proven bound to the stripes that the policy uses, with any
window."""

__all__ = ["DENSITY", "POLICIES", "BestFitMergeList", "NosMergeList", "merge_list", "split_price"]


def split_price(policy: str, geometry: Geometry, split_bytes: int) -> int:
    """Return the price by which that policy packs: "nos" never splits, whatever `split_bytes` is."""
    return geometry.chunk_size if policy == "nos" else split_bytes


def merge_list(
    policy: str,
    geometry: Geometry,
    window: int,
    linger: Linger | int,
    rng: random.Random,
    *,
    names: bool = True,
    split_bytes: int = SPLIT_BYTES,
) -> MergeList[P]:
    """Return an empty merge list of that policy. `window` counts objects; only "nos" uses `rng`. A `linger` given as a
    number of milliseconds applies to any number of waiting bytes. `split_bytes` is how many bytes of a chunk may be
    left empty to save one shard read; "nos" does not split objects that fit in a chunk.

    Raise InvalidInput for an unknown policy, a window below 1, or a linger or a price that is negative.
    """
    if window < 1:
        raise InvalidInput(f"window is {window}; give the number of objects to choose from, at least 1")
    if lingering(linger).wait_ms < 0:
        raise InvalidInput(f"linger is {lingering(linger).wait_ms} ms; it cannot be negative")
    if split_bytes < 0:
        raise InvalidInput(f"split_bytes is {split_bytes}; it cannot be negative")
    if policy == "best":
        return BestFitMergeList(geometry, window, linger, names=names, split_bytes=split_bytes)
    if policy == "nos":
        return NosMergeList(geometry, window, linger, rng, names=names)
    raise InvalidInput(f"unknown packing policy {policy!r}; choose one of: {', '.join(POLICIES)}")

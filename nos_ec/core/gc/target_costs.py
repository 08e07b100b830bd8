"""The cost of bringing a store to several space targets, computed in one pass over its blocks. Pure.

Blocks are counted by their break-even price, in a hundred classes for each power of ten. So memory does not grow with
the store, and the result is exact to a fraction of one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10

from nos_ec.core.gc.gc_policy import SealedBlock, StoredBytes, break_even_days

CLASSES_PER_DECADE = 100
CLASS_MIN, CLASS_MAX = -4 * CLASSES_PER_DECADE, 7 * CLASSES_PER_DECADE


@dataclass(frozen=True, slots=True)
class PriceCurve:
    """The blocks of a store by their break-even price, as far as GC would collect them, and what the store holds now
    without the blocks that hold nothing live. `classes` has (place of the class, live bytes, dead bytes), the highest
    price first, at most 1,101 of them; see `price_days_of`. `floor_days` is the least price of a block in it."""

    store: StoredBytes
    classes: tuple[tuple[int, int, int], ...]
    floor_days: float

    def cost(self, target: float) -> TargetCost:
        """Return the cost of a target."""
        return _cost(self.classes, self.store, target)


@dataclass(frozen=True, slots=True)
class TargetCost:
    """The cost of collecting blocks from the highest price downwards until the target is reached, in any number of
    runs.

    `space_amplification` is the final one. `price_days` is that of the last block collected, or None without any.
    `is_reached`: the target is reached with blocks whose price is at least the floor.
    """

    target: float
    copied_bytes: int
    freed_bytes: int
    space_amplification: float
    price_days: float | None
    is_reached: bool


def price_curve(blocks: Iterable[SealedBlock], store: StoredBytes, floor_days: float) -> PriceCurve:
    """Return the blocks by their price. `store` excludes blocks without live objects. `floor_days` is the least
    break-even price of a block that is collected."""
    live: dict[int, int] = {}
    dead: dict[int, int] = {}
    for block in blocks:
        days = break_even_days(block)
        if block.is_dead or days <= 0 or days < floor_days:
            continue
        place = min(CLASS_MAX, max(CLASS_MIN, floor(log10(days) * CLASSES_PER_DECADE)))
        live[place] = live.get(place, 0) + block.live_bytes
        dead[place] = dead.get(place, 0) + block.dead_bytes
    classes = tuple((place, live[place], dead[place]) for place in sorted(live, reverse=True))
    return PriceCurve(store, classes, floor_days)


def price_days_of(place: int) -> float:
    """Return the least price of a class, in days."""
    return 10 ** (place / CLASSES_PER_DECADE)


def _cost(classes: Sequence[tuple[int, int, int]], store: StoredBytes, target: float) -> TargetCost:
    copied = freed = 0.0
    price_days: float | None = None
    excess = store.stored_bytes - target * store.live_bytes
    for place, live_bytes, dead_bytes in classes:
        left = excess - freed
        if left <= 0:
            break
        share = min(1.0, left / dead_bytes)
        copied += share * live_bytes
        freed += share * dead_bytes
        price_days = price_days_of(place)
    after = store.less(round(freed))
    return TargetCost(target, round(copied), round(freed), after.space_amplification, price_days, freed >= excess - 1)

"""Which sealed blocks a GC cycle rewrites: three policies with one interface. Pure: values in, a plan out.

space-target  as few copies as possible while the store keeps within a space amplification that the operator chooses
price         every block in which copying a byte buys enough days of holding a dead one
threshold     every block of which a given share is dead

Blocks without live objects are in every plan, before all others: they cost nothing to collect. docs/GC.md compares the
policies, and docs/adr/0026-gc-policies.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import nsmallest
from math import inf, log1p
from typing import NamedTuple, Protocol

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import BlockId
from nos_ec.core.ratios import hole_ratio

SPACE_AMP = 1.2
"""The default target of `SpaceTarget`."""
HYSTERESIS = 0.02
PRICE_FLOOR_DAYS = 2.0
"""The least break-even price of a block that a space target collects."""
PRICE_DAYS = 20.0
"""The default price of `Price`: with it, a store of mixed lifetimes ends near a space amplification of 1.12
(docs/GC.md)."""
ANY_PRICE_DAYS = 1e-9
"""Less than the break-even price of any block with a relevant number of dead bytes."""
HOLE_RATIO_MIN = 0.75
AGE_DAYS_MIN = 0.01
"""The least age that counts. After a clock was set back, a block can seem to have a negative age."""


class SealedBlock(NamedTuple):
    """The facts about a block that a policy uses. `age_days` is the time since the block was sealed, however old its
    objects are.

    A plan looks at every block of a store, so this is the kind of value that is fastest to create.
    """

    block_id: BlockId
    live_bytes: int
    dead_bytes: int
    age_days: float

    @property
    def is_dead(self) -> bool:
        """Return whether nothing in the block is live."""
        return self.live_bytes == 0


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """The object bytes in all blocks, including open ones: all stored bytes, and the live ones."""

    stored_bytes: int
    live_bytes: int

    @property
    def space_amplification(self) -> float:
        """Return stored / live bytes; infinite if bytes are stored but none are live."""
        if self.live_bytes:
            return self.stored_bytes / self.live_bytes
        return inf if self.stored_bytes else 1.0

    def exceeds(self, space_amp: float) -> bool:
        """Return whether more than `space_amp` bytes are stored per live byte."""
        return self.stored_bytes > space_amp * self.live_bytes

    def less(self, freed_bytes: int) -> StoredBytes:
        """Return the stored bytes after this number of dead bytes was freed."""
        return StoredBytes(self.stored_bytes - freed_bytes, self.live_bytes)


class Behind(StrEnum):
    """Why a plan, or the cycle that carries it out, does not reach the target. A plan itself can have the first three
    reasons."""

    BUDGET = "budget"
    """The cycle may not copy more bytes. The next cycle continues."""
    BLOCKS = "blocks"
    """The cycle may not collect more blocks. The next cycle continues."""
    PRICE = "price"
    """The remaining blocks are too expensive to collect now: their dead bytes are not worth the copies."""
    SET_ASIDE = "set_aside"
    """Blocks that would suffice could not be collected, and are left alone until their cool-downs are over."""
    SPACE = "space"
    """There is not enough free space to write survivors."""
    STOPPED = "stopped"
    """The cycle was ended early. The next cycle continues."""
    GAIN = "gain"
    """Writing the survivors would take as much space as it frees."""


@dataclass(frozen=True, slots=True)
class GcPlan:
    """The blocks to collect, best first, and the bytes that this copies and frees. `behind` is why the target is not
    reached; None if it is, or if the policy has no target."""

    victims: tuple[SealedBlock, ...]
    copied_bytes: int
    freed_bytes: int
    behind: Behind | None = None


class GcPolicy(Protocol):
    """Decides what one cycle collects."""

    @property
    def target(self) -> float | None:
        """Return the space amplification to keep within, or None if the policy has no target."""

    def at_any_price(self) -> GcPolicy:
        """Return the same policy for a full store, where collecting is worth any amount of copying."""

    def is_due(self, store: StoredBytes) -> bool:
        """Return whether a cycle could do more than delete blocks without live objects. Costs almost nothing."""

    def plan(self, blocks: Iterable[SealedBlock], store: StoredBytes, /) -> GcPlan:
        """Choose among all sealed blocks. Equal arguments give equal plans, in whatever order the blocks come."""


def break_even_days(block: SealedBlock) -> float:
    """Return the price at which collecting this block now is exactly right: for how many days of holding a dead byte it
    is worth copying a live one. 0 for a block without dead bytes, infinite for one without live bytes.

    Assume that the objects of a block die at rate h, so that the live share is u = exp(-h t) at age t. Collect at age t
    at a price of P for each byte copied. Survivors begin anew, so the cost of a byte is V = D + u (P + V), where D = t
    - (1 - u)/h is the time that dead bytes are held. The t that makes V smallest satisfies

        P = (1/u - 1 + ln u) / h

    This is the index of an optimal stopping problem (Gittins; for a block that may be left alone, Whittle 1988). With h
    estimated as -ln u / age, no state is needed but the age: P = age ((1/u - 1) / (-ln u) - 1).
    """
    if block.dead_bytes <= 0:
        return 0.0
    if block.is_dead:
        return inf
    ratio = block.dead_bytes / block.live_bytes
    lost = log1p(ratio)
    return max(block.age_days, AGE_DAYS_MIN) * max(0.0, ratio / lost - 1) if lost else 0.0


def padding_days(age_days: float, padding_bytes: int, live_bytes: int) -> float:
    """Return the price at which rewriting a block for its padding alone is exactly right, as `break_even_days` does for
    its dead bytes: for how many days of holding a byte of padding it is worth copying a live one. Infinite without live
    bytes.

    Padding takes the same space until the block is rewritten for other reasons, and that is expected to take as long
    again as the block has existed (Lindy's law: the longer it has lasted, the longer it will). The longer that is, the
    more the padding costs.
    """
    if not live_bytes:
        return inf
    return max(age_days, 0.0) * padding_bytes / live_bytes


def hole_share(block: SealedBlock) -> float:
    """Return the hole ratio; 1 for a block without data."""
    found = hole_ratio(block.live_bytes, block.dead_bytes)
    return 1.0 if found is None else found


Rank = Callable[[SealedBlock], float]
"""How much a block deserves to be collected."""


@dataclass(frozen=True, slots=True)
class SpaceTarget:
    """Collects while more than `space_amp` bytes are stored per live byte.

    A cycle continues until twice `hysteresis` of the dead bytes that the target allows are free, so that the mean is
    near the target less `hysteresis`, without many tiny cycles. It takes no block whose break-even price is below
    `floor_days`, and stops before it copies more than `budget_bytes` or collects more than `victims_max`. `rank` orders
    the victims.
    """

    space_amp: float = SPACE_AMP
    hysteresis: float = HYSTERESIS
    floor_days: float = PRICE_FLOOR_DAYS
    budget_bytes: float = inf
    rank: Rank = break_even_days
    victims_max: int | None = None

    def __post_init__(self) -> None:
        if not 1 < self.space_amp < inf:
            raise InvalidInput(f"a space amplification of {self.space_amp} cannot be a target; give more than 1")
        if not 0 <= self.hysteresis < 0.5:
            raise InvalidInput(f"hysteresis is {self.hysteresis}; give at least 0 and less than 0.5")

    @property
    def target(self) -> float:
        """Return the space amplification to keep within."""
        return self.space_amp

    def at_any_price(self) -> SpaceTarget:
        """Return the same policy without a floor."""
        return replace(self, floor_days=0)

    def is_due(self, store: StoredBytes) -> bool:
        """Return whether the store is over its target."""
        return store.exceeds(self.space_amp)

    def plan(self, blocks: Iterable[SealedBlock], store: StoredBytes, /) -> GcPlan:
        """Take dead blocks first, then the best of the others until the store is within its target, less the
        hysteresis."""
        if not self.is_due(store):
            return _Picked(block for block in blocks if block.is_dead).plan()
        dead, ranked = _ranked(blocks, self.rank, self._is_affordable, self.victims_max)
        picked = _Picked(dead)
        most = self.space_amp * store.live_bytes
        goal = store.live_bytes * (1 + (self.space_amp - 1) * (1 - 2 * self.hysteresis))
        behind = Behind.PRICE
        for place, block in enumerate(ranked):
            if store.stored_bytes - picked.freed_bytes <= goal:
                break
            if place == self.victims_max:
                behind = Behind.BLOCKS
                break
            if picked.copied_bytes + block.live_bytes > self.budget_bytes:
                behind = Behind.BUDGET
                break
            picked.add(block)
        return picked.plan(behind if store.stored_bytes - picked.freed_bytes > most else None)

    def _is_affordable(self, block: SealedBlock) -> bool:
        return break_even_days(block) >= self.floor_days


@dataclass(frozen=True, slots=True)
class Price:
    """Collects every block whose break-even price is at least `days`, however much or little that frees."""

    days: float
    budget_bytes: float = inf
    victims_max: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.days < inf:
            raise InvalidInput(f"a price of {self.days} days collects everything or nothing; give more than 0 days")

    @property
    def target(self) -> None:
        """Return None: this policy has no target."""
        return None

    def at_any_price(self) -> Price:
        """Return the same policy at almost no price."""
        return replace(self, days=ANY_PRICE_DAYS)

    def is_due(self, store: StoredBytes) -> bool:
        """Return whether any bytes are dead."""
        return store.stored_bytes > store.live_bytes

    def plan(self, blocks: Iterable[SealedBlock], _store: StoredBytes, /) -> GcPlan:
        """Take dead blocks first, then the most expensive ones."""
        return _all_above(blocks, break_even_days, self.days, self.budget_bytes, self.victims_max)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Collects every block of which at least `hole_ratio_min` is dead."""

    hole_ratio_min: float = HOLE_RATIO_MIN
    budget_bytes: float = inf

    def __post_init__(self) -> None:
        if not 0 < self.hole_ratio_min <= 1:
            raise InvalidInput(f"a hole ratio of {self.hole_ratio_min} is invalid; give more than 0, at most 1")

    @property
    def target(self) -> None:
        """Return None: this policy has no target."""
        return None

    def at_any_price(self) -> Threshold:
        """Return the policy itself: it has no price."""
        return self

    def is_due(self, store: StoredBytes) -> bool:
        """Return whether any bytes are dead."""
        return store.stored_bytes > store.live_bytes

    def plan(self, blocks: Iterable[SealedBlock], _store: StoredBytes, /) -> GcPlan:
        """Take dead blocks first, then those with the largest holes."""
        return _all_above(blocks, hole_share, self.hole_ratio_min, self.budget_bytes, None)


def _all_above(
    blocks: Iterable[SealedBlock], rank: Rank, rank_min: float, budget_bytes: float, victims_max: int | None
) -> GcPlan:
    dead, ranked = _ranked(blocks, rank, lambda block: rank(block) >= rank_min, victims_max)
    picked = _Picked(dead)
    for place, block in enumerate(ranked):
        if place == victims_max:
            return picked.plan(Behind.BLOCKS)
        if picked.copied_bytes + block.live_bytes > budget_bytes:
            return picked.plan(Behind.BUDGET)
        picked.add(block)
    return picked.plan()


def _ranked(
    blocks: Iterable[SealedBlock], rank: Rank, is_wanted: Callable[[SealedBlock], bool], victims_max: int | None
) -> tuple[list[SealedBlock], list[SealedBlock]]:
    """Return the dead blocks, and the wanted ones with live and dead bytes, best first.

    At most one more than `victims_max` is returned, so that memory does not grow with the store. The last one only
    shows that there are more.
    """
    dead: list[SealedBlock] = []

    def wanted() -> Iterator[tuple[float, BlockId, SealedBlock]]:
        for block in blocks:
            if block.is_dead:
                dead.append(block)
            elif block.dead_bytes > 0 and is_wanted(block):
                yield -rank(block), block.block_id, block

    found = sorted(wanted()) if victims_max is None else nsmallest(victims_max + 1, wanted())
    return dead, [block for _, _, block in found]


class _Picked:
    """A plan that is being made."""

    def __init__(self, dead: Iterable[SealedBlock]) -> None:
        self._victims = sorted(dead, key=lambda block: (-block.dead_bytes, block.block_id))
        self.freed_bytes = sum(block.dead_bytes for block in self._victims)
        self.copied_bytes = 0

    def add(self, block: SealedBlock) -> None:
        self._victims.append(block)
        self.freed_bytes += block.dead_bytes
        self.copied_bytes += block.live_bytes

    def plan(self, behind: Behind | None = None) -> GcPlan:
        return GcPlan(tuple(self._victims), self.copied_bytes, self.freed_bytes, behind)

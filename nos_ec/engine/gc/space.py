"""The effect of a run on the space of a store: stored bytes per live byte before and after, and why a target is missed.
Only reads.

 9  the blocks of a store are read in pages, so memory does not grow with the store
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.gc.gc_policy import Behind, GcPlan, GcPolicy, SealedBlock, StoredBytes, break_even_days, hole_share
from nos_ec.core.gc.share import WHOLE, Share
from nos_ec.core.gc.target_costs import PriceCurve, price_curve
from nos_ec.core.ids import BlockId
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockFacts, Blocks, SpaceUse, WaitReason

_log = structlog.get_logger(__name__)

PAGE_BLOCKS = 1000
DAY_MS = 86_400_000
ANY_WASTE = 0.0
"""A minimum waste ratio that every block reaches."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected effect of a run on the space of the store."""

    use: SpaceUse
    """What blocks store now."""
    after: StoredBytes
    """What blocks will store when all victims and all empty blocks are collected."""
    target: float | None
    """The target of the policy, as space amplification; None if it has no target."""
    behind: Behind | None
    """Why a run does less than the policy demands; None when it does everything."""

    @property
    def before(self) -> StoredBytes:
        """Return what blocks store now, including those without live objects."""
        return self.use.with_empty


def is_space_short(blocks: BlockStore, options: CollectorOptions) -> bool:
    """Return whether PUTs are refused for lack of space. False when the free space is unknown."""
    return _is_free_below(blocks, options.short_bytes)


def is_any_price_right(blocks: BlockStore, options: CollectorOptions) -> bool:
    """Return whether so little space is left, for PUTs or for GC itself, that GC must free some at any price. False
    when the free space is unknown."""
    return _is_free_below(blocks, max(options.short_bytes, options.floor_bytes))


def is_tight(blocks: BlockStore, options: CollectorOptions) -> bool:
    """Return whether too little space is free for several workers: PUTs are refused, or a worker could not write the
    survivors of any block into its part of the space. Then worker 0 collects the blocks of all workers, alone. Always
    False with one worker, and False when the free space is unknown."""
    if options.workers == 1:
        return False
    needed = options.workers * (blocks.geometry.block_size + blocks.geometry.group_size_max)
    return _is_free_below(blocks, max(options.short_bytes, options.floor_bytes + needed))


def share_now(blocks: BlockStore, options: CollectorOptions, worker: int) -> Share:
    """Return the blocks that a worker may collect now: its share, or all blocks if it is worker 0 and has to collect
    alone."""
    return WHOLE if worker == 0 and is_tight(blocks, options) else Share(worker, options.workers)


def _is_free_below(blocks: BlockStore, least_bytes: int) -> bool:
    try:
        return blocks.free_bytes() < least_bytes
    except Transient as error:
        _log.warning("free space is unknown; GC assumes that there is enough", error=str(error))
        return False


def is_above(store: StoredBytes, target: float | None) -> bool:
    """Return whether the store exceeds the target. False without a target."""
    return target is not None and store.exceeds(target)


def price_days(facts: BlockFacts, now_ms: int) -> float | None:
    """Return the break-even price of a block in days, or None when it has no live bytes."""
    row = facts.row
    since_ms = row.created_ms if facts.sealed_ms is None else facts.sealed_ms
    days = break_even_days(SealedBlock(row.block_id, row.live_bytes, row.dead_bytes, (now_ms - since_ms) / DAY_MS))
    return None if days == inf else days


class PolicyChoice:
    """Applies the policy to the blocks of a store as they are now. Used once."""

    def __init__(self, metadata: Blocks, options: CollectorOptions, policy: GcPolicy, now_ms: int) -> None:
        self._metadata = metadata
        self._options = options
        self._policy = policy
        self._now_ms = now_ms
        self._dense_bytes = 0

    def plan(self, store: StoredBytes) -> GcPlan:
        """Return the plan for a store without empty blocks. Reads no rows while the policy needs no blocks. Raises
        Transient."""
        return self._policy.plan(self._worthwhile(), store) if self._policy.is_due(store) else GcPlan((), 0, 0)

    def reason(self, behind: Behind | None, after: StoredBytes) -> Behind | None:
        """Return the reason for missing the target more precisely than the policy.

        The policy reports PRICE, but it does not get all blocks: some are set aside, and of others so little is dead
        that rewriting frees nothing. If these blocks hold the missing bytes, they are the reason.
        """
        target = self._policy.target
        if behind is not Behind.PRICE or target is None:
            return behind
        missing_bytes = after.stored_bytes - target * after.live_bytes
        if self._set_aside_bytes() >= missing_bytes:
            return Behind.SET_ASIDE
        return Behind.GAIN if self._dense_bytes >= missing_bytes else behind

    def prices(self, store: StoredBytes) -> PriceCurve:
        """Return the prices of all blocks with holes. Reads their rows. Raises Transient."""
        return price_curve(self._worthwhile(), store, self._options.price_days_min)

    def _worthwhile(self) -> Iterator[SealedBlock]:
        """Yield the blocks that take less space when they are rewritten. If the policy also got the others, they could
        take the places of all victims, in every run."""
        after: BlockId | None = None
        while page := self._metadata.blocks_with_holes(
            after, self._now_ms, self._options.cool_down_ms_max, PAGE_BLOCKS
        ):
            for block in page:
                if 1 - hole_share(block) < self._options.density:
                    yield block
                else:
                    self._dense_bytes += block.dead_bytes
            after = page[-1].block_id

    def _set_aside_bytes(self) -> int:
        waiting = self._metadata.waiting_blocks(ANY_WASTE, self._now_ms, self._options.cool_down_ms_max)
        return sum(one.dead_bytes for one in waiting if one.reason is WaitReason.SET_ASIDE)

"""Chooses the blocks that GC collects, from their rows, the rows of their objects, and their headers. Only reads.

10  an entry that cannot be read is never treated as dead
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from nos_ec.core.errors import NotFound
from nos_ec.core.formats.header import name_record_size
from nos_ec.core.gc.gc_policy import Behind, SealedBlock, padding_days
from nos_ec.core.gc.reclaim import Victim, account_block, frees_stripes, stripes_needed
from nos_ec.core.gc.share import WHOLE, Share
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.gc.space import DAY_MS, Outlook, PolicyChoice, is_above, is_any_price_right
from nos_ec.engine.header_scan import HeaderScan, live_entries, scan_headers
from nos_ec.engine.packable import survivor
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, Blocks, Placed, WaitingBlocks

_log = structlog.get_logger(__name__)

REPACK_FREES_MIN = 0.1
"""The share of a block that repacking must free in headers and padding, for each block alone and for all together, and
the share of all merged blocks together that merging must free. GC comes to rest because of this minimum: it does not
rewrite blocks that would stay as they are."""
REPACK_HOLES_MAX = 0.2
"""The share of the object bytes that may be dead in a block with less than half of the stripes of a full block. Such
remains of earlier runs will soon be rewritten for their dead bytes, which frees their padding, too. Fuller blocks may
have any number of dead bytes: a run that was stopped has moved some of their objects away."""
REPACK_OBJECTS_MAX = 500_000
"""The most objects that a run packs in memory, which takes seconds, to see which blocks are worth repacking. Blocks of
tiny objects hold many objects, and headers that no packer can avoid."""


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """What GC found in one block, and how much it read to find it."""

    block: BlockRow
    live_objects: int
    """Objects that must be rewritten before the block can be deleted."""
    unconfirmed: int
    """Live objects that are known from rows alone."""
    header_bytes_read: int
    price_days: float | None = None
    """The break-even price; None for a block without live bytes, or when it was not computed."""

    @property
    def size_bytes(self) -> int:
        """Data-space bytes of the block, as its row counts them."""
        return self.block.size_bytes


@dataclass(frozen=True, slots=True)
class ChosenBlock:
    """A block to rewrite."""

    block: BlockRow
    needs: float
    """How many stripes its live objects will need; not rounded up."""
    padding_freed_bytes: int = 0
    """How many bytes of headers and padding the rewriting frees, for a block that is rewritten for them; otherwise
    0."""

    def padding_days(self, now_ms: int) -> float:
        """Return the price in days of rewriting the block for its padding, given its age since its creation."""
        block = self.block
        return padding_days((now_ms - block.created_ms) / DAY_MS, self.padding_freed_bytes, block.live_bytes)


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The blocks that a run would examine and collect now.

    The victims are only the empty blocks when rewriting the others would free nothing.
    """

    decisions: Sequence[BlockDecision]
    """The examined blocks."""
    victims: Sequence[ChosenBlock]
    """The examined blocks that a run would collect."""
    waiting: Sequence[WaitingBlocks]
    """Blocks with dead bytes that are not examined, by reason."""
    outlook: Outlook


@dataclass(frozen=True, slots=True)
class Choice:
    """How a run divides the blocks with live objects; best victims first."""

    candidates: Sequence[BlockRow]
    """Blocks that the policy chooses, or that waste enough to be collected."""
    victims: Sequence[ChosenBlock]
    """The candidates to rewrite."""
    dense: Sequence[BlockRow]
    """Candidates whose live objects are already packed as densely as possible, so that their waste is headers and
    unavoidable padding."""
    outlook: Outlook


def choose(
    metadata: Blocks, blocks: BlockStore, options: CollectorOptions, now_ms: int, share: Share = WHOLE
) -> Choice:
    """Choose the blocks of a share to rewrite. Holds the rows of one block in memory at a time. Raises Transient.

    The policy chooses among all blocks: if it chose among the blocks of the share alone, each worker would bring the
    whole store to the target by itself, and all workers together would free too much. So this run makes the same plan
    as the other workers, and leaves their victims to them.
    """
    use = metadata.space_use()
    # 1. Find victims: by waste alone without a policy, otherwise by the policy, then by padding.
    taken, behind, others_bytes = _Taken(metadata, blocks, options, now_ms, share), None, 0
    if options.policy is None:
        taken.add_wasteful()
        target = None
    else:
        any_price = is_any_price_right(blocks, options)
        policy = options.policy.at_any_price() if any_price else options.policy
        by_policy = PolicyChoice(metadata, options, policy, now_ms)
        plan = by_policy.plan(use.without_empty)
        own = [victim for victim in plan.victims if share.owns(victim.block_id)]
        taken.add_planned(own)
        others_bytes = plan.freed_bytes - sum(victim.dead_bytes for victim in own)
        target, behind = policy.target, by_policy.reason(plan.behind, use.without_empty.less(plan.freed_bytes))
        taken.add_padded(0.0 if any_price else options.price_days_min)
    # 2. Rewrite none of them if all together would free nothing.
    victims = taken.victims
    if victims and not frees_stripes([Victim(victim.block.stripes, victim.needs) for victim in victims]):
        victims = []
    # 3. Find the reason if the run does less than the policy demands.
    after = use.without_empty.less(others_bytes + sum(victim.block.dead_bytes for victim in victims))
    if taken.victims and not victims and is_above(after, target):
        behind = Behind.GAIN
    if target is None or is_above(after, target):
        behind = behind or taken.behind
    return Choice(taken.candidates, victims, taken.dense, Outlook(use, after, target, behind))


class _Taken:
    """Collects the blocks of one choice: at most `blocks_max`, with victims of at most `copy_bytes_max` live bytes, and
    only blocks of the share."""

    def __init__(
        self, metadata: Blocks, blocks: BlockStore, options: CollectorOptions, now_ms: int, share: Share
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._options = options
        self._now_ms = now_ms
        self._share = share
        self._copied_bytes = 0
        self.candidates: list[BlockRow] = []
        self.victims: list[ChosenBlock] = []
        self.dense: list[BlockRow] = []
        self.behind: Behind | None = None

    def add_planned(self, planned: Iterable[SealedBlock]) -> None:
        """Add the victims of a policy, which observes the limits. Blocks that were collected meanwhile are left out."""
        for one in planned:
            try:
                block = self._metadata.block(one.block_id)
            except NotFound:
                continue
            if block.state is BlockState.SEALED:
                self.candidates.append(block)
                self._add(_rewritten_by_row(self._options, block))

    def add_wasteful(self) -> None:
        """Add blocks by their waste, most wasteful first."""
        options = self._options
        wasteful = self._metadata.gc_candidates(
            options.waste_ratio_min, self._now_ms, options.cool_down_ms_max, options.blocks_max, self._share
        )
        self._add_judged(wasteful, lambda block: judge(self._metadata, self._blocks, options, block))

    def add_padded(self, price_days: float) -> None:
        """Add blocks for their headers and padding, most wasteful first: blocks to merge because they consist of little
        else, and blocks that are worth repacking at `price_days`.

        No block is repacked if repacking all of them together frees too little: the objects of a single block may fit
        each other by chance.
        """
        options = self._options
        wasteful = self._metadata.gc_candidates(
            options.waste_ratio_min,
            self._now_ms,
            options.cool_down_ms_max,
            options.blocks_max,
            self._share,
            overhead_ratio_min=options.waste_ratio_min,
        )
        padded = padded_blocks(self._metadata, self._blocks, options, price_days, self._now_ms, self._share)
        mergeable = {block.block_id for block in wasteful}

        def judged(block: BlockRow) -> ChosenBlock | None:
            merged = judge(self._metadata, self._blocks, options, block) if block.block_id in mergeable else None
            return merged or repack(self._metadata, self._blocks, options, block)

        self._add_judged([*wasteful, *padded], judged, price_days)
        repacked = [victim.block for victim in self.victims if victim.padding_freed_bytes]
        if _padding_freed(self._metadata, self._blocks, options, repacked) < _freed_min(repacked):
            self._drop(repacked)
            self.dense += repacked

    def _add_judged(
        self,
        blocks: Iterable[BlockRow],
        judged: Callable[[BlockRow], ChosenBlock | None],
        price_days: float = 0.0,
    ) -> None:
        """Add the blocks that are victims. price_days: the lowest price at which padding is freed; a block with a lower
        one is left for a later run."""
        options, found = self._options, {block.block_id for block in self.candidates}
        merged: list[BlockRow] = []
        merged_objects = 0
        for block in blocks:
            if block.block_id in found:
                continue
            if len(self.candidates) >= options.blocks_max:
                break
            if merged and merged_objects + block.live_objects > REPACK_OBJECTS_MAX:
                self.behind = Behind.BLOCKS
                break
            found.add(block.block_id)
            self.candidates.append(block)
            victim = judged(block)
            if victim is None:
                self.dense.append(block)
            elif victim.padding_freed_bytes and victim.padding_days(self._now_ms) < price_days:
                continue
            elif self._copied_bytes + block.live_bytes > options.copy_bytes_max:
                self.behind = Behind.BUDGET
                break
            else:
                self._add(victim)
                if not victim.padding_freed_bytes and judge_by_row(options, block) is None:
                    merged.append(block)
                    merged_objects += block.live_objects
        if not merging_pays(self._metadata, self._blocks, options, merged):
            self._drop(merged)
            # Short blocks stay candidates, unless they would keep others from being looked at in every run.
            is_full = self.behind is not None or len(self.candidates) >= options.blocks_max
            self.dense += [block for block in merged if is_full or not _is_short(self._blocks.geometry, block)]

    def _add(self, victim: ChosenBlock) -> None:
        self.victims.append(victim)
        self._copied_bytes += victim.block.live_bytes

    def _drop(self, blocks: Iterable[BlockRow]) -> None:
        dropped = {block.block_id for block in blocks}
        self.victims = [victim for victim in self.victims if victim.block.block_id not in dropped]


def judge(metadata: Blocks, blocks: BlockStore, options: CollectorOptions, candidate: BlockRow) -> ChosenBlock | None:
    """Return a candidate as a victim, or None if it is packed as densely as possible. Raises Transient."""
    victim = judge_by_row(options, candidate)
    if victim is not None:
        return victim
    needs = _needs(blocks, metadata.placed_in(candidate.block_id), options.split_bytes) / options.density
    return ChosenBlock(candidate, needs) if needs <= candidate.stripes * (1 - options.waste_ratio_min) else None


def may_be_repacked(geometry: Geometry, block: BlockRow) -> bool:
    """Return whether enough of a block is headers and padding to consider repacking it."""
    if block.overhead_bytes < REPACK_FREES_MIN * block.size_bytes:
        return False
    return block.hole_ratio <= REPACK_HOLES_MAX or not _is_short(geometry, block)


def _is_short(geometry: Geometry, block: BlockRow) -> bool:
    return block.stripes < geometry.stripes_per_block / 2


def padded_blocks(
    metadata: Blocks,
    blocks: BlockStore,
    options: CollectorOptions,
    price_days: float,
    now_ms: int,
    share: Share = WHOLE,
) -> list[BlockRow]:
    """Return the blocks of a share that a run packs in memory to see whether they are worth repacking at this price.
    Raises Transient."""
    found: list[BlockRow] = []
    objects = 0
    for block in metadata.padded_blocks(
        REPACK_FREES_MIN, price_days, now_ms, options.cool_down_ms_max, options.blocks_max, share
    ):
        if not may_be_repacked(blocks.geometry, block):
            continue
        objects += block.live_objects
        if found and objects > REPACK_OBJECTS_MAX:
            break
        found.append(block)
    return found


def repack(metadata: Blocks, blocks: BlockStore, options: CollectorOptions, candidate: BlockRow) -> ChosenBlock | None:
    """Return a block as a victim if packing its live objects anew, without other objects, frees REPACK_FREES_MIN of it
    in headers and padding; otherwise None. Dead bytes do not count, because the policy judges them. Raises
    Transient."""
    freed_bytes = _padding_freed(metadata, blocks, options, [candidate])
    if freed_bytes < _freed_min([candidate]):
        return None
    stripes = candidate.stripes - (freed_bytes + candidate.dead_bytes) / blocks.geometry.stripe_size
    return ChosenBlock(candidate, stripes, freed_bytes)


def _freed_min(candidates: Sequence[BlockRow]) -> float:
    return REPACK_FREES_MIN * sum(block.size_bytes for block in candidates)


def merging_pays(metadata: Blocks, blocks: BlockStore, options: CollectorOptions, merged: Sequence[BlockRow]) -> bool:
    """Return whether packing the live objects of these blocks together, without other objects, frees REPACK_FREES_MIN
    of their bytes. `judge` takes blocks by the volume of their objects, whose sizes may not fit each other: a run would
    write as many stripes as it frees, and so would every run after it. Raises Transient."""
    return _freed_bytes(metadata, blocks, options, merged) >= _freed_min(merged)


def _padding_freed(
    metadata: Blocks, blocks: BlockStore, options: CollectorOptions, candidates: Sequence[BlockRow]
) -> int:
    """Return how many bytes of headers and padding a run frees by packing the live objects of these blocks together."""
    dead_bytes = sum(block.dead_bytes for block in candidates)
    return _freed_bytes(metadata, blocks, options, candidates) - dead_bytes


def _freed_bytes(
    metadata: Blocks, blocks: BlockStore, options: CollectorOptions, candidates: Sequence[BlockRow]
) -> int:
    """Return how many bytes a run frees by packing the live objects of these blocks together. Reads the rows of one
    block at a time."""
    merge_list, stripes = options.new_merge_list(), 0
    for block in candidates:
        for one in metadata.placed_in(block.block_id):
            merge_list.add(survivor(one, merge_list.size_max).candidate(0))
        while (plan := merge_list.plan(0)) is not None:
            stripes += plan.stripe_count
    while (plan := merge_list.plan(0, flush=True)) is not None:
        stripes += plan.stripe_count
    return (sum(block.stripes for block in candidates) - stripes) * blocks.geometry.stripe_size


def judge_by_row(options: CollectorOptions, candidate: BlockRow) -> ChosenBlock | None:
    """Return a candidate as a victim if its dead bytes alone make it one. The same packer packed its survivors, so they
    will be packed about as densely as before. None if the rows of its objects must be read to decide."""
    if candidate.hole_ratio < options.waste_ratio_min:
        return None
    return _rewritten_by_row(options, candidate)


def _rewritten_by_row(options: CollectorOptions, block: BlockRow) -> ChosenBlock:
    return ChosenBlock(block, block.stripes * (1 - block.hole_ratio) / options.density)


def _needs(blocks: BlockStore, placed: Sequence[Placed], split_bytes: int) -> float:
    """Return the least number of stripes that the objects need; not rounded up."""
    names_bytes = sum(name_record_size(one.key.bucket, one.key.name, None, one.attributes) for one in placed)
    return stripes_needed(blocks.geometry, [one.extent.length for one in placed], names_bytes, split_bytes)


def decide(metadata: Blocks, blocks: BlockStore, block: BlockRow) -> tuple[BlockDecision, list[Placed]]:
    """Find the live objects of a block. It must not be a block of a live large object.

    Headers name the objects that were written, and rows show which of them are live: an entry is live only if a row has
    its key, version and extent. A row that no header confirms is logged as an error and still counts as live. Raises
    Transient.
    """
    if block.kind is BlockKind.LARGE:
        # It holds one segment of one object, so it is either all live or all dead, as its rows show.
        placed = metadata.placed_in(block.block_id)
        return BlockDecision(block, len(placed), 0, 0), placed
    scan = _scan(metadata, blocks, block)
    placed = metadata.placed_in(block.block_id)
    account = account_block(
        blocks.geometry, block.stripes, scan.headers, scan.stripes_outside_groups, live_entries(placed)
    )
    if account.unconfirmed:
        _log.error(
            "rows point to bytes that no readable header confirms",
            block=block.block_id.hex(),
            objects=len(account.unconfirmed),
        )
    return BlockDecision(block, len(placed), len(account.unconfirmed), scan.bytes_read), placed


def _scan(metadata: Blocks, blocks: BlockStore, block: BlockRow) -> HeaderScan:
    """Read the headers of a block. A block that is missing from the store has none; reading its live objects fails
    later."""
    try:
        return scan_headers(blocks, block.block_id, block.stripes)
    except NotFound:
        if is_sealed(metadata, block.block_id):
            _log.error("block is not in the block store", block=block.block_id.hex())
        else:
            _log.info("block was collected by another process meanwhile", block=block.block_id.hex())
        return HeaderScan((), tuple(range(block.stripes)), 0)


def is_sealed(metadata: Blocks, block_id: BlockId) -> bool:
    """Return whether a block is sealed, so that GC may collect it. Raises Transient."""
    try:
        return metadata.block(block_id).state is BlockState.SEALED
    except NotFound:
        return False

"""Which blocks GC collects, decided from their rows, the rows of their objects, and their headers. Changes nothing.

10  an entry that cannot be read is never treated as dead
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from nos_ec.core.errors import NotFound
from nos_ec.core.gc_policy import Behind, SealedBlock
from nos_ec.core.header import name_record_size
from nos_ec.core.ids import BlockId
from nos_ec.core.lifecycle import BlockKind, BlockState
from nos_ec.core.reclaim import Victim, account_block, pays, stripes_needed
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.gc.space import Outlook, PolicyChoice, is_above, is_any_price_right
from nos_ec.engine.header_scan import HeaderScan, scan_headers
from nos_ec.engine.recovery import live_entries
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, Blocks, Placed, WaitingBlocks

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """What GC found in one block, and how much it read for that.

    The `live_objects` must be rewritten before the block can be deleted; `unconfirmed` of them are known from rows
    alone. price_days: the break-even price; None for a block without live bytes, and where it was not asked for.
    """

    block: BlockRow
    live_objects: int
    unconfirmed: int
    header_bytes_read: int
    price_days: float | None = None

    @property
    def size_bytes(self) -> int:
        """Data-space bytes of the block, as its row counts them."""
        return self.block.size_bytes


@dataclass(frozen=True, slots=True)
class ChosenBlock:
    """A block to rewrite, and how many stripes its live objects will need; not rounded up."""

    block: BlockRow
    needs: float


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The blocks that GC examined, and the victims among them, which a run would collect, with the stripes that their
    live objects will need. waiting: blocks with dead bytes that it did not examine, by the reason.

    Only empty blocks are collected when rewriting the others gives nothing back.
    """

    decisions: Sequence[BlockDecision]
    victims: Sequence[ChosenBlock]
    waiting: Sequence[WaitingBlocks]
    outlook: Outlook


@dataclass(frozen=True, slots=True)
class Choice:
    """How a run divides the blocks with live objects, best victims first.

    candidates: blocks that the policy takes, or that waste enough to be collected. victims: the candidates to rewrite.
    dense: candidates whose live objects are already packed as densely as possible, so that their waste is headers and
    unavoidable padding.
    """

    candidates: Sequence[BlockRow]
    victims: Sequence[ChosenBlock]
    dense: Sequence[BlockRow]
    outlook: Outlook


def choose(metadata: Blocks, blocks: BlockStore, options: CollectorOptions, now_ms: int) -> Choice:
    """Choose the blocks to rewrite. Holds the rows of one block in memory at a time. Raises Transient."""
    use = metadata.space_use()
    taken, behind = _Taken(metadata, blocks, options, now_ms), None
    if options.policy is None:
        taken.add_wasteful(overhead_ratio_min=0.0)
        target = None
    else:
        policy = options.policy.at_any_price() if is_any_price_right(blocks, options) else options.policy
        by_policy = PolicyChoice(metadata, options, policy, now_ms)
        plan = by_policy.plan(use.without_empty)
        taken.add_planned(plan.victims)
        target, behind = policy.target, by_policy.reason(plan.behind, use.without_empty.less(plan.freed_bytes))
        taken.add_wasteful(overhead_ratio_min=options.waste_ratio_min)
    victims = taken.victims
    if victims and not pays([Victim(victim.block.stripes, victim.needs) for victim in victims]):
        victims = []
    after = use.without_empty.less(sum(victim.block.dead_bytes for victim in victims))
    if taken.victims and not victims and is_above(after, target):
        behind = Behind.GAIN
    return Choice(
        taken.candidates, victims, taken.dense, Outlook(use.with_empty, after, target, behind or taken.behind)
    )


class _Taken:
    """The blocks of one choice: at most `blocks_max`, and victims of at most `copy_bytes_max`."""

    def __init__(self, metadata: Blocks, blocks: BlockStore, options: CollectorOptions, now_ms: int) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._options = options
        self._now_ms = now_ms
        self._copied_bytes = 0
        self.candidates: list[BlockRow] = []
        self.victims: list[ChosenBlock] = []
        self.dense: list[BlockRow] = []
        self.behind: Behind | None = None

    def add_planned(self, planned: Iterable[SealedBlock]) -> None:
        """Add the victims of a policy, which keeps to the limits. Those that were collected meanwhile are left out."""
        for one in planned:
            try:
                block = self._metadata.block(one.block_id)
            except NotFound:
                continue
            if block.state is BlockState.SEALED:
                self.candidates.append(block)
                self._add(_rewritten_by_row(self._options, block))

    def add_wasteful(self, *, overhead_ratio_min: float) -> None:
        """Add blocks by their waste, most wasteful first."""
        options, found = self._options, {block.block_id for block in self.candidates}
        wasteful = self._metadata.gc_candidates(
            options.waste_ratio_min,
            self._now_ms,
            options.cool_down_ms_max,
            options.blocks_max,
            overhead_ratio_min=overhead_ratio_min,
        )
        for block in wasteful:
            if block.block_id in found:
                continue
            if len(self.candidates) >= options.blocks_max:
                break
            self.candidates.append(block)
            victim = judge(self._metadata, self._blocks, options, block)
            if victim is None:
                self.dense.append(block)
            elif self._copied_bytes + block.live_bytes > options.copy_bytes_max:
                self.behind = Behind.BUDGET
                break
            else:
                self._add(victim)

    def _add(self, victim: ChosenBlock) -> None:
        self.victims.append(victim)
        self._copied_bytes += victim.block.live_bytes


def judge(metadata: Blocks, blocks: BlockStore, options: CollectorOptions, candidate: BlockRow) -> ChosenBlock | None:
    """A candidate as a victim; None when it is packed as densely as possible. Raises Transient."""
    victim = judge_by_row(options, candidate)
    if victim is not None:
        return victim
    needs = _needs(blocks, metadata.placed_in(candidate.block_id), options.split_bytes) / options.density
    return ChosenBlock(candidate, needs) if needs <= candidate.stripes * (1 - options.waste_ratio_min) else None


def judge_by_row(options: CollectorOptions, candidate: BlockRow) -> ChosenBlock | None:
    """A candidate as a victim, if its dead bytes alone make it one: the same packer packed its survivors, so they will
    be packed about as densely as before. None when the rows of its objects decide."""
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
    """Find the live objects of a block. It must not be a block of a large object that still lives.

    Headers name the objects that were written, and rows say which of them live: an entry lives only when a row has its
    key, version and extent. A row that no header confirms is logged as an error and still counts as live. Raises
    Transient.
    """
    if block.kind is BlockKind.LARGE:
        # It holds one segment of one object, so it is either all live or all dead. Its row says which.
        placed = metadata.placed_in(block.block_id)
        return BlockDecision(block, len(placed), 0, 0), placed
    scan = _scan(metadata, blocks, block)
    placed = metadata.placed_in(block.block_id)
    account = account_block(blocks.geometry, block.stripes, scan.headers, scan.dead_stripes, live_entries(placed))
    if account.unconfirmed:
        _log.error(
            "rows point to bytes that no readable header confirms",
            block=block.block_id.hex(),
            objects=len(account.unconfirmed),
        )
    return BlockDecision(block, len(placed), len(account.unconfirmed), scan.bytes_read), placed


def _scan(metadata: Blocks, blocks: BlockStore, block: BlockRow) -> HeaderScan:
    """Read the headers of a block. A block that the store has lost has none; reading its live objects fails later."""
    try:
        return scan_headers(blocks, block.block_id, block.stripes)
    except NotFound:
        if is_sealed(metadata, block.block_id):
            _log.error("block is not in the block store", block=block.block_id.hex())
        else:
            _log.info("block was collected by another process meanwhile", block=block.block_id.hex())
        return HeaderScan((), tuple(range(block.stripes)), 0)


def is_sealed(metadata: Blocks, block_id: BlockId) -> bool:
    """Whether a block is sealed, so that GC may collect it. Raises Transient."""
    try:
        return metadata.block(block_id).state is BlockState.SEALED
    except NotFound:
        return False

"""Explains why a block is not collected, from its row, its headers, leases and the rules of GC. Makes only reads, and a
limited number of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf

from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.gc.gc_policy import GcPolicy
from nos_ec.core.gc.reclaim import Victim, frees_stripes
from nos_ec.core.ids import BlockId
from nos_ec.core.packing.empty_bytes import EmptyBytes, empty_in
from nos_ec.core.ratios import DIGITS
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.explain.block_reasons import BlockEvidence, BlockReason, cools_down, judge_block
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.gc.space import ANY_WASTE, is_any_price_right, price_days
from nos_ec.engine.gc.victims import (
    ChosenBlock,
    judge,
    judge_by_row,
    may_be_repacked,
    merging_pays,
    padded_blocks,
    repack,
)
from nos_ec.engine.gc.workers import running_workers
from nos_ec.engine.header_scan import scan_headers
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import BlockFacts, BlockRow, Metadata

EXAMINED_MAX = 20
"""The objects of at most this many other blocks are examined."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The contents of the stripes of a block, from its headers. objects: written objects, including dead ones.
    split_objects: objects that take one chunk more than necessary. front_bytes, gap_bytes and end_bytes: the bytes of
    its groups that hold no object: before the first one (header and names), between objects, and in the chunks after
    the last one (core/packing/empty_bytes.py). unread_stripes: stripes without a readable header or
    of an unfinished group; the other fields do not count them."""

    groups: int
    objects: int
    split_objects: int
    front_bytes: int
    gap_bytes: int
    end_bytes: int
    unread_stripes: int


@dataclass(frozen=True, slots=True)
class BlockExplanation:
    """All facts about a block, and the verdict. Sizes in bytes, times in Unix milliseconds, ids in hex.

    why, next, advice: sentences for people; advice is None when there is nothing to do. next_ms: when the next step
    happens, if a time decides that. gc_not_before_ms: GC does not collect it before this time. writer_until_ms: the end
    of its writer's lease; None if the lease is over. gc_runs: whether a GC run is active. waste_ratio_min:
    gc.hole_ratio_min. stripes_needed: the least number of stripes that the objects of a candidate need. would_collect:
    whether a run now would collect it; None if that is not known. grace_ms: the rest of its grace period; None unless
    it is condemned. layout: None for a block of a large object, and if its headers cannot be read. unknown: questions
    without an answer, each with the cause.
    """

    block: str
    kind: BlockKind
    state: BlockState
    writer: str
    epoch: int
    writer_until_ms: int | None
    stripes: int
    size_bytes: int
    live_bytes: int
    dead_bytes: int
    overhead_bytes: int
    live_objects: int
    hole_ratio: float
    waste_ratio: float
    waste_ratio_min: float
    created_ms: int
    sealed_ms: int | None
    delete_after_ms: int | None
    grace_ms: int | None
    gc_not_before_ms: int | None
    gc_failures: int
    gc_runs: bool
    layout: BlockLayout | None
    stripes_needed: float | None
    would_collect: bool | None
    reason: BlockReason
    why: str
    next: str
    advice: str | None
    next_ms: int | None
    unknown: list[str]
    explained_ms: int


_COLLECTED = (BlockReason.VICTIM, BlockReason.REPACK, BlockReason.EMPTY, BlockReason.GRACE_OVER)


class BlockExplainer:
    """Explains blocks. Safe to call from several threads. wait_ms: milliseconds between the runs of a GC daemon."""

    def __init__(
        self, metadata: Metadata, blocks: BlockStore, clock: Clock, options: CollectorOptions, wait_ms: int
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._options = options
        self._wait_ms = wait_ms

    def explain(self, block_id: BlockId) -> BlockExplanation:
        """Explain a block. Raises NotFound when it has no row, Transient when the metadata is unavailable."""
        options, now_ms = self._options, self._clock.now_ms()
        facts = self._look(block_id, now_ms)
        row = facts.row
        candidate, needs = self._judged(facts, now_ms)
        evidence = BlockEvidence(
            facts=facts,
            now_ms=now_ms,
            options=options,
            wait_ms=self._wait_ms,
            writer_until_ms=self._lease_until_ms(row.writer, now_ms, row.epoch),
            gc_runs=bool(running_workers(self._metadata, now_ms)),
            candidate=candidate,
            needs=needs,
        )
        verdict = judge_block(evidence)
        unknown: list[str] = []
        layout = self._layout(row, unknown)
        grace_ms = None if row.delete_after_ms is None else max(0, row.delete_after_ms - now_ms)
        of_row = asdict(row)
        del of_row["block_id"]
        return BlockExplanation(
            block=block_id.hex(),
            **of_row,
            size_bytes=row.size_bytes,
            writer_until_ms=evidence.writer_until_ms,
            hole_ratio=round(row.hole_ratio, DIGITS),
            waste_ratio=round(row.waste_ratio, DIGITS),
            waste_ratio_min=options.waste_ratio_min,
            sealed_ms=facts.sealed_ms,
            grace_ms=grace_ms,
            gc_not_before_ms=facts.gc_not_before_ms,
            gc_runs=evidence.gc_runs,
            layout=layout,
            stripes_needed=None if needs is None else round(needs, DIGITS),
            would_collect=None if verdict.reason is BlockReason.UNDECIDED else verdict.reason in _COLLECTED,
            **asdict(verdict),
            unknown=unknown,
            explained_ms=now_ms,
        )

    def _look(self, block_id: BlockId, now_ms: int) -> BlockFacts:
        options = self._options
        waste_ratio_min = options.waste_ratio_min if options.policy is None else ANY_WASTE
        try:
            return self._metadata.block_facts(block_id, waste_ratio_min, now_ms, options.cool_down_ms_max)
        except NotFound as error:
            raise NotFound(
                f"block {block_id.hex()} has no row: GC deleted it, or it never belonged to this store. Its objects"
                " have been moved or deleted; `nos-ec audit --block` may show when and why it was deleted",
                block_id=block_id,
            ) from error

    def _layout(self, row: BlockRow, unknown: list[str]) -> BlockLayout | None:
        if row.kind is BlockKind.LARGE:
            return None
        geometry = self._blocks.geometry
        try:
            scan = scan_headers(self._blocks, row.block_id, row.stripes)
        except NosError as error:
            unknown.append(f"how much of its stripes is empty: {error}")
            return None
        entries = [entry for header in scan.headers for entry in header.entries]
        empty = sum((empty_in(geometry, header) for header in scan.headers), EmptyBytes())
        return BlockLayout(
            groups=len(scan.headers),
            objects=len(entries),
            split_objects=sum(geometry.is_split(entry.offset, entry.length) for entry in entries),
            front_bytes=empty.front,
            gap_bytes=empty.gap,
            end_bytes=empty.end,
            unread_stripes=len(scan.stripes_outside_groups),
        )

    def _lease_until_ms(self, name: str, now_ms: int, epoch: int | None = None) -> int | None:
        """Return the end of a lease, of this epoch if one is given; None if the lease is over or gone."""
        for lease in self._metadata.list_leases(name):
            if lease.name == name and epoch in (None, lease.epoch) and waits(lease.expires_ms, now_ms, LEASE_MS_MAX):
                return lease.expires_ms
        return None

    # --- what a run would do with a candidate -----------------------------------------------------
    def _judged(self, facts: BlockFacts, now_ms: int) -> tuple[BlockReason | None, float | None]:
        """Return what a run would do with a candidate, as `choose` decides, and the stripes that its objects need;
        (None, None) for a block that is not a candidate.

        If rewriting some victims frees stripes, so does rewriting more of them, because each needs fewer stripes than
        it has. So usually no other block needs to be examined.
        """
        options, row = self._options, facts.row
        if facts.waits is not None or not row.live_objects or row.kind is BlockKind.LARGE:
            return None, None
        if options.policy is not None:
            return self._judged_by_policy(options.policy, facts, now_ms)
        chosen = judge(self._metadata, self._blocks, options, row)
        if chosen is None:
            return BlockReason.DENSE, None
        found = self._metadata.gc_candidates(
            options.waste_ratio_min, now_ms, options.cool_down_ms_max, options.blocks_max
        )
        if row.block_id not in {one.block_id for one in found}:
            return BlockReason.LATER_RUN, chosen.needs
        return self._pays(chosen, found), chosen.needs

    def _judged_by_policy(
        self, policy: GcPolicy, facts: BlockFacts, now_ms: int
    ) -> tuple[BlockReason | None, float | None]:
        """Do the same as `_judged` for a policy. The order in which a policy takes the blocks that are worth it depends
        on all of them."""
        options, row = self._options, facts.row
        may_be_merged = row.overhead_bytes >= options.waste_ratio_min * row.size_bytes
        is_cooling = cools_down(facts, options, now_ms)
        price_days_min = 0.0 if is_any_price_right(self._blocks, options) else options.price_days_min
        by_holes = self._judged_by_holes(policy, facts, now_ms, price_days_min)
        if by_holes is BlockReason.UNDECIDED:
            return by_holes, None
        if may_be_merged and not is_cooling:
            merged = judge(self._metadata, self._blocks, options, row)
            if merged is not None:
                return BlockReason.UNDECIDED, merged.needs
        padded = may_be_repacked(self._blocks.geometry, row)
        chosen = repack(self._metadata, self._blocks, options, row) if padded else None
        if chosen is None:
            is_dense = (may_be_merged or is_cooling) and by_holes is BlockReason.TOO_FULL
            return (BlockReason.DENSE if is_dense else by_holes), None
        if chosen.padding_days(now_ms) < price_days_min:
            return BlockReason.TOO_DEAR, chosen.needs
        if is_cooling:
            return BlockReason.DENSE, None
        return self._is_repacked_next(row, price_days_min, now_ms), chosen.needs

    def _is_repacked_next(self, row: BlockRow, price_days: float, now_ms: int) -> BlockReason:
        if self._options.copy_bytes_max < inf:
            return BlockReason.UNDECIDED
        padded = padded_blocks(self._metadata, self._blocks, self._options, price_days, now_ms)
        is_next = row.block_id in {one.block_id for one in padded}
        return BlockReason.REPACK if is_next else BlockReason.LATER_RUN

    def _judged_by_holes(self, policy: GcPolicy, facts: BlockFacts, now_ms: int, price_days_min: float) -> BlockReason:
        """Return what the policy would do with a block because of its dead bytes alone."""
        if 1 - facts.row.hole_ratio >= self._options.density:
            return BlockReason.TOO_FULL
        if not policy.is_due(self._metadata.space_use().without_empty):
            return BlockReason.WITHIN_TARGET
        price = price_days(facts, now_ms)
        return BlockReason.UNDECIDED if price is None or price >= price_days_min else BlockReason.TOO_DEAR

    def _pays(self, chosen: ChosenBlock, candidates: list[BlockRow]) -> BlockReason:
        """Return whether a run that has these candidates rewrites `chosen`, which is one of them."""
        options = self._options
        victims = [by_row for one in candidates if (by_row := judge_by_row(options, one)) is not None]
        by_dead_bytes = {one.block.block_id for one in victims}
        if chosen.block.block_id in by_dead_bytes and _frees(victims):
            return BlockReason.VICTIM
        rest = [one for one in candidates if one.block_id not in by_dead_bytes]
        others = [one for one in rest if one.block_id != chosen.block.block_id]
        examined = {one.block_id for one in others[:EXAMINED_MAX]} | {chosen.block.block_id}
        judged = (judge(self._metadata, self._blocks, options, one) for one in rest if one.block_id in examined)
        merged = [victim for victim in judged if victim is not None]
        pays = merging_pays(self._metadata, self._blocks, options, [one.block for one in merged])
        if pays and _frees([*victims, *merged]):
            return BlockReason.VICTIM
        return BlockReason.UNDECIDED if len(others) > EXAMINED_MAX else BlockReason.PAYS_NOT


def _frees(victims: list[ChosenBlock]) -> bool:
    return frees_stripes([Victim(one.block.stripes, one.needs) for one in victims])

"""GC: decide from headers, rewrite what lives, delete what does not.

 4  a block goes only when no row points into it, and not before its grace is over
10  it resumes where it was stopped: every step leaves the store in a state the next run starts from;
    an entry that cannot be read keeps its block
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.core.lifecycle import BlockKind
from nos_ec.core.plan import MergeList
from nos_ec.core.reclaim import Victim, account_block, pays
from nos_ec.engine.header_scan import HeaderScan, scan_headers
from nos_ec.engine.packable import Packable
from nos_ec.engine.recovery import live_entries
from nos_ec.engine.stripe_writer import StripeWriter, WriteResult
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import BlockRow, Metadata, Placed

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """What GC found in one block, and what finding it cost.

    live_objects have to be rewritten before the block can go; `unconfirmed` of them are known from rows only.
    """

    block: BlockRow
    live_objects: int
    unconfirmed: int
    header_bytes_read: int

    @property
    def size_bytes(self) -> int:
        """Data-space bytes of the block as far as its row's books go."""
        return self.block.live_bytes + self.block.dead_bytes + self.block.overhead_bytes


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The candidates, and those of them a run would collect. When rewriting gives nothing back, only empty ones go."""

    decisions: Sequence[BlockDecision]
    victims: Sequence[BlockRow]


@dataclass(slots=True)
class CollectionResult:
    """Totals of one run; bytes in data space."""

    blocks_examined: int = 0
    block_bytes_examined: int = 0
    header_bytes_read: int = 0
    blocks_condemned: int = 0
    blocks_deleted: int = 0
    bytes_reclaimed: int = 0
    objects_moved: int = 0
    bytes_moved: int = 0
    stripes_written: int = 0
    unreadable: list[str] = field(default_factory=list)


Watch = Callable[[CollectionResult], object]
"""Sees the result of a run while it grows."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """hole_ratio_min: trigger. block_grace_ms: between condemning and deleting, longer than the longest read.
    blocks_max: at most so many blocks a run."""

    hole_ratio_min: float
    block_grace_ms: int
    blocks_max: int


class Collector:
    """Plans and runs collections. One at a time: the GC service holds a lease for it."""

    def __init__(
        self,
        metadata: Metadata,
        blocks: BlockStore,
        clock: Clock,
        new_merge_list: Callable[[], MergeList],
        options: CollectorOptions,
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._new_merge_list = new_merge_list
        self._options = options

    def plan(self) -> CollectionPlan:
        """Choose blocks by hole ratio and read their headers. Changes nothing."""
        candidates = self._candidates()
        return CollectionPlan([self._decide(block)[0] for block in candidates], _worth_collecting(candidates))

    def run(self, writer: StripeWriter, watch: Watch = lambda _: None) -> CollectionResult:
        """Delete what earlier runs condemned, then collect once. The writer must be a SURVIVOR one, open until here.

        `watch` sees the result so far after every step. Raises LeaseLost, Transient; whatever had been done is kept.
        """
        result = CollectionResult()
        self.delete_condemned(result, watch)
        victims = _worth_collecting(self._candidates())
        self._rewrite(victims, writer, result, watch)
        writer.close()
        for block in victims:
            self._condemn(block, result)
            watch(result)
        failure = self.delete_condemned(result, watch)
        if failure is not None:
            raise failure
        return result

    def delete_condemned(self, result: CollectionResult, watch: Watch = lambda _: None) -> Transient | None:
        """Delete condemned blocks whose grace is over: the data first, then the row, so that nothing is orphaned.

        One that the store does not delete now keeps no other: the last such failure is returned.
        """
        failure: Transient | None = None
        while failure is None and (
            blocks := self._metadata.condemned_blocks(self._clock.now_ms(), self._options.blocks_max)
        ):
            for block in blocks:
                try:
                    self._blocks.delete(block.block_id)
                except Transient as error:
                    _log.warning("condemned block not deleted", block=block.block_id.hex(), error=str(error))
                    failure = error
                    watch(result)
                    continue
                kill_point("gc.block_deleted")
                self._metadata.forget_block(block.block_id)
                kill_point("gc.block_forgotten")
                result.blocks_deleted += 1
                result.bytes_reclaimed += block.stripes * self._blocks.geometry.stripe_size
                watch(result)
        return failure

    # --- deciding ---------------------------------------------------------------------------------
    def _candidates(self) -> list[BlockRow]:
        return self._metadata.gc_candidates(self._options.hole_ratio_min, self._options.blocks_max)

    def _decide(self, block: BlockRow) -> tuple[BlockDecision, list[Placed]]:
        """Headers name what was written, rows say what of it lives: an entry lives only when a row has its key,
        version and extent. A row that no header confirms is moved all the same, and said aloud."""
        if block.kind is BlockKind.LARGE:
            # It holds one part of one object and is all live or all dead: its row says which.
            placed = self._metadata.placed_in(block.block_id)
            return BlockDecision(block, len(placed), 0, 0), placed
        scan = self._scan(block)
        placed = self._metadata.placed_in(block.block_id)
        account = account_block(
            self._blocks.geometry, block.stripes, scan.headers, scan.damaged_stripes, live_entries(placed)
        )
        if account.unconfirmed:
            _log.error(
                "rows point to bytes that no readable header confirms",
                block=block.block_id.hex(),
                objects=len(account.unconfirmed),
            )
        return BlockDecision(block, len(placed), len(account.unconfirmed), scan.bytes_read), placed

    def _scan(self, block: BlockRow) -> HeaderScan:
        """The headers; none at all for a block that the store lost, which the reads of its live objects then tell."""
        try:
            return scan_headers(self._blocks, block.block_id, block.stripes)
        except NotFound:
            _log.error("block is not in the block store", block=block.block_id.hex())
            return HeaderScan((), tuple(range(block.stripes)), 0)

    # --- doing ------------------------------------------------------------------------------------
    def _rewrite(
        self, victims: Sequence[BlockRow], writer: StripeWriter, result: CollectionResult, watch: Watch
    ) -> None:
        """Move what lives out of the victims. In memory: what the merge list holds and one block's rows."""
        merge_list = self._new_merge_list()
        for block in victims:
            decision, live = self._decide(block)
            result.blocks_examined += 1
            result.block_bytes_examined += decision.size_bytes
            result.header_bytes_read += decision.header_bytes_read
            watch(result)
            now_ms = self._clock.now_ms()
            for placed in live:
                merge_list.add(_survivor(placed).candidate(now_ms))
            self._write_ready(merge_list, writer, result, watch, flush=False)
        self._write_ready(merge_list, writer, result, watch, flush=True)

    def _write_ready(
        self, merge_list: MergeList, writer: StripeWriter, result: CollectionResult, watch: Watch, *, flush: bool
    ) -> None:
        while (plan := merge_list.plan(self._clock.now_ms(), flush=flush)) is not None:
            written = writer.write(plan)
            self._count(written, result)
            watch(result)
            if written.cause is not None:
                raise written.cause
            for failure in written.unread:
                raise failure.error
            for packable in written.retry:
                merge_list.add(packable.candidate(self._clock.now_ms()))
            kill_point("gc.rewritten")

    def _count(self, written: WriteResult, result: CollectionResult) -> None:
        result.objects_moved += len(written.packed)
        result.bytes_moved += sum(packable.size for packable in written.packed)
        result.stripes_written += written.stripe_count
        for failure in written.failed:
            _log.error("live object cannot be read; its block stays", error=str(failure.error))
            result.unreadable.append(f"{failure.packable.key}: {failure.error}")

    def _condemn(self, block: BlockRow, result: CollectionResult) -> None:
        delete_after_ms = self._clock.now_ms() + self._options.block_grace_ms
        if self._metadata.condemn_block(block.block_id, delete_after_ms):
            result.blocks_condemned += 1
            kill_point("gc.condemned")


def _worth_collecting(candidates: Sequence[BlockRow]) -> list[BlockRow]:
    with_live = [block for block in candidates if block.live_objects]
    if pays([Victim(block.stripes, block.live_bytes, block.dead_bytes) for block in with_live]):
        return list(candidates)
    return [block for block in candidates if not block.live_objects]


def _survivor(placed: Placed) -> Packable:
    return Packable(
        object_id=placed.object_id,
        key=placed.key,
        version=placed.version,
        size=placed.extent.length,
        crc32c=placed.crc32c,
        source=placed.extent,
    )

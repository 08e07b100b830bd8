"""Writing planned groups into blocks: the commit protocol of one writer (docs/ARCHITECTURE.md).

plan -> read sources -> append to the block's known end -> one metadata transaction

When the place of a block becomes worse, the next group is written to a new block. When an append fails or is not
answered in time, the group is written to a new block at once, a few times at most, and only if blocks lie in different
places. The block whose append failed is fenced, and no row ever refers to the bytes of that append. So however many of
the appends take effect in the end, each group is committed once.

3  an extent is committed only after the store acknowledged the bytes, whose CRC was checked on reading
5  a row that changed in the meantime leaves a hole, not an error
8  only this writer appends to its block, and never again once it cannot be sure where the block ends
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

import structlog

from nos_ec.core.empty_bytes import EmptyBytes, empty_bytes
from nos_ec.core.errors import Blocklisted, Conflict, Corrupt, LeaseLost, NosError, NoSpace, NotFound, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.lifecycle import BlockKind
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.group_bytes import GroupItem, GroupPlace, assemble
from nos_ec.engine.late_blocks import remove_late_block
from nos_ec.engine.packable import Packable
from nos_ec.engine.refused_blocks import forget_refused_block
from nos_ec.engine.room import require_room
from nos_ec.engine.source_reader import SourceReader
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import Blocks, GroupCommit, Lease, Move
from nos_ec.ports.placement import Placement

_log = structlog.get_logger(__name__)

PAYS_RATIO_MIN = 0.8
"""A plan that lost sources is still written if this share of its bytes is left: the threshold of the published
policy (80 % of a stripe), applied here as well. Below it, the remaining objects are planned again."""

APPEND_TRIES = 3
"""Blocks that a group is tried on before it is returned, if blocks lie in different places. The time limits of this
many appends together should be longer than the store takes to notice that a part of it hangs; then the last append
succeeds (docs/CEPH.md)."""

COMMIT_TRIES = 5
COMMIT_RETRY_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """A packable that was not packed, and why."""

    packable: Packable
    error: NosError


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of a plan. Every packable of the plan is in exactly one of the five lists.

    packed: their rows now point into the stripe. superseded: deleted, overwritten or moved in the meantime; nothing to
    do. failed: their sources are missing or damaged; packing them again will not help. unread: their sources cannot be
    read now, which says nothing about other objects. retry: nothing is wrong with them; they are to be planned again.
    `cause`: why the group was not written; None if so many sources were lost that writing did not pay. A new plan can
    then be made at once. empty: where the stripes written hold no object. split_objects: of the plan.
    """

    packed: Sequence[Packable] = ()
    superseded: Sequence[Packable] = ()
    failed: Sequence[Failure] = ()
    unread: Sequence[Failure] = ()
    retry: Sequence[Packable] = ()
    cause: NosError | None = None
    stripe_count: int = 0
    empty: EmptyBytes = field(default_factory=EmptyBytes)
    split_objects: int = 0


STREAM_IDLE_MS = 3_600_000
"""An open block of a stream is sealed when nothing was written to it for so long and another stream is written to, so
that GC may collect it."""


@dataclass(slots=True)
class _OpenBlock:
    block_id: BlockId
    stripes: int
    stream: int
    written_ms: int


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """kind: what the blocks are for. reserve_bytes: free space that this writer must not use (GC's reserve).
    landing_grace_ms: how long landing copies are kept after packing. read_back: read each group back and compare it
    before committing; for writers that move the last copy."""

    kind: BlockKind
    reserve_bytes: int
    landing_grace_ms: int
    read_back: bool


class StripeWriter:
    """One lane of writing: at most one open block per stream, and one group at a time. Not thread-safe; use one per
    thread."""

    def __init__(
        self,
        metadata: Blocks,
        blocks: BlockStore,
        sources: SourceReader,
        clock: Clock,
        lease: Lease,
        placement: Placement,
        options: WriterOptions,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._sources = sources
        self._clock = clock
        self._lease = lease
        self._placement = placement
        self._options = options
        self._trail = trail
        self._open: dict[int, _OpenBlock] = {}
        """By stream."""
        self._never = Event()

    def write(self, plan: GroupPlan[Packable]) -> WriteResult:
        """Carry out a plan. On return, the objects in `packed` are durable and committed.

        Raises LeaseLost when this writer was fenced and can no longer commit. The result reports every other failure.
        """
        packables = [placed.candidate.payload for placed in plan.placed]
        items, failed, unread = self._read_sources(plan, packables)
        bytes_left = sum(len(item.data) for _, item in items)
        if not items or bytes_left < PAYS_RATIO_MIN * plan.data_length:
            return WriteResult(failed=failed, unread=unread, retry=[packable for packable, _ in items])
        try:
            winners = self._append_and_commit(plan.stream, plan.stripe_count, items)
            self._seal_idle(plan.stream)
        except LeaseLost:
            raise
        except (Transient, Conflict, Corrupt, NotFound) as error:
            if not isinstance(error, NoSpace):  # the caller reports it once for all waiting groups
                _log.warning("group not written", error=str(error), objects=len(items))
            retry = [packable for packable, _ in items]
            return WriteResult(failed=failed, unread=unread, retry=retry, cause=error)
        return WriteResult(
            packed=[packable for packable, _ in items if packable.object_id in winners],
            superseded=[packable for packable, _ in items if packable.object_id not in winners],
            failed=failed,
            unread=unread,
            retry=[],
            stripe_count=plan.stripe_count,
            empty=empty_bytes(
                self._blocks.geometry,
                plan.stripe_count,
                items[0][1].offset,
                items[-1][1].offset + len(items[-1][1].data),
                bytes_left,
            ),
            split_objects=plan.split_objects,
        )

    def close(self) -> None:
        """Seal the open blocks, if any. A block that cannot be sealed now is left to recovery."""
        for block in list(self._open.values()):
            try:
                self._seal(block)
            except NosError as error:
                _log.warning("block left to recovery", error=str(error))
        self._open.clear()

    # --- sources ----------------------------------------------------------------------------------
    def _read_sources(
        self, plan: GroupPlan[Packable], packables: Sequence[Packable]
    ) -> tuple[list[tuple[Packable, GroupItem]], list[Failure], list[Failure]]:
        """Returns the items that were read, the permanent failures, and the failures that may pass."""
        items: list[tuple[Packable, GroupItem]] = []
        failed: list[Failure] = []
        unread: list[Failure] = []
        outcomes = self._sources.read(packables)
        for placed, packable, outcome in zip(plan.placed, packables, outcomes, strict=True):
            if isinstance(outcome, bytes):
                item = GroupItem(
                    packable.key,
                    packable.version,
                    placed.offset,
                    outcome,
                    packable.crc32c,
                    attributes=packable.attributes,
                )
                items.append((packable, item))
            elif isinstance(outcome, Transient):
                unread.append(Failure(packable, outcome))
            else:
                failed.append(Failure(packable, outcome))
        return items, failed, unread

    # --- blocks -----------------------------------------------------------------------------------
    def _block_with_room(self, stream: int, stripe_count: int) -> _OpenBlock:
        """The open block of the stream, or a new one if it is full or its place became worse. A new block is only a row
        so far."""
        block = self._open.get(stream)
        if block is not None and not self._placement.healthy(block.block_id):
            _log.info("sealing a block whose place became worse", block=block.block_id.hex(), stripes=block.stripes)
            self._leave(block)
        elif block is not None and block.stripes + stripe_count > self._blocks.geometry.stripes_per_block:
            self._leave(block)
        if stream not in self._open:
            self._open[stream] = self._allocate(stream)
        return self._open[stream]

    def _allocate(self, stream: int) -> _OpenBlock:
        require_room(self._blocks, self._blocks.geometry.group_size_max, self._options.reserve_bytes)
        block_id, now_ms = self._placement.new_block_id(), self._clock.now_ms()
        self._metadata.allocate_block(self._lease, block_id, self._options.kind, now_ms)
        kill_point("writer.allocated")
        return _OpenBlock(block_id, 0, stream, now_ms)

    def _seal_idle(self, stream: int) -> None:
        """Seal the blocks of other streams that are written to no more. Raises LeaseLost."""
        now_ms = self._clock.now_ms()
        for block in [one for one in self._open.values() if one.stream != stream]:
            if not waits(block.written_ms + STREAM_IDLE_MS, now_ms, STREAM_IDLE_MS):
                self._leave(block)

    def _leave(self, block: _OpenBlock) -> None:
        """Seal an open block. If that fails, the block is left to recovery, and the next group is still written."""
        try:
            self._seal(block)
        except LeaseLost:
            raise
        except NosError as error:
            _log.warning("block left to recovery", block=block.block_id.hex(), error=str(error))
            self._abandon(block)

    def _seal(self, block: _OpenBlock) -> None:
        self._open.pop(block.stream, None)
        self._blocks.seal(block.block_id)
        kill_point("writer.store_sealed")
        self._metadata.seal_block(self._lease, block.block_id, self._clock.now_ms())
        kill_point("writer.sealed")

    def _abandon(self, block: _OpenBlock) -> None:
        """Fence this block, so that it is never appended to again. Recovery determines what it holds.

        A block that this writer has committed to was not created late, and an append does not create one again. If its
        row is gone, the metadata is not what it was, and the block may be all that objects have.
        """
        block_id = block.block_id
        self._open.pop(block.stream, None)
        try:
            self._metadata.fence_block(self._lease, block_id)
        except Transient as error:
            # The block stays OPEN under our lease. When the lease is released or lost, the block is fenced.
            _log.warning("block not fenced yet", block=block_id.hex(), error=str(error))
            return
        kill_point("writer.abandoned")
        if not block.stripes:
            remove_late_block(self._metadata, self._blocks, block_id, self._clock.now_ms(), self._trail)

    def _give_up(self, block: _OpenBlock, error: NosError) -> None:
        """Stop using a block after a failed append."""
        if isinstance(error, NoSpace) and not block.stripes:
            self._open.pop(block.stream, None)
            forget_refused_block(self._metadata, self._lease, block.block_id)
        else:
            self._abandon(block)

    # --- the protocol -----------------------------------------------------------------------------
    def _append_and_commit(
        self, stream: int, stripe_count: int, items: Sequence[tuple[Packable, GroupItem]]
    ) -> frozenset[int]:
        block, data = self._append(stream, stripe_count, [item for _, item in items])
        geometry, now_ms = self._blocks.geometry, self._clock.now_ms()
        start = block.stripes * geometry.stripe_size
        commit = GroupCommit(
            lease=self._lease,
            block_id=block.block_id,
            at_stripe=block.stripes,
            stripe_count=stripe_count,
            moves=[
                Move(packable.object_id, packable.version, packable.from_block, start + item.offset, packable.size)
                for packable, item in items
            ],
            landing_not_before_ms=now_ms + self._options.landing_grace_ms,
            written_ms=now_ms,
        )
        try:
            if self._options.read_back and self._blocks.read(block.block_id, start, len(data)) != data:
                raise Corrupt(
                    f"block {block.block_id.hex()}: the group at stripe {block.stripes} reads back differently",
                    block_id=block.block_id,
                )
            winners = self._commit(commit)
        except NosError:
            self._abandon(block)
            raise
        block.stripes += stripe_count
        block.written_ms = now_ms
        if block.stripes == geometry.stripes_per_block:
            self._open.pop(block.stream, None)  # sealed by this group, in the store and in its row
        kill_point("writer.committed")
        return winners

    def _append(self, stream: int, stripe_count: int, items: Sequence[GroupItem]) -> tuple[_OpenBlock, bytes]:
        """Write a group to the open block of its stream or, if that fails, to new ones. Returns the block that has it,
        and its bytes."""
        for tries_left in reversed(range(APPEND_TRIES)):
            block = self._block_with_room(stream, stripe_count)
            try:
                return block, self._append_to(block, stripe_count, items)
            except NosError as error:
                self._give_up(block, error)
                if not tries_left or not another_place_may_do(self._placement, error):
                    raise
                _log.warning("group not appended; trying another block", error=str(error), tries_left=tries_left)
        raise AssertionError("unreachable")

    def _append_to(self, block: _OpenBlock, stripe_count: int, items: Sequence[GroupItem]) -> bytes:
        # The header names block and stripe, so the bytes differ from block to block.
        place = GroupPlace(block.block_id, block.stripes, stripe_count, self._lease.epoch, self._clock.now_ms())
        data = assemble(self._blocks.geometry, place, items)
        kill_point("writer.before_append")
        if block.stripes:
            self._blocks.append(block.block_id, block.stripes, data)
        else:
            self._blocks.create(block.block_id, data)
        kill_point("writer.appended")
        return data

    def _commit(self, commit: GroupCommit) -> frozenset[int]:
        """Commit, and try again after Transient. If the outcome of a try is unknown, the rows show it."""
        for attempt in range(1, COMMIT_TRIES + 1):
            try:
                return self._metadata.commit_group(commit)
            except LeaseLost:
                raise
            except Conflict:
                if attempt > 1 and self._committed(commit):
                    return self._winners(commit)
                raise
            except Transient as error:
                if isinstance(error, NoSpace) or attempt == COMMIT_TRIES:
                    raise
                _log.warning("commit failed; trying again", attempt=attempt, error=str(error))
                self._clock.wait(self._never, COMMIT_RETRY_WAIT_MS * attempt)
        raise AssertionError("unreachable")

    def _committed(self, commit: GroupCommit) -> bool:
        return self._metadata.block(commit.block_id).stripes == commit.at_stripe + commit.stripe_count

    def _winners(self, commit: GroupCommit) -> frozenset[int]:
        here = {(placed.object_id, placed.extent.offset) for placed in self._metadata.placed_in(commit.block_id)}
        return frozenset(move.object_id for move in commit.moves if (move.object_id, move.offset) in here)


def another_place_may_do(placement: Placement, error: NosError) -> bool:
    """Whether another block may accept bytes that this one did not. False when there is no space or no other place, or
    when Ceph has blocklisted this process."""
    return placement.alternatives and isinstance(error, Transient) and not isinstance(error, NoSpace | Blocklisted)

"""Writes planned groups into blocks: the commit protocol of one writer (docs/ARCHITECTURE.md).

plan -> read sources -> append to the block's known end -> one metadata transaction

A group of more than `stripes_per_group_max` stripes is written in windows of that size. Each window is read and
appended separately, and the group is committed once at its end. Its header is written first. Everything that a header
names must follow it in the block, unless the block ends there: so after a failure nothing more is appended to the
block, and the group stays unfinished.

When the place of a block becomes worse, the next group is written to a new block. When an append fails or times out,
the group is written to a new block at once, a few times at most, and only if blocks are in different places. The block
whose append failed is fenced, and no row ever refers to the bytes of that append. So however many of the appends take
effect in the end, each group is committed once.

3  an extent is committed only after the store acknowledged the bytes, whose CRC was checked on reading
5  a row that changed in the meantime leaves a hole, not an error
8  only this writer appends to its block, and never again once it cannot be sure where the block ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Event

import structlog

from nos_ec.core.errors import Blocklisted, Conflict, Corrupt, LeaseLost, NosError, NoSpace, NotFound, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.packing.empty_bytes import EmptyBytes, empty_bytes
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.group_bytes import GroupItem, GroupPlace, assemble
from nos_ec.engine.packing.late_blocks import remove_late_block
from nos_ec.engine.packing.long_group import LongGroup, item_at
from nos_ec.engine.packing.refused_blocks import forget_refused_block
from nos_ec.engine.packing.source_reader import SourceReader
from nos_ec.engine.space_reserve import require_space
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
"""The most blocks that a group is tried on before it is returned, if blocks are in different places. The time limits of
this many appends together should be longer than the store takes to notice that a part of it hangs; then the last append
succeeds (docs/CEPH.md)."""

COMMIT_TRIES = 5
COMMIT_RETRY_WAIT_MS = 500

LONG_GROUP_MS_MAX = 60_000
"""How long the writer of a group that was begun waits for its sources and appends windows to it. This is far less than
the time between two polls after which a message log considers a consumer dead, because a consumer that loses
partitions finishes its groups first."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A packable that was not packed, and the reason."""

    packable: Packable
    error: NosError


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of a plan. Every packable of the plan is in exactly one of the first five lists.

    Rows of `packed` objects now point into the stripe. `superseded` objects were deleted, overwritten or moved in the
    meantime. Sources of `failed` objects are missing or damaged; packing them again will not help. Sources of `unread`
    objects cannot be read now; other objects may not be affected. Objects in `retry` are fine and must be planned
    again.

    `cause` is the reason why the group was not written. It is None if too many sources were lost for writing to pay, or
    any source of a group that is written in windows; a new plan can then be made at once. `retry_short` is true if such
    a group failed after it was begun, which costs a block. Plan `retry` in groups of at most `stripes_per_group_max`
    stripes then, because all their sources are read before anything is written. `empty` counts the bytes without
    objects in the stripes written; `split_objects` is the number of the plan.
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
    retry_short: bool = False


STREAM_IDLE_MS = 3_600_000
"""An open block of a stream is sealed if nothing was written to it for this long and another stream is written to, so
that GC may collect it."""


@dataclass(slots=True)
class _OpenBlock:
    """An open block of a stream. `stripes` are committed; the block store has acknowledged `end` stripes, which are
    more while a group is written."""

    block_id: BlockId
    stream: int
    written_ms: int
    stripes: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How a writer works. `kind` is what the blocks are for. `reserve_bytes` is free space that this writer must not
    use (GC's reserve). Landing copies are kept `landing_grace_ms` after packing. `read_back`: read each group back and
    compare it before committing; for writers that move the last copy."""

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
        """The open blocks by stream."""
        self._never = Event()

    def write(self, plan: GroupPlan[Packable]) -> WriteResult:
        """Carry out a plan. On return, the objects in `packed` are durable and committed.

        Raise LeaseLost if this writer was fenced and can no longer commit. The result reports every other failure.
        """
        if plan.stripe_count > self._blocks.geometry.stripes_per_group_max:
            return self._write_long(plan)
        # 1. Read the sources. Objects that could not be read leave gaps in the group, which keeps its offsets.
        planned = [placed.candidate.payload for placed in plan.placed]
        outcomes = self._sources.read(planned)
        failed, unread = _failures(planned, outcomes)
        packables: list[Packable] = []
        items: list[GroupItem] = []
        data: list[bytes] = []
        for placed, packable, outcome in zip(plan.placed, planned, outcomes, strict=True):
            if isinstance(outcome, bytes):
                packables.append(packable)
                items.append(item_at(placed.offset, packable))
                data.append(outcome)
        if not items or sum(item.length for item in items) < PAYS_RATIO_MIN * plan.data_length:
            return WriteResult(failed=failed, unread=unread, retry=packables)
        geometry = self._blocks.geometry
        # 2. Append the group to a block, then commit it. After any failure all its objects are planned again.
        try:
            block = self._append(plan.stream, plan.stripe_count, lambda place: assemble(geometry, place, items, data))
            winners = self._commit_moves(block, plan.stripe_count, packables, items)
            self._seal_idle(plan.stream)
        except LeaseLost:
            raise
        except (Transient, Conflict, Corrupt, NotFound) as error:
            _log_failure(error, len(items))
            return WriteResult(failed=failed, unread=unread, retry=packables, cause=error)
        return _written(geometry, plan, packables, items, winners, failed, unread)

    def _write_long(self, plan: GroupPlan[Packable]) -> WriteResult:
        """Write a group in windows. Only the first window may be tried on several blocks."""
        group = LongGroup(self._blocks.geometry, plan)
        block: _OpenBlock | None = None
        until_ms = self._clock.now_ms() + LONG_GROUP_MS_MAX
        try:
            for number in group.windows:
                lost = self._read_window(group, number, 0 if block is None else until_ms - self._clock.now_ms())
                if lost is not None:
                    if block is not None:
                        self._abandon(block)
                    return replace(lost, retry_short=block is not None)
                if block is None:
                    block = self._append(group.stream, group.stripe_count, group.first_window)
                else:
                    kill_point("writer.window_appended")
                    self._append_more(block, group.next_window(), until_ms)
            assert block is not None
            winners = self._commit_moves(block, group.stripe_count, group.packables, group.items)
            self._seal_idle(group.stream)
        except LeaseLost:
            raise
        except (Transient, Conflict, Corrupt, NotFound) as error:
            _log_failure(error, len(group.items))
            return WriteResult(retry=group.packables, cause=error, retry_short=True)
        return _written(self._blocks.geometry, plan, group.packables, group.items, winners)

    def _read_window(self, group: LongGroup, number: int, patient_ms: int) -> WriteResult | None:
        """Read the sources of the next window of a group. Slow sources are waited for, because giving up costs the
        block; except for the first window, before which nothing was written. If a source cannot be read, return the
        result of the group."""
        packables = group.begin(number)
        outcomes = self._sources.read(packables, max(0, min(patient_ms, LONG_GROUP_MS_MAX)) / 1000)
        failed, unread = _failures(packables, outcomes)
        if not failed and not unread:
            group.take([outcome for outcome in outcomes if isinstance(outcome, bytes)])
            return None
        lost = {id(failure.packable) for failure in (*failed, *unread)}
        retry = [packable for packable in group.packables if id(packable) not in lost]
        # After the first window, the store answered before; if it no longer does, the next plan finds out.
        cause = unread[0].error if number == 0 and len(unread) == len(packables) else None
        return WriteResult(failed=failed, unread=unread, retry=retry, cause=cause)

    def close(self) -> None:
        """Seal the open blocks, if any. A block that cannot be sealed now is left to recovery."""
        for block in list(self._open.values()):
            try:
                self._seal(block)
            except NosError as error:
                _log.warning("block left to recovery", error=str(error))
        self._open.clear()

    # --- blocks -----------------------------------------------------------------------------------
    def _block_with_room(self, stream: int, stripe_count: int) -> _OpenBlock:
        """Return the open block of the stream, or a new one if that one is full or its place became worse. A new block
        is only a row so far."""
        block = self._open.get(stream)
        if block is not None and not self._placement.healthy(block.block_id):
            _log.info("sealing a block in a worse place", block=block.block_id.hex(), stripes=block.stripes)
            self._leave(block)
        elif block is not None and block.stripes + stripe_count > self._blocks.geometry.stripes_per_block:
            self._leave(block)
        if stream not in self._open:
            self._open[stream] = self._allocate(stream, stripe_count)
        return self._open[stream]

    def _allocate(self, stream: int, stripe_count: int) -> _OpenBlock:
        size = stripe_count * self._blocks.geometry.stripe_size
        require_space(self._blocks, size, self._options.reserve_bytes)
        block_id, now_ms = self._placement.new_block_id(), self._clock.now_ms()
        self._metadata.allocate_block(self._lease, block_id, self._options.kind, now_ms)
        kill_point("writer.allocated")
        return _OpenBlock(block_id, stream, now_ms)

    def _seal_idle(self, stream: int) -> None:
        """Seal idle blocks of other streams. Raise LeaseLost."""
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
        row is gone, the metadata was replaced, and the block may hold the only copy of its objects.
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
        """Stop using a block after a failure. It does not exist if the store had no space to create it."""
        if isinstance(error, NoSpace) and not block.end:
            self._open.pop(block.stream, None)
            forget_refused_block(self._metadata, self._lease, block.block_id)
        else:
            self._abandon(block)

    @contextmanager
    def _given_up_after_failure(self, block: _OpenBlock) -> Iterator[None]:
        try:
            yield
        except NosError as error:
            self._give_up(block, error)
            raise

    # --- the protocol -----------------------------------------------------------------------------
    def _append(self, stream: int, stripe_count: int, bytes_at: Callable[[GroupPlace], bytes]) -> _OpenBlock:
        """Write a group, or its first window, to the open block of its stream or, if that fails, to new ones.
        `bytes_at` returns the bytes for a place, which the header contains. Return the block that has the group."""
        for tries_left in reversed(range(APPEND_TRIES)):
            block = self._block_with_room(stream, stripe_count)
            place = GroupPlace(block.block_id, block.stripes, stripe_count, self._lease.epoch, self._clock.now_ms())
            data = bytes_at(place)
            try:
                self._append_bytes(block, data)
            except NosError as error:
                self._give_up(block, error)
                if not tries_left or not another_place_may_do(self._placement, error):
                    raise
                _log.warning("group not appended; trying another block", error=str(error), tries_left=tries_left)
                continue
            with self._given_up_after_failure(block):
                self._compare(block, data)
            return block
        raise AssertionError("unreachable")

    def _append_more(self, block: _OpenBlock, data: bytes, until_ms: int) -> None:
        """Write a later window of a group. Raise Transient if the group takes too long, LeaseLost if the block was
        taken."""
        with self._given_up_after_failure(block):
            if not waits(until_ms, self._clock.now_ms(), LONG_GROUP_MS_MAX):
                raise Transient(f"writing the group takes longer than {LONG_GROUP_MS_MAX} ms; it is planned again")
            with suppress(Transient):  # the commit decides
                if self._metadata.block(block.block_id).state is not BlockState.OPEN:
                    raise LeaseLost(f"block {block.block_id.hex()} was taken from this writer")
            self._append_bytes(block, data)
            self._compare(block, data)

    def _append_bytes(self, block: _OpenBlock, data: bytes) -> None:
        kill_point("writer.before_append")
        if block.end:
            self._blocks.append(block.block_id, block.end, data)
        else:
            self._blocks.create(block.block_id, data)
        block.end += len(data) // self._blocks.geometry.stripe_size
        kill_point("writer.appended")

    def _compare(self, block: _OpenBlock, data: bytes) -> None:
        """Read back the last append, if this writer does so. Raise Corrupt if it is not `data`, Transient."""
        start = block.end * self._blocks.geometry.stripe_size - len(data)
        if self._options.read_back and self._blocks.read(block.block_id, start, len(data)) != data:
            raise Corrupt(
                f"block {block.block_id.hex()}: the group at stripe {block.stripes} reads back differently",
                block_id=block.block_id,
            )

    def _commit_moves(
        self, block: _OpenBlock, stripe_count: int, packables: Sequence[Packable], items: Sequence[GroupItem]
    ) -> frozenset[int]:
        """Commit a group that was appended. Return the ids of the objects that have moved."""
        geometry, now_ms = self._blocks.geometry, self._clock.now_ms()
        start = block.stripes * geometry.stripe_size
        commit = GroupCommit(
            lease=self._lease,
            block_id=block.block_id,
            at_stripe=block.stripes,
            stripe_count=stripe_count,
            moves=[
                Move(packable.object_id, packable.version, packable.from_block, start + item.offset, packable.size)
                for packable, item in zip(packables, items, strict=True)
            ],
            landing_not_before_ms=now_ms + self._options.landing_grace_ms,
            written_ms=now_ms,
        )
        with self._given_up_after_failure(block):
            winners = self._commit(commit)
        block.stripes += stripe_count
        block.written_ms = now_ms
        if block.stripes == geometry.stripes_per_block:
            self._open.pop(block.stream, None)  # sealed by this group, in the store and in its row
        kill_point("writer.committed")
        return winners

    def _commit(self, commit: GroupCommit) -> frozenset[int]:
        """Commit, and retry after Transient. If the outcome of a try is unknown, the rows show it."""
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


def _failures(
    packables: Sequence[Packable], outcomes: Sequence[bytes | NosError]
) -> tuple[list[Failure], list[Failure]]:
    """Return the permanent failures of reading sources, and those that may pass."""
    failed: list[Failure] = []
    unread: list[Failure] = []
    for packable, outcome in zip(packables, outcomes, strict=True):
        if not isinstance(outcome, bytes):
            (unread if isinstance(outcome, Transient) else failed).append(Failure(packable, outcome))
    return failed, unread


def _log_failure(error: NosError, objects: int) -> None:
    if not isinstance(error, NoSpace):  # the caller reports it once for all waiting groups
        _log.warning("group not written", error=str(error), objects=objects)


def _written(
    geometry: Geometry,
    plan: GroupPlan[Packable],
    packables: Sequence[Packable],
    items: Sequence[GroupItem],
    winners: frozenset[int],
    failed: Sequence[Failure] = (),
    unread: Sequence[Failure] = (),
) -> WriteResult:
    return WriteResult(
        packed=[packable for packable in packables if packable.object_id in winners],
        superseded=[packable for packable in packables if packable.object_id not in winners],
        failed=failed,
        unread=unread,
        retry=[],
        stripe_count=plan.stripe_count,
        empty=empty_bytes(
            geometry,
            plan.stripe_count,
            items[0].offset,
            items[-1].offset + items[-1].length,
            sum(item.length for item in items),
        ),
        split_objects=plan.split_objects,
    )


def another_place_may_do(placement: Placement, error: NosError) -> bool:
    """Return whether another block may accept bytes that this one did not: not if there is no space or no other place,
    or if Ceph has blocklisted this process."""
    return placement.alternatives and isinstance(error, Transient) and not isinstance(error, NoSpace | Blocklisted)

"""Moves the live objects out of the blocks of one batch.

The survivors of all blocks of the batch share one merge list, and therefore stripes. Headers and rows of the next
blocks are read while several groups are written. One thread does everything else: it plans the groups and acts on their
outcomes. A block is condemned as soon as it is empty. A block that fails is set aside, and the batch continues with the
others.

 9  memory holds the merge list, the rows of the next few blocks, and for each lane the plans for one block and the
    bytes of one group
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.gc.condemned import CondemnedBlocks
from nos_ec.engine.gc.read_ahead import ReadAhead
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.gc.set_aside import SetAside
from nos_ec.engine.gc.survivor_writer import SurvivorWriter
from nos_ec.engine.gc.throttling import Throttle
from nos_ec.engine.packable import Packable, survivor
from nos_ec.engine.packing.stripe_writer import Failure, WriteResult
from nos_ec.ports.metadata import BlockRow

SETTLE_WAIT_MS = 50
"""How long to wait for the next written group before checking whether to stop, and whether to time a read."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The outcome of a batch."""

    finished: frozenset[BlockId]
    """Blocks that are collected or set aside. The run is done with them."""
    ended_by: NosError | None
    """The failure that ended the batch early, or None. After NoSpace another batch may follow; any other failure ends
    the run."""


@dataclass(frozen=True, slots=True)
class RunParts:
    """The context of a run and the parts that all its batches share."""

    context: RunContext
    throttle: Throttle
    writer: SurvivorWriter
    condemned: CondemnedBlocks
    set_aside: SetAside


@dataclass(slots=True)
class _Emptying:
    """A block that is being emptied."""

    block: BlockRow
    left: dict[tuple[int, int], Packable]
    """Its objects that have not been moved yet. All of them are in the merge list or in a planned group."""
    damaged: bool = False
    """Whether one of its live objects cannot be read."""


class Draining:
    """Drains one batch. Used once."""

    def __init__(self, parts: RunParts, lanes: int) -> None:
        """lanes: the most groups to write at a time."""
        self._run = parts.context
        self._throttle = parts.throttle
        self._writer = parts.writer
        self._condemned = parts.condemned
        self._set_aside = parts.set_aside
        self._lane_count = lanes
        self._progress = self._run.progress
        self._merge_list = self._run.new_merge_list()
        self._emptying: dict[BlockId, _Emptying] = {}
        self._finished: set[BlockId] = set()
        self._ended_by: NosError | None = None
        self._withdrawn: deque[GroupPlan[Packable]] = deque()
        """Groups that are planned and wait until the run has rested."""
        self._is_short = False
        """Whether to plan short groups, because a longer group failed."""
        self._is_stale = False
        """Whether the merge list holds objects of parked blocks. It is rebuilt once no group is pending."""

    def drain(self, blocks: Sequence[BlockRow]) -> Drained:
        """Move the live objects out of the blocks, and condemn each block as soon as it is empty. Raises LeaseLost and
        Transient."""
        self._throttle.begin(blocks)
        with ReadAhead(self._run, blocks) as ahead:
            for block in blocks:
                self._settle_some(wait_ms=0)  # after a failure, lanes rest until it is settled
                if not self._may_continue():
                    break
                self._begin(block, ahead)
                self._write_ready(flush=False)
        self._write_ready(flush=True)
        if not self._may_continue():
            self._writer.withdraw()
        while self._writer.pending:
            self._settle_some()
        return Drained(frozenset(self._finished), self._ended_by)

    def _may_continue(self) -> bool:
        return self._ended_by is None and not self._run.stop.is_set()

    def _begin(self, block: BlockRow, ahead: ReadAhead) -> None:
        """Add the live objects of a block to the merge list. A block without live objects is finished."""
        try:
            decision, live = ahead.next_block()
        except Transient as error:
            self._park(block, error)
            return
        self._progress.examined(decision)
        self._throttle.spend(decision.header_bytes_read, 1)
        self._progress.show()
        survivors = [survivor(one, self._merge_list.size_max) for one in live]
        emptying = _Emptying(block, {_identity(one): one for one in survivors})
        if live:
            self._emptying[block.block_id] = emptying
            self._add(emptying.left.values())
        else:
            self._finish(emptying)

    def _add(self, packables: Iterable[Packable]) -> None:
        now_ms = self._run.clock.now_ms()
        for packable in packables:
            self._merge_list.add(packable.candidate(now_ms))

    # --- writing ----------------------------------------------------------------------------------
    def _write_ready(self, *, flush: bool) -> None:
        """Hand the full groups to the lanes; with `flush`, all waiting objects."""
        while self._may_continue():
            # 1. Make room: wait for a pending group, or rest for the sake of users.
            self._writer.limit(self._throttle.groups(self._lane_count))
            if self._is_stale or self._writer.full:
                self._settle_some()
                continue
            if self._throttle.wants_rest(self._lane_count):
                self._rest()
                continue
            # 2. Submit the next group. When none is left, a pending one may fail, and its objects are planned again.
            plan = self._next_plan(flush=flush)
            if plan is not None:
                self._writer.submit(plan)
            elif flush and self._writer.pending:
                self._settle_some()
            else:
                break

    def _next_plan(self, *, flush: bool) -> GroupPlan[Packable] | None:
        """Return the next group to write, or None. Waits until the rate limits allow its reads and writes."""
        if self._withdrawn:
            return self._withdrawn.popleft()
        plan = self._merge_list.plan(self._run.clock.now_ms(), flush=flush)
        if plan is not None:
            moved_bytes = plan.data_length + plan.stripe_count * self._run.blocks.geometry.stripe_size
            self._throttle.spend(moved_bytes, len(plan.placed) + 1)
        return plan

    def _rest(self) -> None:
        """Let the groups that are being written finish, then rest. The groups that wait for a lane are written
        afterwards."""
        self._withdrawn.extendleft(reversed(self._writer.withdraw()))
        while self._writer.pending:
            self._settle_some()
        self._throttle.rest()

    def _settle_some(self, wait_ms: int = SETTLE_WAIT_MS) -> None:
        """Act on the outcomes of the groups that are finished. Waits at most `wait_ms` for the first one."""
        if self._writer.pending:
            self._throttle.watch()
        causes: list[NosError] = []
        for written in self._writer.collect(wait_ms):
            causes += self._settle(written)
            self._progress.show()
            kill_point("gc.rewritten")
        self._ended_by = self._ended_by or self._writer.wait_or_give_up(causes)
        self._throttle.after_step()
        if self._is_stale and not self._writer.pending:
            self._replan()

    def _settle(self, written: WriteResult) -> list[NosError]:
        """Act on the outcome of each object of a group. Returns the failure to write the group, if the same failure may
        meet other groups, too."""
        self._progress.written(written)
        for packable in (*written.packed, *written.superseded):
            self._done(packable)
        for failure in written.failed:
            self._fail(failure)
        stuck = {block_id: one.error for one in written.unread if (block_id := one.packable.from_block)}
        if stuck:
            self._park_stuck(stuck)
        elif not self._is_stale:
            self._add(packable for packable in written.retry if self._block_of(packable) is not None)
        if written.retry_short:
            self._is_short = True
            self._merge_list.shorten()
        return [] if stuck or written.cause is None else [written.cause]

    def _done(self, packable: Packable) -> None:
        """Drop an object that needs no more work. Dropping the last object of a block finishes the block."""
        emptying = self._block_of(packable)
        if emptying is not None:
            emptying.left.pop(_identity(packable), None)
            if not emptying.left:
                self._finish(emptying)

    def _fail(self, failure: Failure) -> None:
        """Drop an object that is permanently unreadable. While it is live, its block must stay."""
        emptying = self._block_of(failure.packable)
        if self._set_aside.note_unreadable(failure) and emptying is not None:
            emptying.damaged = True
        self._done(failure.packable)

    def _block_of(self, packable: Packable) -> _Emptying | None:
        """Return the block that an object is moved out of, or None when that block is finished."""
        block_id = packable.from_block
        return None if block_id is None else self._emptying.get(block_id)

    # --- blocks that are finished -----------------------------------------------------------------
    def _finish(self, emptying: _Emptying) -> None:
        """Condemn a block that is empty now, or keep it for its unreadable objects."""
        block = emptying.block
        self._emptying.pop(block.block_id, None)
        self._count_finished(block)
        if emptying.damaged:
            self._set_aside.keep_damaged(block)
        else:
            self._condemned.condemn(block)

    def _park_stuck(self, stuck: dict[BlockId, NosError]) -> None:
        """Park the blocks whose objects cannot be read now, and withdraw the groups that may contain them."""
        for block_id, error in stuck.items():
            emptying = self._emptying.pop(block_id, None)
            if emptying is not None:
                self._park(emptying.block, error)
        self._is_stale = True
        self._writer.withdraw()

    def _replan(self) -> None:
        """Rebuild the merge list from the remaining objects of the other blocks. No group is pending, so no object is
        planned twice."""
        self._is_stale = False
        self._withdrawn.clear()
        self._merge_list = self._run.new_merge_list()
        for emptying in self._emptying.values():
            self._add(emptying.left.values())
        if self._is_short:
            self._merge_list.shorten()

    def _park(self, block: BlockRow, error: NosError) -> None:
        self._count_finished(block)
        self._set_aside.park(block, error)

    def _count_finished(self, block: BlockRow) -> None:
        self._finished.add(block.block_id)
        self._progress.finished()


def _identity(packable: Packable) -> tuple[int, int]:
    return packable.object_id, packable.version

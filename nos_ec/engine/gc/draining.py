"""Moving the live objects out of the blocks of one batch.

The survivors of all blocks of the batch share one merge list, and so they share stripes. A block is condemned as soon
as it is empty. A block that fails is set aside, and the batch continues with the others.

 9  only the merge list and the rows of one block are in memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.packing.plan import MergeList
from nos_ec.engine.gc.condemned import CondemnedBlocks
from nos_ec.engine.gc.run_context import RunContext
from nos_ec.engine.gc.set_aside import SetAside
from nos_ec.engine.gc.survivor_writer import SurvivorWriter
from nos_ec.engine.gc.victims import decide
from nos_ec.engine.packable import Packable, as_told
from nos_ec.engine.stripe_writer import Failure, WriteResult
from nos_ec.ports.metadata import BlockRow, Placed


@dataclass(frozen=True, slots=True)
class Drained:
    """The outcome of a batch.

    finished: blocks that are collected or set aside; the run is done with them. ended_by: the failure that ended the
    batch early, if one did. After NoSpace another batch may follow; any other failure ends the run.
    """

    finished: frozenset[BlockId]
    ended_by: NosError | None


@dataclass(slots=True)
class _Emptying:
    """A block that is being emptied. left: its objects that are still to be moved, all of them in the merge list."""

    block: BlockRow
    left: dict[tuple[int, int], Packable]
    damaged: bool = False
    """Whether one of its live objects cannot be read."""


class Draining:
    """Drains one batch. Used once."""

    def __init__(
        self,
        run: RunContext,
        new_merge_list: Callable[[], MergeList[Packable]],
        writer: SurvivorWriter,
        condemned: CondemnedBlocks,
        set_aside: SetAside,
    ) -> None:
        self._metadata = run.metadata
        self._blocks = run.blocks
        self._clock = run.clock
        self._progress = run.progress
        self._stop = run.stop
        self._new_merge_list = new_merge_list
        self._writer = writer
        self._condemned = condemned
        self._set_aside = set_aside
        self._merge_list = new_merge_list()
        self._emptying: dict[BlockId, _Emptying] = {}
        self._finished: set[BlockId] = set()
        self._ended_by: NosError | None = None

    def drain(self, blocks: Iterable[BlockRow]) -> Drained:
        """Move the live objects out of the blocks, and condemn each block as soon as it is empty. Raises LeaseLost,
        Transient."""
        for block in blocks:
            if not self._may_go_on():
                break
            self._begin(block)
            self._write_ready(flush=False)
        self._write_ready(flush=True)
        return Drained(frozenset(self._finished), self._ended_by)

    def _may_go_on(self) -> bool:
        return self._ended_by is None and not self._stop.is_set()

    def _begin(self, block: BlockRow) -> None:
        """Add the live objects of a block to the merge list. A block without live objects is finished."""
        try:
            decision, live = decide(self._metadata, self._blocks, block)
        except Transient as error:
            self._park(block, error)
            return
        self._progress.examined(decision)
        self._progress.show()
        emptying = _Emptying(block, {_identity(one): one for one in map(self._survivor, live)})
        if live:
            self._emptying[block.block_id] = emptying
            self._add(emptying.left.values())
        else:
            self._finish(emptying)

    def _survivor(self, placed: Placed) -> Packable:
        packable = Packable(
            object_id=placed.object_id,
            key=placed.key,
            version=placed.version,
            size=placed.extent.length,
            crc32c=placed.crc32c,
            source=placed.extent,
            attributes=placed.attributes,
            expires_ms=placed.trash_until_ms,
        )
        return as_told(packable, self._merge_list.size_max)

    def _add(self, packables: Iterable[Packable]) -> None:
        now_ms = self._clock.now_ms()
        for packable in packables:
            self._merge_list.add(packable.candidate(now_ms))

    # --- writing ----------------------------------------------------------------------------------
    def _write_ready(self, *, flush: bool) -> None:
        """Write the groups that are ready; with `flush`, write all waiting objects."""
        while self._may_go_on() and (plan := self._merge_list.plan(self._clock.now_ms(), flush=flush)) is not None:
            self._settle(self._writer.write(plan))
            self._progress.show()
            kill_point("gc.rewritten")

    def _settle(self, written: WriteResult) -> None:
        """Act on the outcome of each object of a group."""
        self._progress.written(written)
        for packable in (*written.packed, *written.superseded):
            self._done(packable)
        for failure in written.failed:
            self._fail(failure)
        stuck = {block_id: one.error for one in written.unread if (block_id := one.packable.from_block)}
        if stuck:
            self._park_stuck(stuck)
        else:
            self._add(written.retry)
            self._ended_by = self._writer.wait_or_give_up(written)

    def _done(self, packable: Packable) -> None:
        """Remove an object that needs no more work. The last object of a block finishes the block."""
        emptying = self._block_of(packable)
        if emptying is not None:
            emptying.left.pop(_identity(packable), None)
            if not emptying.left:
                self._finish(emptying)

    def _fail(self, failure: Failure) -> None:
        """Remove an object that cannot be read, now or later. While it is live, its block must stay."""
        emptying = self._block_of(failure.packable)
        if self._set_aside.note_unreadable(failure) and emptying is not None:
            emptying.damaged = True
        self._done(failure.packable)

    def _block_of(self, packable: Packable) -> _Emptying | None:
        """The block that an object is moved out of; None when that block is finished."""
        block_id = packable.from_block
        return None if block_id is None else self._emptying.get(block_id)

    # --- blocks that are finished -----------------------------------------------------------------
    def _finish(self, emptying: _Emptying) -> None:
        """Condemn a block that is empty now, or keep it for its unreadable objects."""
        block = emptying.block
        self._emptying.pop(block.block_id, None)
        self._finished.add(block.block_id)
        if emptying.damaged:
            self._set_aside.keep_damaged(block)
        else:
            self._condemned.condemn(block)

    def _park_stuck(self, stuck: dict[BlockId, NosError]) -> None:
        """Park the blocks whose objects cannot be read now. A new merge list takes the remaining objects of the other
        blocks."""
        for block_id, error in stuck.items():
            emptying = self._emptying.pop(block_id, None)
            if emptying is not None:
                self._park(emptying.block, error)
        self._merge_list = self._new_merge_list()
        for emptying in self._emptying.values():
            self._add(emptying.left.values())

    def _park(self, block: BlockRow, error: NosError) -> None:
        self._finished.add(block.block_id)
        self._set_aside.park(block, error)


def _identity(packable: Packable) -> tuple[int, int]:
    return packable.object_id, packable.version

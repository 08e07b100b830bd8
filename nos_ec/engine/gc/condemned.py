"""Condemns empty blocks, and deletes condemned blocks after their grace period.

 4  a block is deleted only when no row points into it, and not before its grace period is over; the tail of a large
    object (core.tails) is deleted just before the block that it is named after
10  a run resumes where the last one was stopped: it deletes the blocks that the last one condemned
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.tails import tail_key
from nos_ec.engine.audit_entries import block_deleted
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.ports.metadata import QUARANTINE, BlockRow

_log = structlog.get_logger(__name__)

DELETE_FAILURES_MAX = 20
"""After failing to delete this many condemned blocks, a run leaves the rest to the next run."""
WAIT_SLICE_MS = 1000
"""How often a run reports its progress while it waits for a grace period."""


class CondemnedBlocks:
    """Condemns and deletes blocks for one run."""

    def __init__(self, run: RunContext, after_step: Callable[[], object]) -> None:
        """after_step: called after every step; it may end the run."""
        self._run = run
        self._metadata = run.metadata
        self._options = run.options
        self._after_step = after_step
        self._undeletable: set[BlockId] = set()
        self.delete_failure: NosError | None = None
        """The last failure to delete a block; None if all deletions succeeded."""

    # --- condemning -------------------------------------------------------------------------------
    def condemn_empty(self) -> None:
        """Condemn all blocks of the share without live objects, and delete condemned blocks whose grace period is
        over."""
        refused: set[BlockId] = set()
        while len(refused) <= self._options.blocks_max and not self._run.stop.is_set():
            found = self._metadata.empty_blocks(self._options.blocks_max + len(refused), self._run.share)
            found = [block for block in found if block.block_id not in refused]
            if not found:
                break
            for block in found:
                if self.condemn(block):
                    kill_point("gc.empty_condemned")
                else:
                    refused.add(block.block_id)
            self.delete_due()

    def condemn(self, block: BlockRow) -> bool:
        """Condemn an empty block. Returns False if a row still points into it, or if it is not sealed."""
        delete_after_ms = self._run.clock.now_ms() + self._options.block_grace_ms
        if not self._metadata.condemn_block(block.block_id, delete_after_ms):
            return False
        self._run.progress.condemned()
        self._run.retry_queue.release(block.block_id)
        kill_point("gc.condemned")
        self._after_step()
        return True

    # --- deleting ---------------------------------------------------------------------------------
    def delete_due(self) -> bool:
        """Delete the condemned blocks of the share whose grace period is over. Returns whether any was deleted."""
        deleted = 0
        while len(self._undeletable) < DELETE_FAILURES_MAX and not self._run.stop.is_set():
            now_ms = self._run.clock.now_ms()
            found = self._deletable(self._metadata.condemned_blocks(now_ms, self._limit(), self._run.share))
            if not found:
                break
            deleted += self._delete_all(found, "it holds no live objects, and its grace period is over")
        return deleted > 0

    def cut_grace_short(self) -> bool:
        """Delete at most `blocks_max` condemned blocks, none in quarantine, after the shortest grace period. Returns
        whether any was deleted. Only worker 0 does so, for the blocks of all workers.

        The run itself waits for that period, from the moment when it finds the blocks condemned. So neither the clock
        of another machine nor a changed setting shortens it. No row points into these blocks, so only reads that began
        earlier can still need them.
        """
        if self._run.share.worker:
            return False
        found = self._deletable(self._metadata.blocks_in_grace(self._limit()))
        if not found:
            return False
        _log.warning("space is short, so condemned blocks are deleted early", blocks=len(found))
        self._wait(min(self._options.block_grace_ms, self._options.block_grace_ms_min))
        if self._run.stop.is_set():
            return False
        kill_point("gc.grace_cut")
        return self._delete_all(found, "it holds no live objects; space is short, so its grace period was cut") > 0

    def _limit(self) -> int:
        """Return how many blocks to read, so that `_deletable` leaves `blocks_max` of them."""
        return self._options.blocks_max + len(self._undeletable)

    def _deletable(self, found: list[BlockRow]) -> list[BlockRow]:
        """Leave out the blocks that this run has already failed to delete."""
        return [block for block in found if block.block_id not in self._undeletable]

    def _delete_all(self, blocks: list[BlockRow], why: str) -> int:
        """Delete the blocks until the run is stopped. Returns how many were deleted."""
        deleted = 0
        for block in blocks:
            if self._run.stop.is_set():
                break
            deleted += self._delete(block, why)
        return deleted

    def _delete(self, block: BlockRow, why: str) -> bool:
        """Record the deletion, then delete the tail, the data and the row, in an order that leaves no orphans.

        Returns False if the block was not deleted. A failure does not stop the deletion of other blocks. A block that
        an operator released from quarantine meanwhile stays.
        """
        if block.writer == QUARANTINE:
            if not self._metadata.end_quarantine(block.block_id, block.delete_after_ms or 0):
                return False
            kill_point("gc.quarantine_ended")
        self._run.trail.record([block_deleted(block, why)])
        if self._metadata.delete_many([tail_key(block.block_id)], self._run.clock.now_ms()):
            kill_point("gc.tail_deleted")
        try:
            self._run.blocks.delete(block.block_id)
        except Transient as error:
            _log.warning("condemned block not deleted", block=block.block_id.hex(), error=str(error))
            self._undeletable.add(block.block_id)
            self.delete_failure = error
            return False
        kill_point("gc.block_deleted")
        self._metadata.forget_block(block.block_id)
        kill_point("gc.block_forgotten")
        self._run.progress.deleted(block.stripes * self._run.blocks.geometry.stripe_size)
        self._after_step()
        return True

    def _wait(self, wait_ms: int) -> None:
        while wait_ms > 0 and not self._run.clock.wait(self._run.stop, min(WAIT_SLICE_MS, wait_ms)):
            wait_ms -= WAIT_SLICE_MS
            self._after_step()

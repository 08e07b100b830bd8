"""Sets aside the blocks that a run leaves for later.

A block that cannot be read now is parked. A block that holds an unreadable live object stays, and so does a block that
is packed as densely as possible. All of them get a cool-down in their rows, so that later runs and other processes
choose other blocks.

10  an entry that cannot be read keeps its block
"""

from __future__ import annotations

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.stripe_writer import Failure
from nos_ec.ports.metadata import BlockRow

_log = structlog.get_logger(__name__)


class SetAside:
    """Sets blocks aside for one run, and counts the live objects that cannot be read."""

    def __init__(self, run: RunContext) -> None:
        self._run = run

    def park(self, block: BlockRow, error: NosError) -> None:
        """Set aside a block that cannot be read now."""
        self._run.retry_queue.park(block.block_id, error)
        self._run.progress.parked(block.block_id, error)
        self._cool_down_after_failure(block)
        self._run.progress.show()

    def keep_damaged(self, block: BlockRow) -> None:
        """Set aside a block that holds an unreadable live object."""
        self._cool_down_after_failure(block)

    def keep_dense(self, block: BlockRow) -> None:
        """Set aside a block that is packed as densely as possible, so that later runs do not read its rows in vain.
        Policies of space still count its dead bytes.

        All such blocks come back at the same times, because some are only worth merging with each other.
        """
        wait_ms = self._run.options.cool_down_ms_max
        if wait_ms:
            wait_ms -= self._run.clock.now_ms() % wait_ms
        self._cool_down(block, wait_ms, failed=False)

    def note_unreadable(self, failure: Failure) -> bool:
        """Count an object that cannot be read, unless its row no longer points there. Returns whether it was counted.

        The row may have changed because the object was deleted, or moved by another process.
        """
        if not self._is_in_place(failure.packable):
            return False
        if self._run.progress.unreadable(failure):
            key = str(failure.packable.key)
            _log.error("live object cannot be read; its block stays", object=key, error=str(failure.error))
        return True

    def _is_in_place(self, packable: Packable) -> bool:
        row = self._run.metadata.objects_with([packable.object_id]).get(packable.object_id)
        return row is not None and (row.version, row.extent) == (packable.version, packable.source)

    def _cool_down_after_failure(self, block: BlockRow) -> None:
        self._cool_down(block, self._run.options.cool_down.wait_ms(block.gc_failures + 1), failed=True)

    def _cool_down(self, block: BlockRow, wait_ms: int, *, failed: bool) -> None:
        try:
            self._run.metadata.cool_down_block(block.block_id, self._run.clock.now_ms() + wait_ms, failed=failed)
        except Transient as error:
            _log.warning(
                "cool-down not recorded, so the block will be tried again",
                block=block.block_id.hex(),
                error=str(error),
            )
            return
        kill_point("gc.cooled_down")

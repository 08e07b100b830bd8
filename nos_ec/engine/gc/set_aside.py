"""Setting aside the blocks that a run leaves for later.

A block that does not answer is parked. A block that holds an unreadable live object stays. A block that is packed as
densely as possible stays too. All of them get a cool-down in their rows, so that later runs and other processes get to
other blocks.

10  an entry that cannot be read keeps its block
"""

from __future__ import annotations

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.gc.run_context import RunContext
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.stripe_writer import Failure
from nos_ec.ports.metadata import BlockRow

_log = structlog.get_logger(__name__)


class SetAside:
    """Sets blocks aside for one run, and counts the live objects that cannot be read."""

    def __init__(self, run: RunContext) -> None:
        self._metadata = run.metadata
        self._clock = run.clock
        self._options = run.options
        self._retry_queue = run.retry_queue
        self._progress = run.progress

    def park(self, block: BlockRow, error: NosError) -> None:
        """Set aside a block that does not answer."""
        self._retry_queue.park(block.block_id, error)
        self._progress.parked(block.block_id, error)
        self._cool_down_after_failure(block)
        self._progress.show()

    def keep_damaged(self, block: BlockRow) -> None:
        """Set aside a block that holds an unreadable live object."""
        self._cool_down_after_failure(block)

    def keep_dense(self, block: BlockRow) -> None:
        """Set aside a block that is packed as densely as possible, so that not every run reads its rows for nothing.
        Policies of space still see its dead bytes."""
        self._cool_down(block, self._options.cool_down_ms_max, failed=False)

    def note_unreadable(self, failure: Failure) -> bool:
        """Count an object that cannot be read, unless its row no longer points there. Returns whether it was counted.

        The object may have been deleted meanwhile, or another process may have moved it.
        """
        if not self._is_where_it_was(failure.packable):
            return False
        if self._progress.unreadable(failure):
            key = str(failure.packable.key)
            _log.error("live object cannot be read; its block stays", object=key, error=str(failure.error))
        return True

    def _is_where_it_was(self, packable: Packable) -> bool:
        row = self._metadata.objects_with([packable.object_id]).get(packable.object_id)
        return row is not None and (row.version, row.extent) == (packable.version, packable.source)

    def _cool_down_after_failure(self, block: BlockRow) -> None:
        self._cool_down(block, self._options.cool_down.wait_ms(block.gc_failures + 1), failed=True)

    def _cool_down(self, block: BlockRow, wait_ms: int, *, failed: bool) -> None:
        try:
            self._metadata.cool_down_block(block.block_id, self._clock.now_ms() + wait_ms, failed=failed)
        except Transient as error:
            _log.warning(
                "cool-down not recorded, so the block will be tried again",
                block=block.block_id.hex(),
                error=str(error),
            )
            return
        kill_point("gc.cooled_down")

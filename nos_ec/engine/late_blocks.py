"""Blocks made too late: by a writer that slept while it was fenced, recovered and collected.

4  a block whose row is gone or condemned is referred to by nothing, and will not be again: block ids are never used
   twice
8  what the late writer wrote cannot be committed; here is why it does not stay behind either
"""

from __future__ import annotations

import structlog

from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.ids import BlockId
from nos_ec.core.lifecycle import BlockState
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import Blocks

_log = structlog.get_logger(__name__)


def remove_late_block(metadata: Blocks, blocks: BlockStore, block_id: BlockId, now_ms: int) -> None:
    """Delete a block of this writer if GC has deleted it before it was made, and will not again: its row is gone, or
    is about to go, being condemned with its grace over.

    To be called by the writer after any failure. Never raises: the failure that led here is the one to be told.
    """
    try:
        if not _is_collected(metadata, block_id, now_ms):
            return
    except NosError as error:
        _log.warning("block left to recovery", block=block_id.hex(), error=str(error))
        return
    try:
        blocks.delete(block_id)
    except NosError as error:
        _log.error("late block not deleted", block=block_id.hex(), error=str(error))


def _is_collected(metadata: Blocks, block_id: BlockId, now_ms: int) -> bool:
    try:
        row = metadata.block(block_id)
    except NotFound:
        return True
    return (
        row.state is BlockState.CONDEMNED
        and row.delete_after_ms is not None
        and not waits(row.delete_after_ms, now_ms, WAIT_MS_MAX)
    )

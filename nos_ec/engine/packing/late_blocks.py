"""Blocks created too late: their writer stalled until its lease was fenced and the block recovered and collected.

4  nothing refers to a block whose row is gone or condemned, and nothing ever will: block ids are never reused
8  the late writer cannot commit its bytes; this module makes sure that they do not remain in the store either
"""

from __future__ import annotations

import structlog

from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockState
from nos_ec.engine.audit_entries import late_block
from nos_ec.ports.audit_trail import AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import Blocks

_log = structlog.get_logger(__name__)


def remove_late_block(metadata: Blocks, blocks: BlockStore, block_id: BlockId, now_ms: int, trail: AuditTrail) -> None:
    """Delete a block of this writer if it was created after GC had deleted it, because GC will not delete it again. The
    row of such a block is gone, or about to be removed: the block is condemned and its grace period is over.

    The writer calls this after any failure. Never raises, so that the original failure is reported.
    """
    try:
        if not _is_collected(metadata, block_id, now_ms):
            return
    except NosError as error:
        _log.warning("block left to recovery", block=block_id.hex(), error=str(error))
        return
    trail.record([late_block(block_id, "its writer created it after it had been recovered and collected")])
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

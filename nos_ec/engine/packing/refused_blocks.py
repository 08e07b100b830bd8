"""Blocks that the store refused to create for lack of space.

When `create` raises NoSpace, nothing of the block exists, now or later. So its row is removed at once. Recovery would
have to create the block before it could seal it, in a store that has no space for it.
"""

from __future__ import annotations

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata import Blocks, Lease

_log = structlog.get_logger(__name__)


def forget_refused_block(metadata: Blocks, lease: Lease, block_id: BlockId) -> None:
    """Remove the row of a block whose `create` raised NoSpace. Never raises, so that the original failure is reported.
    A row that remains is OPEN under `lease`; when the lease is released or lost, recovery takes care of it."""
    try:
        metadata.forget_unwritten(lease, block_id)
    except Transient as error:
        _log.warning("row of a refused block left to recovery", block=block_id.hex(), error=str(error))
        return
    kill_point("block.forgotten")

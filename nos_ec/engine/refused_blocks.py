"""Blocks that the store refused to create for want of space.

NoSpace of `create` says that nothing of the block exists, now or later. So its row goes at once: left to recovery, it
would have to be created before it could be sealed, in a store that has no room for it.
"""

from __future__ import annotations

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata import Blocks, Lease

_log = structlog.get_logger(__name__)


def forget_refused_block(metadata: Blocks, lease: Lease, block_id: BlockId) -> None:
    """Remove the row of a block whose `create` raised NoSpace. Never raises: the failure that led here is the one to be
    told. A row that stays is OPEN under `lease`; giving the lease up, or losing it, leaves it to recovery."""
    try:
        metadata.forget_unwritten(lease, block_id)
    except Transient as error:
        _log.warning("row of a block that was refused is left to recovery", block=block_id.hex(), error=str(error))
        return
    kill_point("block.forgotten")

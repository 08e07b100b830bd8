"""Checks tails of large objects when they are recorded: the block of each must be OPEN. Only SEALED blocks are
condemned, so no tail appears when its block is, or may be, deleted.

All transactions lock rows of objects before rows of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from nos_ec.adapters.sql.blocks.block_rows import LOCK_IDS
from nos_ec.adapters.sql.tables.rows import block_row, id_rows
from nos_ec.core.errors import Conflict, NosError
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState
from nos_ec.ports.metadata.objects import TailOf


def refused(connection: Connection, tails: Sequence[tuple[ObjectKey, TailOf]]) -> dict[ObjectKey, NosError]:
    """Lock the blocks of these tails, and return Conflict for each tail whose block is not OPEN."""
    if not tails:
        return {}
    listed = id_rows(sorted({tail.block_id for _, tail in tails}))
    rows = [block_row(row) for row in connection.execute(LOCK_IDS, listed)]
    still = {row.block_id for row in rows if row.state is BlockState.OPEN}
    return {
        key: Conflict(
            f"block {tail.block_id.hex()} is no longer open: its writer stalled, and it was recovered",
            block_id=tail.block_id,
        )
        for key, tail in tails
        if tail.block_id not in still
    }

"""Tails of large objects, when they are recorded: each requires that its block is OPEN. A block is condemned only when
it is SEALED, so no tail appears when its block is, or may be, deleted.

Whoever locks rows of objects and of blocks locks those of objects first.
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
    """Those of these tails whose block is not OPEN, and Conflict for each. Locks the rows of the blocks."""
    if not tails:
        return {}
    listed = id_rows(sorted({tail.block_id for _, tail in tails}))
    rows = [block_row(row) for row in connection.execute(LOCK_IDS, listed)]
    still = {row.block_id for row in rows if row.state is BlockState.OPEN}
    return {
        key: Conflict(
            f"block {tail.block_id.hex()} is not open any more: its writer stalled, and it was recovered",
            block_id=tail.block_id,
        )
        for key, tail in tails
        if tail.block_id not in still
    }

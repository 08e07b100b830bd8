"""Changes to rows that were found to be wrong."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, and_, delete, select, update

from nos_ec.adapters.sql import blocks, waiting
from nos_ec.adapters.sql.rows import OBJECT_COLUMNS, by_primary, object_row
from nos_ec.adapters.sql.schema import BLOCKS, OBJECTS, WAITING
from nos_ec.core.ids import LandingId
from nos_ec.core.reclaim import BlockAccount
from nos_ec.ports.metadata import BlockRow, ObjectRow

_O, _W = OBJECTS.c, WAITING.c


def recount_block(connection: Connection, row: BlockRow, account: BlockAccount) -> bool:
    """See `Repairs.recount_block`."""
    if blocks.lock(connection, row.block_id) != row:
        return False
    counters = {
        "live_bytes": account.live_bytes,
        "dead_bytes": account.dead_bytes,
        "overhead_bytes": account.overhead_bytes,
        "live_objects": account.live_objects,
    }
    connection.execute(by_primary(update(BLOCKS)).where(BLOCKS.c.block_id == row.block_id).values(counters))
    return True


def wait_again(connection: Connection, row: ObjectRow, now_ms: int) -> bool:
    """See `Repairs.wait_again`."""
    if row.landing_id is None or _lock(connection, row.object_id) != row or _entry(connection, row.landing_id):
        return False
    waiting.enter(connection, [(row, now_ms)])
    return True


def stop_waiting(connection: Connection, landing_id: LandingId, now_ms: int) -> bool:
    """See `Repairs.stop_waiting`. The object's row is locked before that of what waits, as everywhere."""
    entry = _entry(connection, landing_id)
    if entry is None:
        return False
    row = _lock(connection, entry.object_id)
    landed = row is not None and row.landing_id == landing_id
    if row is not None and landed and (row.state, row.size) == (entry.state, entry.size):
        return False
    as_found = and_(
        _W.landing_id == landing_id,
        _W.object_id == entry.object_id,
        _W.state == entry.state,
        _W.size == entry.size,
    )
    if not connection.execute(delete(WAITING).where(as_found)).rowcount:
        return False
    if row is not None and landed:
        waiting.enter(connection, [(row, now_ms)])
    return True


def _lock(connection: Connection, object_id: int) -> ObjectRow | None:
    found = connection.execute(select(*OBJECT_COLUMNS).where(_O.object_id == object_id).with_for_update()).first()
    return None if found is None else object_row(found)


def _entry(connection: Connection, landing_id: LandingId) -> Any:
    return connection.execute(select(_W.object_id, _W.state, _W.size).where(_W.landing_id == landing_id)).first()

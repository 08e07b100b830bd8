"""Repairs of rows that a check has found to be wrong."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, and_, delete, exists, false, insert, select, update

from nos_ec.adapters.sql.blocks import block_rows
from nos_ec.adapters.sql.objects import landing, waiting
from nos_ec.adapters.sql.objects.puts import lock_entries
from nos_ec.adapters.sql.tables.base import SqlPart, writes
from nos_ec.adapters.sql.tables.rows import OBJECT_COLUMNS, by_primary, object_row
from nos_ec.adapters.sql.tables.schema import BLOCKS, LANDING_DELETIONS, OBJECTS, SEGMENTS, WAITING
from nos_ec.core.errors import Conflict
from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.core.states import BlockEvent, BlockKind, BlockState, advance_block
from nos_ec.ports.metadata import QUARANTINE, QUARANTINE_ENDED, BlockRow, ObjectRow

_B, _D, _O, _S, _W = BLOCKS.c, LANDING_DELETIONS.c, OBJECTS.c, SEGMENTS.c, WAITING.c


class SqlRepairs(SqlPart):
    """`Repairs` of the port."""

    @writes
    def recount_block(self, connection: Connection, row: BlockRow, account: BlockAccount) -> bool:
        if block_rows.lock(connection, row.block_id) != row:
            return False
        connection.execute(by_primary(update(BLOCKS)).where(_B.block_id == row.block_id).values(_counters(account)))
        return True

    @writes
    def wait_again(self, connection: Connection, row: ObjectRow, now_ms: int) -> bool:
        if row.landing_id is None or _lock(connection, row.object_id) != row or _entry(connection, row.landing_id):
            return False
        waiting.enter(connection, [(row, now_ms)])
        return True

    @writes
    def stop_waiting(self, connection: Connection, landing_id: LandingId, now_ms: int) -> bool:
        # The object's row is locked before its row of `waiting`, as everywhere.
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

    @writes
    def unqueue_copy(self, connection: Connection, landing_id: LandingId) -> bool:
        entry = _entry(connection, landing_id)
        row = None if entry is None else _lock(connection, entry.object_id)
        if row is None or row.landing_id != landing_id:
            return False
        queued = delete(LANDING_DELETIONS).where(_D.landing_id == landing_id, _D.doomed == false())
        return connection.execute(queued).rowcount == 1

    # --- quarantine -----------------------------------------------------------------------------------
    @writes
    def quarantine_block(
        self,
        connection: Connection,
        block_id: BlockId,
        stripes: int,
        account: BlockAccount,
        now_ms: int,
        delete_after_ms: int,
    ) -> bool:
        used = select(
            exists().where(_B.block_id == block_id),
            exists().where(_O.block_id == block_id),
            exists().where(_S.block_id == block_id),
        )
        if any(connection.execute(used).one()):
            return False
        made: dict[str, Any] = {
            "block_id": block_id,
            "kind": BlockKind.FRESH,
            "state": advance_block(None, BlockEvent.QUARANTINE),
            "writer": QUARANTINE,
            "epoch": 0,
            "stripes": stripes,
            "created_ms": now_ms,
            "sealed_ms": now_ms,
            "delete_after_ms": delete_after_ms,
        }
        connection.execute(insert(BLOCKS), made | _counters(account))
        return True

    @writes
    def quarantine_copy(self, connection: Connection, landing_id: LandingId, not_before_ms: int) -> bool:
        if landing.known(connection, [landing_id]):
            return False
        queued = {"landing_id": landing_id, "version": 0, "not_before_ms": not_before_ms, "doomed": False}
        connection.execute(insert(LANDING_DELETIONS), queued)
        return True

    @writes
    def end_quarantine(self, connection: Connection, block_id: BlockId, delete_after_ms: int) -> bool:
        held = and_(
            _B.block_id == block_id,
            _B.writer == QUARANTINE,
            _B.state == BlockState.CONDEMNED,
            _B.delete_after_ms == delete_after_ms,
        )
        ended = by_primary(update(BLOCKS)).where(held).values(writer=QUARANTINE_ENDED)
        return connection.execute(ended).rowcount == 1

    @writes
    def release_block(self, connection: Connection, block_id: BlockId) -> bool:
        row = block_rows.lock(connection, block_id)
        if row is None or row.state is not BlockState.CONDEMNED or row.writer not in (QUARANTINE, QUARANTINE_ENDED):
            return False
        if row.writer == QUARANTINE_ENDED:
            raise Conflict(f"too late: GC is deleting block {block_id.hex()}", block_id=block_id)
        connection.execute(delete(BLOCKS).where(_B.block_id == block_id))
        return True

    @writes
    def release_copy(self, connection: Connection, landing_id: LandingId) -> bool:
        entry = lock_entries(connection, [landing_id]).get(landing_id)
        if entry is None or entry.object_id is not None or entry.version != 0:
            return False
        if entry.doomed:
            raise Conflict(f"too late: landing copy {landing_id.hex()} is being deleted", landing_id=landing_id)
        connection.execute(delete(LANDING_DELETIONS).where(_D.landing_id == landing_id))
        return True


def _counters(account: BlockAccount) -> dict[str, int]:
    return {
        "live_bytes": account.live_bytes,
        "dead_bytes": account.dead_bytes,
        "overhead_bytes": account.overhead_bytes,
        "live_objects": account.live_objects,
    }


def _lock(connection: Connection, object_id: int) -> ObjectRow | None:
    found = connection.execute(select(*OBJECT_COLUMNS).where(_O.object_id == object_id).with_for_update()).first()
    return None if found is None else object_row(found)


def _entry(connection: Connection, landing_id: LandingId) -> Any:
    return connection.execute(select(_W.object_id, _W.state, _W.size).where(_W.landing_id == landing_id)).first()

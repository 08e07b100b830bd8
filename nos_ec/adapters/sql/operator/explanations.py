"""Reads the rows that explain the state of one object or block. Each statement finds them by keys."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from nos_ec.adapters.sql.blocks import block_rows
from nos_ec.adapters.sql.objects import landing
from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.rows import BLOCK_COLUMNS, LIVE, OBJECT_COLUMNS, block_row, object_row, publication_of
from nos_ec.adapters.sql.tables.schema import BLOCKS, OBJECTS, WAITING
from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.ports.metadata import BlockFacts, ObjectFacts, ObjectRow, QueueEntry, WaitReason

_O, _W, _B = OBJECTS.c, WAITING.c, BLOCKS.c

OBJECT = (
    select(*OBJECT_COLUMNS, _W.due_ms, _W.published_ms, _W.is_spread, *BLOCK_COLUMNS)
    .join_from(OBJECTS, WAITING, _W.landing_id == _O.landing_id, isouter=True)
    .join(BLOCKS, _B.block_id == _O.block_id, isouter=True)
    .where(
        _O.trashed == LIVE,
        _O.bucket == bindparam("of_bucket", type_=_O.bucket.type),
        _O.name == bindparam("of_name", type_=_O.name.type),
    )
)
BLOCK = select(
    *BLOCK_COLUMNS, _B.sealed_ms, _B.gc_not_before_ms, block_rows.wait_reason, block_rows.wait_until_ms
).where(_B.block_id == bindparam("of_block", type_=_B.block_id.type))


class SqlExplanations(SqlPart):
    """`Explanations` of the port."""

    @reads
    def object_facts(self, connection: Connection, key: ObjectKey) -> ObjectFacts:
        found = connection.execute(OBJECT, {"of_bucket": key.bucket, "of_name": key.name}).first()
        if found is None:
            raise NotFound(f"object {key} does not exist", key=key)
        end = len(OBJECT_COLUMNS)
        due_ms, published_ms, is_spread, *block = found[end:]
        row = object_row(found[:end], due_ms, publication_of(published_ms, is_spread))
        return ObjectFacts(row, None if block[0] is None else block_row(block))

    @reads
    def find_queued_copy(
        self, connection: Connection, row: ObjectRow, first: LandingId, last: LandingId
    ) -> QueueEntry | None:
        return landing.find_queued(connection, row, first, last)

    @reads
    def block_facts(
        self, connection: Connection, block_id: BlockId, waste_ratio_min: float, now_ms: int, cool_down_ms_max: int
    ) -> BlockFacts:
        limits = {"ratio_min": waste_ratio_min, "now_ms": now_ms, "far_ms": now_ms + cool_down_ms_max}
        found = connection.execute(BLOCK, {"of_block": block_id, **limits}).first()
        if found is None:
            raise NotFound(f"block {block_id.hex()} has no row", block_id=block_id)
        *columns, sealed_ms, gc_not_before_ms, waits, until_ms = found
        return BlockFacts(
            block_row(columns), sealed_ms, gc_not_before_ms, None if waits is None else WaitReason(waits), until_ms
        )

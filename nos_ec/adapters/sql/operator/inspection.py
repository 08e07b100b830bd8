"""Pages of whole tables in the order of their primary keys, for checks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, Connection, LargeBinary, and_, bindparam, func, literal, or_, select

from nos_ec.adapters.sql.objects import landing
from nos_ec.adapters.sql.operator.object_columns import OBJECTS_AFTER, read_columns, read_live, read_live_bytes
from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.json_rows import JsonRows, looked_up
from nos_ec.adapters.sql.tables.rows import IDS, TRASH_COLUMNS, by_index, id_rows, marked_row
from nos_ec.adapters.sql.tables.schema import BLOCKS, LANDING_DELETIONS, OBJECTS, SEGMENTS, WAITING
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.reclaim import LiveEntry
from nos_ec.core.ids import RESERVED_BUCKET, BlockId, Extent, LandingId
from nos_ec.core.parts import COMPOSED_MARK
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectColumns, ObjectRow, QueueEntry, Segment, WaitingRow

_O, _W, _D, _S, _B = OBJECTS.c, WAITING.c, LANDING_DELETIONS.c, SEGMENTS.c, BLOCKS.c
_LEAST = LandingId(bytes(16))
"""Sorts before all landing ids, which begin with the time."""
_IDS = JsonRows("inspected", object_id=0)
_BLOCK_ID, _BLOCK_OFFSET = (TRASH_COLUMNS.index(one) for one in (_O.block_id, _O.block_offset))

_BY_ID, _BY_KEY = OBJECTS.alias("by_id"), OBJECTS.alias("by_key")
_LED_TO = and_(
    *(_BY_KEY.c[name] == _BY_ID.c[name] for name in ("trashed", "bucket", "name")),
    _BY_KEY.c.object_id + 0 == _BY_ID.c.object_id,  # the sum keeps SQLite from a look-up by the id
)
_LED: Any = select(func.count(), func.count(_BY_KEY.c.object_id)).select_from(_BY_ID.outerjoin(_BY_KEY, _LED_TO))
KEYS_LEAD_TO = by_index(by_index(_LED, _BY_ID, "PRIMARY"), _BY_KEY, "objects_by_trash_key").where(
    _BY_ID.c.object_id > bindparam("after", type_=BigInteger),
    _BY_ID.c.object_id <= bindparam("last", type_=BigInteger),
)
_IDS_AFTER = (
    by_index(select(_O.object_id), OBJECTS, "PRIMARY")
    .where(_O.object_id > bindparam("after", type_=BigInteger))
    .order_by(_O.object_id)
    .limit(bindparam("rows_max"))
    .subquery()
)
LAST_ID_OF_PAGE = select(func.max(_IDS_AFTER.c.object_id))
_AFTER_HIDDEN = RESERVED_BUCKET[:-1] + chr(ord(RESERVED_BUCKET[-1]) + 1)
"""Sorts after all names that begin like the reserved bucket, as those of hidden buckets do."""
UNCOMMON_BETWEEN = (
    by_index(select(_O.object_id), OBJECTS, "PRIMARY")
    .where(
        _O.object_id > bindparam("after", type_=BigInteger),
        _O.object_id <= bindparam("last", type_=BigInteger),
        or_(
            _O.state == ObjectState.LARGE,
            and_(_O.bucket >= RESERVED_BUCKET, _O.bucket < _AFTER_HIDDEN),
            func.instr(_O.attributes, literal(COMPOSED_MARK, LargeBinary)) > 0,
        ),
    )
    .order_by(_O.object_id)
)
OBJECTS_WITH = looked_up(
    select(*TRASH_COLUMNS).join_from(_IDS.table, OBJECTS, _O.object_id == _IDS["object_id"]), OBJECTS
)
SEGMENTS_OF = looked_up(
    select(_S.object_id, _S.version, _S.part, _S.block_id, _S.block_offset, _S.length, _S.crc32c).join_from(
        _IDS.table, SEGMENTS, _S.object_id == _IDS["object_id"]
    ),
    SEGMENTS,
)
OWNERS_AFTER = (
    by_index(select(_S.object_id).distinct(), SEGMENTS, "PRIMARY")
    .where(_S.object_id > bindparam("after", type_=BigInteger))
    .order_by(_S.object_id)
    .limit(bindparam("rows_max"))
)
BLOCKS_KNOWN = looked_up(select(_B.block_id).join_from(IDS.table, BLOCKS, _B.block_id == IDS["id"]), BLOCKS)
_WAITING_COLUMNS = (_W.landing_id, _W.object_id, _W.slot, _W.due_ms, _W.state, _W.size)
WAITING_AFTER = (
    by_index(select(*_WAITING_COLUMNS), WAITING, "PRIMARY")
    .where(_W.landing_id > bindparam("after", type_=_W.landing_id.type))
    .order_by(_W.landing_id)
    .limit(bindparam("rows_max"))
)
WAITING_WITH = looked_up(select(*_WAITING_COLUMNS).join_from(IDS.table, WAITING, _W.landing_id == IDS["id"]), WAITING)
DELETIONS_AFTER = (
    by_index(select(*landing.QUEUE_COLUMNS), LANDING_DELETIONS, "PRIMARY")
    .where(_D.landing_id > bindparam("after", type_=_D.landing_id.type))
    .order_by(_D.landing_id)
    .limit(bindparam("rows_max"))
)


class SqlInspection(SqlPart):
    """`Inspection` of the port."""

    @reads
    def objects_after(self, connection: Connection, object_id: int, limit: int) -> list[ObjectRow]:
        return [_as_found(row) for row in connection.execute(OBJECTS_AFTER, {"after": object_id, "rows_max": limit})]

    @reads
    def columns_after(self, connection: Connection, object_id: int, limit: int) -> ObjectColumns:
        try:
            return read_columns(connection, object_id, limit)
        except (
            ValueError,
            KeyError,
            TypeError,
            InvalidInput,
        ):  # a row is damaged: read it in the ordinary way, which names it
            after = {"after": object_id, "rows_max": limit}
            return ObjectColumns.of(list(map(_as_found, connection.execute(OBJECTS_AFTER, after))))

    @reads
    def last_id_of_page(self, connection: Connection, object_id: int, limit: int) -> int | None:
        found: int | None = connection.execute(LAST_ID_OF_PAGE, {"after": object_id, "rows_max": limit}).scalar()
        return found

    @reads
    def uncommon_between(self, connection: Connection, after: int, last: int) -> list[int]:
        return list(connection.execute(UNCOMMON_BETWEEN, {"after": after, "last": last}).scalars())

    @reads
    def keys_lead_to(self, connection: Connection, after: int, last: int) -> bool:
        rows, found = connection.execute(KEYS_LEAD_TO, {"after": after, "last": last}).one()
        return bool(rows == found)

    @reads
    def live_in(self, connection: Connection, block_id: BlockId) -> list[LiveEntry]:
        return read_live(connection, block_id)

    @reads
    def live_bytes_in(self, connection: Connection, block_id: BlockId) -> tuple[int, int]:
        return read_live_bytes(connection, block_id)

    def objects_with(self, object_ids: Collection[int]) -> dict[int, ObjectRow]:
        return self._read(_objects_with, object_ids) if object_ids else {}

    def segments_of(self, object_ids: Collection[int]) -> dict[int, list[tuple[int, Segment]]]:
        return self._read(_segments_of, object_ids) if object_ids else {}

    @reads
    def owners_after(self, connection: Connection, object_id: int, limit: int) -> list[int]:
        return list(connection.execute(OWNERS_AFTER, {"after": object_id, "rows_max": limit}).scalars())

    def blocks_known(self, block_ids: Collection[BlockId]) -> frozenset[BlockId]:
        return self._read(_blocks_known, block_ids) if block_ids else frozenset()

    @reads
    def waiting_after(self, connection: Connection, landing_id: LandingId | None, limit: int) -> list[WaitingRow]:
        after = {"after": landing_id or _LEAST, "rows_max": limit}
        return [WaitingRow(LandingId(row[0]), *row[1:]) for row in connection.execute(WAITING_AFTER, after)]

    def waiting_with(self, landing_ids: Collection[LandingId]) -> dict[LandingId, WaitingRow]:
        return self._read(_waiting_with, landing_ids) if landing_ids else {}

    @reads
    def deletions_after(self, connection: Connection, landing_id: LandingId | None, limit: int) -> list[QueueEntry]:
        after = {"after": landing_id or _LEAST, "rows_max": limit}
        return [landing.queue_entry(row) for row in connection.execute(DELETIONS_AFTER, after)]


def _objects_with(connection: Connection, object_ids: Collection[int]) -> dict[int, ObjectRow]:
    rows = connection.execute(OBJECTS_WITH, _IDS.dump((one,) for one in sorted(object_ids)))
    return {row.object_id: row for row in map(_as_found, rows)}


def _as_found(row: Sequence[Any]) -> ObjectRow:
    """Return the ObjectRow, without an extent if the row lacks a part of it."""
    found = marked_row(row)
    return replace(found, extent=None) if row[_BLOCK_ID] is None or row[_BLOCK_OFFSET] is None else found


def _segments_of(connection: Connection, object_ids: Collection[int]) -> dict[int, list[tuple[int, Segment]]]:
    found: dict[int, list[tuple[int, Segment]]] = {}
    rows = connection.execute(SEGMENTS_OF, _IDS.dump((one,) for one in sorted(object_ids))).all()
    for object_id, version, _, block_id, offset, length, crc32c in sorted(rows, key=lambda row: tuple(row[:3])):
        segment = Segment(Extent(BlockId(block_id), offset, length), crc32c)
        found.setdefault(object_id, []).append((version, segment))
    return found


def _blocks_known(connection: Connection, block_ids: Collection[BlockId]) -> frozenset[BlockId]:
    return frozenset(map(BlockId, connection.execute(BLOCKS_KNOWN, id_rows(block_ids)).scalars()))


def _waiting_with(connection: Connection, landing_ids: Collection[LandingId]) -> dict[LandingId, WaitingRow]:
    rows = connection.execute(WAITING_WITH, id_rows(landing_ids))
    return {LandingId(row[0]): WaitingRow(LandingId(row[0]), *row[1:]) for row in rows}

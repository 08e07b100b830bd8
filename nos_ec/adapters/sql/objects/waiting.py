"""The table of objects that wait to be packed (docs/adr/0020).

Every transaction that changes the landing copy of an object changes this table as well, after it has locked the
object's row. So no transaction waits for rows of this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import structlog
from sqlalchemy import Connection, Delete, Select, bindparam, delete, insert, select

from nos_ec.adapters.sql.tables.json_rows import DeleteListed, JsonRows, looked_up
from nos_ec.adapters.sql.tables.rows import IDS, delete_listed, id_rows, require_all
from nos_ec.adapters.sql.tables.schema import OBJECTS, WAITING
from nos_ec.core.ids import LandingId
from nos_ec.core.publishing.slots import bucket_slot
from nos_ec.ports.metadata import ObjectRow

_log = structlog.get_logger(__name__)

_O, _W = OBJECTS.c, WAITING.c
_INSERT = insert(WAITING)
_DELETE_ONE = delete(WAITING).where(_W.landing_id == bindparam("copy", type_=_W.landing_id.type))
_STILL_THERE = looked_up(select(_W.landing_id).join_from(IDS.table, WAITING, _W.landing_id == IDS["id"]), WAITING)


def enter(connection: Connection, landed: Iterable[tuple[ObjectRow, int]]) -> None:
    """Add these rows with their due times. They must be locked. Rows without a landing copy are left out."""
    insert_rows(connection, rows_of(landed))


def rows_of(landed: Iterable[tuple[ObjectRow, int]]) -> list[dict[str, Any]]:
    """Return what `insert_rows` takes for these rows of objects, with their due times."""
    return [
        {
            "landing_id": row.landing_id,
            "object_id": row.object_id,
            "slot": bucket_slot(row.key.bucket),
            "due_ms": due_ms,
            "state": row.state,
            "size": row.size,
        }
        for row, due_ms in landed
        if row.landing_id is not None
    ]


def insert_rows(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of waiting objects. See `enter`."""
    if rows:
        connection.execute(_INSERT, rows)


def leave(connection: Connection, landing_ids: Sequence[LandingId]) -> None:
    """Remove the rows of these copies. Their objects must be locked. Raises Transient."""
    if landing_ids:
        listed = id_rows(landing_ids)
        if len(landing_ids) == 1:  # nearly always; this takes MariaDB 0.1 ms, a JSON table three times as long
            gone = connection.execute(_DELETE_ONE, {"copy": landing_ids[0]}).rowcount
        else:
            gone = connection.execute(delete_listed(connection, WAITING, _W.landing_id, IDS, "id"), listed).rowcount
        _require_gone(connection, gone, len(landing_ids), _STILL_THERE, listed)


def leave_moved(connection: Connection, moves: JsonRows, listed: Mapping[str, str], copies: int) -> None:
    """Remove the rows of the objects in `moves` that have landing copies; `copies` is their number. `listed` is the
    parameter of `moves`. Their rows in `objects` must be locked and still have the landing ids. Raises Transient."""
    gone = connection.execute(_delete_moved(connection.dialect.name == "sqlite", moves), listed).rowcount
    _require_gone(connection, gone, copies, _moved(moves), listed)


@cache
def _delete_moved(in_sqlite: bool, moves: JsonRows) -> Delete:
    if in_sqlite:
        return delete(WAITING).where(
            _W.landing_id.in_(select(_O.landing_id).join_from(moves.table, OBJECTS, _O.object_id == moves["object_id"]))
        )
    return DeleteListed(WAITING).where(moves["object_id"] == _O.object_id, _W.landing_id == _O.landing_id)


@cache
def _moved(moves: JsonRows) -> Select[tuple[bytes]]:
    return looked_up(
        select(_W.landing_id)
        .join_from(moves.table, OBJECTS, _O.object_id == moves["object_id"])
        .join(WAITING, _W.landing_id == _O.landing_id),
        OBJECTS,
        then=WAITING,
    )


def _require_gone(
    connection: Connection, gone: int, wanted: int, still_there: Select[tuple[bytes]], listed: Mapping[str, str]
) -> None:
    """Raise Transient if rows were not removed that exist. A missing row is damage to the metadata: its object would
    never have been packed. Now the object is removed or packed, which ends the damage, so it is logged as an error, and
    the work continues."""
    if gone != wanted and not connection.execute(still_there, listed).all():
        _log.error("metadata damaged: objects in the landing store did not wait to be packed", objects=wanted - gone)
        return
    require_all(gone, wanted, "waiting objects")

"""Converts rows of results to values of the port, and defines the JSON tables that several modules join with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Delete,
    FromClause,
    LargeBinary,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    select,
)

from nos_ec.adapters.sql.tables.json_rows import DeleteListed, JsonRows, looked_up
from nos_ec.adapters.sql.tables.schema import BLOCKS, ID_BYTES, OBJECTS, TRASHED_BYTES, utf8
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.publishing.republish import Publication
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import BlockRow, ObjectRow

_O, _B = OBJECTS.c, BLOCKS.c

OBJECT_COLUMNS: list[Column[Any]] = [
    _O.object_id,
    _O.bucket,
    _O.name,
    _O.version,
    _O.size,
    _O.crc32c,
    _O.md5,
    _O.state,
    _O.landing_id,
    _O.block_id,
    _O.block_offset,
    _O.created_ms,
    _O.attributes,
]
"""The columns that `object_row` reads, in order."""

TRASH_COLUMNS: list[Column[Any]] = [*OBJECT_COLUMNS, _O.trashed]
"""The columns that `marked_row` reads, in order. Look-ups by key omit the mark, which is empty for current versions."""

BLOCK_COLUMNS: list[Column[Any]] = [
    _B.block_id,
    _B.kind,
    _B.state,
    _B.writer,
    _B.epoch,
    _B.stripes,
    _B.live_bytes,
    _B.dead_bytes,
    _B.overhead_bytes,
    _B.live_objects,
    _B.created_ms,
    _B.delete_after_ms,
    _B.gc_failures,
]
"""The columns that `block_row` reads, in order."""

LIVE = b""
"""The value of `trashed` for current versions."""

FIRST_MARK = b"\0\0\0\0\0\1"
"""Sorts before all marks of the trash, and after the marks of current and noncurrent versions."""

UNTIL_BYTES = 6
_ID_BYTES = 8
_MS_BYTES = TRASHED_BYTES - UNTIL_BYTES - _ID_BYTES
_UNTIL_MS_MAX = (1 << 8 * UNTIL_BYTES) - 2
"""The greatest time of a mark. One more fits into the mark, for the end of a range."""

KEYS = JsonRows("keys", bucket=BUCKET_BYTES_MAX, name=NAME_BYTES_MAX)
IDS = JsonRows("ids", id=ID_BYTES)
OBJECT_IDS = JsonRows("object_ids", object_id=0, version=0)


def by_keys(*columns: Column[Any]) -> Select[Any]:
    """Select these columns of the current versions whose keys are in KEYS. Use as few as possible: the driver parses a
    description of each column, which takes longer than reading a small row."""
    listed = and_(_O.trashed == LIVE, _O.bucket == KEYS["bucket"], _O.name == KEYS["name"])
    return looked_up(select(*columns).join_from(KEYS.table, OBJECTS, listed), OBJECTS, "objects_by_trash_key")


def by_index(query: Select[Any], table: FromClause, index: str) -> Select[Any]:
    """Return the query with an index hint for MySQL, whose planner would rather sort the table when most rows match.

    The planner does not see that LIMIT makes the index walk short. SQLite has no such hint and needs none.
    """
    return query.with_hint(table, f"FORCE INDEX ({index})", "mysql").with_hint(
        table, f"FORCE INDEX ({index})", "mariadb"
    )


def by_primary(one: Update) -> Update:
    """Return the UPDATE of one row with a hint to find it by its primary key. Without the hint, MariaDB may walk an
    index on its other conditions."""
    for dialect in ("mysql", "mariadb"):
        one = one.with_hint("FORCE INDEX (PRIMARY)", dialect_name=dialect)
    return one


def object_row(row: Sequence[Any], due_ms: int | None = None, publication: Publication | None = None) -> ObjectRow:
    """Return the ObjectRow for a row of OBJECT_COLUMNS."""
    object_id, bucket, name, version, size, crc32c, md5, state, landing_id, block_id, offset, created_ms, attributes = (
        row
    )
    return ObjectRow(
        object_id=object_id,
        key=ObjectKey(bucket, name),
        version=version,
        size=size,
        crc32c=crc32c,
        md5=md5,
        state=state,
        landing_id=LandingId(landing_id) if state.in_landing else None,
        extent=Extent(BlockId(block_id), offset, size) if state is ObjectState.PACKED else None,
        created_ms=created_ms,
        attributes=attributes,
        due_ms=due_ms,
        publication=publication,
    )


def publication_of(published_ms: int | None, is_spread: bool | None) -> Publication | None:
    """Return the publication of a waiting row from its two columns, which are None if there is no such row."""
    return None if published_ms is None else Publication(published_ms, bool(is_spread))


def marked_row(row: Sequence[Any]) -> ObjectRow:
    """Return the ObjectRow for a row of TRASH_COLUMNS, with its times in the trash, or marked as noncurrent."""
    found, mark = object_row(row[:-1]), row[-1]
    if not mark:
        return found
    if mark < FIRST_MARK:
        return replace(found, is_noncurrent=True)
    until_ms, trashed_ms = mark_times(mark)
    return replace(found, trash_until_ms=until_ms, trashed_ms=trashed_ms)


def mark_times(mark: bytes) -> tuple[int | None, int | None]:
    """Return the times of a mark of the trash: until when the trash keeps the row, and when it was deleted. They are
    None for the marks of current and noncurrent versions."""
    if mark < FIRST_MARK:
        return None, None
    return int.from_bytes(mark[:UNTIL_BYTES]), int.from_bytes(mark[-_MS_BYTES:])


def trash_mark(until_ms: int, object_id: int, trashed_ms: int) -> bytes:
    """Return the value of `trashed` for a row in the trash (trash.py)."""
    return trash_place(until_ms, object_id) + max(trashed_ms, 0).to_bytes(_MS_BYTES)


def noncurrent_mark(object_id: int) -> bytes:
    """Return the value of `trashed` for a noncurrent version. Its time is 0, which no mark of the trash has."""
    return bytes(UNTIL_BYTES) + object_id.to_bytes(_ID_BYTES)


def trash_place(until_ms: int, object_id: int) -> bytes:
    """Return the beginning of the mark of this row. It sorts directly before the mark, after those of earlier rows."""
    return min(max(until_ms, 1), _UNTIL_MS_MAX).to_bytes(UNTIL_BYTES) + object_id.to_bytes(_ID_BYTES)


def place_of(mark: bytes) -> tuple[int, int]:
    """Return until_ms and object_id of a mark."""
    return int.from_bytes(mark[:UNTIL_BYTES]), int.from_bytes(mark[UNTIL_BYTES : UNTIL_BYTES + _ID_BYTES])


def name_range(prefix: str, after: str, name: Column[Any] = _O.name) -> list[ColumnElement[bool]]:
    """Return conditions for the names in column `name` that begin with `prefix` and are greater than `after`. They are
    always a range of an index."""
    start, past, end = utf8(prefix), utf8(after), prefix_end(utf8(prefix))
    found = [name >= _bytes("start", start) if start > past else name > _bytes("after", past)]
    return found if end is None else [*found, name < _bytes("end", end)]


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the least byte string that is greater than all byte strings with this prefix, or None if there is none.

    UTF-8 has no byte 0xFF, but a bound that is right only for UTF-8 would be a trap for later callers.
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _bytes(name: str, value: bytes) -> BindParameter[bytes]:
    return bindparam(name, value, type_=LargeBinary)


def block_row(row: Sequence[Any]) -> BlockRow:
    """Return the BlockRow for a row of BLOCK_COLUMNS."""
    return BlockRow(*row)


def key_rows(keys: Iterable[ObjectKey]) -> dict[str, str]:
    """Return the parameter of KEYS, in key order: transactions that lock rows in the same order do not deadlock."""
    return KEYS.dump(sorted((key.bucket.encode(), key.name.encode()) for key in keys))


def id_rows(ids: Iterable[bytes]) -> dict[str, str]:
    """Return the parameter of IDS, sorted and without repetitions. Raises ValueError for an id that is not 16 bytes."""
    ordered = sorted(set(ids))
    for one in ordered:
        if len(one) != ID_BYTES:
            raise ValueError(f"an id of {len(one)} bytes; it must have {ID_BYTES}")
    return IDS.dump((one,) for one in ordered)


def require_all(matched: int, wanted: int, what: str) -> None:
    """Raise Transient, which rolls the transaction back, unless a statement matched all rows that are locked for it.

    Locked rows do not disappear, but an operator can end a statement (KILL QUERY). If a statement ever ended early
    without an error, the other statements of the transaction must not be committed. After many such kills on MariaDB
    10.11, one block was once found to have counted an object as dead twice.
    """
    if matched != wanted:
        raise Transient(f"metadata: {matched} of {wanted} {what} were changed, so all was rolled back; try again")


def delete_listed(connection: Connection, table: Table, matched: Column[Any], rows: JsonRows, listed: str) -> Delete:
    """Return a DELETE of the rows whose `matched` column is in column `listed` of `rows`, in a form that uses the
    index.

    MySQL 8.0 runs the IN (SELECT ...) of a DELETE once per row of the table; SQLite has no DELETE with a join.
    """
    return _delete_listed(connection.dialect.name == "sqlite", table, matched, rows, listed)


@cache
def _delete_listed(in_sqlite: bool, table: Table, matched: Column[Any], rows: JsonRows, listed: str) -> Delete:
    if in_sqlite:
        return delete(table).where(matched.in_(select(rows[listed])))
    return DeleteListed(table).where(matched == rows[listed])

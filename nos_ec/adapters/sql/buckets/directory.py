"""Rows of the directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.rows import by_index
from nos_ec.adapters.sql.tables.schema import DIRECTORY
from nos_ec.core.errors import Conflict
from nos_ec.ports.metadata.buckets import BucketRow
from nos_ec.ports.metadata.directory import DirectoryRow

_D = DIRECTORY.c
_COLUMNS = (_D.bucket, _D.home, _D.owner, _D.created_ms, _D.deleted_ms, _D.slices, _D.moves)
_AFTER = bindparam("after", type_=_D.bucket.type)

FIND = select(*_COLUMNS).where(_D.bucket == bindparam("bucket"))
LIST = select(*_COLUMNS).where(_D.bucket > _AFTER).order_by(_D.bucket).limit(bindparam("rows_max"))
LIST_OWN = (
    by_index(select(*_COLUMNS), DIRECTORY, "directory_by_owner")
    .where(_D.owner == bindparam("owner"), _D.bucket > _AFTER, _D.deleted_ms.is_(None))
    .order_by(_D.owner, _D.bucket)
    .limit(bindparam("rows_max"))
)


class SqlDirectory(SqlPart):
    """`Directory` of the port."""

    @reads
    def directory_row(self, connection: Connection, bucket: str) -> DirectoryRow | None:
        return _found(connection.execute(FIND, {"bucket": bucket}).first())

    def claim_home(self, bucket: str, owner: str, home: str, now_ms: int, slices: Sequence[str] = ()) -> DirectoryRow:
        return self._write(_claim, DirectoryRow(bucket, home, owner, now_ms, is_deleted=True, slices=tuple(slices)))

    def record_in_directory(self, row: DirectoryRow) -> DirectoryRow:
        return self._write(_record, row)

    def move_home(self, bucket: str, source: str, target: str, number: int) -> None:
        self._write(_move_home, bucket, source, target, number)

    @reads
    def buckets_in_directory(self, connection: Connection, owner: str, after: str, limit: int) -> list[BucketRow]:
        found = connection.execute(LIST_OWN, {"owner": owner, "after": after, "rows_max": limit})
        return [BucketRow(row.bucket, row.owner, row.created_ms) for row in found]

    @reads
    def directory_page(self, connection: Connection, after: str, limit: int) -> list[DirectoryRow]:
        return [_row(row) for row in connection.execute(LIST, {"after": after, "rows_max": limit})]


def _claim(connection: Connection, new: DirectoryRow) -> DirectoryRow:
    known = _locked(connection, new.bucket)
    if known is None:
        _put(connection, new, None)
    return known or new


def _record(connection: Connection, row: DirectoryRow) -> DirectoryRow:
    known = _locked(connection, row.bucket)
    recorded = row if known is None else _merged(known, row)
    if known != recorded:
        _put(connection, recorded, known)
    return recorded


def _merged(known: DirectoryRow, row: DirectoryRow) -> DirectoryRow:
    """Return what the directory says of a bucket after it was told this row. See Directory."""
    if not known.slices:
        if known.home in row.slices or known.moves < row.moves:
            return row
        return known if known.home != row.home else replace(row, moves=known.moves)
    counted, told = known.counted_slices, row.counted_slices
    if len(told) == len(counted):  # otherwise a creation of another bucket of this name was interrupted
        counted = [theirs if theirs[1] > mine[1] else mine for mine, theirs in zip(counted, told, strict=True)]
    # Only the first cell of a bucket says whose it is, and whether it exists.
    return (row if row.home == counted[0][0] else known).with_slices(counted)


def _move_home(connection: Connection, bucket: str, source: str, target: str, number: int) -> None:
    known = _locked(connection, bucket)
    if known is not None and source not in known.cells and target in known.cells and known.moves_of(target) == number:
        return
    is_expected = known is not None and source in known.cells and target not in known.cells
    if known is None or not is_expected or known.moves_of(source) != number - 1:
        raise Conflict(f"the directory has another place of bucket {bucket} than this move expects")
    moved = known.moved(source, target, number)
    values: dict[str, Any] = {"home": moved.home, "moves": moved.moves}
    if moved.slices:
        values["slices"] = moved.slices_text
    connection.execute(update(DIRECTORY).where(_D.bucket == bucket).values(values))


def _put(connection: Connection, row: DirectoryRow, known: DirectoryRow | None) -> None:
    """Write a row. Its home differs from the known one only by a move that its cell knows, or if one slice of a wide
    bucket was entered before the first one. Two concurrent first ones insert the same key, so one of them fails as a
    duplicate and is run again."""
    values: dict[str, Any] = {
        "owner": row.owner,
        "created_ms": row.created_ms,
        "deleted_ms": row.created_ms if row.is_deleted else None,
    }
    if known is None or (known.home, known.moves, known.counted_slices) != (row.home, row.moves, row.counted_slices):
        values |= {"home": row.home, "moves": row.moves, "slices": row.slices_text or None}
    if known is None:
        connection.execute(insert(DIRECTORY).values(bucket=row.bucket, **values))
    else:
        connection.execute(update(DIRECTORY).where(_D.bucket == row.bucket).values(values))


def _locked(connection: Connection, bucket: str) -> DirectoryRow | None:
    return _found(connection.execute(FIND.with_for_update(), {"bucket": bucket}).first())


def _found(row: Any) -> DirectoryRow | None:
    return None if row is None else _row(row)


def _row(row: Any) -> DirectoryRow:
    found = DirectoryRow(row.bucket, row.home, row.owner, row.created_ms, row.deleted_ms is not None, (), row.moves)
    if row.slices is None:
        return found
    items = [one.partition(":") for one in row.slices.split(",")]
    return found.with_slices([(cell, int(moves or 0)) for cell, _, moves in items])

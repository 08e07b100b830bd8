"""Rows of the directory."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.rows import by_index
from nos_ec.adapters.sql.tables.schema import DIRECTORY
from nos_ec.ports.metadata.buckets import BucketRow
from nos_ec.ports.metadata.directory import DirectoryRow

_D = DIRECTORY.c
_COLUMNS = (_D.bucket, _D.home, _D.owner, _D.created_ms, _D.deleted_ms)
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

    def claim_home(self, bucket: str, owner: str, home: str, now_ms: int) -> DirectoryRow:
        return self._write(_claim, DirectoryRow(bucket, home, owner, now_ms))

    def record_in_directory(self, row: DirectoryRow) -> DirectoryRow | None:
        return self._write(_record, row)

    @reads
    def buckets_in_directory(self, connection: Connection, owner: str, after: str, limit: int) -> list[BucketRow]:
        found = connection.execute(LIST_OWN, {"owner": owner, "after": after, "rows_max": limit})
        return [BucketRow(row.bucket, row.owner, row.created_ms) for row in found]

    @reads
    def directory_page(self, connection: Connection, after: str, limit: int) -> list[DirectoryRow]:
        return [_row(row) for row in connection.execute(LIST, {"after": after, "rows_max": limit})]


def _claim(connection: Connection, new: DirectoryRow) -> DirectoryRow:
    known = _locked(connection, new.bucket)
    if known is not None and not known.is_deleted:
        return known
    claimed = new if known is None else DirectoryRow(new.bucket, known.home, new.owner, new.created_ms)
    _put(connection, claimed, known)
    return claimed


def _record(connection: Connection, row: DirectoryRow) -> DirectoryRow | None:
    known = _locked(connection, row.bucket)
    if known is not None and known.home != row.home:
        return known
    if known != row:
        _put(connection, row, known)
    return None


def _put(connection: Connection, row: DirectoryRow, known: DirectoryRow | None) -> None:
    """Write a row, but never another home. Two concurrent first ones insert the same key, so one of them fails as a
    duplicate and is run again."""
    values: dict[str, Any] = {
        "owner": row.owner,
        "created_ms": row.created_ms,
        "deleted_ms": row.created_ms if row.is_deleted else None,
    }
    if known is None:
        connection.execute(insert(DIRECTORY).values(bucket=row.bucket, home=row.home, **values))
    else:
        connection.execute(update(DIRECTORY).where(_D.bucket == row.bucket).values(values))


def _locked(connection: Connection, bucket: str) -> DirectoryRow | None:
    return _found(connection.execute(FIND.with_for_update(), {"bucket": bucket}).first())


def _found(row: Any) -> DirectoryRow | None:
    return None if row is None else _row(row)


def _row(row: Any) -> DirectoryRow:
    return DirectoryRow(row.bucket, row.home, row.owner, row.created_ms, row.deleted_ms is not None)

"""The states of buckets that are moved between cells. Versions: moved_versions.py."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, func, insert, or_, select, update

from nos_ec.adapters.sql.buckets import bucket_rows
from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.gate import MOVE_ROW, NUMBER, MoversGate, UsersGate, require_row, taken_over
from nos_ec.adapters.sql.tables.json_rows import JsonRows
from nos_ec.adapters.sql.tables.rows import by_index, delete_listed
from nos_ec.adapters.sql.tables.schema import (
    BUCKET_DOCUMENTS,
    BUCKET_GRANTS,
    BUCKET_USAGE,
    BUCKETS,
    CHANGED_NAMES,
    COUNTERS,
    MOVES,
)
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata.buckets import BucketRow, DocumentKind
from nos_ec.ports.metadata.directory import ChangedName, MoveRow, MoveState

_M, _C, _N, _D = MOVES.c, COUNTERS.c, CHANGED_NAMES.c, BUCKET_DOCUMENTS.c
MARK = select(_D.body).where(_D.bucket == bindparam("bucket"), _D.kind == DocumentKind.WIDE)
LIST = (
    select(_M.bucket, _M.state, _M.other, _M.number, _M.mover, _M.since_ms)
    .where(_M.bucket > bindparam("after", type_=_M.bucket.type))
    .order_by(_M.bucket)
    .limit(bindparam("rows_max"))
)
UNFINISHED = (
    select(_M.bucket, _M.state, _M.other, _M.number, _M.mover, _M.since_ms)
    .outerjoin_from(MOVES, BUCKETS, BUCKETS.c.bucket == _M.bucket)
    .where(
        _M.bucket > bindparam("after", type_=_M.bucket.type),
        or_(
            _M.state.in_([MoveState.LEAVING, MoveState.CLOSED, MoveState.ARRIVING, MoveState.REBUILT]),
            and_(_M.state == MoveState.GONE, BUCKETS.c.bucket.is_not(None)),
        ),
    )
    .order_by(_M.bucket)
    .limit(bindparam("rows_max"))
)
_OF_BUCKET = _N.bucket == bindparam("bucket", type_=_N.bucket.type)
CHANGED = (
    by_index(select(_N.change_id, _N.name), CHANGED_NAMES, "changed_names_by_bucket")
    .where(_OF_BUCKET, _N.change_id <= bindparam("last", type_=BigInteger))
    .order_by(_N.change_id)
    .limit(bindparam("rows_max"))
)
LAST_CHANGE = by_index(select(func.max(_N.change_id)), CHANGED_NAMES, "changed_names_by_bucket").where(_OF_BUCKET)
NEXT_CHANGED = (
    by_index(select(_N.bucket), CHANGED_NAMES, "changed_names_by_bucket")
    .where(_N.bucket > bindparam("after", type_=_N.bucket.type))
    .order_by(_N.bucket)
    .limit(1)
)
_CHANGES = JsonRows("changes", change_id=0)
_COUNT = update(COUNTERS).where(_C.name == NUMBER).values(value=_C.value + 1)


class SqlMoves(SqlPart):
    """The methods of `Moves` of the port for buckets."""

    def obey_moves(self, moved: Callable[[str], object]) -> None:
        self._gate = UsersGate(moved)

    def move_as(self, row: MoveRow) -> None:
        self._gate = MoversGate(row)
        # A key that has changed is removed and copied again, with the same versions. A rebuild must not take an entry
        # of the removal for a later delete.
        self._transactions.journal = None

    @reads
    def move_row(self, connection: Connection, bucket: str) -> MoveRow | None:
        return _found(connection.execute(MOVE_ROW, {"bucket": bucket}).first())

    @reads
    def move_rows(self, connection: Connection, after: str, limit: int) -> list[MoveRow]:
        return [MoveRow(*row) for row in connection.execute(LIST, {"after": after, "rows_max": limit})]

    @reads
    def unfinished_moves(self, connection: Connection, after: str, limit: int) -> list[MoveRow]:
        return [MoveRow(*row) for row in connection.execute(UNFINISHED, {"after": after, "rows_max": limit})]

    def set_move(self, row: MoveRow, known: MoveRow | None) -> None:
        self._write(_set_move, row, known)

    @reads
    def last_change(self, connection: Connection, bucket: str) -> int:
        return int(connection.execute(LAST_CHANGE, {"bucket": bucket}).scalar() or 0)

    @reads
    def next_changed(self, connection: Connection, after: str) -> str | None:
        return connection.execute(NEXT_CHANGED, {"after": after}).scalar()

    @reads
    def changed_names(self, connection: Connection, bucket: str, last: int, limit: int) -> list[ChangedName]:
        found = connection.execute(CHANGED, {"bucket": bucket, "last": last, "rows_max": limit})
        return [ChangedName(*row) for row in found]

    def forget_changes(self, row: MoveRow, changes: Collection[ChangedName]) -> None:
        if changes:
            self._write(_forget_changes, row, changes)

    @reads
    def unserved_bucket(self, connection: Connection, bucket: str) -> tuple[BucketRow | None, bytes | None]:
        return bucket_rows.find_bucket(connection, bucket), connection.execute(MARK, {"bucket": bucket}).scalar()

    def forget_bucket(self, bucket: str) -> None:
        self._change_buckets([bucket], _forget_bucket, bucket)


def _set_move(connection: Connection, row: MoveRow, known: MoveRow | None) -> None:
    connection.execute(_COUNT)
    found = _found(connection.execute(MOVE_ROW.with_for_update(), {"bucket": row.bucket}).first())
    if found == row:
        return  # an earlier call has set it
    if found != known:
        raise taken_over(row.bucket)
    values: dict[str, Any] = {
        "state": row.state,
        "other": row.other,
        "number": row.number,
        "mover": row.mover,
        "since_ms": row.since_ms,
    }
    if known is None:
        connection.execute(insert(MOVES).values(bucket=row.bucket, **values))
    else:
        connection.execute(update(MOVES).where(_M.bucket == row.bucket).values(values))
    kill_point("moves.state_set.before_commit")


def _forget_changes(connection: Connection, row: MoveRow, changes: Collection[ChangedName]) -> None:
    require_row(connection, row)
    forget = delete_listed(connection, CHANGED_NAMES, _N.change_id, _CHANGES, "change_id")
    connection.execute(forget, _CHANGES.dump((change_id,) for change_id in sorted(one.change_id for one in changes)))
    kill_point("moves.changes_forgotten.before_commit")


def _forget_bucket(connection: Connection, bucket: str) -> None:
    for table in (BUCKETS, BUCKET_GRANTS, BUCKET_USAGE):
        connection.execute(delete(table).where(table.c.bucket == bucket))
    documents = BUCKET_DOCUMENTS.c
    connection.execute(delete(BUCKET_DOCUMENTS).where(documents.bucket == bucket, documents.kind != DocumentKind.WIDE))


def _found(row: Any) -> MoveRow | None:
    return None if row is None else MoveRow(*row)

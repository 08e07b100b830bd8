"""Refuses to delete locked versions, in the transaction that would delete them and under the lock of their rows
(docs/adr/0053).

Versions without a lock cost no statement. The end of a lock is compared with the lock time and with the time of the
database, both of which one statement reads; the clock of the caller does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, bindparam, literal_column, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, writes
from nos_ec.adapters.sql.tables.rows import FIRST_MARK, OBJECT_COLUMNS, by_index, by_primary, object_row, require_all
from nos_ec.adapters.sql.tables.schema import COUNTERS, OBJECTS
from nos_ec.core.errors import Conflict, Locked, NosError
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode, with_lock
from nos_ec.ports.metadata.locks import LockTimes
from nos_ec.ports.metadata.objects import LockOf, ObjectRow

_C, _O = COUNTERS.c, OBJECTS.c
LOCK_TIME = "lock_time"
"""The row of `counters` with the lock time."""
NAMED_MAX = 10
"""At most this many locked objects are named in one error."""
_IS_LOCK_TIME = _C.name == LOCK_TIME
_DATABASE_MS = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "mysql": "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
}


_LOCK_KEPT = (
    by_index(select(*OBJECT_COLUMNS), OBJECTS, "PRIMARY")
    .where(_O.object_id == bindparam("object_id", type_=BigInteger), _O.trashed < FIRST_MARK)
    .with_for_update()
)
"""Finds a current or noncurrent version, but not one in the trash."""


class SqlLocks(SqlPart):
    """`Locks` of the port."""

    def lock_times(self) -> LockTimes:
        return self._read(lock_times)

    @writes
    def advance_lock_time(self, connection: Connection, seen_ms: int, to_ms: int) -> bool:
        advanced = update(COUNTERS).where(_IS_LOCK_TIME, _C.value == seen_ms, _C.value < to_ms).values(value=to_ms)
        return connection.execute(advanced).rowcount == 1


@cache
def _times_query(dialect: str) -> Select[Any]:
    database_ms: ColumnElement[int] = literal_column(_DATABASE_MS["sqlite" if dialect == "sqlite" else "mysql"])
    return select(_C.value, database_ms).where(_IS_LOCK_TIME)


def lock_times(connection: Connection) -> LockTimes:
    """Return both times, as of now."""
    return LockTimes(*connection.execute(_times_query(connection.dialect.name)).one())


def locked_among(connection: Connection, rows: Iterable[ObjectRow]) -> list[ObjectRow]:
    """Return those of these rows whose versions are locked. Raises Corrupt for a damaged lock."""
    with_locks = [(row, lock) for row in rows if row.attributes and (lock := row.lock) is not None]
    if not any(lock.hold or lock.mode is not None for _, lock in with_locks):
        return []
    now_ms = lock_times(connection).passed_ms
    return [row for row, lock in with_locks if lock.protects(now_ms)]


def require_unlocked(connection: Connection, rows: Sequence[ObjectRow]) -> None:
    """Raise Locked if one of these rows is locked. Every function that deletes a version, overwrites it or puts it into
    the trash calls this. Raises Corrupt for a damaged lock."""
    locked = locked_among(connection, rows)
    if locked:
        row, lock = locked[0], locked[0].lock
        assert lock is not None
        more = f", and so are {len(locked) - 1} others" if len(locked) > 1 else ""
        raise Locked(
            f"object {row.key}: version {row.version} is locked {lock.text}{more}; nothing was changed",
            [one.key for one in locked],
        )


def not_deleted(keys: Collection[ObjectKey]) -> Locked:
    """Return the error of a call that deleted all objects except the locked ones with these keys."""
    named = sorted(map(str, keys))[:NAMED_MAX]
    more = f" and {len(keys) - len(named)} more" if len(keys) > len(named) else ""
    return Locked(f"not deleted, because object locks protect them: {', '.join(named)}{more}", keys)


def lifted(connection: Connection, row: ObjectRow) -> ObjectRow:
    """Return this row, which must be locked for the transaction, after removing a retention in the mode GOVERNANCE from
    it. Other locks stay: nothing bypasses them."""
    lock = row.lock
    if lock is None or lock.mode is not LockMode.GOVERNANCE or lock.hold:
        return row
    attributes = with_lock(row.attributes, Lock(note=lock.note))
    _set_attributes(connection, row, attributes)
    return replace(row, attributes=attributes)


def change_all(connection: Connection, changes: Sequence[tuple[ObjectKey, LockOf]]) -> dict[ObjectKey, NosError]:
    """Change the locks of versions, each for the note with this key, which is about to be recorded. Return an error for
    each change that cannot be made: Conflict if the version was changed or deleted meanwhile, Locked if its lock may
    not be changed like this."""
    refused: dict[ObjectKey, NosError] = {}
    now_ms = lock_times(connection).passed_ms
    for note, change in sorted(changes, key=lambda one: one[1].row.object_id):
        row, new = change.row, change.attributes
        found = connection.execute(_LOCK_KEPT, {"object_id": row.object_id}).first()
        current = None if found is None else object_row(found)
        if current is None or (current.key, current.version) != (row.key, row.version):
            refused[note] = Conflict(f"object {row.key}: version {row.version} does not exist any more", key=row.key)
        elif current.attributes == new:
            continue
        elif current.attributes != row.attributes:
            refused[note] = Conflict(f"object {row.key}: version {row.version} was changed meanwhile", key=row.key)
        elif (refusal := change.refusal(now_ms)) is not None:
            refused[note] = refusal
        else:
            _set_attributes(connection, row, new)
    return refused


def _set_attributes(connection: Connection, row: ObjectRow, attributes: bytes) -> None:
    changed = by_primary(update(OBJECTS)).where(_O.object_id == row.object_id).values(attributes=attributes)
    require_all(connection.execute(changed).rowcount, 1, "objects")

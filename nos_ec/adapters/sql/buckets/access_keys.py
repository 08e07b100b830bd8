"""Rows of access keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.schema import ACCESS_KEYS
from nos_ec.core.errors import Conflict
from nos_ec.ports.metadata import AccessKey, AccessOf, KeyState

_K = ACCESS_KEYS.c
_COLUMNS = (_K.access_key, _K.account, _K.secret, _K.state, _K.created_ms, _K.note)

FIND = select(*_COLUMNS).where(_K.access_key == bindparam("key"))
LIST = (
    select(*_COLUMNS)
    .where(_K.access_key > bindparam("after", type_=_K.access_key.type))
    .order_by(_K.access_key)
    .limit(bindparam("rows_max"))
)


class SqlAccessKeys(SqlPart):
    """`AccessKeys` of the port. Changes are reported after COMMIT (`AccessChanges`)."""

    def add_access_key(self, key: AccessKey) -> None:
        self._write(_add_access_key, key)
        self._access_changed(AccessOf.KEY, key.access_key)

    @reads
    def access_key(self, connection: Connection, access_key: str) -> AccessKey | None:
        row = connection.execute(FIND, {"key": access_key}).first()
        return None if row is None else AccessKey(*row)

    @reads
    def access_keys(self, connection: Connection, after: str, limit: int) -> list[AccessKey]:
        return [AccessKey(*row) for row in connection.execute(LIST, {"after": after, "rows_max": limit})]

    def change_access_key(self, access_key: str, state: KeyState, secret: bytes | None = None) -> bool:
        done = self._write(_change_access_key, access_key, state, secret)
        self._access_changed(AccessOf.KEY, access_key)
        return done

    def remove_access_key(self, access_key: str) -> bool:
        done = self._write(_remove_access_key, access_key)
        self._access_changed(AccessOf.KEY, access_key)
        return done


def _add_access_key(connection: Connection, key: AccessKey) -> None:
    known = connection.execute(FIND.with_for_update(), {"key": key.access_key}).first()
    if known is None:
        values = {column.name: value for column, value in zip(_COLUMNS, _values(key), strict=True)}
        connection.execute(insert(ACCESS_KEYS).values(values))
    elif AccessKey(*known) != key:
        raise Conflict(f"there is another access key {key.access_key}; choose another name, or remove that one first")


def _values(key: AccessKey) -> tuple[Any, ...]:
    return key.access_key, key.account, key.secret, key.state, key.created_ms, key.note


def _change_access_key(connection: Connection, access_key: str, state: KeyState, secret: bytes | None) -> bool:
    if connection.execute(FIND.with_for_update(), {"key": access_key}).first() is None:
        return False
    values: dict[str, Any] = {"state": state} | ({} if secret is None else {"secret": secret})
    connection.execute(update(ACCESS_KEYS).where(_K.access_key == access_key).values(values))
    return True


def _remove_access_key(connection: Connection, access_key: str) -> bool:
    return connection.execute(delete(ACCESS_KEYS).where(_K.access_key == access_key)).rowcount == 1

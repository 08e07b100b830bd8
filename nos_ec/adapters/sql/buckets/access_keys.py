"""Rows of access keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from nos_ec.adapters.sql.tables.schema import ACCESS_KEYS
from nos_ec.core.errors import Conflict
from nos_ec.ports.metadata import AccessKey, KeyState

_K = ACCESS_KEYS.c
_COLUMNS = (_K.access_key, _K.account, _K.secret, _K.state, _K.created_ms, _K.note)

FIND = select(*_COLUMNS).where(_K.access_key == bindparam("key"))
LIST = (
    select(*_COLUMNS)
    .where(_K.access_key > bindparam("after", type_=_K.access_key.type))
    .order_by(_K.access_key)
    .limit(bindparam("rows_max"))
)


def add(connection: Connection, key: AccessKey) -> None:
    """See `AccessKeys.add_access_key`."""
    known = connection.execute(FIND.with_for_update(), {"key": key.access_key}).first()
    if known is None:
        values = {column.name: value for column, value in zip(_COLUMNS, _values(key), strict=True)}
        connection.execute(insert(ACCESS_KEYS).values(values))
    elif AccessKey(*known) != key:
        raise Conflict(f"there is another access key {key.access_key}; choose another name, or remove that one first")


def _values(key: AccessKey) -> tuple[Any, ...]:
    return key.access_key, key.account, key.secret, key.state, key.created_ms, key.note


def find(connection: Connection, access_key: str) -> AccessKey | None:
    """See `AccessKeys.access_key`."""
    row = connection.execute(FIND, {"key": access_key}).first()
    return None if row is None else AccessKey(*row)


def page(connection: Connection, after: str, limit: int) -> list[AccessKey]:
    """See `AccessKeys.access_keys`."""
    return [AccessKey(*row) for row in connection.execute(LIST, {"after": after, "rows_max": limit})]


def change(connection: Connection, access_key: str, state: KeyState, secret: bytes | None) -> bool:
    """See `AccessKeys.change_access_key`."""
    if connection.execute(FIND.with_for_update(), {"key": access_key}).first() is None:
        return False
    values: dict[str, Any] = {"state": state} | ({} if secret is None else {"secret": secret})
    connection.execute(update(ACCESS_KEYS).where(_K.access_key == access_key).values(values))
    return True


def remove(connection: Connection, access_key: str) -> bool:
    """See `AccessKeys.remove_access_key`."""
    return connection.execute(delete(ACCESS_KEYS).where(_K.access_key == access_key)).rowcount == 1

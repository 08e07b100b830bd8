"""Rows of access keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from os import urandom
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.schema import ACCESS_KEYS
from nos_ec.core.errors import Conflict
from nos_ec.ports.metadata import AccessKey, AccessOf, KeyState
from nos_ec.ports.metadata.buckets import GENERATION_BYTES

_K = ACCESS_KEYS.c
_COLUMNS = (_K.access_key, _K.account, _K.secret, _K.state, _K.created_ms, _K.note, _K.generation)

FIND = select(*_COLUMNS).where(_K.access_key == bindparam("key"))
LIST = (
    select(*_COLUMNS)
    .where(_K.access_key > bindparam("after", type_=_K.access_key.type))
    .order_by(_K.access_key)
    .limit(bindparam("rows_max"))
)


class SqlAccessKeys(SqlPart):
    """`AccessKeys` of the port. Changes are reported after COMMIT (`AccessChanges`).

    A method reports also when it found no row: an earlier call that raised Transient may have removed the row without
    reporting it.
    """

    def add_access_key(self, key: AccessKey) -> None:
        self._write(_add_access_key, key)
        self._access_changed(AccessOf.KEY, key.access_key)

    @reads
    def access_key(self, connection: Connection, access_key: str) -> AccessKey | None:
        row = connection.execute(FIND, {"key": access_key}).first()
        return None if row is None else _key(row)

    @reads
    def access_keys(self, connection: Connection, after: str, limit: int) -> list[AccessKey]:
        return [_key(row) for row in connection.execute(LIST, {"after": after, "rows_max": limit})]

    def change_access_key(
        self,
        access_key: str,
        state: KeyState | None = None,
        secret: bytes | None = None,
        *,
        instead_of: bytes | None = None,
        ends_sessions: bool = False,
    ) -> bool:
        new: dict[str, Any] = {"state": state, "secret": secret}
        if ends_sessions:
            new["generation"] = urandom(GENERATION_BYTES)
        changed = {name: value for name, value in new.items() if value is not None}
        existed = self._write(_change_access_key, access_key, changed, instead_of)
        self._access_changed(AccessOf.KEY, access_key)
        return existed

    def remove_access_key(self, access_key: str) -> bool:
        existed = self._write(_remove_access_key, access_key)
        self._access_changed(AccessOf.KEY, access_key)
        return existed


def _key(row: Sequence[Any]) -> AccessKey:
    access_key, account, secret, state, created_ms, note, generation = row
    return AccessKey(access_key, account, secret, state, created_ms, note, generation or b"")


def _add_access_key(connection: Connection, key: AccessKey) -> None:
    known = connection.execute(FIND.with_for_update(), {"key": key.access_key}).first()
    if known is None:
        connection.execute(insert(ACCESS_KEYS).values(asdict(key) | {"generation": urandom(GENERATION_BYTES)}))
    elif _key(known) != key:
        raise Conflict(f"access key {key.access_key} already exists; choose another name, or remove that key first")


def _change_access_key(
    connection: Connection, access_key: str, changed: dict[str, Any], instead_of: bytes | None
) -> bool:
    row = connection.execute(FIND.with_for_update(), {"key": access_key}).first()
    if row is None or instead_of not in (None, row.secret):
        return False
    connection.execute(update(ACCESS_KEYS).where(_K.access_key == access_key).values(changed))
    return True


def _remove_access_key(connection: Connection, access_key: str) -> bool:
    return connection.execute(delete(ACCESS_KEYS).where(_K.access_key == access_key)).rowcount == 1

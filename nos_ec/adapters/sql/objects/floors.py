"""Keeps the numbers of removed versions, so that no number is assigned twice (docs/adr/0034).

The floor of a key is the greatest number of a version, or delete marker, that was removed from it in the last FLOOR_MS.
Every version and marker that is added to a key with versions gets a number above its floor. All other rules see only
existing versions, and would assign the number again if the clock of one host is behind the clock of another. A removed
version that was not the newest counts as well: a large PUT takes its number when it begins, and must not record it
after another version had it.

A transaction that removes a version has already locked that version or the current one. So it locks the floor last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import BigInteger, Connection, and_, bindparam, case, delete, insert, or_, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import looked_up
from nos_ec.adapters.sql.tables.rows import KEYS, by_index, key_rows
from nos_ec.adapters.sql.tables.schema import VERSION_FLOORS, utf8
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import FLOOR_MS

RESTORED_ROWS_MAX = 200
"""How many rows of a dump that each need statements are restored in one transaction. Vitess ends transactions that take
long."""

_F = VERSION_FLOORS.c
_OF_KEY = (
    _F.bucket == bindparam("of_bucket", type_=_F.bucket.type),
    _F.name == bindparam("of_name", type_=_F.name.type),
)
_NUMBER = bindparam("number", type_=BigInteger)

OF = select(_F.version).where(*_OF_KEY)
RAISE = update(VERSION_FLOORS).where(*_OF_KEY).values(version=case((_F.version < _NUMBER, _NUMBER), else_=_F.version))
LISTED = looked_up(
    select(_F.bucket, _F.name, _F.version).join_from(
        KEYS.table, VERSION_FLOORS, and_(_F.bucket == KEYS["bucket"], _F.name == KEYS["name"])
    ),
    VERSION_FLOORS,
)
OLD = (
    by_index(select(_F.bucket, _F.name, _F.version), VERSION_FLOORS, "version_floors_by_version")
    .where(_F.version < bindparam("before", type_=BigInteger))
    .order_by(_F.version)
)
_FORGET = delete(VERSION_FLOORS).where(*_OF_KEY, _F.version == _NUMBER)
PAGE = by_index(select(_F.bucket, _F.name, _F.version), VERSION_FLOORS, "PRIMARY").order_by(_F.bucket, _F.name)


def raise_to(connection: Connection, key: ObjectKey, number: int, now_ms: int) -> None:
    """Raise the floor of the key to the number of a version that is removed and locked. Numbers older than FLOOR_MS are
    ignored, because no clock yields them again."""
    if number < (now_ms - FLOOR_MS) * 1000:
        return
    of_key = {"of_bucket": key.bucket, "of_name": key.name, "number": number}
    if not connection.execute(RAISE, of_key).rowcount:
        # If another transaction does the same, one of the two fails as a duplicate and is run again.
        connection.execute(insert(VERSION_FLOORS), {"bucket": key.bucket, "name": key.name, "version": number})


def floor_of(connection: Connection, key: ObjectKey) -> int:
    """Return the floor of a key, or 0."""
    return int(connection.execute(OF, {"of_bucket": key.bucket, "of_name": key.name}).scalar() or 0)


def floors_of(connection: Connection, keys: Iterable[ObjectKey]) -> dict[ObjectKey, int]:
    """Return the floors of the keys that have one. Runs one statement, or none without keys."""
    listed = list(keys)
    found = connection.execute(LISTED, key_rows(listed)) if listed else ()
    return {ObjectKey(bucket, name): floor for bucket, name, floor in found}


class SqlFloors(SqlPart):
    """The methods of `Versions` of the port for floors."""

    @reads
    def floors_after(
        self, connection: Connection, after: ObjectKey | None, limit: int, bucket: str = ""
    ) -> list[tuple[ObjectKey, int]]:
        query = PAGE.limit(limit)
        if bucket:
            query = query.where(_F.bucket == bucket)
        if after is not None:
            least, name = (bindparam(None, utf8(text), type_=_F.name.type) for text in (after.bucket, after.name))
            query = query.where(_F.bucket >= least, or_(_F.bucket > least, and_(_F.bucket == least, _F.name > name)))
        return [(ObjectKey(*of_key), version) for *of_key, version in connection.execute(query)]

    def floors_of(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, int]:
        return self._read(floors_of, keys)

    def restore_floors(self, found: Sequence[tuple[ObjectKey, int]]) -> None:
        for first in range(0, len(found), RESTORED_ROWS_MAX):
            self._write(_restore_floors, found[first : first + RESTORED_ROWS_MAX])

    @writes
    def forget_floors(self, connection: Connection, now_ms: int, limit: int) -> int:
        old = connection.execute(OLD.limit(limit), {"before": (now_ms - FLOOR_MS) * 1000}).all()
        for bucket, name, version in old:
            connection.execute(_FORGET, {"of_bucket": bucket, "of_name": name, "number": version})
        return len(old)


def _restore_floors(connection: Connection, found: Sequence[tuple[ObjectKey, int]]) -> None:
    for key, number in found:
        raise_to(connection, key, number, 0)

"""Makes versions noncurrent and adds delete markers, for PUTs and DELETEs (docs/adr/0034).

Rows of `objects` are locked before rows of `versions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, insert, literal_column, select

from nos_ec.adapters.sql.objects import floors, journal, trash
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import (
    KEYS,
    OBJECT_IDS,
    TRASH_COLUMNS,
    by_index,
    key_rows,
    marked_row,
    noncurrent_mark,
    require_all,
)
from nos_ec.adapters.sql.tables.schema import OBJECTS, TRASHED_BYTES, VERSIONS
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.versions import VERSION_MAX, Versioning, has_version_id, numbered
from nos_ec.ports.metadata import MarkerRow, NewLargeObject, ObjectRow, VersionEntry

_O, _V = OBJECTS.c, VERSIONS.c
COLUMNS = (_V.bucket, _V.name, _V.age_rank, _V.object_id, _V.is_null, _V.created_ms)
_MARKS = JsonRows("version_marks", object_id=0, mark=TRASHED_BYTES)
IS_NULL = _V.is_null == literal_column("1")
"""A literal, as in SQLite's partial index, which would not be used for a parameter."""
OF_KEY = (
    _V.bucket == bindparam("bucket", type_=_V.bucket.type),
    _V.name == bindparam("name", type_=_V.name.type),
)
OF_RANK = (*OF_KEY, _V.age_rank == bindparam("age_rank", type_=BigInteger))
NEWEST = by_index(select(*COLUMNS), VERSIONS, "PRIMARY").where(*OF_KEY).order_by(_V.age_rank).limit(1)
LOCK_NEWEST = NEWEST.with_for_update()
LOCK_NULLS = looked_up(
    select(*COLUMNS)
    .join_from(KEYS.table, VERSIONS, and_(IS_NULL, _V.bucket == KEYS["bucket"], _V.name == KEYS["name"]))
    .with_for_update(),
    VERSIONS,
    "versions_by_null",
)
_RETIRE = UpdateListed(OBJECTS).where(_O.object_id == _MARKS["object_id"]).values(trashed=_MARKS["mark"])
LOCK_ROWS = looked_up(
    select(*TRASH_COLUMNS)
    .join_from(OBJECT_IDS.table, OBJECTS, _O.object_id == OBJECT_IDS["object_id"])
    .with_for_update(),
    OBJECTS,
)
REMOVE = delete(VERSIONS).where(
    _V.bucket == bindparam("of_bucket", type_=_V.bucket.type),
    _V.name == bindparam("of_name", type_=_V.name.type),
    _V.age_rank == bindparam("of_rank", type_=BigInteger),
)


_REMOVE_MARKERS = REMOVE.where(_V.object_id.is_(None))


def rank_of(version: int) -> int:
    """Return the rank of a version: the newest version of a key has the lowest rank."""
    return VERSION_MAX - version


def stays(current: ObjectRow, versioning: Versioning | None) -> bool:
    """Return whether the current version becomes noncurrent when another takes its place. A version with an id always
    stays, also when a program that does not know versions stores or deletes the object."""
    return versioning is Versioning.ENABLED or current.has_version_id


def retire(connection: Connection, rows: Sequence[ObjectRow]) -> None:
    """Make current versions noncurrent. Their rows must be locked."""
    if not rows:
        return
    ids = sorted(row.object_id for row in rows)
    listed = _MARKS.dump((object_id, noncurrent_mark(object_id)) for object_id in ids)
    require_all(connection.execute(_RETIRE, listed).rowcount, len(rows), "objects")
    _insert(connection, [_values(row) for row in sorted(rows, key=lambda row: row.object_id)])
    kill_point("metadata.version_retired.before_commit")


def retire_large(connection: Connection, new: NewLargeObject, object_id: int, now_ms: int) -> None:
    """Make a large object noncurrent that was never current, because a newer version was recorded before it."""
    listed = _MARKS.dump([(object_id, noncurrent_mark(object_id))])
    require_all(connection.execute(_RETIRE, listed).rowcount, 1, "objects")
    is_null = not has_version_id(new.attributes)
    _insert(connection, [_row(new.key, new.version, object_id, now_ms, is_null=is_null)])


def _insert(connection: Connection, listed: Sequence[dict[str, Any]]) -> None:
    """Add noncurrent versions. They replace markers of the same number: a program that does not know versions may have
    stored an object within the millisecond of a DELETE, and a clock may have been set back."""
    ranks = [{"of_bucket": row["bucket"], "of_name": row["name"], "of_rank": row["age_rank"]} for row in listed]
    connection.execute(_REMOVE_MARKERS, ranks)
    connection.execute(insert(VERSIONS), list(listed))


def _values(row: ObjectRow) -> dict[str, Any]:
    return _row(row.key, row.version, row.object_id, row.created_ms, is_null=not row.has_version_id)


def _row(key: ObjectKey, version: int, object_id: int | None, created_ms: int, *, is_null: bool) -> dict[str, Any]:
    return {
        "bucket": key.bucket,
        "name": key.name,
        "age_rank": rank_of(version),
        "object_id": object_id,
        "is_null": int(is_null),
        "created_ms": created_ms,
    }


def newest_versions(connection: Connection, keys: Iterable[ObjectKey]) -> dict[ObjectKey, int]:
    """Return the number of the newest noncurrent version, or marker, of each key that has one, and lock it. Runs a
    statement for each key, so use it only for keys without a current version in buckets with versions."""
    found: dict[ObjectKey, int] = {}
    for key in keys:
        row = connection.execute(LOCK_NEWEST, named(key)).first()
        if row is not None:
            found[key] = VERSION_MAX - row.age_rank
    return found


def highest_numbers(
    connection: Connection, keys: Sequence[ObjectKey], unsure: Iterable[ObjectKey]
) -> dict[ObjectKey, int]:
    """Return the greatest number of each key, except the number of its current version, for keys that have one.

    `unsure` are keys whose current version is not surely the newest one; each needs a statement.
    """
    # Floors are read afterwards, so they include versions whose removal this has waited for.
    highest = newest_versions(connection, unsure)
    for key, floor in floors.floors_of(connection, keys).items():
        highest[key] = max(highest.get(key, 0), floor)
    return highest


def remove_nulls(
    connection: Connection, keys: Iterable[ObjectKey], now_ms: int, until_ms: int | None = None
) -> dict[ObjectKey, int]:
    """Remove the noncurrent null versions and null markers of these keys, because others take their place.

    `until_ms` is for a DELETE: until when the trash keeps them, if there is a trash. Return the number of the newest
    one for each key that had some: `newest_versions` may have missed it while it waited for one that was removed.
    """
    listed = list(keys)
    if not listed:
        return {}
    nulls = connection.execute(LOCK_NULLS, key_rows(listed)).all()
    if not nulls:
        return {}
    rows = lock_rows(connection, [row.object_id for row in nulls if row.object_id is not None])
    remove(connection, nulls)
    if rows:
        discard(connection, list(rows.values()), now_ms, until_ms)
    numbers: dict[ObjectKey, int] = {}
    for row in nulls:
        key = ObjectKey(row.bucket, row.name)
        numbers[key] = max(numbers.get(key, 0), VERSION_MAX - row.age_rank)
    return numbers


def hide(
    connection: Connection, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None, *, conditional: bool
) -> dict[ObjectKey, int]:
    """Delete current versions of keys that have others, by adding null markers as in a SUSPENDED bucket. The rows must
    be locked. Versions with ids become noncurrent; null versions are released, or go into the trash. Returns the
    numbers of the markers."""
    retire(connection, [row for row in rows if row.has_version_id])
    nulls = [row for row in rows if not row.has_version_id]
    if nulls:
        discard(connection, nulls, now_ms, until_ms)
    keys = [row.key for row in rows]
    highest = highest_numbers(connection, keys, keys)
    remove_nulls(connection, keys, now_ms, until_ms)
    least = {row.key: max(row.version + 1, highest.get(row.key, 0) + 1, now_ms * 1000) for row in rows}
    numbers = {key: numbered(least[key], conditional=conditional) for key in keys}
    add_markers(connection, [VersionEntry(key, numbers[key], now_ms, True, None) for key in numbers])
    return numbers


def add_markers(connection: Connection, markers: Sequence[VersionEntry | MarkerRow]) -> None:
    """Add delete markers."""
    if markers:
        journal.add_markers(connection, [(one.key, one.version, one.created_ms, one.is_null) for one in markers])
        insert_markers(connection, markers)


def insert_markers(connection: Connection, markers: Sequence[VersionEntry | MarkerRow]) -> None:
    """Insert the rows of delete markers."""
    connection.execute(
        insert(VERSIONS),
        [_row(one.key, one.version, None, one.created_ms, is_null=one.is_null) for one in markers],
    )


def discard(connection: Connection, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None) -> None:
    """Remove rows and release what they hold, or put them into the trash until `until_ms`. The rows must be locked.
    Raises Locked if an object lock protects one of the versions."""
    if until_ms is None:
        trash.remove_rows(connection, rows, now_ms)
    else:
        trash.put_into(connection, rows, now_ms, until_ms)


def remove(connection: Connection, found: Sequence[Any]) -> None:
    """Remove rows of `versions`. They must be locked."""
    markers = [
        (ObjectKey(row.bucket, row.name), VERSION_MAX - row.age_rank, row.created_ms)
        for row in found
        if row.object_id is None
    ]
    if markers:
        journal.remove_markers(connection, markers)
    ranks = [{"of_bucket": row.bucket, "of_name": row.name, "of_rank": row.age_rank} for row in found]
    require_all(connection.execute(REMOVE, ranks).rowcount, len(ranks), "versions")


def lock_rows(connection: Connection, object_ids: Iterable[int]) -> dict[int, ObjectRow]:
    """Lock the rows of these objects, and return them by object id, with their marks."""
    listed = sorted((one, 0) for one in object_ids)
    rows = map(marked_row, connection.execute(LOCK_ROWS, OBJECT_IDS.dump(listed))) if listed else ()
    return {row.object_id: row for row in rows}


def named(key: ObjectKey) -> dict[str, Any]:
    """Return the parameters of OF_KEY."""
    return {"bucket": key.bucket, "name": key.name}


def entry_of(found: Any, row: ObjectRow | None, *, is_latest: bool = False) -> VersionEntry:
    """Return the VersionEntry for a row of `versions` and the row of its object, which is None for a marker."""
    key = ObjectKey(found.bucket, found.name)
    return VersionEntry(key, VERSION_MAX - found.age_rank, found.created_ms, bool(found.is_null), row, is_latest)


def is_unchanged(seen: ObjectRow, row: ObjectRow | None) -> bool:
    """Return whether `row` is still the version that was seen, with the same attributes."""
    if row is None:
        return False
    return (seen.object_id, seen.version, seen.attributes) == (row.object_id, row.version, row.attributes)

"""Removes noncurrent versions and delete markers by lifecycle rules (docs/adr/0035).

Rows may have changed since the lifecycle walk has read them. So all its conditions are checked again here, after
locking the same rows as every deletion of a version: the row of the current version, if there is one, and the rows of
the versions concerned.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, bindparam, select

from nos_ec.adapters.sql.objects import floors, object_rows
from nos_ec.adapters.sql.objects.locks import locked_among
from nos_ec.adapters.sql.objects.make_noncurrent import (
    COLUMNS,
    NEWEST,
    OF_KEY,
    discard,
    entry_of,
    is_unchanged,
    lock_rows,
    named,
    rank_of,
    remove,
)
from nos_ec.adapters.sql.tables.rows import by_index
from nos_ec.adapters.sql.tables.schema import VERSIONS
from nos_ec.core.versions import VERSION_MAX
from nos_ec.ports.metadata import ExpireMarker, ExpireVersion, ObjectRow, VersionEntry

_V = VERSIONS.c

LOCK_UPWARDS = (
    by_index(select(*COLUMNS), VERSIONS, "PRIMARY")
    .where(*OF_KEY, _V.age_rank <= bindparam("age_rank", type_=BigInteger))
    .order_by(_V.age_rank.desc())
    .limit(bindparam("rows_max"))
    .with_for_update()
)
"""Selects a version and the newer ones, in order of age, the version first."""
TWO_NEWEST = NEWEST.limit(2)
LOCK_TWO_NEWEST = TWO_NEWEST.with_for_update()


def expire_version(
    connection: Connection, expired: ExpireVersion, now_ms: int, until_ms: int | None
) -> VersionEntry | None:
    """Delete a noncurrent version if `ExpireVersion` still holds for it. Return what was deleted, or None."""
    key = expired.key
    current = object_rows.lock_listed(connection, [key]).get(key)
    wanted = {**named(key), "age_rank": rank_of(expired.version), "rows_max": expired.newer + 2}
    rows = connection.execute(LOCK_UPWARDS, wanted).all()
    if not rows or rows[0].age_rank != wanted["age_rank"]:
        return None
    found, newer = rows[0], rows[1:]
    # Without a current version, the newest of these is a marker that does not count as noncurrent.
    if len(newer) - (current is None) < expired.newer:
        return None
    next_one = (VERSION_MAX - newer[0].age_rank, newer[0].created_ms) if newer else None
    if _became_noncurrent(expired.version, found.created_ms, current, next_one) > expired.since_ms:
        return None
    row = None
    if found.object_id is not None:
        row = lock_rows(connection, [found.object_id]).get(found.object_id)
    if row is not None if expired.seen is None else not is_unchanged(expired.seen, row):
        return None
    if row is not None and locked_among(connection, [row]):
        return None
    remove(connection, [found])
    if row is not None:
        discard(connection, [row], now_ms, until_ms)
    floors.raise_to(connection, key, expired.version, now_ms)
    return entry_of(found, row)


def _became_noncurrent(
    version: int, created_ms: int, current: ObjectRow | None, next_one: tuple[int, int] | None
) -> int:
    """Return the time when a version, which was created at `created_ms`, became noncurrent: when its successor was
    created. `next_one` is number and time of the next newer noncurrent version, or marker. An undeleted current version
    may be older than `next_one`, and even older than the version itself. Clocks may be wrong, so the result is never
    earlier than `created_ms`."""
    newer = [] if next_one is None else [next_one]
    if current is not None and (not newer or version < current.version):
        newer.append((current.version, current.created_ms))
    _, successor_ms = min(newer)
    return max(created_ms, successor_ms)


def expire_marker(connection: Connection, expired: ExpireMarker, now_ms: int) -> VersionEntry | None:
    """Remove a delete marker if it is the only version of its key, as `ExpireMarker` demands. Return it, or None."""
    if object_rows.lock_listed(connection, [expired.key]):
        return None
    found = connection.execute(LOCK_TWO_NEWEST, named(expired.key)).all()
    if len(found) != 1 or found[0].object_id is not None or found[0].age_rank != rank_of(expired.version):
        return None
    # If the locking read waited for a newer marker that was then removed, it missed the one that took its place.
    if len(connection.execute(TWO_NEWEST, named(expired.key)).all()) != 1:
        return None
    remove(connection, found)
    floors.raise_to(connection, expired.key, expired.version, now_ms)
    return entry_of(found[0], None, is_latest=True)

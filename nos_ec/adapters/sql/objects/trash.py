"""The trash: rows of deleted versions, marked in the column `trashed` (docs/adr/0028).

A mark consists of until_ms (6 bytes), object_id (8 bytes) and the time of the deletion (6 bytes), all big-endian. So
the index objects_by_trash_key has the trash in the order of its times, after all current versions, whose marks are
empty, and noncurrent ones, whose until_ms is 0. The rows of one statement are locked in order of object id, as in
commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select

from nos_ec.adapters.sql.objects import journal, usage
from nos_ec.adapters.sql.objects.locks import locked_among, require_unlocked
from nos_ec.adapters.sql.objects.release_version import release
from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import (
    FIRST_MARK,
    LIVE,
    OBJECT_IDS,
    TRASH_COLUMNS,
    by_index,
    by_keys,
    delete_listed,
    key_rows,
    marked_row,
    name_range,
    place_of,
    require_all,
    trash_mark,
    trash_place,
)
from nos_ec.adapters.sql.tables.schema import OBJECTS, TRASHED_BYTES
from nos_ec.core.formats.journal import EntryKind
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata import ObjectRow, TrashMark, TrashPage, Undeleted

_O = OBJECTS.c
_INDEX = "objects_by_trash_key"
_END = b"\xff" * TRASHED_BYTES
"""Sorts after all marks."""
_LEAST = FIRST_MARK
_MARKS = JsonRows("marks", object_id=0, mark=TRASHED_BYTES)

PUT_INTO = UpdateListed(OBJECTS).where(_O.object_id == _MARKS["object_id"]).values(trashed=_MARKS["mark"])
BRING_BACK = UpdateListed(OBJECTS).where(_O.object_id == OBJECT_IDS["object_id"]).values(trashed=LIVE)
LOCK_MARKED = looked_up(
    select(*TRASH_COLUMNS)
    .join_from(OBJECT_IDS.table, OBJECTS, _O.object_id == OBJECT_IDS["object_id"])
    .with_for_update(),
    OBJECTS,
)
TAKEN = by_keys(_O.bucket, _O.name)


_BEFORE, _FROM = (bindparam(name, type_=_O.trashed.type) for name in ("before", "least"))
_WALK = (
    by_index(select(_O.trashed), OBJECTS, _INDEX)
    .where(_O.trashed < _BEFORE, _O.trashed >= _FROM)
    .order_by(_O.trashed.desc())
    .limit(bindparam("rows_max"))
    .subquery("walk")
)
LAST_OF_PAGE = select(func.min(_WALK.c.trashed), func.count()).select_from(_WALK)
PAGE = (
    by_index(select(*TRASH_COLUMNS), OBJECTS, _INDEX)
    .where(_O.trashed < _BEFORE, _O.trashed >= _FROM)
    .order_by(_O.trashed.desc())
)
EXPIRED = (
    by_index(select(*TRASH_COLUMNS), OBJECTS, _INDEX)
    .where(_O.trashed >= _FROM, _O.trashed < _BEFORE)
    .order_by(_O.trashed)
    .limit(bindparam("rows_max"))
)


def put_into(connection: Connection, rows: Sequence[ObjectRow], now_ms: int, until_ms: int) -> None:
    """Put versions into the trash until `until_ms`. Their rows must be locked. Raises Locked if an object lock protects
    one of the versions."""
    require_unlocked(connection, rows)
    usage.uncounts(connection, rows)
    journal.add(connection, EntryKind.TRASHED, rows, now_ms, until_ms)
    mark(connection, [(row.object_id, until_ms, now_ms) for row in rows])


def mark(connection: Connection, placed: Sequence[tuple[int, int, int]]) -> None:
    """Mark rows with these object ids as being in the trash: until when, and since when."""
    listed = _MARKS.dump((object_id, trash_mark(until_ms, object_id, ms)) for object_id, until_ms, ms in sorted(placed))
    require_all(connection.execute(PUT_INTO, listed).rowcount, len(placed), "objects")


class SqlTrash(SqlPart):
    """`Trash` of the port, except `undelete` (versions.py)."""

    @reads
    def trash_page(
        self, connection: Connection, before: TrashMark | None, limit: int, bucket: str = "", prefix: str = ""
    ) -> TrashPage:
        start = _END if before is None else trash_place(*before)
        last, count = connection.execute(LAST_OF_PAGE, {"before": start, "least": _LEAST, "rows_max": limit}).one()
        if not count:
            return TrashPage([], None)
        rows = connection.execute(_in_bucket(PAGE, bucket, prefix), {"before": start, "least": last}).all()
        on = TrashMark(*place_of(last))
        return TrashPage([marked_row(row) for row in rows], None if count < limit else on)

    @reads
    def expired_trash(
        self, connection: Connection, now_ms: int, limit: int, after: TrashMark | None = None
    ) -> list[ObjectRow]:
        least = _LEAST if after is None else trash_place(after.until_ms, after.object_id + 1)
        bounds = {"least": least, "before": trash_place(now_ms + 1, 0), "rows_max": limit}
        return [marked_row(row) for row in connection.execute(EXPIRED, bounds)]

    def purge_trash(self, rows: Sequence[ObjectRow], now_ms: int) -> list[ObjectRow]:
        return self._change([row.key for row in rows], _purge_trash, rows, now_ms) if rows else []


def _in_bucket(query: Select[Any], bucket: str, prefix: str) -> Select[Any]:
    return query.where(_O.bucket == bucket, *name_range(prefix, "")) if bucket else query


def _purge_trash(connection: Connection, rows: Sequence[ObjectRow], now_ms: int) -> list[ObjectRow]:
    locked = _locked(connection, rows)
    gone = []
    for row in rows:
        found = locked.pop(row.object_id, None)
        if found is not None and found.trash_until_ms is not None and found.trash_until_ms == row.trash_until_ms:
            gone.append(found)
    kept = {row.object_id for row in locked_among(connection, gone)}
    gone = [row for row in gone if row.object_id not in kept]
    if gone:
        remove_rows(connection, gone, now_ms)
        kill_point("metadata.purge_trash.before_commit")
    return gone


def remove_rows(connection: Connection, rows: Sequence[ObjectRow], now_ms: int, *, moved: bool = False) -> None:
    """Remove these rows, and release their landing copies and blocks. The rows must be locked. Raises Locked if an
    object lock protects one of the versions, unless they are only copies of versions of another cell (`moved`)."""
    journal.add(connection, EntryKind.REMOVED, rows)
    release(connection, rows, now_ms, moved=moved)
    listed = OBJECT_IDS.dump(sorted((row.object_id, row.version) for row in rows))
    gone = delete_listed(connection, OBJECTS, _O.object_id, OBJECT_IDS, "object_id")
    require_all(connection.execute(gone, listed).rowcount, len(rows), "objects")


def undelete(connection: Connection, rows: Sequence[ObjectRow]) -> Undeleted:
    """Make versions in the trash current again whose keys have no current version. Return them, and the versions among
    `rows` that are not in the trash."""
    locked = _locked(connection, rows)
    versions = {row.object_id: row.version for row in rows}
    wanted = [locked[one] for one in versions if one in locked and locked[one].version == versions[one]]
    in_trash = {row.key for row in wanted if row.trash_until_ms is not None}
    taken = set(map(tuple, connection.execute(TAKEN, key_rows(in_trash)))) if in_trash else set()
    back: list[ObjectRow] = []
    for row in wanted:
        if row.trash_until_ms is None:
            back.append(row)
        elif (row.key.bucket, row.key.name) not in taken:
            taken.add((row.key.bucket, row.key.name))
            back.append(row)
    listed = sorted((row.object_id, row.version) for row in back if row.trash_until_ms is not None)
    if listed:
        # If one of the keys is PUT meanwhile, this fails as a duplicate, and the transaction is run again.
        require_all(connection.execute(BRING_BACK, OBJECT_IDS.dump(listed)).rowcount, len(listed), "objects")
        usage.counts(connection, [row for row in back if row.trash_until_ms is not None])
    journal.add(connection, EntryKind.UNDELETED, (row for row in back if row.trash_until_ms is not None))
    already = frozenset(row.object_id for row in back if row.trash_until_ms is None)
    return Undeleted([replace(row, trash_until_ms=None, trashed_ms=None) for row in back], already)


def _locked(connection: Connection, rows: Sequence[ObjectRow]) -> dict[int, ObjectRow]:
    listed = OBJECT_IDS.dump(sorted({(row.object_id, row.version) for row in rows}))
    found = map(marked_row, connection.execute(LOCK_MARKED, listed))
    return {row.object_id: row for row in found}

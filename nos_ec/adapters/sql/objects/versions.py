"""Noncurrent versions and delete markers (docs/adr/0034).

Changes to one key take effect one after the other, although a key without a current version has no row to lock:

  - A transaction that finds a current version locks its row. One that had to wait for the lock looks again.
  - If two transactions make a row current at the same time, one fails as a duplicate in the index of keys, and is run
    again.
  - A transaction may add a version or a marker without finding a current version, or make a version current. Then it
    checks afterwards, by a locking read, whether another transaction has added one that is at least as new, or is the
    null version as well: `raise_if_newer`, `raise_if_null` and `_add_marker`. Each adds its row before it checks, so at
    least one of two finds the other's row, or both wait, and one is ended as a deadlock. Earlier reads do not suffice:
    a locking read that waits for a row which is then removed misses rows that were added in front of it.
  - A transaction that does not find the requested version looks again, in both tables at once, because the version may
    have moved from one to the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    Select,
    SmallInteger,
    and_,
    bindparam,
    literal,
    null,
    or_,
    select,
    union_all,
    update,
)

from nos_ec.adapters.sql.driver.transactions import Overtaken
from nos_ec.adapters.sql.objects import floors, object_rows, trash
from nos_ec.adapters.sql.objects.entries import FIRST_ROWS, GROWTH, Start, after_folder, end_of, start_of
from nos_ec.adapters.sql.objects.expired_versions import expire_marker, expire_version
from nos_ec.adapters.sql.objects.locks import lifted, locked_among, require_unlocked
from nos_ec.adapters.sql.objects.make_noncurrent import (
    COLUMNS,
    IS_NULL,
    LOCK_NEWEST,
    LOCK_NULLS,
    NEWEST,
    OF_KEY,
    OF_RANK,
    REMOVE,
    add_markers,
    discard,
    entry_of,
    highest_numbers,
    insert_markers,
    is_unchanged,
    lock_rows,
    named,
    newest_versions,
    rank_of,
    remove,
    remove_nulls,
    retire,
    stays,
)
from nos_ec.adapters.sql.objects.outbox import EventWriter, NotifyingPart, Removal
from nos_ec.adapters.sql.tables.base import reads, writes_again
from nos_ec.adapters.sql.tables.json_rows import JsonRows, looked_up
from nos_ec.adapters.sql.tables.rows import (
    FIRST_MARK,
    LIVE,
    TRASH_COLUMNS,
    by_index,
    by_primary,
    key_rows,
    marked_row,
    prefix_end,
    require_all,
)
from nos_ec.adapters.sql.tables.schema import OBJECTS, VERSION_FLOORS, VERSIONS, utf8
from nos_ec.core.conditions import Condition
from nos_ec.core.errors import Locked, NosError, NotFound, PreconditionFailed
from nos_ec.core.folders import folder_of
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.versions import VERSION_MAX, Versioning, has_version_id
from nos_ec.ports.metadata import (
    AddMarker,
    DeleteVersion,
    ExpireMarker,
    ExpireVersion,
    MarkerRow,
    ObjectRow,
    Undeleted,
    VersionDeletion,
    VersionEntry,
    VersionPage,
)

_O, _V, _F = OBJECTS.c, VERSIONS.c, VERSION_FLOORS.c
_RANKS = JsonRows("ranks", bucket=BUCKET_BYTES_MAX, name=NAME_BYTES_MAX, age_rank=0)
_ADDED = JsonRows("added", bucket=BUCKET_BYTES_MAX, name=NAME_BYTES_MAX, age_rank=0, number=0)

FIND = by_index(select(*COLUMNS), VERSIONS, "PRIMARY").where(*OF_RANK)
FIND_NULL = (
    by_index(select(*COLUMNS), VERSIONS, "versions_by_null").where(IS_NULL, *OF_KEY).order_by(_V.age_rank).limit(1)
)
LOCK_NEWER = looked_up(
    select(_V.age_rank, _F.version)
    .join_from(
        _ADDED.table,
        VERSIONS,
        and_(_V.bucket == _ADDED["bucket"], _V.name == _ADDED["name"], _V.age_rank <= _ADDED["age_rank"]),
        isouter=True,
    )
    .join(
        VERSION_FLOORS,
        and_(_F.bucket == _ADDED["bucket"], _F.name == _ADDED["name"], _F.version >= _ADDED["number"]),
        isouter=True,
    )
    .where(or_(_V.age_rank.is_not(None), _F.version.is_not(None)))
    .with_for_update(),
    VERSIONS,
    then=VERSION_FLOORS,
)
LISTED = looked_up(
    select(_V.object_id).join_from(
        _RANKS.table,
        VERSIONS,
        and_(_V.bucket == _RANKS["bucket"], _V.name == _RANKS["name"], _V.age_rank == _RANKS["age_rank"]),
    ),
    VERSIONS,
)
CURRENT = select(_O.version, _O.attributes, literal(0)).where(
    _O.trashed == LIVE,
    _O.bucket == bindparam("bucket", type_=_O.bucket.type),
    _O.name == bindparam("name", type_=_O.name.type),
)
SET_BACK = by_primary(update(OBJECTS)).where(_O.object_id == bindparam("of_object", type_=BigInteger))
ROW = by_index(select(*TRASH_COLUMNS), OBJECTS, "PRIMARY").where(
    _O.object_id == bindparam("object_id", type_=BigInteger)
)
HOLDS_VERSION = (
    by_index(select(_V.age_rank), VERSIONS, "PRIMARY")
    .where(_V.bucket == bindparam("bucket", type_=_V.bucket.type))
    .limit(1)
)


class SqlVersions(NotifyingPart):
    """`Versions` of the port, and `undelete` of `Trash`."""

    def version(self, key: ObjectKey, version: int | None) -> VersionEntry:
        return self._read_in(key.bucket, _find_version, key, version)

    def latest_marker(self, key: ObjectKey) -> VersionEntry | None:
        return self._read_in(key.bucket, _latest_marker, key)

    @reads
    def same_version(self, connection: Connection, row: ObjectRow) -> ObjectRow | None:
        found = connection.execute(ROW, {"object_id": row.object_id}).first()
        if found is None or found.version != row.version or found.trashed >= FIRST_MARK:
            return None
        return marked_row(found)

    def list_versions(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, int | None], limit: int, budget_ms: int
    ) -> VersionPage:
        end_s = end_of(budget_ms)
        return self._read_in(bucket, _list_versions, bucket, prefix, delimiter, after, limit, end_s)

    def delete_versions(
        self, deletions: Sequence[VersionDeletion], now_ms: int, until_ms: int | None = None
    ) -> list[VersionEntry | NosError | None]:
        locked: dict[int, Locked] = {}
        events = self._writer(one.key.bucket for one in deletions)
        while deletions:
            try:
                keys = [one.key for one in deletions]
                return self._change_again(keys, delete_all, deletions, now_ms, until_ms, locked, events)
            except _LockedAt as refused:
                locked[refused.index] = refused.error
        return []

    def undelete(self, rows: Sequence[ObjectRow]) -> Undeleted:
        return self._change([row.key for row in rows], _undelete, rows) if rows else Undeleted([], frozenset())

    @reads
    def markers_after(self, connection: Connection, after: tuple[ObjectKey, int] | None, limit: int) -> list[MarkerRow]:
        rows = connection.execute(_after_version(select(*COLUMNS), after).where(_V.object_id.is_(None)).limit(limit))
        return [
            MarkerRow(ObjectKey(row.bucket, row.name), VERSION_MAX - row.age_rank, row.created_ms, bool(row.is_null))
            for row in rows
        ]

    def restore_markers(self, rows: Sequence[MarkerRow]) -> None:
        for first in range(0, len(rows), floors.RESTORED_ROWS_MAX):
            self._write(_restore_markers, rows[first : first + floors.RESTORED_ROWS_MAX])

    def settle_versions(self, rows: Sequence[ObjectRow]) -> None:
        if rows:
            self._write(_settle_versions, rows)

    @writes_again
    def order_versions(self, connection: Connection, keys: Sequence[ObjectKey], now_ms: int, until_ms: int) -> None:
        for key in keys:
            current = object_rows.lock(connection, key)
            newest = connection.execute(LOCK_NEWEST, named(key)).first()
            if current is None:
                _promote(connection, key)
            elif newest is not None and VERSION_MAX - newest.age_rank > current.version:
                retire(connection, [current])
                _promote(connection, key)
            _leave_one_null(connection, key, now_ms, until_ms)

    def listed_as_noncurrent(self, rows: Sequence[ObjectRow]) -> frozenset[int]:
        return self._read(_listed_as_noncurrent, rows) if rows else frozenset()

    @reads
    def noncurrent_after(
        self, connection: Connection, after: tuple[ObjectKey, int] | None, limit: int
    ) -> list[tuple[ObjectKey, int, int | None]]:
        rows = connection.execute(_after_version(select(*COLUMNS), after).limit(limit))
        return [(ObjectKey(row.bucket, row.name), VERSION_MAX - row.age_rank, row.object_id) for row in rows]


# --- looking up ---------------------------------------------------------------------------------------
def _find_version(connection: Connection, key: ObjectKey, version: int | None) -> VersionEntry:
    # A noncurrent version may become current between two statements, so look again.
    for _ in range(3):
        current = object_rows.find(connection, key)
        if current is not None and _is_asked(current, version):
            return VersionEntry(key, current.version, current.created_ms, not current.has_version_id, current, True)
        found = connection.execute(*_asked(key, version)).first()
        if found is None:
            again = object_rows.find(connection, key)
            if again is None or (current is not None and again.version == current.version):
                break
            continue
        if found.object_id is None:
            return entry_of(found, None, is_latest=current is None and _is_newest(connection, found))
        row = connection.execute(ROW, {"object_id": found.object_id}).first()
        if row is not None and row.trashed < FIRST_MARK:
            return entry_of(found, marked_row(row))
    raise NotFound(f"object {key} has no version {'null' if version is None else version}", key=key)


def _latest_marker(connection: Connection, key: ObjectKey) -> VersionEntry | None:
    newest = connection.execute(NEWEST, named(key)).first()
    return None if newest is None or newest.object_id is not None else entry_of(newest, None, is_latest=True)


# --- with PUTs ----------------------------------------------------------------------------------------
def newest_number(connection: Connection, key: ObjectKey) -> int:
    """Return the greatest number that a noncurrent version, a marker or a removed version of this key has had, or 0."""
    newest = connection.execute(NEWEST, named(key)).first()
    return max(floors.floor_of(connection, key), 0 if newest is None else VERSION_MAX - newest.age_rank)


def noncurrent_version(connection: Connection, key: ObjectKey, version: int) -> ObjectRow | None:
    """Return the noncurrent version of this number, with or without an id, or None. Markers do not count."""
    found = connection.execute(FIND, {**named(key), "age_rank": rank_of(version)}).first()
    if found is None or found.object_id is None:
        return None
    row = connection.execute(ROW, {"object_id": found.object_id}).first()
    return None if row is None else marked_row(row)


def raise_if_newer(connection: Connection, least: Mapping[ObjectKey, int], removed: Mapping[ObjectKey, int]) -> None:
    """Raise Overtaken if one of these keys, which had no current version, has got a version or marker meanwhile whose
    number is at least its number in `least`, or if one was removed whose number is at least that in `removed`."""
    if least:
        added = sorted(
            (utf8(key.bucket), utf8(key.name), rank_of(number), removed.get(key, VERSION_MAX))
            for key, number in least.items()
        )
        if connection.execute(LOCK_NEWER, _ADDED.dump(added)).first() is not None:
            raise Overtaken


def raise_if_null(connection: Connection, keys: Iterable[ObjectKey], own: int | None = None) -> None:
    """Raise Overtaken if one of these keys, which had no current version, has a noncurrent null version or a null
    marker. This transaction has removed all others, because it adds a null version; `own` is its number if it is a
    marker."""
    listed = list(keys)
    if listed:
        nulls = connection.execute(LOCK_NULLS, key_rows(listed))
        if any(own is None or row.age_rank != rank_of(own) for row in nulls):
            raise Overtaken


# --- DELETE -------------------------------------------------------------------------------------------
def delete_all(
    connection: Connection,
    deletions: Sequence[VersionDeletion],
    now_ms: int,
    until_ms: int | None,
    locked: Mapping[int, Locked],
    events: EventWriter | None = None,
) -> list[VersionEntry | NosError | None]:
    """Carry out these deletions, in their order, and return an answer for each: what was deleted, if anything, or why
    it was refused. Raises Overtaken, and _LockedAt if a lock was found after something was changed: then the
    transaction must be rolled back, and run again with the error in `locked`, by the index of the deletion."""
    answers: list[VersionEntry | NosError | None] = []
    for index, one in enumerate(deletions):
        try:
            if index in locked:
                answers.append(locked[index])
            elif isinstance(one, AddMarker):
                answers.append(_add_marker(connection, one, now_ms, until_ms))
            elif isinstance(one, ExpireVersion):
                answers.append(expire_version(connection, one, now_ms, until_ms))
            elif isinstance(one, ExpireMarker):
                answers.append(expire_marker(connection, one, now_ms))
            else:
                answers.append(_delete_version(connection, one, now_ms, until_ms))
        except _Refused as refused:
            answers.append(refused.error)
        except Locked as error:
            raise _LockedAt(index, error) from error
    if events is not None:
        events.removed(connection, _removals(deletions, answers), now_ms)
    kill_point("metadata.delete_versions.before_commit")
    return answers


def _removals(
    deletions: Sequence[VersionDeletion], answers: Sequence[VersionEntry | NosError | None]
) -> Iterator[Removal]:
    """Yield what these deletions have removed, and the markers that they have added, in their order."""
    for one, answer in zip(deletions, answers, strict=True):
        if isinstance(answer, VersionEntry):
            is_marker = isinstance(one, AddMarker)
            yield Removal(answer.key, answer.version, is_null=answer.is_null, is_marker=is_marker)


class _LockedAt(Exception):
    """A lock refuses the deletion with this index."""

    def __init__(self, index: int, error: Locked) -> None:
        super().__init__(str(error))
        self.index = index
        self.error = error


class _Refused(Exception):
    def __init__(self, error: NosError) -> None:
        super().__init__(str(error))
        self.error = error


def _require(key: ObjectKey, condition: Condition | None, row: ObjectRow | None) -> None:
    if condition is not None:
        refusal = condition.refusal(key, None if row is None else row.tag, None if row is None else row.facts)
        if refusal is not None:
            raise _Refused(refusal)


def _require_unlocked(connection: Connection, row: ObjectRow) -> None:
    """Refuse the deletion before anything is changed, so that the transaction continues with the next one."""
    try:
        require_unlocked(connection, [row])
    except Locked as error:
        raise _Refused(error) from error


def _add_marker(connection: Connection, deletion: AddMarker, now_ms: int, until_ms: int | None) -> VersionEntry:
    """Delete an object by adding a marker. Raises Overtaken."""
    key, versioning = deletion.key, deletion.versioning
    current = object_rows.lock(connection, key)
    _require(key, deletion.condition, current)
    if deletion.seen is not None and not is_unchanged(deletion.seen, current):
        raise _Refused(PreconditionFailed(f"object {key} was changed meanwhile; nothing was deleted", key=key))
    if current is not None and not stays(current, versioning):
        _require_unlocked(connection, current)
    is_null = versioning is Versioning.SUSPENDED
    highest = highest_numbers(connection, [key], [key]).get(key, 0)
    if current is not None and stays(current, versioning):
        retire(connection, [current])
    elif current is not None:
        discard(connection, [current], now_ms, until_ms)
    removed = remove_nulls(connection, [key], now_ms, until_ms).get(key, 0) if is_null else 0
    conditional = deletion.condition is not None or deletion.seen is not None
    highest = max(highest, removed, 0 if current is None else current.version)
    version = object_rows.next_version(highest, now_ms, conditional=conditional)
    marker = VersionEntry(key, version, now_ms, is_null, None, is_latest=True)
    add_markers(connection, [marker])
    if current is None:
        if object_rows.lock(connection, key) is not None:
            raise Overtaken
        raise_if_newer(connection, {key: version + 1}, {key: version})
        raise_if_null(connection, [key] if is_null else [], version)
    return marker


def _delete_version(
    connection: Connection, deletion: DeleteVersion, now_ms: int, until_ms: int | None
) -> VersionEntry | None:
    key = deletion.key
    current = object_rows.lock(connection, key)
    if current is not None and _is_asked(current, deletion.version):
        _require(key, deletion.condition, current)
        if deletion.bypass:
            current = lifted(connection, current)
        _require_unlocked(connection, current)
        discard(connection, [current], now_ms, until_ms)
        if deletion.version is None:
            remove_nulls(connection, [key], now_ms, until_ms)
        floors.raise_to(connection, key, current.version, now_ms)
        _promote(connection, key)
        return VersionEntry(key, current.version, current.created_ms, not current.has_version_id, current, True)
    found = connection.execute(*_asked(key, deletion.version, lock=True)).first()
    if found is None:
        if _is_there(connection, key, deletion.version):
            raise Overtaken
        _require(key, deletion.condition, None)
        return None
    row = None
    if found.object_id is not None:
        row = lock_rows(connection, [found.object_id]).get(found.object_id)
    _require(key, deletion.condition, row)
    if row is not None:
        if deletion.bypass:
            row = lifted(connection, row)
        _require_unlocked(connection, row)
    remove(connection, [found])
    if row is not None:
        discard(connection, [row], now_ms, until_ms)
    if deletion.version is None:
        remove_nulls(connection, [key], now_ms, until_ms)
    floors.raise_to(connection, key, VERSION_MAX - found.age_rank, now_ms)
    if current is None:
        _promote(connection, key)
    return entry_of(found, row)


def _is_there(connection: Connection, key: ObjectKey, version: int | None) -> bool:
    """Return whether one of the two tables has this version. Runs one statement, so that the version cannot move
    between the tables meanwhile."""
    query, bounds = _asked(key, version)
    noncurrent = query.subquery("noncurrent")
    either = union_all(CURRENT, select(noncurrent.c.age_rank, null(), literal(1)))
    for number, attributes, is_noncurrent in connection.execute(either, bounds):
        has_id = has_version_id(attributes)
        if is_noncurrent or (not has_id if version is None else has_id and number == version):
            return True
    return False


def _is_asked(row: ObjectRow, version: int | None) -> bool:
    return not row.has_version_id if version is None else row.has_version_id and row.version == version


def _asked(key: ObjectKey, version: int | None, *, lock: bool = False) -> tuple[Select[Any], dict[str, Any]]:
    query = FIND_NULL if version is None else FIND.where(_V.is_null == 0)
    rank = {} if version is None else {"age_rank": rank_of(version)}
    return query.with_for_update() if lock else query, {**named(key), **rank}


def _promote(connection: Connection, key: ObjectKey) -> None:
    """Make the newest noncurrent version current, unless a marker is newer. Raises Overtaken."""
    newest = connection.execute(LOCK_NEWEST, named(key)).first()
    if newest is None or newest.object_id is None:
        return
    changed = connection.execute(SET_BACK.values(trashed=LIVE), {"of_object": newest.object_id}).rowcount
    require_all(changed, 1, "objects")
    remove(connection, [newest])
    raise_if_newer(connection, {key: VERSION_MAX - newest.age_rank}, {})


def _undelete(connection: Connection, rows: Sequence[ObjectRow]) -> Undeleted:
    """Undelete versions. One that comes back may be older than others of its key. Versions that are stored over it must
    be newer than those, so the floor is raised."""
    back = trash.undelete(connection, rows)
    numbers = {row.key: row.version for row in back.rows if row.is_of_versions and not row.is_noncurrent}
    for key, newest in newest_versions(connection, numbers).items():
        if newest > numbers[key]:
            floors.raise_to(connection, key, newest, 0)
    return back


# --- reading ------------------------------------------------------------------------------------------
def _is_newest(connection: Connection, found: Any) -> bool:
    newest = connection.execute(NEWEST, {"bucket": found.bucket, "name": found.name}).first()
    return newest is not None and bool(newest.age_rank == found.age_rank)


# --- listing ------------------------------------------------------------------------------------------


def _list_versions(
    connection: Connection,
    bucket: str,
    prefix: str,
    delimiter: str,
    after: tuple[str, int | None],
    limit: int,
    end_s: float,
) -> VersionPage:
    """List versions as entries.py lists objects, but along both tables at once. At `end_s` (time.monotonic), the time
    for the page is over."""
    found: list[VersionEntry | str] = []
    name, version = after
    start, end = start_of(prefix, delimiter, name), prefix_end(utf8(prefix))
    rank = None
    if version is not None and name.startswith(prefix) and start == Start(utf8(name), itself=False):
        rank = rank_of(version)
    rows_max = FIRST_ROWS if delimiter else limit + 1
    last_name = None if rank is None else name
    while len(found) <= limit:
        count = min(rows_max, limit + 1 - len(found))
        rows = _walk(connection, bucket, start, rank, end, count)
        folder = None
        for row in rows:
            folder = folder_of(row.key.name, prefix, delimiter)
            if folder is None:
                is_current = row.row is not None and not row.row.is_noncurrent
                if is_current and row.key.name == last_name:  # it was undeleted, and a marker of its key is newer
                    found = [_not_latest(one, row.key) for one in found]
                found.append(replace(row, is_latest=is_current or row.key.name != last_name))
                last_name = row.key.name
            elif not found or found[-1] != folder:
                found.append(folder)
        if len(rows) < count:
            break
        if folder is None:
            start, rank = Start(utf8(rows[-1].key.name), itself=False), rank_of(rows[-1].version)
        else:
            start, rank = after_folder(folder), None
        rows_max = rows_max * GROWTH if folder is None else FIRST_ROWS
        if len(found) <= limit and time.monotonic() >= end_s:
            return VersionPage(found, _after(found[-1]))
    return VersionPage(found[:limit], _after(found[limit - 1]) if len(found) > limit else None)


def _not_latest(entry: VersionEntry | str, key: ObjectKey) -> VersionEntry | str:
    return replace(entry, is_latest=False) if isinstance(entry, VersionEntry) and entry.key == key else entry


def _after(entry: VersionEntry | str) -> tuple[str, int | None]:
    return (entry, None) if isinstance(entry, str) else (entry.key.name, entry.version)


def _walk(
    connection: Connection, bucket: str, start: Start, rank: int | None, end: bytes | None, limit: int
) -> list[VersionEntry]:
    """Return the next entries, in order, by one statement, so that no version moves between the tables meanwhile. With
    `rank`, begin with entries of the name of `start` that are older; these may include the current version, if newer
    ones were deleted since the last page."""
    query = _walk_query(itself=start.itself, ends=end is not None, ranked=rank is not None)
    bounds: dict[str, Any] = {"in_bucket": bucket, "least": start.name, "rows_max": limit}
    if end is not None:
        bounds["end"] = end
    if rank is not None:
        bounds |= {"after_rank": rank, "before_version": VERSION_MAX - rank}
    return [_walked(row) for row in connection.execute(query, bounds)]


@cache
def _walk_query(*, itself: bool, ends: bool, ranked: bool) -> Select[Any]:
    """Build the query once for each kind: a page of folders runs it for each folder, and building it takes as long as
    reading ten rows."""
    bucket, least = bindparam("in_bucket", type_=_O.bucket.type), bindparam("least", type_=LargeBinary)
    current = by_index(
        select(
            _O.bucket,
            _O.name,
            (literal(VERSION_MAX, BigInteger) - _O.version).label("age_rank"),
            _O.object_id,
            literal(0, SmallInteger).label("is_null"),
            _O.created_ms,
        ),
        OBJECTS,
        "objects_by_trash_key",
    ).where(_O.trashed == LIVE, _O.bucket == bucket)
    others = by_index(select(*COLUMNS), VERSIONS, "PRIMARY").where(_V.bucket == bucket)
    parts = [
        current.where(*_from(_O.name, itself, ends)).order_by(_O.trashed, _O.bucket, _O.name),
        others.where(*_from(_V.name, itself, ends)).order_by(_V.bucket, _V.name, _V.age_rank),
    ]
    if ranked:
        after_rank = others.where(_V.name == least, _V.age_rank > bindparam("after_rank", type_=BigInteger))
        parts.append(after_rank.order_by(_V.bucket, _V.name, _V.age_rank))
        parts.append(current.where(_O.name == least, _O.version < bindparam("before_version", type_=BigInteger)))
    rows_max = bindparam("rows_max", type_=Integer)
    walks = [part.limit(rows_max).subquery(f"walk_{number}") for number, part in enumerate(parts)]
    walked = union_all(*(select(*walk.c) for walk in walks)).subquery("walked")
    columns = [walked.c.bucket, walked.c.name, walked.c.age_rank, walked.c.is_null, walked.c.created_ms]
    return (
        select(*columns, *TRASH_COLUMNS)
        .join_from(walked, OBJECTS, _O.object_id == walked.c.object_id, isouter=True)
        .order_by(walked.c.bucket, walked.c.name, walked.c.age_rank)
        .limit(rows_max)
    )


def _walked(found: Sequence[Any]) -> VersionEntry:
    bucket, name, rank, is_null, created_ms = found[:5]
    key = ObjectKey(bucket, name)
    if found[5] is None:
        return VersionEntry(key, VERSION_MAX - rank, created_ms, bool(is_null), None)
    row = marked_row(found[5:])
    return VersionEntry(key, row.version, row.created_ms, not row.has_version_id, row)


def _from(name: Column[Any], itself: bool, ends: bool) -> list[ColumnElement[bool]]:
    least = bindparam("least", type_=LargeBinary)
    bounds = [name >= least if itself else name > least]
    return [*bounds, name < bindparam("end", type_=LargeBinary)] if ends else bounds


# --- whole tables -------------------------------------------------------------------------------------
def _after_version(query: Select[Any], after: tuple[ObjectKey, int] | None) -> Select[Any]:
    """Restrict a query of versions to those after a key and a version, in order of the primary key."""
    query = by_index(query, VERSIONS, "PRIMARY").order_by(_V.bucket, _V.name, _V.age_rank)
    if after is None:
        return query
    key, rank = after[0], rank_of(after[1])
    bucket, name = (bindparam(None, utf8(text), type_=_V.name.type) for text in (key.bucket, key.name))
    in_name = and_(_V.name == name, _V.age_rank > rank)
    return query.where(
        _V.bucket >= bucket, or_(_V.bucket > bucket, and_(_V.bucket == bucket, or_(_V.name > name, in_name)))
    )


def _restore_markers(connection: Connection, rows: Sequence[MarkerRow]) -> None:
    found = [{"of_bucket": row.key.bucket, "of_name": row.key.name, "of_rank": rank_of(row.version)} for row in rows]
    connection.execute(REMOVE, found)
    insert_markers(connection, rows)


def _settle_versions(connection: Connection, rows: Sequence[ObjectRow]) -> None:
    there = lock_rows(connection, [row.object_id for row in rows])
    kept = [row for row in there.values() if row.trash_until_ms is not None]
    ranks = [{"of_bucket": row.key.bucket, "of_name": row.key.name, "of_rank": rank_of(row.version)} for row in kept]
    if kept:
        connection.execute(REMOVE, ranks)
        retire(connection, kept)


def _leave_one_null(connection: Connection, key: ObjectKey, now_ms: int, until_ms: int) -> None:
    nulls = sorted(connection.execute(LOCK_NULLS, key_rows([key])), key=lambda found: found.age_rank)
    current = object_rows.lock(connection, key) if nulls else None
    replaced = nulls if current is not None and not current.has_version_id else nulls[1:]
    if replaced:
        rows = lock_rows(connection, [found.object_id for found in replaced if found.object_id is not None])
        kept = {row.object_id for row in locked_among(connection, rows.values())}
        rows = {object_id: row for object_id, row in rows.items() if object_id not in kept}
        replaced = [found for found in replaced if found.object_id not in kept]
    if replaced:
        remove(connection, replaced)
        if rows:
            discard(connection, list(rows.values()), now_ms, until_ms)


def _listed_as_noncurrent(connection: Connection, rows: Sequence[ObjectRow]) -> frozenset[int]:
    ranks = sorted((utf8(row.key.bucket), utf8(row.key.name), rank_of(row.version)) for row in rows)
    return frozenset(one for one in connection.execute(LISTED, _RANKS.dump(ranks)).scalars() if one is not None)


def holds_version(connection: Connection, bucket: str) -> bool:
    """Return whether a bucket has a noncurrent version or a marker."""
    return connection.execute(HOLDS_VERSION, {"bucket": bucket}).first() is not None

"""Rewrites the rows of a store whose metadata was lost. No other process uses the database meanwhile, so nothing is
locked. A row that is written again replaces the first one.

Blocks contain keys and versions, and rows in the trash must be found by these. So until `settle_trash`, the marks of
such rows consist of the latest time and the version, and the index of keys finds them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Column, Connection, Table, and_, delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from nos_ec.adapters.sql.objects import journal, waiting
from nos_ec.adapters.sql.objects.make_noncurrent import REMOVE, insert_markers, rank_of
from nos_ec.adapters.sql.objects.trash import BRING_BACK
from nos_ec.adapters.sql.tables import store_info
from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import (
    IDS,
    LIVE,
    OBJECT_COLUMNS,
    OBJECT_IDS,
    TRASH_COLUMNS,
    UNTIL_BYTES,
    by_keys,
    delete_listed,
    id_rows,
    key_rows,
    marked_row,
    object_row,
    trash_mark,
)
from nos_ec.adapters.sql.tables.schema import (
    ACCESS_KEYS,
    BLOCKS,
    BUCKET_USAGE,
    BUCKETS,
    CHANGED_NAMES,
    COUNTERS,
    ID_BYTES,
    JOURNAL,
    LANDING_DELETIONS,
    LANDING_SEGMENTS,
    OBJECTS,
    OUTBOX,
    SEGMENTS,
    STORE_INFO,
    TRASHED_BYTES,
    USAGE_CHANGES,
    VERSIONS,
    WAITING,
    utf8,
)
from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.errors import Conflict, Locked
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, SEGMENT_ID_BYTES, LandingId, ObjectKey, in_log, log_of
from nos_ec.core.states import BlockState
from nos_ec.ports.metadata import BlockRow, ObjectRow, PreparedRows, QueueEntry, Rebuilt, Replay, SegmentRow
from nos_ec.ports.metadata.rebuilding import UNSETTLED_MS

_O, _S, _D, _W, _B, _I = OBJECTS.c, SEGMENTS.c, LANDING_DELETIONS.c, WAITING.c, BLOCKS.c, STORE_INFO.c
_STATE = _I.name == "rebuild"
_ROW_IDS = JsonRows("rebuilt", object_id=0)
_SEGMENT_IDS = JsonRows("rebuilt_segments", id=SEGMENT_ID_BYTES)
_OF_KEYS = by_keys(*OBJECT_COLUMNS)
_NAMED = JsonRows("trash_named", mark=TRASHED_BYTES, bucket=BUCKET_BYTES_MAX, name=NAME_BYTES_MAX)
_TRASH_OF = looked_up(
    select(*TRASH_COLUMNS).join_from(
        _NAMED.table,
        OBJECTS,
        and_(_O.trashed == _NAMED["mark"], _O.bucket == _NAMED["bucket"], _O.name == _NAMED["name"]),
    ),
    OBJECTS,
    "objects_by_trash_key",
)
_MARKS = JsonRows("settled", object_id=0, mark=TRASHED_BYTES)
_SETTLE = (
    UpdateListed(OBJECTS).where(_O.object_id == _MARKS["object_id"], _O.trashed != LIVE).values(trashed=_MARKS["mark"])
)
_SET_ASIDE = UpdateListed(OBJECTS).where(_O.object_id == _MARKS["object_id"]).values(trashed=_MARKS["mark"])
_LANDED = looked_up(select(_W.landing_id).join_from(IDS.table, WAITING, _W.landing_id == IDS["id"]), WAITING)


class SqlRebuilding(SqlPart):
    """`Rebuilding` of the port."""

    @reads
    def rebuild_state(self, connection: Connection) -> str | None:
        found = connection.execute(select(_I.value).where(_STATE)).scalar()
        return None if found is None else str(found)

    @writes
    def begin_rebuild(self, connection: Connection, state: str) -> None:
        for table in (
            OBJECTS,
            BLOCKS,
            WAITING,
            LANDING_DELETIONS,
            LANDING_SEGMENTS,
            BUCKETS,
            ACCESS_KEYS,
            VERSIONS,
            OUTBOX,
            BUCKET_USAGE,
            USAGE_CHANGES,
            JOURNAL,
            CHANGED_NAMES,
        ):
            if connection.execute(select(exists().select_from(table))).scalar():
                raise Conflict(
                    f"the database has rows in {table.name}, and no rebuild has begun in it: give an empty database"
                )
        _write_state(connection, state)

    @writes
    def load(
        self, connection: Connection, objects: Sequence[Rebuilt], deletions: Sequence[QueueEntry], state: str
    ) -> None:
        current, named = _loaded(objects)
        prepared = _prepared([*current.values(), *named.values()], 0)
        if not _try_insert(connection, prepared):
            _clear_way(connection, current, named)
            _insert(connection, prepared)
        _unqueue(connection, prepared)
        landed = _landed(connection, deletions)
        _queue(connection, [entry for entry in deletions if entry.landing_id not in landed])
        _write_state(connection, state)

    def prepare(self, objects: Sequence[Rebuilt]) -> PreparedRows:
        current, named = _loaded(objects)
        return PreparedRows(_prepared([*current.values(), *named.values()], 0))

    @writes
    def load_prepared(self, connection: Connection, prepared: PreparedRows, state: str) -> bool:
        if not _try_insert(connection, prepared.rows):
            return False
        _unqueue(connection, prepared.rows)
        _write_state(connection, state)
        return True

    def rows_of(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
        return self._read(_rows_of, keys) if keys else {}

    def trash_of(self, named: Collection[tuple[ObjectKey, int]]) -> dict[tuple[ObjectKey, int], ObjectRow]:
        return self._read(_trash_of, named) if named else {}

    def settle_trash(self, rows: Sequence[ObjectRow]) -> None:
        if rows:
            self._write(_settle_trash, rows)

    def place(self, rebuilt: Sequence[Rebuilt], now_ms: int) -> None:
        if rebuilt:
            self._write(_place, rebuilt, now_ms)

    def remove(self, rows: Sequence[ObjectRow], now_ms: int | None = None) -> None:
        if rows:
            self._write(_remove, rows, now_ms)

    def replay(self, changes: Replay, now_ms: int, state: str) -> None:
        self._write(_replay, changes, now_ms, state)

    def enter_blocks(self, blocks: Sequence[BlockRow]) -> None:
        if blocks:
            self._write(_enter_blocks, blocks)

    def enter_segments(self, segments: Sequence[SegmentRow]) -> None:
        if segments:
            self._write(_enter_segments, segments)

    def finish_rebuild(self, geometry: Geometry, epoch_min: int, journal_number: int) -> None:
        self._write(_finish_rebuild, geometry, epoch_min, journal_number)
        self._geometry = geometry


def _write_state(connection: Connection, now: str) -> None:
    connection.execute(delete(STORE_INFO).where(_STATE))
    connection.execute(insert(STORE_INFO).values(name="rebuild", value=now))


_Named = dict[tuple[ObjectKey, int], Rebuilt]


def _loaded(objects: Sequence[Rebuilt]) -> tuple[dict[ObjectKey, Rebuilt], _Named]:
    """Return which of these rows a page of a dump leaves: the current versions, and those that go into the trash."""
    current: dict[ObjectKey, Rebuilt] = {}
    named = {_named(one.row): one for one in objects if one.row.trash_until_ms is not None}
    for one in objects:
        if one.row.trash_until_ms is not None:
            continue
        known = current.get(one.row.key)
        if known is None or known.row.version <= one.row.version:
            current[one.row.key] = one
        older = known if known is None or known.row.version <= one.row.version else one
        if older is not None and _are_versions(older.row, current[one.row.key].row):
            named[_named(older.row)] = replace(older, row=replace(older.row, trash_until_ms=0))
    return current, named


def _try_insert(connection: Connection, prepared: _Prepared) -> bool:
    """Insert rows. Return False, and insert nothing, if a page before had another row of a key, because the store
    worked while it was dumped."""
    try:
        with connection.begin_nested():
            _insert(connection, prepared)
    except IntegrityError:
        return False
    return True


def _are_versions(older: ObjectRow, newer: ObjectRow) -> bool:
    """Return whether both are versions of their key, so that the older one stays. One that ever was locked stays, too:
    how long it is locked is known only at the end."""
    are_different = older.object_id != newer.object_id
    return are_different and (older.is_of_versions or newer.is_of_versions or older.lock is not None)


def _clear_way(
    connection: Connection, current: Mapping[ObjectKey, Rebuilt], named: Collection[tuple[ObjectKey, int]]
) -> None:
    """Remove the rows that these objects replace, or put them aside if they are versions that stay. `named` has the
    keys and numbers of those that go into the trash."""
    before = _rows_of(connection, current.keys())
    kept = [row for key, row in before.items() if _are_versions(row, current[key].row)]
    if kept:
        connection.execute(_SET_ASIDE, _MARKS.dump(sorted((row.object_id, _unsettled(row.version)) for row in kept)))
    kept_ids = {row.object_id for row in kept}
    _delete(connection, [row for row in before.values() if row.object_id not in kept_ids])
    _delete(connection, list(_trash_of(connection, named).values()))


def _rows_of(connection: Connection, keys: Collection[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
    if not keys:
        return {}
    rows = map(object_row, connection.execute(_OF_KEYS, key_rows(keys)))
    return {row.key: row for row in rows}


def _trash_of(
    connection: Connection, named: Collection[tuple[ObjectKey, int]]
) -> dict[tuple[ObjectKey, int], ObjectRow]:
    if not named:
        return {}
    listed = _NAMED.dump((_unsettled(version), utf8(key.bucket), utf8(key.name)) for key, version in named)
    rows = map(marked_row, connection.execute(_TRASH_OF, listed))
    return {_named(row): row for row in rows}


def _settle_trash(connection: Connection, rows: Sequence[ObjectRow]) -> None:
    marks = ((one.object_id, trash_mark(one.trash_until_ms or 0, one.object_id, one.trashed_ms or 0)) for one in rows)
    connection.execute(_SETTLE, _MARKS.dump(sorted(marks)))


def _named(row: ObjectRow) -> tuple[ObjectKey, int]:
    return row.key, row.version


def _unsettled(version: int) -> bytes:
    """Return the mark of a row in the trash whose time is not known yet. It sorts after all marks of `trash_mark`."""
    return UNSETTLED_MS.to_bytes(UNTIL_BYTES) + version.to_bytes(TRASHED_BYTES - UNTIL_BYTES)


def _require_kept(rebuilt: Sequence[Rebuilt]) -> None:
    """Raise Locked if one of these rows would replace a version that has, or had, a lock, and none of them keeps that
    version."""
    kept = {(one.row.key, one.row.version) for one in rebuilt}
    for one in rebuilt:
        old = one.instead_of
        if old is not None and old.lock is not None and (old.key, old.version) not in kept:
            row = next((two.row for two in rebuilt if _has_bytes_of(two.row, old)), None)
            if row is None:
                raise Locked(f"object {old.key}: version {old.version} has a lock; a rebuild must keep it", [old.key])


def _has_bytes_of(row: ObjectRow, old: ObjectRow) -> bool:
    """Return whether a row, which may have another number, has the bytes of a version."""
    return (row.key, row.size, row.crc32c, row.md5) == (old.key, old.size, old.crc32c, old.md5)


def _place(connection: Connection, rebuilt: Sequence[Rebuilt], now_ms: int) -> None:
    _require_kept(rebuilt)
    _delete(connection, [one.instead_of for one in rebuilt if one.instead_of is not None])
    prepared = _prepared(rebuilt, now_ms)
    _insert(connection, prepared)
    _unqueue(connection, prepared)
    _queue(connection, [entry for one in rebuilt for entry in _released(one, now_ms)])


def _released(rebuilt: Rebuilt, now_ms: int) -> Iterator[QueueEntry]:
    """Yield a queue entry for the landing copy that no row has any more. If a row keeps its version and has another
    copy, its first copy is lost."""
    row, old = rebuilt.row, rebuilt.instead_of
    if old is None or old.landing_id is None or (row.landing_id is not None and row.version == old.version):
        return
    if row.landing_id != old.landing_id:
        yield QueueEntry(old.landing_id, old.object_id, old.version, now_ms, False)


def _remove(connection: Connection, rows: Sequence[ObjectRow], now_ms: int | None) -> None:
    """Remove these rows. With `now_ms`, queue their copies in quarantine: such an entry has no object and version 0."""
    _delete(connection, rows)
    if now_ms is None:
        return
    copies = [row.landing_id for row in rows if row.landing_id is not None and not in_log(row.landing_id)]
    _queue(connection, [QueueEntry(copy, None, 0, now_ms + QUARANTINE_MS, False) for copy in copies])


def _replay(connection: Connection, changes: Replay, now_ms: int, state: str) -> None:
    named = [(row.key, row.version) for row in (*changes.removed, *changes.trashed) if row.is_noncurrent]
    if ranks := [_rank(key, version) for key, version in (*named, *changes.unmarked)]:
        connection.execute(REMOVE, ranks)
    _delete(connection, changes.removed)
    copies = [(row.landing_id, row) for row in changes.removed if row.landing_id is not None]
    _queue(connection, [QueueEntry(copy, row.object_id, row.version, now_ms, False) for copy, row in copies])
    if changes.trashed:
        connection.execute(_SET_ASIDE, _MARKS.dump(sorted((row.object_id, _mark(row)) for row in changes.trashed)))
    if changes.restored:
        listed = sorted((row.object_id, row.version) for row in changes.restored)
        connection.execute(BRING_BACK, OBJECT_IDS.dump(listed))
    if changes.markers:
        insert_markers(connection, changes.markers)
    _write_state(connection, state)


def _rank(key: ObjectKey, version: int) -> dict[str, Any]:
    return {"of_bucket": key.bucket, "of_name": key.name, "of_rank": rank_of(version)}


def _mark(row: ObjectRow) -> bytes:
    if row.trash_until_ms is None:
        return _unsettled(row.version)
    return trash_mark(row.trash_until_ms, row.object_id, row.trashed_ms or 0)


def _enter_blocks(connection: Connection, blocks: Sequence[BlockRow]) -> None:
    listed = id_rows(row.block_id for row in blocks)
    _delete_listed(connection, BLOCKS, _B.block_id, IDS, "id", listed)
    connection.execute(
        insert(BLOCKS),
        [
            {
                "block_id": row.block_id,
                "kind": row.kind,
                "state": row.state,
                "writer": row.writer,
                "epoch": row.epoch,
                "stripes": row.stripes,
                "live_bytes": row.live_bytes,
                "dead_bytes": row.dead_bytes,
                "overhead_bytes": row.overhead_bytes,
                "live_objects": row.live_objects,
                "created_ms": row.created_ms,
                "sealed_ms": row.created_ms if row.state is BlockState.SEALED else None,
                "delete_after_ms": row.delete_after_ms,
                "gc_failures": row.gc_failures,
            }
            for row in blocks
        ],
    )


def _enter_segments(connection: Connection, segments: Sequence[SegmentRow]) -> None:
    listed = _SEGMENT_IDS.dump((one,) for one in sorted({row.segment for row in segments}))
    _delete_listed(connection, LANDING_SEGMENTS, LANDING_SEGMENTS.c.segment_id, _SEGMENT_IDS, "id", listed)
    connection.execute(
        insert(LANDING_SEGMENTS),
        [
            {
                "segment_id": row.segment,
                "log": log_of(row.segment),
                "epoch": row.epoch,
                "state": row.state,
                "opened_ms": row.opened_ms,
                "sealed_ms": row.sealed_ms,
                "end_bytes": row.end,
                "records": row.records,
            }
            for row in segments
        ],
    )


def _finish_rebuild(connection: Connection, geometry: Geometry, epoch_min: int, journal_number: int) -> None:
    connection.execute(update(COUNTERS).where(COUNTERS.c.name == journal.NUMBER).values(value=journal_number))
    epoch = COUNTERS.c.name == "lease_epoch"
    connection.execute(update(COUNTERS).where(epoch, COUNTERS.c.value < epoch_min).values(value=epoch_min))
    connection.execute(delete(STORE_INFO).where(_STATE))
    store_info.bind_geometry(connection, geometry)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Rows for the tables of objects (as tuples, `_INSERTED`), of objects that wait, and of segments. copies: the
    landing copies of the objects."""

    objects: list[tuple[Any, ...]]
    waiting: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    copies: list[LandingId]


def _prepared(rebuilt: Sequence[Rebuilt], due_ms: int) -> _Prepared:
    parts = [
        {
            "object_id": one.row.object_id,
            "version": one.row.version,
            "part": number,
            "block_id": part.extent.block_id,
            "block_offset": part.extent.offset,
            "length": part.extent.length,
            "crc32c": part.crc32c,
        }
        for one in rebuilt
        for number, part in enumerate(one.parts)
    ]
    copies = [one.row.landing_id for one in rebuilt if one.row.landing_id is not None]
    landed = waiting.rows_of((one.row, due_ms) for one in rebuilt)
    return _Prepared(list(map(_values, rebuilt)), landed, parts, copies)


def _insert(connection: Connection, prepared: _Prepared) -> None:
    if prepared.objects:
        _insert_raw(connection, OBJECTS, _INSERTED, prepared.objects)
    waiting.insert_rows(connection, prepared.waiting)
    if prepared.parts:
        connection.execute(insert(SEGMENTS), prepared.parts)


_INSERTED = (
    *("object_id", "bucket", "name", "version", "size", "crc32c", "md5", "state", "landing_id", "block_id"),
    *("block_offset", "created_ms", "attributes", "trashed"),
)


def _values(rebuilt: Rebuilt) -> tuple[Any, ...]:
    """Return the values of the columns in `_INSERTED`, as drivers take them. Raises ValueError for an id of another
    length, which MySQL would pad."""
    row = rebuilt.row
    block_id, offset = (None, None) if row.extent is None else (row.extent.block_id, row.extent.offset)
    for one in (row.md5, row.landing_id, block_id):
        if one is not None and len(one) != ID_BYTES:
            raise ValueError(f"an id of {len(one)} bytes; it must have {ID_BYTES}")
    bucket, name, state = row.key.bucket.encode(), row.key.name.encode(), row.state.value
    trashed = LIVE if row.trash_until_ms is None else _unsettled(row.version)
    identity = (row.object_id, bucket, name, row.version, row.size, row.crc32c, row.md5, state, row.landing_id)
    return (*identity, block_id, offset, row.created_ms, row.attributes or None, trashed)


def _insert_raw(connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert rows whose values the driver takes as they are. SQLAlchemy would convert each value separately, which
    takes as long as everything else for a small row."""
    statement = insert(table).compile(dialect=connection.dialect, column_keys=columns)
    if not statement.positional:
        connection.exec_driver_sql(statement.string, [dict(zip(columns, row, strict=True)) for row in rows])
        return
    assert statement.positiontup == list(columns), "the order of the values is that of the columns of the table"
    connection.exec_driver_sql(statement.string, list(rows))


def _delete(connection: Connection, rows: Sequence[ObjectRow]) -> None:
    if not rows:
        return
    listed = _ROW_IDS.dump((one,) for one in sorted({row.object_id for row in rows}))
    for table, matched in ((OBJECTS, _O.object_id), (SEGMENTS, _S.object_id)):
        _delete_listed(connection, table, matched, _ROW_IDS, "object_id", listed)
    _delete_ids(connection, WAITING, _W.landing_id, [row.landing_id for row in rows if row.landing_id is not None])


def _landed(connection: Connection, entries: Sequence[QueueEntry]) -> set[LandingId]:
    """Return the copies among these entries that rows have."""
    if not entries:
        return set()
    listed = id_rows(entry.landing_id for entry in entries)
    return {LandingId(found) for (found,) in connection.execute(_LANDED, listed)}


def _unqueue(connection: Connection, prepared: _Prepared) -> None:
    _delete_ids(connection, LANDING_DELETIONS, _D.landing_id, prepared.copies)


def _queue(connection: Connection, entries: Sequence[QueueEntry]) -> None:
    if not entries:
        return
    _delete_ids(connection, LANDING_DELETIONS, _D.landing_id, [entry.landing_id for entry in entries])
    connection.execute(
        insert(LANDING_DELETIONS),
        [
            {
                "landing_id": entry.landing_id,
                "object_id": entry.object_id,
                "version": entry.version,
                "not_before_ms": entry.not_before_ms,
                "doomed": entry.doomed,
            }
            for entry in entries
        ],
    )


def _delete_ids(connection: Connection, table: Table, matched: Column[Any], ids: Iterable[LandingId]) -> None:
    listed = list(ids)
    if listed:
        _delete_listed(connection, table, matched, IDS, "id", id_rows(listed))


def _delete_listed(
    connection: Connection, table: Table, matched: Column[Any], rows: JsonRows, name: str, listed: dict[str, str]
) -> None:
    connection.execute(delete_listed(connection, table, matched, rows, name), listed)

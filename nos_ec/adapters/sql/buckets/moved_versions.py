"""Records the versions of a bucket that are copied to this cell, and removes the rows of a bucket that has left it.

Only a mover calls this, through its own gate. Nothing else changes these keys, because the cell does not serve the
bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select

from nos_ec.adapters.sql.blocks import block_rows, leases
from nos_ec.adapters.sql.objects import large_puts, make_noncurrent, object_rows, puts, trash, uploads, usage, waiting
from nos_ec.adapters.sql.tables.base import SqlPart
from nos_ec.adapters.sql.tables.gate import served_among
from nos_ec.adapters.sql.tables.rows import noncurrent_mark
from nos_ec.adapters.sql.tables.schema import OBJECTS, SEGMENTS, VERSIONS
from nos_ec.core.errors import Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import LandingId, ObjectKey, in_log, segment_of
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import BlockState, ObjectEvent, advance_object
from nos_ec.ports.metadata import CopiedVersion, Lease, MarkerRow, NewLargeObject, ObjectRow, UploadRow

_O, _V = OBJECTS.c, VERSIONS.c
_LANDED, _EMPTY, _LARGE = (
    advance_object(None, event) for event in (ObjectEvent.LAND, ObjectEvent.KEEP, ObjectEvent.STORE)
)
_OF_KEY = (
    _V.bucket == bindparam("of_bucket", type_=_V.bucket.type),
    _V.name == bindparam("of_name", type_=_V.name.type),
)
NONCURRENT_OF = select(_V.object_id).where(*_OF_KEY).with_for_update()
_REMOVE_VERSIONS = delete(VERSIONS).where(*_OF_KEY)


class SqlMoving(SqlPart):
    """The methods of `Moves` of the port for versions."""

    def open_copied_upload(self, new: UploadRow) -> bool:
        return self._change([new.key], uploads.open_copied, new)

    def record_copies(self, copies: Sequence[CopiedVersion], now_ms: int) -> None:
        if copies:
            self._change([one.row.key for one in copies], _record_copies, copies, now_ms)

    def record_large_copy(self, new: NewLargeObject, lease: Lease, row: ObjectRow, now_ms: int) -> None:
        self._change([row.key], _record_large_copy, self._bound(), new, lease, row, now_ms)

    def record_markers(self, markers: Sequence[MarkerRow]) -> None:
        if markers:
            self._change([one.key for one in markers], _record_markers, markers)

    def remove_key(self, bucket: str, name: str, now_ms: int) -> int:
        key = ObjectKey(bucket, name)
        return self._change([key], _remove_key, key, now_ms)


def _record_copies(connection: Connection, copies: Sequence[CopiedVersion], now_ms: int) -> None:
    landing_ids = [one.copy for one in copies]
    in_time = puts.look_in_time(connection, landing_ids, None, (), again=False)
    if any(_is_late(landing_id, in_time) for landing_id in landing_ids):
        raise Transient("metadata: copies of a bucket that is moved were not recorded in time; copy them again")
    made = [(_insert(connection, one.row, one.copy), one) for one in copies]
    puts.claim(connection, landing_ids)
    puts.keep_copies(connection, [(one.copy, row) for row, one in made if not row.size], now_ms)
    waiting.enter(connection, [(row, one.due_ms) for row, one in made])
    _settle(connection, [(row, one.row) for row, one in made])
    uploads.follow_copies(connection, [row for row, _ in made], now_ms)
    kill_point("moving.copies_recorded.before_commit")


def _is_late(landing_id: LandingId, in_time: puts.InTime) -> bool:
    if in_log(landing_id):
        return segment_of(landing_id) not in in_time.open_segments
    entry = in_time.entries.get(landing_id)
    return entry is None or entry.doomed or entry.object_id is not None


def _record_large_copy(
    connection: Connection, geometry: Geometry, new: NewLargeObject, lease: Lease, row: ObjectRow, now_ms: int
) -> None:
    leases.require(connection, lease)
    state = block_rows.seal_large(connection, geometry, new, lease, now_ms, live=True, condemned=False)
    if state is not BlockState.OPEN:
        return  # an earlier call has recorded it
    made = _insert(connection, row, None)
    connection.execute(insert(SEGMENTS), large_puts.segment_rows(made.object_id, new))
    _settle(connection, [(made, row)])
    uploads.follow_copies(connection, [made], now_ms)
    kill_point("moving.large_recorded.before_commit")


def _insert(connection: Connection, row: ObjectRow, copy: LandingId | None) -> ObjectRow:
    """Add a row for a version, and return it. A version that is noncurrent or in the trash gets a temporary mark, which
    `_settle` replaces."""
    state = _LARGE if copy is None else _LANDED if row.size else _EMPTY
    landing_id = copy if row.size else None
    values: dict[str, Any] = {
        "bucket": row.key.bucket,
        "name": row.key.name,
        "version": row.version,
        "size": row.size,
        "crc32c": row.crc32c,
        "md5": row.md5,
        "state": state,
        "landing_id": landing_id,
        "created_ms": row.created_ms,
        "attributes": row.attributes,
    }
    if row.is_noncurrent or row.trash_until_ms is not None:
        values["trashed"] = noncurrent_mark(row.version)
    made = connection.execute(insert(OBJECTS).values(values)).inserted_primary_key
    assert made is not None
    return ObjectRow(
        object_id=int(made[0]),
        key=row.key,
        version=row.version,
        size=row.size,
        crc32c=row.crc32c,
        md5=row.md5,
        state=state,
        landing_id=landing_id,
        extent=None,
        created_ms=row.created_ms,
        attributes=row.attributes,
    )


def _settle(connection: Connection, made: Sequence[tuple[ObjectRow, ObjectRow]]) -> None:
    """Give new rows the state that their versions have in the other cell: noncurrent, or in the trash. Counts all that
    are not in the trash as usage. made: pairs of a new row and the row in the other cell."""
    make_noncurrent.retire(connection, [row for row, other in made if other.is_noncurrent])
    trashed = [
        (row.object_id, other.trash_until_ms, other.trashed_ms or 0)
        for row, other in made
        if other.trash_until_ms is not None
    ]
    if trashed:
        trash.mark(connection, trashed)
    usage.counts(connection, [row for row, other in made if other.trash_until_ms is None])


def _record_markers(connection: Connection, markers: Sequence[MarkerRow]) -> None:
    rows = [
        {
            "bucket": one.key.bucket,
            "name": one.key.name,
            "age_rank": make_noncurrent.rank_of(one.version),
            "object_id": None,
            "is_null": int(one.is_null),
            "created_ms": one.created_ms,
        }
        for one in markers
    ]
    connection.execute(insert(VERSIONS), rows)


def _remove_key(connection: Connection, key: ObjectKey, now_ms: int) -> int:
    of_key = {"of_bucket": key.bucket, "of_name": key.name}
    current = object_rows.lock(connection, key)
    older = connection.execute(NONCURRENT_OF, of_key).scalars().all()
    locked = make_noncurrent.lock_rows(connection, [object_id for object_id in older if object_id is not None])
    rows = [*locked.values(), *([] if current is None else [current])]
    if rows:
        trash.remove_rows(connection, rows, now_ms, moved=not served_among(connection, [key.bucket]))
    if older:
        connection.execute(_REMOVE_VERSIONS, of_key)
    kill_point("moving.key_removed.before_commit")
    return len(older) + (current is not None)

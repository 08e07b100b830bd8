"""The queue of landing copies to delete: reservations of running PUTs, and copies whose object has moved or is gone.

Every change to the meaning of a queue entry (claimed by a PUT, doomed, reverted) is made while the entry is locked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    exists,
    false,
    insert,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)

from nos_ec.adapters.sql.blocks import landing_segments
from nos_ec.adapters.sql.objects import waiting
from nos_ec.adapters.sql.objects.puts import QUEUED, lock_entries
from nos_ec.adapters.sql.objects.release_version import Burial
from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed
from nos_ec.adapters.sql.tables.rows import (
    IDS,
    OBJECT_COLUMNS,
    OBJECT_IDS,
    by_index,
    delete_listed,
    id_rows,
    object_row,
    require_all,
)
from nos_ec.adapters.sql.tables.schema import ID_BYTES, LANDING_DELETIONS, OBJECTS, WAITING
from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId, LandingId, ids_in_segment, in_log, segment_of
from nos_ec.core.states import ObjectEvent, ObjectState, advance_object
from nos_ec.ports.metadata import LandedMove, LandingDeletion, ObjectRow, QueueEntry

_D, _O, _W = LANDING_DELETIONS.c, OBJECTS.c, WAITING.c
_ID = LANDING_DELETIONS.c.landing_id.type
_BY_TIME = "landing_deletions_by_time"

RESERVE = insert(LANDING_DELETIONS).from_select(
    ["landing_id", "object_id", "version", "not_before_ms", "doomed"],
    select(IDS["id"], null(), null(), bindparam("not_before", type_=BigInteger), false()).where(
        ~exists(select(_D.landing_id).where(_D.landing_id == IDS["id"]))
    ),
)


def _deletions(whose: ColumnElement[bool]) -> Select[Any]:
    """Select entries with their object rows. The entries are selected first, because MariaDB would sort the whole queue
    for a direct join."""
    entries = (
        by_index(
            select(_D.landing_id, _D.object_id, _D.version, _D.doomed, _D.not_before_ms), LANDING_DELETIONS, _BY_TIME
        )
        .where(whose)
        .order_by(_D.not_before_ms, _D.landing_id)
        .limit(bindparam("rows_max"))
        .subquery("entries")
    )
    one = entries.c
    return (
        select(one.landing_id, one.object_id, one.version, one.doomed, *OBJECT_COLUMNS)
        .join_from(entries, OBJECTS, and_(_O.object_id == one.object_id, _O.version == one.version), isouter=True)
        .order_by(one.not_before_ms, one.landing_id)
    )


DUE_DELETIONS = _deletions(_D.not_before_ms <= bindparam("now_ms"))
# Copies in quarantine are excluded, because only their time keeps them there.
FAR_DELETIONS = _deletions(
    and_(_D.not_before_ms > bindparam("far_ms"), or_(_D.object_id.is_not(None), _D.version.is_(None)))
)
FIRST_DUE_MS = (
    by_index(select(_D.not_before_ms), LANDING_DELETIONS, _BY_TIME).order_by(_D.not_before_ms, _D.landing_id).limit(1)
)
DOOM = UpdateListed(LANDING_DELETIONS).where(_D.landing_id == IDS["id"]).values(doomed=true())
POSTPONE = (
    UpdateListed(LANDING_DELETIONS)
    .where(_D.landing_id == IDS["id"])
    .values(not_before_ms=bindparam("not_before", type_=BigInteger))
)
ROWS_OF_ENTRIES = (
    select(*OBJECT_COLUMNS)
    .join_from(OBJECT_IDS.table, OBJECTS, _O.object_id == OBJECT_IDS["object_id"])
    .where(_O.version == OBJECT_IDS["version"])
)
CLAIMED = select(_W.landing_id).join_from(IDS.table, WAITING, _W.landing_id == IDS["id"])
KNOWN = union_all(CLAIMED, QUEUED)
QUEUE_COLUMNS = (_D.landing_id, _D.object_id, _D.version, _D.not_before_ms, _D.doomed)
_OF_VERSION = and_(
    _D.object_id == bindparam("object", type_=BigInteger), _D.version == bindparam("of_version", type_=BigInteger)
)
QUEUED_COPY = (
    select(_D.landing_id)
    .where(
        _D.landing_id.between(bindparam("first", type_=_ID), bindparam("last", type_=_ID)),
        _OF_VERSION,
        _D.doomed == false(),
    )
    .limit(1)
)
NEEDED = union_all(CLAIMED, QUEUED.where(_D.doomed == false()))
_MOVED = JsonRows("moved", object_id=0, version=0, source=ID_BYTES, target=ID_BYTES)
MOVE_ROWS = (
    UpdateListed(OBJECTS)
    .where(_O.object_id == _MOVED["object_id"], _O.version == _MOVED["version"], _O.landing_id == _MOVED["source"])
    .values(landing_id=_MOVED["target"])
)
MOVE_WAITING = (
    UpdateListed(WAITING)
    .where(_W.landing_id == _MOVED["source"], _W.object_id == _MOVED["object_id"])
    .values(landing_id=_MOVED["target"])
)
MOVE_ENTRIES = (
    UpdateListed(LANDING_DELETIONS)
    .where(
        _D.landing_id == _MOVED["source"],
        _D.object_id == _MOVED["object_id"],
        _D.version == _MOVED["version"],
        _D.doomed == false(),
    )
    .values(landing_id=_MOVED["target"])
)


class SqlLandingQueue(SqlPart):
    """`LandingQueue` of the port, and `move_landed` of `LandingSegments`."""

    @writes
    def reserve_landing(self, connection: Connection, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        # An id that is already queued stays as it is.
        if any(map(in_log, landing_ids)):
            raise ValueError(
                "a record of the landing log is not reserved: it would be referred to whatever its segment's state"
            )
        if landing_ids:
            connection.execute(RESERVE, {**id_rows(landing_ids), "not_before": not_before_ms})

    @reads
    def due_deletions(self, connection: Connection, now_ms: int, limit: int) -> list[LandingDeletion]:
        rows = connection.execute(DUE_DELETIONS, {"now_ms": now_ms, "rows_max": limit}).all()
        if len(rows) < limit:
            far = {"far_ms": now_ms + WAIT_MS_MAX, "rows_max": limit - len(rows)}
            rows = [*rows, *connection.execute(FAR_DELETIONS, far)]
        return [_deletion(row) for row in rows]

    @reads
    def first_deletion_ms(self, connection: Connection) -> int | None:
        return connection.execute(FIRST_DUE_MS).scalar()

    def doom_landing(self, verified: Mapping[LandingId, BlockId | None]) -> frozenset[LandingId]:
        return self._write(_doom_landing, verified) if verified else frozenset()

    @writes
    def revert_to_landing(self, connection: Connection, deletion: LandingDeletion, now_ms: int) -> bool:
        entry = lock_entries(connection, [deletion.landing_id]).get(deletion.landing_id)
        if entry is None or entry.doomed or (entry.object_id, entry.version) != (deletion.object_id, deletion.version):
            return False
        row = _lock_version(connection, deletion)
        if row is None or row.extent is None or (deletion.row is not None and row.extent != deletion.row.extent):
            return False
        landed = replace(
            row, state=advance_object(row.state, ObjectEvent.REVERT), landing_id=deletion.landing_id, extent=None
        )
        back = {
            "state": landed.state,
            "landing_id": deletion.landing_id,
            "block_id": None,
            "block_offset": None,
        }
        connection.execute(update(OBJECTS).where(_O.object_id == row.object_id).values(back))
        waiting.enter(connection, [(landed, now_ms)])
        burial = Burial()
        burial.add(row.extent.block_id, row.extent.length)
        burial.apply(connection)
        _remove(connection, [deletion.landing_id])
        return True

    @writes
    def postpone_deletion(self, connection: Connection, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        if landing_ids:
            connection.execute(POSTPONE, {**id_rows(landing_ids), "not_before": not_before_ms})

    def forget_landing(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        return self._write(_forget_landing, landing_ids) if landing_ids else frozenset()

    @reads
    def queued_copy(
        self, connection: Connection, row: ObjectRow, first: LandingId, last: LandingId
    ) -> LandingId | None:
        # Each statement reads a range of the primary key.
        for lower, upper in _ranges(connection, row, first, last):
            wanted = {"first": lower, "last": upper, "object": row.object_id, "of_version": row.version}
            found = connection.execute(QUEUED_COPY, wanted).scalar()
            if found is not None:
                return LandingId(found)
        return None

    def landing_known(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        return self._read(known, landing_ids)

    @reads
    def landing_needed(self, connection: Connection, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        # This is one statement for the same reason as in `known`.
        return _listed(connection, NEEDED, landing_ids) if landing_ids else frozenset()

    def move_landed(self, moves: Sequence[LandedMove]) -> frozenset[LandingId]:
        return self._write(_move_landed, moves) if moves else frozenset()


def _deletion(row: Sequence[Any]) -> LandingDeletion:
    landing_id, object_id, version, doomed, *found = row
    return LandingDeletion(
        LandingId(landing_id), object_id, version, bool(doomed), None if found[0] is None else object_row(found)
    )


def _doom_landing(connection: Connection, verified: Mapping[LandingId, BlockId | None]) -> frozenset[LandingId]:
    entries = lock_entries(connection, list(verified))
    versions = {
        landing_id: (entry.object_id, entry.version)
        for landing_id, entry in entries.items()
        if entry.object_id is not None and entry.version is not None
    }
    rows = _rows_of(connection, set(versions.values()))
    claimed = _listed(connection, CLAIMED, entries)
    doomed = {landing_id for landing_id, entry in entries.items() if entry.doomed}
    dooming = {
        landing_id
        for landing_id in entries.keys() - doomed - claimed
        if _may_go(rows.get(versions.get(landing_id)), verified[landing_id])
    }
    if dooming:
        connection.execute(DOOM, id_rows(dooming))
    return frozenset(doomed | dooming)


def _may_go(row: ObjectRow | None, verified_in: BlockId | None) -> bool:
    """Check the rule of invariant 2: the version no longer exists, or has no bytes, or was read back and verified in
    the block that holds it now."""
    if row is None or row.state is ObjectState.EMPTY:
        return True
    return row.extent is not None and row.extent.block_id == verified_in


def _rows_of(connection: Connection, versions: set[tuple[int, int]]) -> dict[tuple[int, int] | None, ObjectRow]:
    if not versions:
        return {}
    found = map(object_row, connection.execute(ROWS_OF_ENTRIES, OBJECT_IDS.dump(sorted(versions))))
    return {(row.object_id, row.version): row for row in found}


def _lock_version(connection: Connection, deletion: LandingDeletion) -> ObjectRow | None:
    found = (
        select(*OBJECT_COLUMNS)
        .where(_O.object_id == deletion.object_id, _O.version == deletion.version, _O.state == ObjectState.PACKED)
        .with_for_update()
    )
    row = connection.execute(found).first()
    return None if row is None else object_row(row)


def _forget_landing(connection: Connection, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
    held = landing_segments.in_open_segments(connection, landing_ids)
    _remove(connection, [landing_id for landing_id in landing_ids if landing_id not in held])
    return held


def _remove(connection: Connection, landing_ids: Sequence[LandingId]) -> None:
    if landing_ids:
        gone = delete_listed(connection, LANDING_DELETIONS, _D.landing_id, IDS, "id")
        connection.execute(gone, id_rows(landing_ids))


def _move_landed(connection: Connection, moves: Sequence[LandedMove]) -> frozenset[LandingId]:
    """Move landing copies. Locks segments, rows and entries, in this order, as commits do."""
    targets = [one.target for one in moves]
    if not all(map(in_log, targets)) or landing_segments.in_open_segments(connection, [one.source for one in moves]):
        raise ValueError("a copy can only move to a record of the landing log, and not from a segment that is OPEN")
    open_segments = landing_segments.lock_open(connection, targets)
    if not all(segment_of(target) in open_segments for target in targets):
        raise Transient("a landing segment was sealed before copies in it were referred to; copy them again")
    listed = _MOVED.dump(sorted((one.object_id, one.version, one.source, one.target) for one in moves))
    moved = connection.execute(MOVE_ROWS, listed).rowcount
    # The row of `waiting` with this copy belongs to the version that moved, because no two versions share a copy.
    require_all(connection.execute(MOVE_WAITING, listed).rowcount, moved, "waiting objects")
    connection.execute(MOVE_ENTRIES, listed)
    return known(connection, targets)


def known(connection: Connection, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
    """Return the copies among these to which a row or a queue entry refers. Runs one statement, so that it sees a
    single point in time: references move between rows and the queue."""
    return _listed(connection, KNOWN, landing_ids) if landing_ids else frozenset()


def find_queued(connection: Connection, row: ObjectRow, first: LandingId, last: LandingId) -> QueueEntry | None:
    """Return the queue entry of this version, if its id is in the range. Runs at most two statements, whatever the
    number of segments."""
    ranges = _ranges(connection, row, first, last)
    if not ranges:
        return None
    within = or_(*(_D.landing_id.between(lower, upper) for lower, upper in ranges))
    found = select(*QUEUE_COLUMNS).where(within, _OF_VERSION).limit(1)
    entry = connection.execute(found, {"object": row.object_id, "of_version": row.version}).first()
    return None if entry is None else queue_entry(entry)


def queue_entry(row: Sequence[Any]) -> QueueEntry:
    """Return the QueueEntry for a row of QUEUE_COLUMNS."""
    return QueueEntry(LandingId(row[0]), *row[1:])


def _ranges(
    connection: Connection, row: ObjectRow, first: LandingId, last: LandingId
) -> list[tuple[LandingId, LandingId]]:
    """Return the ranges of ids, between the two given, in which the copy may be. For records, these are the segments
    that were OPEN at the time of the PUT."""
    if not in_log(first) or segment_of(first) == segment_of(last):
        return [(first, last)]
    segments = landing_segments.recorded_in(connection, first, last, row.created_ms)
    bounds = map(ids_in_segment, segments)
    return [(max(first, lower), min(last, upper)) for lower, upper in bounds]


def _listed(connection: Connection, question: Any, landing_ids: Any) -> frozenset[LandingId]:
    return frozenset(LandingId(row[0]) for row in connection.execute(question, id_rows(landing_ids)))

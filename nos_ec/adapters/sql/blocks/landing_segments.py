"""Segments of the landing log: which accept records of PUTs, and which have no references any more.

Objects in the landing store, each with its row of `waiting`, and entries of the deletion queue refer to records by
their landing ids. L3: a segment is DOOMED only when no record of it has a reference, or can get one later.

  - The first reference to a record is made by `record_puts` or `move_landed`. Both lock the segment's row in share mode
    until they end, and check that the segment is OPEN. `seal_segments` waits for such transactions, because it changes
    that row, and a segment never becomes OPEN again. Therefore, once a segment is SEALED, all references to its records
    are committed, and no new ones are made.
  - All other transactions only move a reference. Commits, deletes and overwrites take it from a row, which they have
    locked, and make it a queue entry. A revert takes it from an entry, which it has locked, and puts it into a row. All
    of them do so in one transaction. So in every state of the database, a record that is needed has one reference.
  - `doom_segment` looks for a row of `waiting` and for an entry in *one* statement without locks. With READ COMMITTED,
    such a statement sees one state of the database (sql_races.py checks this on the servers). In that state, a
    reference that is about to move is still in its old place. Two statements, even with locks, would not be enough: a
    reference could move from the row to the queue and back between them, because READ COMMITTED locks no gaps.

SQLite allows one writer at a time, so no reference moves during these statements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Select,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from nos_ec.adapters.sql.blocks import leases
from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.gate import NUMBER, Gate
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed
from nos_ec.adapters.sql.tables.rows import OBJECT_COLUMNS, by_index, delete_listed, object_row
from nos_ec.adapters.sql.tables.schema import COUNTERS, LANDING_DELETIONS, LANDING_SEGMENTS, OBJECTS, WAITING
from nos_ec.core.errors import Conflict
from nos_ec.core.ids import (
    SEGMENT_ID_BYTES,
    LandingId,
    ObjectKey,
    SegmentId,
    ids_in_segment,
    in_log,
    log_of,
    segment_of,
)
from nos_ec.core.states import SegmentEvent, SegmentState, advance_segment
from nos_ec.ports.metadata import Lease, ObjectRow, SegmentRow

_G, _O, _D, _W = LANDING_SEGMENTS.c, OBJECTS.c, LANDING_DELETIONS.c, WAITING.c
_ID, _LANDING_ID = _G.segment_id.type, _D.landing_id.type
_IDS = JsonRows("segment_ids", id=SEGMENT_ID_BYTES)
_ENDS = JsonRows("ends", segment_id=SEGMENT_ID_BYTES, end_bytes=0, records=0)
_OPEN = advance_segment(None, SegmentEvent.OPEN)
_SEALED = advance_segment(_OPEN, SegmentEvent.SEAL)
_DOOMED = advance_segment(_SEALED, SegmentEvent.DOOM)
_COLUMNS = (_G.segment_id, _G.state, _G.epoch, _G.opened_ms, _G.sealed_ms, _G.end_bytes, _G.records)
_CLOCKS_MS = 60_000
"""How far the clock of a process that seals a segment may be behind the clock of one that records PUTs in it."""
_SEGMENTS_MAX = 50
"""The greatest number of segments in one statement."""

BY_ID = select(*_COLUMNS).where(_G.segment_id == bindparam("segment", type_=_ID))
SEAL = (
    UpdateListed(LANDING_SEGMENTS)
    .where(
        _G.segment_id == _ENDS["segment_id"],
        or_(_G.state == _OPEN, and_(_G.state == _SEALED, _G.sealed_ms.is_(None))),
    )
    .values(
        state=_SEALED,
        sealed_ms=bindparam("now_ms", type_=BigInteger),
        end_bytes=_ENDS["end_bytes"],
        records=_ENDS["records"],
    )
)
OPEN_OF_LOG = (
    by_index(select(*_COLUMNS), LANDING_SEGMENTS, "landing_segments_by_log")
    .where(
        _G.state == _OPEN,
        _G.log == bindparam("of_log", type_=Integer),
        _G.epoch <= bindparam("epoch_max", type_=BigInteger),
    )
    .order_by(_G.segment_id)
)
_LIVE = (
    by_index(select(_W.landing_id, _W.object_id), WAITING, "PRIMARY")
    .where(
        _W.landing_id > bindparam("after", type_=_LANDING_ID),
        _W.landing_id <= bindparam("last", type_=_LANDING_ID),
    )
    .order_by(_W.landing_id)
    .limit(bindparam("rows_max"))
    .subquery("live")
)
OBJECTS_IN_SEGMENT = (
    select(*OBJECT_COLUMNS)
    .join_from(_LIVE, OBJECTS, and_(_O.object_id == _LIVE.c.object_id, _O.landing_id == _LIVE.c.landing_id))
    .order_by(_LIVE.c.landing_id)
)
RECORDED_IN = (
    select(_G.segment_id)
    .where(
        _G.segment_id.between(bindparam("first", type_=_ID), bindparam("last", type_=_ID)),
        or_(_G.sealed_ms.is_(None), _G.sealed_ms >= bindparam("from_ms", type_=BigInteger)),
    )
    .order_by(_G.segment_id)
)
LOCK_STATE = select(_G.state).where(_G.segment_id == bindparam("segment", type_=_ID)).with_for_update(read=True)
LOCK_STATE_IN_CELL = (
    select(_G.state, COUNTERS.c.value)
    .join_from(LANDING_SEGMENTS, COUNTERS, COUNTERS.c.name == NUMBER)
    .where(_G.segment_id == bindparam("segment", type_=_ID))
    .with_for_update(read=True)
)
"""Locks the number of the gate as well."""
STATES = select(_G.segment_id, _G.state).join_from(_IDS.table, LANDING_SEGMENTS, _G.segment_id == _IDS["id"])


class SqlLandingSegments(SqlPart):
    """`LandingSegments` of the port, except `make_due` and `move_landed`, which change rows of objects."""

    @writes
    def open_segment(self, connection: Connection, segment: SegmentId, lease: Lease, now_ms: int) -> None:
        leases.require(connection, lease)
        found = connection.execute(BY_ID, {"segment": segment}).first()
        if found is None:
            row = {"segment_id": segment, "log": log_of(segment), "epoch": lease.epoch, "state": _OPEN}
            row |= {"opened_ms": now_ms, "end_bytes": 0, "records": 0}
            connection.execute(insert(LANDING_SEGMENTS), row)
        elif found.epoch != lease.epoch:
            raise Conflict(
                f"landing segment {segment.hex()} was opened under epoch {found.epoch}, not {lease.epoch};"
                " take another id"
            )

    def seal_segments(self, ends: Sequence[tuple[SegmentId, int, int]], now_ms: int | None) -> None:
        if ends:
            self._write(_seal_segments, ends, now_ms)

    @reads
    def open_segments_of_log(self, connection: Connection, log: int, epoch_max: int) -> list[SegmentRow]:
        return [_segment_row(row) for row in connection.execute(OPEN_OF_LOG, {"of_log": log, "epoch_max": epoch_max})]

    @reads
    def landing_segment(self, connection: Connection, segment: SegmentId) -> SegmentRow | None:
        row = connection.execute(BY_ID, {"segment": segment}).first()
        return None if row is None else _segment_row(row)

    @reads
    def list_segments(self, connection: Connection, after: SegmentId | None, limit: int) -> list[SegmentRow]:
        found = select(*_COLUMNS).order_by(_G.segment_id).limit(limit)
        if after is not None:
            found = found.where(_G.segment_id > after)
        return [_segment_row(row) for row in connection.execute(found)]

    def releasable_segments(self, segments: Sequence[SegmentId]) -> frozenset[SegmentId]:
        return self._read(_releasable_segments, segments) if segments else frozenset()

    @writes
    def doom_segment(self, connection: Connection, segment: SegmentId) -> bool:
        row = connection.execute(BY_ID.with_for_update(), {"segment": segment}).first()
        if row is None or row.state is _OPEN:
            return False
        if row.state is _SEALED:
            if _referred(connection, [segment]):
                return False
            dooming = update(LANDING_SEGMENTS).where(_G.segment_id == segment)
            connection.execute(dooming.values(state=advance_segment(row.state, SegmentEvent.DOOM)))
        return True

    def forget_segments(self, segments: Sequence[SegmentId]) -> None:
        if segments:
            self._write(_forget_segments, segments)

    @reads
    def objects_in_segment(
        self, connection: Connection, segment: SegmentId, after: LandingId | None, limit: int
    ) -> list[ObjectRow]:
        first, last = ids_in_segment(segment)
        before = (int.from_bytes(first, "big") - 1).to_bytes(len(first), "big")
        bounds = {"after": max(before, after or before), "last": last, "rows_max": limit}
        return [object_row(row) for row in connection.execute(OBJECTS_IN_SEGMENT, bounds)]

    @reads
    def segment_totals(self, connection: Connection) -> dict[SegmentState, tuple[int, int]]:
        sums = select(_G.state, func.count(), func.sum(_G.end_bytes)).group_by(_G.state)
        return {state: (count, int(end_bytes)) for state, count, end_bytes in connection.execute(sums)}


def _seal_segments(connection: Connection, ends: Sequence[tuple[SegmentId, int, int]], now_ms: int | None) -> None:
    connection.execute(SEAL, {**_ENDS.dump(sorted(ends)), "now_ms": now_ms})


def lock_open(connection: Connection, landing_ids: Iterable[LandingId]) -> frozenset[SegmentId]:
    """Return the OPEN segments of these records. They stay OPEN until this transaction ends: sealing waits for it.

    The lock is shared, so that PUTs do not wait for each other. For each segment, one statement finds it by its key. A
    batch lies in one segment, seldom in two.
    """
    of_these = sorted({segment_of(landing_id) for landing_id in landing_ids if in_log(landing_id)})
    states = {segment: connection.execute(LOCK_STATE, {"segment": segment}).scalar() for segment in of_these}
    return frozenset(segment for segment, state in states.items() if state is _OPEN)


def lock_open_in_cell(
    connection: Connection, landing_ids: Iterable[LandingId], gate: Gate, keys: Iterable[ObjectKey]
) -> frozenset[SegmentId]:
    """Like `lock_open`, in a cell, for a transaction that changes these keys. The first segment is locked together
    with the number of the gate. Raises what `Gate.admit` raises."""
    of_these = sorted({segment_of(landing_id) for landing_id in landing_ids if in_log(landing_id)})
    first = connection.execute(LOCK_STATE_IN_CELL, {"segment": of_these[0]}).first() if of_these else None
    if first is None:
        gate.require(connection, keys)
        return lock_open(connection, landing_ids)
    gate.admit(connection, first.value, keys)
    states = {segment: connection.execute(LOCK_STATE, {"segment": segment}).scalar() for segment in of_these[1:]}
    states[of_these[0]] = first.state
    return frozenset(segment for segment, state in states.items() if state is _OPEN)


def in_open_segments(connection: Connection, landing_ids: Iterable[LandingId]) -> frozenset[LandingId]:
    """Return the records among these ids that lie in OPEN segments. This needs no lock, because a segment that is not
    OPEN never becomes OPEN again."""
    of_log = [landing_id for landing_id in landing_ids if in_log(landing_id)]
    if not of_log:
        return frozenset()
    states = connection.execute(STATES, _id_rows(map(segment_of, of_log)))
    open_ones = {segment for segment, state in states if state is _OPEN}
    return frozenset(landing_id for landing_id in of_log if segment_of(landing_id) in open_ones)


def recorded_in(connection: Connection, first: LandingId, last: LandingId, at_ms: int) -> list[SegmentId]:
    """Return the segments in which a PUT may have been recorded at that time, from the segment of record `first` to the
    segment of `last`."""
    bounds = {"first": segment_of(first), "last": segment_of(last), "from_ms": at_ms - _CLOCKS_MS}
    return [SegmentId(segment) for segment in connection.execute(RECORDED_IN, bounds).scalars()]


def _releasable_segments(connection: Connection, segments: Collection[SegmentId]) -> frozenset[SegmentId]:
    states = {SegmentId(row[0]): row[1] for row in connection.execute(STATES, _id_rows(segments))}
    doomed = {segment for segment, state in states.items() if state is _DOOMED}
    sealed = sorted(segment for segment, state in states.items() if state is _SEALED)
    referred = {
        segment
        for first in range(0, len(sealed), _SEGMENTS_MAX)
        for segment in _referred(connection, sealed[first : first + _SEGMENTS_MAX])
    }
    return frozenset(doomed.union(sealed) - referred)


def _forget_segments(connection: Connection, segments: Collection[SegmentId]) -> None:
    gone = delete_listed(connection, LANDING_SEGMENTS, _G.segment_id, _IDS, "id").where(_G.state == _DOOMED)
    connection.execute(gone, _id_rows(segments))


def _referred(connection: Connection, segments: Sequence[SegmentId]) -> list[SegmentId]:
    """Return the segments to whose records a row or a queue entry refers, in one statement."""
    bounds: dict[str, bytes] = {}
    for i, segment in enumerate(segments):
        bounds[f"first_{i}"], bounds[f"last_{i}"] = ids_in_segment(segment)
    answers = connection.execute(_any_reference(len(segments)), bounds).one()
    return [segment for segment, referred in zip(segments, answers, strict=True) if referred]


@cache
def _any_reference(segments: int) -> Select[Any]:
    """Select for each segment whether anything refers to a record of it, by two index look-ups. All are parts of one
    expression list, because a server might run the parts of a UNION as separate statements."""

    def refers(i: int) -> Any:
        between = bindparam(f"first_{i}", type_=_LANDING_ID), bindparam(f"last_{i}", type_=_LANDING_ID)
        row, entry = (by_index(select(literal_column("1")), one, "PRIMARY") for one in (WAITING, LANDING_DELETIONS))
        return or_(
            exists(row.select_from(WAITING).where(_W.landing_id.between(*between))),
            exists(entry.select_from(LANDING_DELETIONS).where(_D.landing_id.between(*between))),
        )

    return select(*(refers(i).label(f"referred_{i}") for i in range(segments)))


def _id_rows(segments: Iterable[SegmentId]) -> dict[str, str]:
    return _IDS.dump((segment,) for segment in sorted(set(segments)))


def _segment_row(row: Any) -> SegmentRow:
    return SegmentRow(
        segment=SegmentId(row.segment_id),
        state=row.state,
        epoch=row.epoch,
        opened_ms=row.opened_ms,
        sealed_ms=row.sealed_ms,
        end=row.end_bytes,
        records=row.records,
    )

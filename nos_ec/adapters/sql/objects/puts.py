"""Records PUTs: batches of landed and empty objects. Large ones: large_puts.py.

A landing id proves that its PUT is in time. A copy in the landing store must have a reservation in the deletion queue
that is not doomed. The segment of a record in the landing log must be OPEN. The queue also keeps ids that were recorded
and have been released since, so that recording them again (after a Transient) changes nothing.

Records have no reservations, so the queue normally has no entry of a record. It is searched only after the rows are
written and locked, because an earlier call whose result was lost may still run when it is repeated. If that call has
finished when the rows are locked, they or the queue show it, because the queue keeps entries of an OPEN segment. If
not, it waits for the rows, and finds them recorded. If there is an entry, the work is rolled back and run again. The
same happens if the object is in the trash by then, and still waits with its record. A record whose condition does not
hold is searched for in the same way, because an earlier call may have recorded it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from sqlalchemy import BigInteger, Connection, bindparam, case, insert, null, select
from sqlalchemy.exc import IntegrityError

from nos_ec.adapters.sql.blocks import landing_segments
from nos_ec.adapters.sql.objects import (
    locks,
    make_noncurrent,
    object_rows,
    renames,
    tails,
    uploads,
    usage,
    versions,
    waiting,
)
from nos_ec.adapters.sql.objects.outbox import EventWriter, NotifyingPart
from nos_ec.adapters.sql.objects.release_version import release
from nos_ec.adapters.sql.tables.gate import Gate
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import IDS, by_index, by_keys, delete_listed, id_rows, key_rows, require_all
from nos_ec.adapters.sql.tables.schema import ID_BYTES, LANDING_DELETIONS, OBJECTS, WAITING
from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX
from nos_ec.core.deadlines import EMPTY_COPY_MS
from nos_ec.core.errors import InvalidInput, Locked, Moved, NosError, Transient
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId, in_log, segment_of
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import bucket_of_parts, upload_key
from nos_ec.core.states import ObjectEvent, advance_object
from nos_ec.core.versions import Versioning, as_null_version
from nos_ec.ports.metadata import (
    CompletionOf,
    LockOf,
    NewLargeObject,
    NewObject,
    ObjectRow,
    PartOf,
    RenameOf,
    TailOf,
    UploadStep,
)

_O, _D, _W = OBJECTS.c, LANDING_DELETIONS.c, WAITING.c
_LANDED, _EMPTY = (advance_object(None, event) for event in (ObjectEvent.LAND, ObjectEvent.KEEP))
_NEW = JsonRows(
    "new", optional=["landing_id"], object_id=0, version=0, size=0, crc32c=0, md5=ID_BYTES, landing_id=ID_BYTES
)
_NEW_ATTRIBUTES = JsonRows("attributed", object_id=0, attributes=ATTRIBUTES_SIZE_MAX)

LOCK_ENTRIES = looked_up(
    select(_D.landing_id, _D.object_id, _D.version, _D.doomed)
    .join_from(IDS.table, LANDING_DELETIONS, _D.landing_id == IDS["id"])
    .with_for_update(),
    LANDING_DELETIONS,
)
QUEUED = select(_D.landing_id).join_from(IDS.table, LANDING_DELETIONS, _D.landing_id == IDS["id"])
ENTRIES_BETWEEN = by_index(select(_D.landing_id), LANDING_DELETIONS, "PRIMARY").where(
    _D.landing_id.between(bindparam("first", type_=_D.landing_id.type), bindparam("last", type_=_D.landing_id.type))
)
WAITING_OBJECTS = looked_up(
    select(_W.landing_id, _O.object_id, _O.version)
    .join_from(IDS.table, WAITING, _W.landing_id == IDS["id"])
    .join(OBJECTS, _O.object_id == _W.object_id),
    WAITING,
    then=OBJECTS,
)
INSERT = insert(OBJECTS)
_ID_AND_KEY = (_O.object_id, _O.bucket, _O.name)
INSERT_RETURNING = INSERT.returning(*_ID_AND_KEY)
IDS_BY_KEYS = by_keys(*_ID_AND_KEY)
OVERWRITE = (
    UpdateListed(OBJECTS)
    .where(_O.object_id == _NEW["object_id"])
    .values(
        version=_NEW["version"],
        size=_NEW["size"],
        crc32c=_NEW["crc32c"],
        md5=_NEW["md5"],
        state=case((_NEW.missing("landing_id"), _EMPTY), else_=_LANDED),
        landing_id=_NEW["landing_id"],
        block_id=null(),
        block_offset=null(),
        created_ms=bindparam("created", type_=BigInteger),
        attributes=null(),
    )
)
SET_ATTRIBUTES = (
    UpdateListed(OBJECTS)
    .where(_O.object_id == _NEW_ATTRIBUTES["object_id"])
    .values(attributes=_NEW_ATTRIBUTES["attributes"])
)
"""Follows OVERWRITE, for objects that have attributes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the deletion queue. A reservation has no object. If there is an object, the copy was recorded and has
    been released since."""

    object_id: int | None
    version: int | None
    doomed: bool


class RecordedBefore(Exception):
    """An earlier call may have recorded one of these PUTs: the queue, or a row in the trash, has its record.
    `_record_puts` must be run `again`."""


@dataclass(frozen=True, slots=True)
class InTime:
    """The proofs that PUTs are in time: `entries` of the queue, and `open_segments`.

    If `has_records`, the entries of records are included. `waiting` has (object_id, version) of rows that were recorded
    before, and may be in the trash, by landing id. It is searched for copies without a proof, and for all records when
    PUTs are recorded `again`.
    """

    entries: Mapping[LandingId, Entry]
    open_segments: frozenset[SegmentId]
    has_records: bool
    waiting: Mapping[LandingId, tuple[int, int]]
    again: bool


class SqlPuts(NotifyingPart):
    """`record_puts` of `Objects` of the port."""

    def record_puts(
        self, objects: Sequence[NewObject], now_ms: int, *, together: bool = False
    ) -> list[ObjectRow | NosError]:
        if not objects:
            return []
        again, locked = False, frozenset[ObjectKey]()
        events = self._writer((one.key.bucket for one in objects), refuses=False)
        while True:
            try:
                return self._write_again(
                    _record_puts,
                    objects,
                    now_ms,
                    together=together,
                    again=again,
                    locked=locked,
                    events=events,
                    gate=self._gate,
                )
            except Moved as error:
                rest = [one for one in objects if _changed_bucket(one) not in error.buckets]
                if together or not rest:
                    raise
                recorded = iter(self.record_puts(rest, now_ms))
                return [
                    Moved(str(error), error.buckets) if _changed_bucket(one) in error.buckets else next(recorded)
                    for one in objects
                ]
            except RecordedBefore:
                again = True
            except Locked as error:
                found = frozenset(one.key for one in objects if one.key in error.keys)
                if together or found <= locked:
                    raise
                locked |= found


def _record_puts(
    connection: Connection,
    new: Sequence[NewObject],
    now_ms: int,
    *,
    together: bool = False,
    again: bool = False,
    locked: frozenset[ObjectKey] = frozenset(),
    events: EventWriter | None = None,
    gate: Gate | None = None,
) -> list[ObjectRow | NosError]:
    """Record PUTs, as `Objects.record_puts` of the port promises, and refuse those of the keys in `locked`. Unless
    `again` is set, this may raise RecordedBefore. It raises Locked if a version that would be overwritten is locked.
    Then the transaction must be rolled back."""
    _check(new)
    keys = (key for one in new for key in changed_keys(one))
    landing_ids = [one.landing_id for one in new if one.landing_id is not None]
    in_time = look_in_time(connection, landing_ids, gate, keys, again=again)
    answers: dict[int, ObjectRow | NosError] = {}
    for turn in _turns(new):
        by_key = _record_turn(connection, [new[i] for i in turn], in_time, now_ms, locked, events)
        answers |= {i: by_key[new[i].key] for i in turn}
    for answer in answers.values():
        if together and isinstance(answer, NosError):
            raise answer
    kill_point("metadata.record_puts.before_commit")
    return [answers[i] for i in range(len(new))]


def changed_keys(new: NewObject | NewLargeObject) -> list[ObjectKey]:
    """Return the keys that a PUT changes, all of one bucket and its uploads. A note about a lock changes the key of its
    version, a rename removes an object of another key, and a completion ends an upload."""
    match new.step:
        case LockOf(row=row):
            return [row.key]
        case RenameOf(row=row, completion=None):
            return [new.key, row.key]
        case RenameOf(row=row, completion=CompletionOf(upload_id=upload_id)):
            return [new.key, row.key, upload_key(new.key.bucket, upload_id)]
        case CompletionOf(upload_id=upload_id):
            return [new.key, upload_key(new.key.bucket, upload_id)]
        case _:
            return [new.key]


def _changed_bucket(new: NewObject) -> str:
    return bucket_of_parts(changed_keys(new)[0].bucket)


def look_in_time(
    connection: Connection,
    landing_ids: Sequence[LandingId],
    gate: Gate | None,
    keys: Iterable[ObjectKey],
    *,
    again: bool,
) -> InTime:
    """Look for the proofs that PUTs of these ids are in time, and lock them. With a gate, this is the first statement
    of a transaction that changes these keys. Raises what `Gate.admit` raises."""
    records = [landing_id for landing_id in landing_ids if in_log(landing_id)]
    if gate is None:
        open_segments = landing_segments.lock_open(connection, records)
    else:
        open_segments = landing_segments.lock_open_in_cell(connection, records, gate, keys)
    has_records = again or any(segment_of(record) not in open_segments for record in records)
    listed = [landing_id for landing_id in landing_ids if has_records or not in_log(landing_id)]
    entries = lock_entries(connection, listed)
    unproved = [
        landing_id
        for landing_id in landing_ids
        if landing_id not in entries
        and (again or not in_log(landing_id) or segment_of(landing_id) not in open_segments)
    ]
    rows = connection.execute(WAITING_OBJECTS, id_rows(unproved)) if unproved else ()
    having = {LandingId(row[0]): (row[1], row[2]) for row in rows}
    return InTime(entries, open_segments, has_records, having, again)


def lock_entries(connection: Connection, landing_ids: Sequence[LandingId]) -> dict[LandingId, Entry]:
    """Lock the queue entries of these ids, and return them. The locks prevent that an id is removed from the queue by
    one transaction and doomed by another."""
    if not landing_ids:
        return {}
    found = connection.execute(LOCK_ENTRIES, id_rows(landing_ids))
    return {LandingId(row[0]): Entry(row[1], row[2], bool(row[3])) for row in found}


def _check(new: Sequence[NewObject]) -> None:
    ids = [one.landing_id for one in new if one.landing_id is not None]
    if len(set(ids)) != len(ids):
        raise ValueError("two objects claim the same landing copy")
    for one in new:
        if one.landing_id is None and one.size:
            raise ValueError(f"object {one.key} of {one.size} bytes must have a landing copy")
        if one.landing_id is not None and not one.size and in_log(one.landing_id):
            raise ValueError(f"object {one.key} is empty: a landing copy of it cannot be a record")


def _turns(new: Sequence[NewObject]) -> Iterator[list[int]]:
    """Yield the indices of `new` in groups without repeated keys. A later PUT of a key is in a later group. A rename
    counts for both of its keys. There is nearly always only one group."""
    seen: dict[ObjectKey, int] = {}
    turns: list[list[int]] = []
    for i, one in enumerate(new):
        turn = seen.get(one.key, 0)
        if isinstance(one.step, RenameOf):
            turn = max(turn, seen.get(one.step.row.key, 0))
            seen[one.step.row.key] = turn + 1
        seen[one.key] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(i)
    yield from turns


def _record_turn(
    connection: Connection,
    new: Sequence[NewObject],
    in_time: InTime,
    now_ms: int,
    locked: frozenset[ObjectKey],
    events: EventWriter | None,
) -> dict[ObjectKey, ObjectRow | NosError]:
    keys = [one.key for one in new]
    keys += [one.step.row.key for one in new if isinstance(one.step, RenameOf)]
    current = object_rows.lock_listed(connection, keys)
    answered: dict[ObjectKey, ObjectRow | NosError] = {
        one.key: answer for one in new if (answer := _answer(one, current.get(one.key), in_time)) is not None
    }
    left = [one for one in new if one.key not in answered]
    refused: dict[ObjectKey, NosError] = {one.key: overwrites_locked(one.key) for one in left if one.key in locked}
    refused |= _refused([one for one in left if one.key not in refused], current)
    refused |= _take_steps(connection, [one for one in new if one.key not in answered | refused], current, now_ms)
    given_up = [one.landing_id for one in new if one.key in refused and one.landing_id is not None]
    _require_not_recorded(connection, given_up, in_time)
    _give_up(connection, given_up, now_ms)
    answered |= refused
    fresh = [with_null_version(one, current.get(one.key)) for one in new if one.key not in answered]
    over, added = _divide(fresh, current)
    release(connection, [current[one.key] for one in over], now_ms)
    rows = _overwrite(connection, over, current, now_ms, events)
    rows |= _insert_versions(connection, added, current, now_ms, events)
    claim(connection, [one.landing_id for one in fresh if one.landing_id is not None])
    keep_copies(connection, [(one.landing_id, rows[one.key]) for one in fresh if not one.size], now_ms)
    _require_first(connection, [one.landing_id for one in fresh if one.landing_id is not None], in_time)
    try:
        waiting.enter(connection, [(rows[one.key], one.due_ms) for one in fresh])
    except IntegrityError as error:
        if not in_time.again:
            raise RecordedBefore from error
        raise Transient("metadata: PUTs were recorded by another call meanwhile; try again") from error
    renames.remove_sources(connection, [one.step for one in fresh if isinstance(one.step, RenameOf)], now_ms, events)
    usage.counts(connection, rows.values())
    if events is not None:
        events.stored(connection, [(rows[one.key], one.request.origin) for one in fresh], now_ms)
    return {**rows, **answered}


def overwrites_locked(key: ObjectKey) -> Locked:
    """Return the error for a PUT that would overwrite a locked version."""
    return Locked(f"object {key} has a locked version, which a PUT would overwrite; nothing was changed", [key])


NewT = TypeVar("NewT", NewObject, NewLargeObject)


def with_null_version(new: NewT, current: ObjectRow | None) -> NewT:
    """Return the object with the attribute of a null version if its key has versions and its PUT does not know that. If
    the attribute does not fit, a later DELETE that does not know it either may make an older version visible."""
    if new.versioning is None and current is not None and current.is_of_versions:
        with suppress(InvalidInput):
            return replace(new, request=replace(new.request, attributes=as_null_version(new.attributes)))
    return new


def _divide(
    new: Sequence[NewObject], current: Mapping[ObjectKey, ObjectRow]
) -> tuple[list[NewObject], list[NewObject]]:
    """Return the objects that take over the row of the version that they overwrite, and those that get a new row."""
    over: list[NewObject] = []
    added: list[NewObject] = []
    for one in new:
        row = current.get(one.key)
        (added if row is None or make_noncurrent.stays(row, one.versioning) else over).append(one)
    return over, added


def _insert_versions(
    connection: Connection,
    new: Sequence[NewObject],
    current: Mapping[ObjectKey, ObjectRow],
    now_ms: int,
    events: EventWriter | None,
) -> dict[ObjectKey, ObjectRow]:
    """Add rows for these objects. The current versions of their keys, which are locked, become noncurrent."""
    gone = [current[one.key] for one in new if one.key in current]
    make_noncurrent.retire(connection, gone)
    unlocked = [one.key for one in new if one.versioning is not None and one.key not in current]
    newest = _highest(connection, new, current, events)
    for row in gone:
        newest[row.key] = max(newest.get(row.key, 0), row.version)
    enabled = Versioning.ENABLED
    replacing = [one.key for one in new if one.versioning is not enabled and (one.versioning or one.key in current)]
    for key, number in make_noncurrent.remove_nulls(connection, replacing, now_ms).items():
        newest[key] = max(newest.get(key, 0), number)
    rows = _insert(connection, new, newest, now_ms)
    numbers = {key: rows[key].version for key in unlocked}
    versions.raise_if_newer(connection, numbers, numbers)
    versions.raise_if_null(connection, [key for key in replacing if key not in current])
    return rows


def _highest(
    connection: Connection,
    new: Sequence[NewObject],
    current: Mapping[ObjectKey, ObjectRow],
    events: EventWriter | None,
) -> dict[ObjectKey, int]:
    """Return the greatest number, except the number of the current version, of each key that may have other versions,
    or whose removals have raised a floor because its bucket has notifications. New objects must have greater ones. A
    current version that was stored without versioning may be older than others."""
    known = {key for key, row in current.items() if row.is_of_versions}
    keys = [one.key for one in new if one.versioning or one.key in known]
    unsure = [key for key in keys if key not in known]
    if events is not None:
        keys += [one.key for one in new if not (one.versioning or one.key in known) and events.watches(one.key)]
    return make_noncurrent.highest_numbers(connection, keys, unsure) if keys else {}


def _refused(new: Sequence[NewObject], current: Mapping[ObjectKey, ObjectRow]) -> dict[ObjectKey, NosError]:
    """Return errors for the objects whose conditions do not hold for the rows of `current`, which are locked."""
    refused: dict[ObjectKey, NosError] = {}
    for one in new:
        row = current.get(one.key)
        if one.condition is not None:
            refusal = one.condition.refusal(one.key, None if row is None else row.tag)
            if refusal is not None:
                refused[one.key] = refusal
    return refused


def _take_steps(
    connection: Connection, new: Sequence[NewObject], current: Mapping[ObjectKey, ObjectRow], now_ms: int
) -> dict[ObjectKey, NosError]:
    """Take the steps of uploads, change locks, and check the blocks of tails and the sources of renames. Return errors
    for objects that must not be recorded."""
    stepping = [one for one in new if one.step is not None]
    if not stepping:
        return {}
    # An upload must not be completed for a rename that is refused, so the sources are checked first.
    renamed = {one.key: one.step for one in stepping if isinstance(one.step, RenameOf)}
    refused: dict[ObjectKey, NosError] = {}
    if renamed:
        of_source = renames.refused(connection, list(renamed.values()), current)
        refused = {key: of_source[step.row.key] for key, step in renamed.items() if step.row.key in of_source}
    steps = [(one.key, step) for one in stepping if one.key not in refused and (step := _upload_step(one)) is not None]
    refused |= uploads.take_steps(connection, steps, now_ms)
    changes = [(one.key, one.step) for one in new if isinstance(one.step, LockOf)]
    if changes:
        refused |= locks.change_all(connection, changes)
    return refused | tails.refused(connection, [(one.key, one.step) for one in new if isinstance(one.step, TailOf)])


def _upload_step(new: NewObject) -> UploadStep | None:
    """Return the step of an upload that recording this object takes."""
    step = new.step.completion if isinstance(new.step, RenameOf) else new.step
    return step if isinstance(step, PartOf | CompletionOf) else None


def _require_not_recorded(connection: Connection, landing_ids: Sequence[LandingId], in_time: InTime) -> None:
    """Raise RecordedBefore if an earlier call recorded one of these records, whose objects are refused now."""
    records = [landing_id for landing_id in landing_ids if in_log(landing_id)]
    if not records or in_time.again:
        return
    if _any_entry(connection, records) or connection.execute(WAITING_OBJECTS, id_rows(records)).first():
        raise RecordedBefore


def _answer(one: NewObject, current: ObjectRow | None, in_time: InTime) -> ObjectRow | Transient | None:
    """Return the row that an earlier call recorded for this landing copy, or the error if it must not be recorded, or
    None if it may be recorded now."""
    if one.landing_id is None:
        return None
    if current is not None and current.landing_id == one.landing_id:
        return current
    if one.landing_id in in_time.waiting:
        return _superseded(one, *in_time.waiting[one.landing_id])  # it is in the trash
    entry = in_time.entries.get(one.landing_id)
    if entry is None and in_log(one.landing_id):
        if segment_of(one.landing_id) in in_time.open_segments:
            return None
        return Transient(f"object {one.key}: its landing segment was sealed; PUT it again", key=one.key)
    if entry is None or (entry.doomed and entry.object_id is None):
        return Transient(f"object {one.key}: its PUT took longer than its reservation; PUT it again", key=one.key)
    if entry.object_id is None or entry.version is None:
        return None
    if current is not None and (current.object_id, current.version) == (entry.object_id, entry.version):
        return current
    return _superseded(one, entry.object_id, entry.version)


def _superseded(one: NewObject, object_id: int, version: int) -> ObjectRow:
    """Return the row of a PUT that was recorded, and deleted or overwritten since. It must not take effect again."""
    return _landed(one, object_id, version, version // 1000)


def _landed(one: NewObject, object_id: int, version: int, created_ms: int) -> ObjectRow:
    """Return the row of a PUT."""
    return ObjectRow(
        object_id=object_id,
        key=one.key,
        version=version,
        size=one.size,
        crc32c=one.crc32c,
        md5=one.md5,
        state=_LANDED if one.size else _EMPTY,
        landing_id=one.landing_id if one.size else None,
        extent=None,
        created_ms=created_ms,
        attributes=one.attributes,
    )


def _next_version(new: NewObject, previous: int | None, now_ms: int) -> int:
    conditional = new.condition is not None
    return object_rows.next_version(previous, max(now_ms, new.put_ms or 0), conditional=conditional)


def _overwrite(
    connection: Connection,
    new: Sequence[NewObject],
    current: Mapping[ObjectKey, ObjectRow],
    now_ms: int,
    events: EventWriter | None,
) -> dict[ObjectKey, ObjectRow]:
    """Overwrite the rows of `current`, which are locked, with these objects. Return the new rows."""
    if not new:
        return {}
    highest = _highest(connection, new, current, events)
    numbers = {one.key: max(highest.get(one.key, 0), current[one.key].version) for one in new}
    versions = {one.key: _next_version(one, numbers[one.key], now_ms) for one in new}
    rows = [_landed(one, current[one.key].object_id, versions[one.key], now_ms) for one in new]
    listed = _NEW.dump(
        (row.object_id, row.version, row.size, row.crc32c, row.md5, row.landing_id)
        for row in sorted(rows, key=lambda row: row.object_id)
    )
    require_all(connection.execute(OVERWRITE, {**listed, "created": now_ms}).rowcount, len(rows), "objects")
    attributed = sorted((row.object_id, row.attributes) for row in rows if row.attributes)
    if attributed:
        set_now = connection.execute(SET_ATTRIBUTES, _NEW_ATTRIBUTES.dump(attributed)).rowcount
        require_all(set_now, len(attributed), "objects")
    return {row.key: row for row in rows}


def _insert(
    connection: Connection, new: Sequence[NewObject], newest: Mapping[ObjectKey, int], now_ms: int
) -> dict[ObjectKey, ObjectRow]:
    """Add and return rows for these objects, whose keys have no current version. `newest` has numbers of other versions
    of their keys."""
    if not new:
        return {}
    numbers = {one.key: _next_version(one, newest.get(one.key), now_ms) for one in new}
    attributed = any(one.attributes for one in new)
    # One multi-row INSERT of literal rows, in key order: INSERT ... SELECT would hold MySQL's auto-increment lock.
    listed = [
        {
            "bucket": one.key.bucket,
            "name": one.key.name,
            "version": numbers[one.key],
            "size": one.size,
            "crc32c": one.crc32c,
            "md5": one.md5,
            "state": _LANDED if one.size else _EMPTY,
            "landing_id": one.landing_id if one.size else None,
            "created_ms": now_ms,
            **({"attributes": one.attributes} if attributed else {}),
        }
        for one in sorted(new, key=lambda one: (one.key.bucket.encode(), one.key.name.encode()))
    ]
    if connection.dialect.insert_executemany_returning:
        made = connection.execute(INSERT_RETURNING, listed).all()
    else:  # MySQL, and SQLite before 3.35
        connection.execute(INSERT, listed)
        made = connection.execute(IDS_BY_KEYS, key_rows(one.key for one in new)).all()
    require_all(len(made), len(new), "objects")
    ids = {(bucket, name): object_id for object_id, bucket, name in made}
    return {one.key: _landed(one, ids[one.key.bucket, one.key.name], numbers[one.key], now_ms) for one in new}


def claim(connection: Connection, landing_ids: Sequence[LandingId]) -> None:
    """Remove the reservations of these copies, which objects have now, from the deletion queue."""
    reserved = [landing_id for landing_id in landing_ids if not in_log(landing_id)]
    if reserved:
        taken = delete_listed(connection, LANDING_DELETIONS, _D.landing_id, IDS, "id")
        claimed = connection.execute(taken, id_rows(reserved)).rowcount
        require_all(claimed, len(set(reserved)), "reserved landing copies")


def keep_copies(connection: Connection, empty: Sequence[tuple[LandingId | None, ObjectRow]], now_ms: int) -> None:
    """Queue the copies of empty objects for deletion after EMPTY_COPY_MS. Until then, a rebuild of the metadata finds
    the objects in them; blocks never contain empty objects."""
    kept = [
        {
            "landing_id": landing_id,
            "object_id": row.object_id,
            "version": row.version,
            "not_before_ms": now_ms + EMPTY_COPY_MS,
            "doomed": False,
        }
        for landing_id, row in empty
        if landing_id is not None
    ]
    if kept:
        connection.execute(insert(LANDING_DELETIONS), sorted(kept, key=itemgetter("landing_id")))


def _give_up(connection: Connection, landing_ids: Sequence[LandingId], now_ms: int) -> None:
    """Make the reservations of refused objects due now. They are removed and added again, because processes that PUT
    have no right to update entries."""
    reserved = [landing_id for landing_id in landing_ids if not in_log(landing_id)]
    if reserved:
        claim(connection, reserved)
        due = {"object_id": None, "version": None, "not_before_ms": now_ms, "doomed": False}
        connection.execute(insert(LANDING_DELETIONS), [{"landing_id": one, **due} for one in sorted(reserved)])


def _require_first(connection: Connection, landing_ids: Sequence[LandingId], in_time: InTime) -> None:
    """Raise RecordedBefore if the queue has an entry of one of these records, whose rows are written already."""
    if _any_entry(connection, [landing_id for landing_id in landing_ids if in_log(landing_id)]):
        if in_time.has_records:
            raise Transient("metadata: PUTs were recorded by another call while they were recorded again; try again")
        raise RecordedBefore


def _any_entry(connection: Connection, records: Sequence[LandingId]) -> bool:
    """Return whether the queue has an entry of one of these records. Runs one statement for each segment: the records
    of a batch are adjacent, so there are few entries of other records between the first and the last."""
    for _, in_segment in groupby(sorted(records), segment_of):
        ids = list(in_segment)
        entries = connection.execute(ENTRIES_BETWEEN, {"first": ids[0], "last": ids[-1]}).scalars()
        if not set(ids).isdisjoint(entries):
            return True
    return False

"""Rows of objects: look-ups, locks, deletes, and the producer's queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    select,
    union_all,
    update,
)

from nos_ec.adapters.sql.objects import journal, make_noncurrent, trash, uploads
from nos_ec.adapters.sql.objects.locks import not_deleted
from nos_ec.adapters.sql.objects.outbox import EventWriter, NotifyingPart, marker_added, plain_removal
from nos_ec.adapters.sql.objects.release_version import release
from nos_ec.adapters.sql.tables.base import reads, writes
from nos_ec.adapters.sql.tables.gate import READ_NUMBER, read_number, served_among
from nos_ec.adapters.sql.tables.json_rows import UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import (
    FIRST_MARK,
    LIVE,
    OBJECT_COLUMNS,
    OBJECT_IDS,
    by_index,
    by_keys,
    by_primary,
    key_rows,
    name_range,
    object_row,
    publication_of,
    require_all,
)
from nos_ec.adapters.sql.tables.schema import ID_BYTES, OBJECTS, SEGMENTS, WAITING, utf8
from nos_ec.core.conditions import Condition
from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import Locked, Moved, NotFound
from nos_ec.core.formats.journal import EntryKind
from nos_ec.core.ids import (
    BlockId,
    Extent,
    LandingId,
    ObjectKey,
    in_log,
    record_ids_between,
    time_of,
)
from nos_ec.core.publishing.republish import Publication
from nos_ec.core.states import ObjectEvent, ObjectState, advance_object, object_sources
from nos_ec.core.tails import hidden_prefix
from nos_ec.core.versions import numbered
from nos_ec.ports.metadata import ObjectRow, Segment, UploadRow

_O, _S, _W = OBJECTS.c, SEGMENTS.c, WAITING.c

BY_KEY = select(*OBJECT_COLUMNS).where(
    _O.trashed == LIVE, _O.bucket == bindparam("bucket"), _O.name == bindparam("name")
)
BY_KEY_IN_CELL = BY_KEY.add_columns(READ_NUMBER.scalar_subquery().label("number"))
VERSIONS_BY_KEYS = by_keys(_O.object_id, _O.version)
LOCK_IDS = looked_up(
    select(*OBJECT_COLUMNS)
    .join_from(OBJECT_IDS.table, OBJECTS, _O.object_id == OBJECT_IDS["object_id"])
    .with_for_update(),
    OBJECTS,
)
LOCK_CURRENT = LOCK_IDS.where(_O.trashed == LIVE)
"""Follows VERSIONS_BY_KEYS. A row may have gone into the trash between the two statements."""
LOCK_KEPT = LOCK_IDS.where(_O.trashed < FIRST_MARK)
"""Finds current and noncurrent versions, but not those in the trash."""

_PUBLISHED = advance_object(ObjectState.LANDED, ObjectEvent.PUBLISH)
MARK_PUBLISHED = (
    UpdateListed(OBJECTS)
    .where(
        _O.object_id == OBJECT_IDS["object_id"],
        _O.version == OBJECT_IDS["version"],
        _O.state.in_(sorted(object_sources(ObjectEvent.PUBLISH))),
    )
    .values(state=_PUBLISHED)
)
_WAITING_OF = UpdateListed(WAITING).where(
    OBJECT_IDS["object_id"] == _O.object_id,
    _O.version == OBJECT_IDS["version"],
    _W.landing_id == _O.landing_id,
)
"""An UPDATE of the waiting rows of these versions, which are locked in `objects`."""
MARK_WAITING = _WAITING_OF.where(_O.state == _PUBLISHED).values(
    state=_PUBLISHED,
    due_ms=bindparam("due"),
    published_ms=bindparam("at_ms", type_=BigInteger),
    is_spread=bindparam("spread"),
)
"""Follows MARK_PUBLISHED, which has locked the rows that it changed. Their state distinguishes them from rows that a
revert has set to LANDED meanwhile."""
POSTPONE = _WAITING_OF.where(_O.state == _PUBLISHED).values(due_ms=bindparam("due"))
"""Follows LOCK_IDS."""
MAKE_DUE = _WAITING_OF.where(_O.state == ObjectState.LANDED, _W.due_ms > bindparam("due")).values(
    due_ms=bindparam("due")
)
"""Follows LOCK_IDS."""
OLDEST_LANDING_ID = (
    by_index(select(_W.landing_id), WAITING, "PRIMARY")
    .where(_W.landing_id >= bindparam("least", type_=_W.landing_id.type))
    .order_by(_W.landing_id)
    .limit(1)
)
"""The lower bound makes the planners use the index, even when all ids are above it."""
_DUE_COLUMNS = (_W.due_ms, _W.object_id, _W.landing_id, _W.slot, _W.published_ms, _W.is_spread)
_REMOVE = delete(OBJECTS).where(_O.object_id == bindparam("removed"))
LOOKS_MAX = 200
"""How often the current version of a key is looked up. Each further look-up means that another writer has stored one
meanwhile."""
_AFTER_ALL = b"\xff"
"""A prefix with this byte at its end sorts after all names with the prefix, because UTF-8 has no such byte."""
NEXT_BUCKET = select(func.min(_O.bucket)).where(
    _O.trashed == LIVE, _O.bucket > bindparam("after_bucket", type_=_O.bucket.type)
)


def next_version(previous: int | None, now_ms: int, *, conditional: bool) -> int:
    """Return the number of a new version: greater than all earlier ones of its key, close to the clock in microseconds,
    and odd for a change under a condition."""
    return numbered(max((previous or 0) + 1, now_ms * 1000), conditional=conditional)


class SqlObjects(NotifyingPart):
    """`Objects` of the port, except PUTs, listings and packing, and `make_due` of `LandingSegments`."""

    def set_attributes(self, row: ObjectRow, attributes: bytes) -> bool:
        return self._change([row.key], _set_attributes, row, attributes, self._writer([row.key.bucket]))

    def get(self, key: ObjectKey) -> ObjectRow:
        row = self._find(key)
        if row is None:
            raise NotFound(f"object {key} does not exist", key=key)
        return row

    def segments(self, object_id: int, version: int) -> list[Segment]:
        return self._read(segments, object_id, version)

    def delete(
        self, key: ObjectKey, now_ms: int, until_ms: int | None = None, condition: Condition | None = None
    ) -> ObjectRow:
        events = self._writer([key.bucket])
        return self._change([key], delete_current, key, now_ms, until_ms, condition, events)

    def delete_many(self, keys: Sequence[ObjectKey], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        left, locked = list(keys), frozenset[Any]()
        rows: list[ObjectRow] = []
        events = self._writer(key.bucket for key in keys)
        while left:
            try:
                rows, left = self._change(left, _delete_many, left, now_ms, until_ms, events), []
            except Locked as error:
                locked |= error.keys
                left = [key for key in left if key not in locked]
        if locked:
            raise not_deleted(locked)
        return rows

    @writes
    def delete_parts(
        self, connection: Connection, doomed: UploadRow, keys: Sequence[ObjectKey], now_ms: int
    ) -> list[ObjectRow] | None:
        rows = list(lock_listed(connection, keys).values())
        if not uploads.is_still_doomed(connection, doomed):
            return None
        _remove_locked(connection, rows, now_ms, None, None, conditional=False)
        return rows

    def delete_unchanged(self, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        left = list(rows)
        events = self._writer(row.key.bucket for row in rows)
        while left:
            try:
                keys = [row.key for row in left]
                return self._change(keys, _delete_unchanged, left, now_ms, until_ms, events)
            except Locked as error:
                left = [row for row in left if row.key not in error.keys]
            except Moved as error:
                left = [row for row in left if row.key.bucket not in error.buckets]
        return []

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        return self._read_in(bucket, _list_names, bucket, prefix, after, limit)

    def list_buckets(self, after: str, limit: int) -> list[str]:
        if self._gate is None:
            return self._read(list_buckets, after, limit)
        found: list[str] = []
        while len(found) < limit:
            page = self._read(list_buckets, after, limit)
            found += self._read(served_among, page)
            if len(page) < limit:
                break
            after = page[-1]
        return found[:limit]

    @reads
    def due_objects(self, connection: Connection, now_ms: int, limit: int, slots: Collection[int]) -> list[ObjectRow]:
        if not slots:
            return []
        numbered = {f"slot_{i}": slot for i, slot in enumerate(sorted(set(slots)))}
        rows = _walked(connection, numbered, {"now_ms": now_ms, "rows_max": limit}, far=False)
        if len(rows) < limit:
            rows += _walked(
                connection, numbered, {"far_ms": now_ms + WAIT_MS_MAX, "rows_max": limit - len(rows)}, far=True
            )
        return rows

    @reads
    def oldest_landing_id(self, connection: Connection) -> LandingId | None:
        # Ids of the landing log sort after all others.
        oldest = _least_landing_id(connection, bytes(ID_BYTES))
        if oldest is None or in_log(oldest):
            return oldest
        of_log = _least_landing_id(connection, record_ids_between(0, 0)[0])
        return oldest if of_log is None else min(oldest, of_log, key=time_of)

    @writes
    def mark_published(
        self, connection: Connection, rows: Sequence[ObjectRow], due_ms: int, publication: Publication | None = None
    ) -> int:
        if not rows:
            return 0
        at_ms, is_spread = publication or (None, False)
        listed = OBJECT_IDS.dump(sorted({(row.object_id, row.version) for row in rows}))
        marked = connection.execute(MARK_PUBLISHED, listed).rowcount
        values = {"due": due_ms, "at_ms": at_ms, "spread": is_spread}
        waiting = connection.execute(MARK_WAITING, {**listed, **values}).rowcount
        require_all(min(marked, waiting), marked, "waiting objects")
        return marked

    def postpone(self, rows: Sequence[ObjectRow], due_ms: int) -> None:
        if rows:
            self._write(_set_due, POSTPONE, rows, due_ms)

    def make_due(self, rows: Sequence[ObjectRow], now_ms: int) -> int:
        return self._write(_set_due, MAKE_DUE, rows, now_ms) if rows else 0

    def _find(self, key: ObjectKey) -> ObjectRow | None:
        if self._gate is None:
            if self._look_ups is not None:
                try:
                    return self._look_ups.find(key)
                except self._look_ups.FAILURES as error:
                    self._transactions.raise_if_away(error)  # the ordinary read overcomes others, or reports them
            return self._read(find, key)
        known, found = self._gate.read_here.get(key.bucket), None
        if self._look_ups is not None:
            try:
                found = self._look_ups.find_in_cell(key)
            except self._look_ups.FAILURES as error:
                self._transactions.raise_if_away(error)
        number, row = self._read(_find_in_cell, key) if found is None else found
        return row if not number or number == known else self._read_in(key.bucket, find, key)


def _find_in_cell(connection: Connection, key: ObjectKey) -> tuple[int, ObjectRow | None]:
    """Return the current version, and the number of the gate at that moment or later."""
    row = connection.execute(BY_KEY_IN_CELL, {"bucket": key.bucket, "name": key.name}).first()
    return (read_number(connection), None) if row is None else (row[-1], object_row(row[:-1]))


def _list_names(connection: Connection, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
    """List names. This reads only a range of the index, without the trash, whatever the prefix is."""
    names = by_index(select(_O.name), OBJECTS, "objects_by_trash_key").where(_O.trashed == LIVE, _O.bucket == bucket)
    page = names.where(*name_range(prefix, after)).order_by(_O.trashed, _O.bucket, _O.name).limit(limit)
    return list(connection.execute(page).scalars())


def find(connection: Connection, key: ObjectKey) -> ObjectRow | None:
    """Return the current version, without a lock."""
    row = connection.execute(BY_KEY, {"bucket": key.bucket, "name": key.name}).first()
    return None if row is None else object_row(row)


def lock(connection: Connection, key: ObjectKey) -> ObjectRow | None:
    """Return the current version, locked until the transaction ends. A read by key that waits for a row which is then
    deleted, or made noncurrent, misses the row that takes its place. So if it finds no row, it looks again."""
    row = connection.execute(BY_KEY.with_for_update(), {"bucket": key.bucket, "name": key.name}).first()
    return lock_listed(connection, [key]).get(key) if row is None else object_row(row)


def lock_listed(connection: Connection, keys: Iterable[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
    """Return the current versions of the keys that have one, locked until the transaction ends.

    The rows are locked in order of object id, as in commits, and not in order of key: any other lock order deadlocks
    repeatedly. Keys that are created meanwhile are not included.
    """
    wanted = set(keys)
    locked: dict[ObjectKey, ObjectRow] = {}
    for _ in range(LOOKS_MAX):
        found = sorted((row[0], row[1]) for row in connection.execute(VERSIONS_BY_KEYS, key_rows(wanted)))
        if not found:
            return locked
        rows = [object_row(row) for row in connection.execute(LOCK_CURRENT, OBJECT_IDS.dump(found))]
        locked |= {row.key: row for row in rows}
        if len(rows) == len(found):
            break
        wanted -= locked.keys()
    return locked


def segments(connection: Connection, object_id: int, version: int) -> list[Segment]:
    """Return the segments of a version of a large object, in order of their parts; empty for other objects."""
    found = (
        select(_S.block_id, _S.block_offset, _S.length, _S.crc32c)
        .where(_S.object_id == object_id, _S.version == version)
        .order_by(_S.part)
    )
    return [
        Segment(Extent(BlockId(block_id), offset, length), crc32c)
        for block_id, offset, length, crc32c in connection.execute(found)
    ]


def _set_attributes(connection: Connection, row: ObjectRow, attributes: bytes, events: EventWriter | None) -> bool:
    found = connection.execute(LOCK_KEPT, OBJECT_IDS.dump([(row.object_id, row.version)])).first()
    current = None if found is None else object_row(found)
    if current is None or current.version != row.version or current.attributes not in (row.attributes, attributes):
        return False
    changed = by_primary(update(OBJECTS)).where(_O.object_id == row.object_id).values(attributes=attributes)
    require_all(connection.execute(changed).rowcount, 1, "objects")
    new = replace(current, attributes=attributes)
    journal.add(connection, EntryKind.ATTRIBUTES, [new], attributes=new.attributes)
    if events is not None:
        events.changed(connection, new)
    return True


def delete_current(
    connection: Connection,
    key: ObjectKey,
    now_ms: int,
    until_ms: int | None,
    condition: Condition | None,
    events: EventWriter | None,
) -> ObjectRow:
    """Delete the current version, as `Objects.delete` of the port promises."""
    row = lock(connection, key)
    if row is None:
        raise NotFound(f"object {key} does not exist", key=key)
    if condition is not None and (refusal := condition.refusal(key, row.tag, row.facts)) is not None:
        raise refusal
    if row.is_of_versions:
        markers = make_noncurrent.hide(connection, [row], now_ms, until_ms, conditional=condition is not None)
        if events is not None:
            events.removed(connection, [marker_added(key, number) for key, number in markers.items()], now_ms)
        return row
    if until_ms is not None:
        trash.put_into(connection, [row], now_ms, until_ms)
    else:
        journal.add(connection, EntryKind.REMOVED, [row])
        release(connection, [row], now_ms)
        require_all(connection.execute(_REMOVE, {"removed": row.object_id}).rowcount, 1, "objects")
    if events is not None:
        events.removed(connection, [plain_removal(row)], now_ms)
    return row


def _delete_many(
    connection: Connection,
    keys: Sequence[ObjectKey],
    now_ms: int,
    until_ms: int | None,
    events: EventWriter | None,
) -> list[ObjectRow]:
    found = lock_listed(connection, set(keys))
    rows = [found[key] for key in dict.fromkeys(keys) if key in found]
    _remove_locked(connection, rows, now_ms, until_ms, events, conditional=False)
    return rows


def _delete_unchanged(
    connection: Connection,
    rows: Sequence[ObjectRow],
    now_ms: int,
    until_ms: int | None,
    events: EventWriter | None,
) -> list[ObjectRow]:
    wanted = {row.key: (row.object_id, row.version, row.attributes) for row in rows}
    found = lock_listed(connection, set(wanted))
    left = [row for key, row in found.items() if wanted[key] == (row.object_id, row.version, row.attributes)]
    _remove_locked(connection, left, now_ms, until_ms, events, conditional=True)
    return left


def _remove_locked(
    connection: Connection,
    rows: Sequence[ObjectRow],
    now_ms: int,
    until_ms: int | None,
    events: EventWriter | None,
    *,
    conditional: bool,
) -> None:
    of_versions = [row for row in rows if row.is_of_versions]
    markers: dict[ObjectKey, int] = {}
    if of_versions:
        markers = make_noncurrent.hide(connection, of_versions, now_ms, until_ms, conditional=conditional)
    plain = [row for row in rows if not row.is_of_versions] if of_versions else rows
    if plain:
        make_noncurrent.discard(connection, plain, now_ms, until_ms)
    if events is not None:
        removals = [marker_added(key, number) for key, number in markers.items()]
        events.removed(connection, [*removals, *map(plain_removal, plain)], now_ms)


def list_buckets(connection: Connection, after: str, limit: int) -> list[str]:
    """Return names of buckets that have objects, after `after`. Runs one index look-up for each bucket, however many
    objects it has."""
    buckets: list[str] = []
    while len(buckets) < limit:
        last = buckets[-1] if buckets else after
        bucket = _next_bucket(connection, utf8(last))
        if bucket is None:
            break
        buckets.append(bucket)
    return buckets


def _next_bucket(connection: Connection, after: bytes) -> str | None:
    """Return the next bucket that is not hidden."""
    bucket: str | None = connection.execute(NEXT_BUCKET, {"after_bucket": after}).scalar()
    hidden = None if bucket is None else hidden_prefix(bucket)
    return bucket if hidden is None else _next_bucket(connection, utf8(hidden) + _AFTER_ALL)


def _least_landing_id(connection: Connection, least: bytes) -> LandingId | None:
    found = connection.execute(OLDEST_LANDING_ID, {"least": least}).scalar()
    return None if found is None else LandingId(found)


def _walked(
    connection: Connection, numbered: Mapping[str, int], bounds: Mapping[str, int], *, far: bool
) -> list[ObjectRow]:
    parameters, limit = {**bounds, **numbered}, bounds["rows_max"]
    # When many rows are due in all slots, twice a slot's share of the batch is enough from each. Otherwise a second
    # query takes more from the few slots that have more.
    part = 2 * limit // len(numbered) + 1
    found = connection.execute(_due_in(len(numbered), far), parameters | {"walk_max": part}).all()
    if len(found) < limit and part in Counter(row.slot for row in found).values():
        found = connection.execute(_due_in(len(numbered), far), parameters | {"walk_max": limit}).all()
    columns = len(OBJECT_COLUMNS)
    return [object_row(row[:columns], row.due_ms, publication_of(row.published_ms, row.is_spread)) for row in found]


@cache
def _due_in(slots: int, far: bool) -> Select[Any]:
    """Return a query of the due rows in this many slots, or with `far`, of rows whose times are so far in the future
    that they count as due. Its columns are OBJECT_COLUMNS, the due time, the two of the publication, and the slot.

    For each slot, the query walks along the index from the first such row, for at most `walk_max` rows, so that later
    rows cost nothing. Rows of `objects` are looked up only for the `rows_max` rows that are returned.

    The index does not have the columns of the publication. If it had all columns, MySQL would read it from its
    beginning, through all slots, when one slot has nearly all rows.
    """
    due = _W.due_ms > bindparam("far_ms") if far else _W.due_ms <= bindparam("now_ms")
    walks = [
        by_index(select(*_DUE_COLUMNS), WAITING, "waiting_by_due")
        .where(_W.slot == bindparam(f"slot_{i}"), due)
        .order_by(_W.due_ms, _W.object_id)
        .limit(bindparam("walk_max"))
        .subquery(f"walk_{i}")
        for i in range(slots)
    ]
    walked = union_all(*(select(walk) for walk in walks)).subquery("walked")
    oldest = (walked.c.due_ms, walked.c.object_id)
    first = select(walked).order_by(*oldest).limit(bindparam("rows_max")).subquery("first_due")
    return (
        select(*OBJECT_COLUMNS, first.c.due_ms, first.c.published_ms, first.c.is_spread, first.c.slot)
        .join_from(first, OBJECTS, (_O.object_id == first.c.object_id) & (_O.landing_id == first.c.landing_id))
        .order_by(first.c.due_ms, first.c.object_id)
    )


def _set_due(connection: Connection, change: UpdateListed, rows: Sequence[ObjectRow], due_ms: int) -> int:
    listed = OBJECT_IDS.dump(sorted({(row.object_id, row.version) for row in rows}))
    connection.execute(LOCK_IDS, listed).all()
    return connection.execute(change, {**listed, "due": due_ms}).rowcount

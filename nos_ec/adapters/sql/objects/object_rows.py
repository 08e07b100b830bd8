"""Objects: look-ups, listings, deletes, and the producer's queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    union_all,
    update,
)

from nos_ec.adapters.sql.objects import make_noncurrent, trash
from nos_ec.adapters.sql.objects.release_version import release
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
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
    require_all,
)
from nos_ec.adapters.sql.tables.schema import ID_BYTES, OBJECTS, SEGMENTS, WAITING, utf8
from nos_ec.core.conditions import Condition
from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import NotFound
from nos_ec.core.formats.messages import NamedVersion, PackRequest
from nos_ec.core.ids import (
    BUCKET_BYTES_MAX,
    NAME_BYTES_MAX,
    BlockId,
    Extent,
    LandingId,
    ObjectKey,
    in_log,
    record_ids_between,
    time_of,
)
from nos_ec.core.states import ObjectEvent, ObjectState, advance_object, object_sources
from nos_ec.core.tails import hidden_prefix
from nos_ec.core.versions import numbered
from nos_ec.ports.metadata import ObjectRow, Segment

_O, _S, _W = OBJECTS.c, SEGMENTS.c, WAITING.c

BY_KEY = select(*OBJECT_COLUMNS).where(
    _O.trashed == LIVE, _O.bucket == bindparam("bucket"), _O.name == bindparam("name")
)
VERSIONS_BY_KEYS = by_keys(_O.object_id, _O.version)
LOCK_IDS = looked_up(
    select(*OBJECT_COLUMNS)
    .join_from(OBJECT_IDS.table, OBJECTS, _O.object_id == OBJECT_IDS["object_id"])
    .with_for_update(of=OBJECTS),
    OBJECTS,
)
LOCK_CURRENT = LOCK_IDS.where(_O.trashed == LIVE)
"""Follows VERSIONS_BY_KEYS. A row may have been put into the trash between the two."""
LOCK_KEPT = LOCK_IDS.where(_O.trashed < FIRST_MARK)
"""Current and noncurrent versions."""

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
MARK_WAITING = (
    UpdateListed(WAITING)
    .where(
        OBJECT_IDS["object_id"] == _O.object_id,
        _O.version == OBJECT_IDS["version"],
        _O.state == _PUBLISHED,
        _W.landing_id == _O.landing_id,
    )
    .values(state=_PUBLISHED, due_ms=bindparam("due"))
)
"""Follows MARK_PUBLISHED, which has locked the rows that it changed. The state tells these from rows that a revert has
set LANDED meanwhile."""
MAKE_DUE = (
    UpdateListed(WAITING)
    .where(
        OBJECT_IDS["object_id"] == _O.object_id,
        _O.version == OBJECT_IDS["version"],
        _O.state == ObjectState.LANDED,
        _W.landing_id == _O.landing_id,
        _W.due_ms > bindparam("due"),
    )
    .values(due_ms=bindparam("due"))
)
"""Follows LOCK_IDS."""
_REQUESTS = JsonRows(
    "requests",
    object_id=0,
    version=0,
    bucket=BUCKET_BYTES_MAX,
    name=NAME_BYTES_MAX,
    size=0,
    crc32c=0,
    landing_id=ID_BYTES,
    number=0,
)
NOT_AS_ASKED = looked_up(
    select(_REQUESTS["number"], _O.object_id, _O.attributes)
    .join_from(
        _REQUESTS.table,
        OBJECTS,
        and_(
            _O.object_id == _REQUESTS["object_id"],
            _O.version == _REQUESTS["version"],
            _O.bucket == _REQUESTS["bucket"],
            _O.name == _REQUESTS["name"],
            _O.size == _REQUESTS["size"],
            _O.crc32c == _REQUESTS["crc32c"],
            _O.landing_id == _REQUESTS["landing_id"],
            _O.state.in_(sorted(state for state in ObjectState if state.in_landing)),
        ),
        isouter=True,
    )
    .where(or_(_O.object_id.is_(None), _O.attributes.is_not(None))),
    OBJECTS,
)
"""Selects the requests that no longer hold, without an object id, and those of objects with attributes. Nearly all of
the others still hold, so hardly any rows come back."""
OLDEST_LANDING_ID = (
    by_index(select(_W.landing_id), WAITING, "PRIMARY")
    .where(_W.landing_id >= bindparam("least", type_=_W.landing_id.type))
    .order_by(_W.landing_id)
    .limit(1)
)
"""The bound makes planners tell a look-up in an index from a scan, also when it holds for every id."""
_REMOVE = delete(OBJECTS).where(_O.object_id == bindparam("removed"))
_NAMED = JsonRows("named", bucket=BUCKET_BYTES_MAX, name=NAME_BYTES_MAX, version=0)
COMPLETE = looked_up(
    select(*OBJECT_COLUMNS)
    .join_from(
        _NAMED.table,
        OBJECTS,
        and_(_O.trashed == LIVE, _O.bucket == _NAMED["bucket"], _O.name == _NAMED["name"]),
    )
    .join(WAITING, _W.landing_id == _O.landing_id)
    .where(_O.version == _NAMED["version"], or_(_O.state == ObjectState.QUEUED, _W.due_ms <= bindparam("due"))),
    OBJECTS,
    "objects_by_trash_key",
    then=WAITING,
)
LOOKS_MAX = 200
"""Looks for the current version of a key: each further one means that another writer has stored one meanwhile."""
_BEHIND = b"\xff"
"""Behind a prefix, it is behind all names that begin with it: UTF-8 has no such byte."""
NEXT_BUCKET = select(func.min(_O.bucket)).where(
    _O.trashed == LIVE, _O.bucket > bindparam("after_bucket", type_=_O.bucket.type)
)


def next_version(previous: int | None, now_ms: int, *, conditional: bool) -> int:
    """The rule for versions: unique and increasing per key, close to the clock in microseconds, and odd for changes
    under a condition."""
    return numbered(max((previous or 0) + 1, now_ms * 1000), conditional=conditional)


def find(connection: Connection, key: ObjectKey) -> ObjectRow | None:
    """Return the current version, not locked."""
    row = connection.execute(BY_KEY, {"bucket": key.bucket, "name": key.name}).first()
    return None if row is None else object_row(row)


def lock(connection: Connection, key: ObjectKey) -> ObjectRow | None:
    """Return the current version, locked until the transaction ends. A read by key that waits for a row which is
    deleted, or made noncurrent, misses the one that takes its place; so what it does not find is looked for again."""
    row = connection.execute(BY_KEY.with_for_update(), {"bucket": key.bucket, "name": key.name}).first()
    return lock_listed(connection, [key]).get(key) if row is None else object_row(row)


def lock_listed(connection: Connection, keys: Iterable[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
    """Return the current versions of those keys that have one, locked until the transaction ends.

    The rows are locked in order of object id, as in commits, and not in order of key: a transaction that locks many
    rows in another order would be ended as a deadlock again and again. A key that is created meanwhile is not included.
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


def version_for(connection: Connection, key: ObjectKey, now_ms: int, *, conditional: bool) -> int:
    """See `Metadata.next_version`."""
    row = find(connection, key)
    return next_version(None if row is None else row.version, now_ms, conditional=conditional)


def segments(connection: Connection, object_id: int, version: int) -> list[Segment]:
    """See `Metadata.segments`."""
    found = (
        select(_S.block_id, _S.block_offset, _S.length, _S.crc32c)
        .where(_S.object_id == object_id, _S.version == version)
        .order_by(_S.part)
    )
    return [
        Segment(Extent(BlockId(block_id), offset, length), crc32c)
        for block_id, offset, length, crc32c in connection.execute(found)
    ]


def set_attributes(connection: Connection, row: ObjectRow, attributes: bytes) -> bool:
    """See `Metadata.set_attributes`."""
    found = connection.execute(LOCK_KEPT, OBJECT_IDS.dump([(row.object_id, row.version)])).first()
    current = None if found is None else object_row(found)
    if current is None or current.version != row.version or current.attributes not in (row.attributes, attributes):
        return False
    changed = by_primary(update(OBJECTS)).where(_O.object_id == row.object_id).values(attributes=attributes)
    require_all(connection.execute(changed).rowcount, 1, "objects")
    return True


def remove(
    connection: Connection, key: ObjectKey, now_ms: int, until_ms: int | None, condition: Condition | None
) -> ObjectRow:
    """See `Metadata.delete`."""
    row = lock(connection, key)
    if row is None:
        raise NotFound(f"object {key} does not exist", key=key)
    if condition is not None and (refusal := condition.refusal(key, row.tag, row.facts)) is not None:
        raise refusal
    if row.is_of_versions:
        make_noncurrent.hide(connection, [row], now_ms, until_ms, conditional=condition is not None)
        return row
    if until_ms is not None:
        trash.put_into(connection, [row], now_ms, until_ms)
        return row
    release(connection, [row], now_ms)
    require_all(connection.execute(_REMOVE, {"removed": row.object_id}).rowcount, 1, "objects")
    return row


def remove_listed(
    connection: Connection, keys: Sequence[ObjectKey], now_ms: int, until_ms: int | None
) -> list[ObjectRow]:
    """See `Metadata.delete_many`."""
    found = lock_listed(connection, set(keys))
    rows = [found[key] for key in dict.fromkeys(keys) if key in found]
    _remove_locked(connection, rows, now_ms, until_ms, conditional=False)
    return rows


def remove_unchanged(
    connection: Connection, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None
) -> list[ObjectRow]:
    """See `Metadata.delete_unchanged`."""
    wanted = {row.key: (row.object_id, row.version, row.attributes) for row in rows}
    found = lock_listed(connection, set(wanted))
    left = [row for key, row in found.items() if wanted[key] == (row.object_id, row.version, row.attributes)]
    _remove_locked(connection, left, now_ms, until_ms, conditional=True)
    return left


def _remove_locked(
    connection: Connection, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None, *, conditional: bool
) -> None:
    of_versions = [row for row in rows if row.is_of_versions]
    if of_versions:
        make_noncurrent.hide(connection, of_versions, now_ms, until_ms, conditional=conditional)
    plain = [row for row in rows if not row.is_of_versions] if of_versions else rows
    if plain:
        make_noncurrent.discard(connection, plain, now_ms, until_ms)


def list_names(connection: Connection, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
    """See `Metadata.list_names`. Reads a range of the index alone, whatever the prefix, and nothing of the trash."""
    names = by_index(select(_O.name), OBJECTS, "objects_by_trash_key").where(_O.trashed == LIVE, _O.bucket == bucket)
    page = names.where(*name_range(prefix, after)).order_by(_O.trashed, _O.bucket, _O.name).limit(limit)
    return list(connection.execute(page).scalars())


def list_buckets(connection: Connection, after: str, limit: int) -> list[str]:
    """See `Metadata.list_buckets`. One index seek per bucket, however many objects each has."""
    buckets: list[str] = []
    while len(buckets) < limit:
        last = buckets[-1] if buckets else after
        bucket = _next_bucket(connection, utf8(last))
        if bucket is None:
            break
        buckets.append(bucket)
    return buckets


def _next_bucket(connection: Connection, after: bytes) -> str | None:
    """Passes over hidden buckets."""
    bucket: str | None = connection.execute(NEXT_BUCKET, {"after_bucket": after}).scalar()
    hidden = None if bucket is None else hidden_prefix(bucket)
    return bucket if hidden is None else _next_bucket(connection, utf8(hidden) + _BEHIND)


def oldest_landing_id(connection: Connection) -> LandingId | None:
    """See `Metadata.oldest_landing_id`. Ids of the landing log sort behind all others."""
    oldest = _least_landing_id(connection, bytes(ID_BYTES))
    if oldest is None or in_log(oldest):
        return oldest
    of_log = _least_landing_id(connection, record_ids_between(0, 0)[0])
    return oldest if of_log is None else min(oldest, of_log, key=time_of)


def _least_landing_id(connection: Connection, least: bytes) -> LandingId | None:
    found = connection.execute(OLDEST_LANDING_ID, {"least": least}).scalar()
    return None if found is None else LandingId(found)


def due(connection: Connection, now_ms: int, limit: int, slots: Collection[int]) -> list[ObjectRow]:
    """See `Metadata.due_objects`."""
    if not slots:
        return []
    numbered = {f"slot_{i}": slot for i, slot in enumerate(sorted(set(slots)))}
    rows = _walked(connection, numbered, {"now_ms": now_ms, "rows_max": limit}, far=False)
    if len(rows) < limit:
        rows += _walked(connection, numbered, {"far_ms": now_ms + WAIT_MS_MAX, "rows_max": limit - len(rows)}, far=True)
    return rows


def _walked(
    connection: Connection, numbered: Mapping[str, int], bounds: Mapping[str, int], *, far: bool
) -> list[ObjectRow]:
    asked, limit = {**bounds, **numbered}, bounds["rows_max"]
    # When many rows are due in all slots, twice a slot's share of the batch is enough from each. Otherwise a second
    # query takes more from the few slots that have more.
    part = 2 * limit // len(numbered) + 1
    found = connection.execute(_due_in(len(numbered), far), asked | {"walk_max": part}).all()
    if len(found) < limit and part in Counter(row.slot for row in found).values():
        found = connection.execute(_due_in(len(numbered), far), asked | {"walk_max": limit}).all()
    return [object_row(row[:-2], row.due_ms) for row in found]


@cache
def _due_in(slots: int, far: bool) -> Select[Any]:
    """Select the due rows of this number of slots, or those with times so far ahead that they count as due.

    Columns: OBJECT_COLUMNS, the due time and the slot.

    For each slot, the query walks along the index from the first such row, for at most `walk_max` rows, so that the
    rows behind them cost nothing. Rows of `objects` are looked up for the `rows_max` returned ones only.

    The walks select the size only because the index does not have it: if it had all columns, MySQL would read it from
    its beginning, through all slots, when one slot holds nearly all rows.
    """
    due = _W.due_ms > bindparam("far_ms") if far else _W.due_ms <= bindparam("now_ms")
    walks = [
        by_index(select(_W.due_ms, _W.object_id, _W.landing_id, _W.slot, _W.size), WAITING, "waiting_by_due")
        .where(_W.slot == bindparam(f"slot_{i}"), due)
        .order_by(_W.due_ms, _W.object_id)
        .limit(bindparam("walk_max"))
        .subquery(f"walk_{i}")
        for i in range(slots)
    ]
    walked = union_all(*(select(*list(walk.c)[:4]) for walk in walks)).subquery("walked")
    oldest = (walked.c.due_ms, walked.c.object_id)
    first = select(walked).order_by(*oldest).limit(bindparam("rows_max")).subquery("first_due")
    return (
        select(*OBJECT_COLUMNS, first.c.due_ms, first.c.slot)
        .join_from(first, OBJECTS, (_O.object_id == first.c.object_id) & (_O.landing_id == first.c.landing_id))
        .order_by(first.c.due_ms, first.c.object_id)
    )


def mark_published(connection: Connection, rows: Sequence[ObjectRow], due_ms: int) -> int:
    """See `Metadata.mark_published`."""
    if not rows:
        return 0
    listed = OBJECT_IDS.dump(sorted({(row.object_id, row.version) for row in rows}))
    marked = connection.execute(MARK_PUBLISHED, listed).rowcount
    waiting = connection.execute(MARK_WAITING, {**listed, "due": due_ms}).rowcount
    require_all(min(marked, waiting), marked, "waiting objects")
    return marked


def make_due(connection: Connection, rows: Sequence[ObjectRow], now_ms: int) -> int:
    """See `Metadata.make_due`."""
    listed = OBJECT_IDS.dump(sorted({(row.object_id, row.version) for row in rows}))
    connection.execute(LOCK_IDS, listed).all()
    return connection.execute(MAKE_DUE, {**listed, "due": now_ms}).rowcount


def complete(
    connection: Connection, named: Sequence[NamedVersion], due_ms: int
) -> dict[NamedVersion, tuple[PackRequest, bytes]]:
    """See `Metadata.complete`."""
    listed = _NAMED.dump((utf8(n.key.bucket), utf8(n.key.name), n.version) for n in dict.fromkeys(named))
    rows = [object_row(row) for row in connection.execute(COMPLETE, {**listed, "due": due_ms})]
    return {NamedVersion(row.key, row.version): (_request(row), row.attributes) for row in rows}


def _request(row: ObjectRow) -> PackRequest:
    assert row.landing_id is not None
    return PackRequest(row.object_id, row.key, row.version, row.size, row.crc32c, row.landing_id)


def still_landed(connection: Connection, requests: Sequence[PackRequest]) -> dict[PackRequest, bytes]:
    """See `Metadata.still_landed`."""
    if not requests:
        return {}
    listed = _REQUESTS.dump(
        (r.object_id, r.version, utf8(r.key.bucket), utf8(r.key.name), r.size, r.crc32c, r.landing_id, number)
        for number, r in enumerate(requests)
    )
    found = dict.fromkeys(requests, b"")
    for number, object_id, attributes in connection.execute(NOT_AS_ASKED, listed):
        if object_id is None:
            found.pop(requests[number], None)
        else:
            found[requests[number]] = attributes
    return found

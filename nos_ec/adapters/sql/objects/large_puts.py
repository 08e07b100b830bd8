"""Records large objects, whose blocks are already written.

The headers of the blocks contain the version number, so it cannot be changed any more. A PUT that a newer version has
overtaken becomes a noncurrent version, or counts as overwritten at once. But if that version was stored under a
condition, the PUT is refused, because the condition would not have held after it.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, update

from nos_ec.adapters.sql.blocks import block_rows, leases
from nos_ec.adapters.sql.objects import floors, make_noncurrent, object_rows, puts, renames, uploads, usage, versions
from nos_ec.adapters.sql.objects.outbox import EventWriter, NotifyingPart
from nos_ec.adapters.sql.objects.release_version import release
from nos_ec.adapters.sql.tables.base import reads
from nos_ec.adapters.sql.tables.rows import noncurrent_mark
from nos_ec.adapters.sql.tables.schema import OBJECTS, SEGMENTS
from nos_ec.core.errors import Locked, NosError, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState, ObjectEvent, ObjectState, advance_object
from nos_ec.core.versions import Versioning, is_conditional
from nos_ec.ports.metadata import CompletionOf, Lease, NewLargeObject, ObjectRow, PartOf, RenameOf

_O = OBJECTS.c
_LARGE = advance_object(None, ObjectEvent.STORE)


class SqlLargePuts(NotifyingPart):
    """Large PUTs: `next_version` and `record_large` of `Objects` of the port."""

    @reads
    def next_version(
        self, connection: Connection, key: ObjectKey, now_ms: int, *, of_all: bool = False, conditional: bool = False
    ) -> int:
        row = object_rows.find(connection, key)
        previous = 0 if row is None else row.version
        if of_all:
            previous = max(previous, versions.newest_number(connection, key))
        return object_rows.next_version(previous, now_ms, conditional=conditional)

    def record_large(self, new: NewLargeObject, lease: Lease, now_ms: int) -> bool | NosError:
        geometry, keys = self._bound(), puts.changed_keys(new)
        events = self._writer([new.key.bucket], refuses=False)
        try:
            return self._change_again(keys, record_large, geometry, new, lease, now_ms, events=events)
        except Locked:
            return self._change_again(keys, record_large, geometry, new, lease, now_ms, is_locked=True, events=events)


def record_large(
    connection: Connection,
    geometry: Geometry,
    new: NewLargeObject,
    lease: Lease,
    now_ms: int,
    *,
    is_locked: bool = False,
    events: EventWriter | None = None,
) -> bool | NosError:
    """Record a large object, as `Objects.record_large` of the port promises. Raises Overtaken, and Locked if a version
    that would be overwritten is locked: then the transaction must be rolled back, and run again with `is_locked`, to
    refuse the object."""
    _check_large(new, geometry)
    # 1. Lock the row of the current version, and of an object that is renamed. If an earlier call has recorded this
    #    object, there is nothing to do.
    renamed = [new.step] if isinstance(new.step, RenameOf) else []
    locked = object_rows.lock_listed(connection, [new.key, *(one.row.key for one in renamed)])
    current = locked.get(new.key)
    if current is not None and _is_recorded(connection, current, new):
        return True
    # 2. Find the newest version of the key, and one that has the same number. The first is locked; this may wait for a
    #    PUT with the same number.
    newest = _newest(connection, new, current)
    keeps = new.versioning is Versioning.ENABLED or (current is not None and current.has_version_id)
    same = None
    if keeps or new.versioning is not None:
        same = versions.noncurrent_version(connection, new.key, new.version)
    if same is not None and _is_recorded(connection, same, new):
        return True
    leases.require(connection, lease)
    # 3. Decide whether the object gets a row. It wins if it is newer than all others. If a newer version has overtaken
    #    it, it may be noncurrent from the start (`is_below`), as may a null version below others.
    is_below = keeps and newest > new.version and new.condition is None and not is_conditional(newest)
    wins = is_below or newest < new.version or (current is None and new.versioning is not Versioning.ENABLED)
    wins = wins and same is None
    if wins and new.versioning is Versioning.ENABLED:
        wins = floors.floor_of(connection, new.key) < new.version  # otherwise another version may have had its number
    # 4. If it does not win, it may count as overwritten at once; otherwise it is refused, as when its condition or its
    #    step of an upload fails.
    has_same = same is not None or (keeps and newest == new.version)
    may_lose = not (_must_not_be_overtaken(new) or is_conditional(newest) or has_same)
    if is_locked:
        refusal: NosError | None = puts.overwrites_locked(new.key)
    else:
        refusal = _refused_large(connection, new, current, now_ms, wins=wins, may_lose=may_lose)
    if renamed and refusal is None:
        refusal = next(iter(renames.refused(connection, renamed, locked).values()), None)
    wins = wins and refusal is None
    # 5. Seal its blocks as live or dead, or condemn them if it is refused. If they are not OPEN any more, an earlier
    #    call has done all this, and its answer is repeated.
    state = block_rows.seal_large(connection, geometry, new, lease, now_ms, live=wins, condemned=refusal is not None)
    if state is BlockState.CONDEMNED:  # the earlier call refused it
        return refusal or _changed_meanwhile(new)
    if state is BlockState.SEALED:  # the earlier call has recorded an object that must not be overtaken
        return _must_not_be_overtaken(new)
    if not wins:
        return refusal or False
    # 6. Make the current version noncurrent, or release what it holds. Remove null versions whose place this one takes.
    new = puts.with_null_version(new, current)
    stays = current is not None and make_noncurrent.stays(current, new.versioning)
    if current is not None and stays and not is_below:
        make_noncurrent.retire(connection, [current])
    elif current is not None and not stays:
        release(connection, [current], now_ms)
    if new.versioning is Versioning.SUSPENDED or (stays and new.versioning is None):
        # `newest` does not include a version that was added while this call waited for another that was removed.
        newest = max(newest, make_noncurrent.remove_nulls(connection, [new.key], now_ms).get(new.key, 0))
    # 7. Write the segments and the row, which takes over the row of the current version if that was released.
    over = None if stays or is_below else current
    object_id = _put_large_row(connection, over, new, now_ms, is_below=is_below)
    connection.execute(insert(SEGMENTS), segment_rows(object_id, new))
    # 8. Versions that are stored over this one later must be newer than all others as well.
    if current is None and not is_below and newest > new.version:
        floors.raise_to(connection, new.key, newest, now_ms)
    # 9. Without a current version, no row was locked in step 1: look for versions that others have added meanwhile.
    if is_below:
        make_noncurrent.retire_large(connection, new, object_id, now_ms)
    elif current is None and new.versioning is Versioning.ENABLED:
        versions.raise_if_newer(connection, {new.key: new.version}, {new.key: new.version})
    elif current is None and new.versioning is Versioning.SUSPENDED:
        versions.raise_if_null(connection, [new.key])
    renames.remove_sources(connection, renamed, now_ms, events)
    row = _row_of(new, object_id, now_ms)
    usage.counts(connection, [row])
    if events is not None:
        events.stored_large(connection, row, new.request.origin, now_ms)
    return True


def _row_of(new: NewLargeObject, object_id: int, now_ms: int) -> ObjectRow:
    return ObjectRow(
        object_id=object_id,
        key=new.key,
        version=new.version,
        size=new.size,
        crc32c=new.crc32c,
        md5=new.md5,
        state=_LARGE,
        landing_id=None,
        extent=None,
        created_ms=now_ms,
        attributes=new.attributes,
    )


def _newest(connection: Connection, new: NewLargeObject, current: ObjectRow | None) -> int:
    """Return the number of the newest version of its key, or 0. Markers count only in buckets with versions."""
    if current is not None:
        return current.version
    return 0 if new.versioning is None else make_noncurrent.newest_versions(connection, [new.key]).get(new.key, 0)


def _refused_large(
    connection: Connection,
    new: NewLargeObject,
    current: ObjectRow | None,
    now_ms: int,
    *,
    wins: bool,
    may_lose: bool,
) -> NosError | None:
    """Return why the object is refused, or None. Take its step of an upload if it wins and is not refused.

    `wins`: it gets a row. `may_lose`: if it does not, it may count as an object that was overwritten at once.
    """
    if new.condition is not None:
        refusal = new.condition.refusal(new.key, None if current is None else current.tag)
        if refusal is not None:
            return refusal
    if not wins and not may_lose:
        return _changed_meanwhile(new)
    if wins and isinstance(new.step, PartOf | CompletionOf):
        return uploads.take_steps(connection, [(new.key, new.step)], now_ms).get(new.key)
    return None


def _must_not_be_overtaken(new: NewLargeObject) -> bool:
    """Return whether the PUT must not count as overwritten at once: its condition would not have held, each PUT adds a
    version, or it would have deleted the object that it renames."""
    return new.condition is not None or new.versioning is Versioning.ENABLED or isinstance(new.step, RenameOf)


def _changed_meanwhile(new: NewLargeObject) -> Transient:
    """Return the error of a PUT whose version number, which is in its blocks, is taken or too small."""
    return Transient(f"object {new.key} was changed while it was being stored; PUT it again", key=new.key)


def _check_large(new: NewLargeObject, geometry: Geometry) -> None:
    if is_conditional(new.version) is not (new.condition is not None):
        raise ValueError(f"object {new.key}: version {new.version} does not fit its condition, {new.condition}")
    if not new.segments or len(new.segments) != len(new.block_stripes):
        raise ValueError(f"object {new.key}: {len(new.segments)} segments and {len(new.block_stripes)} blocks")
    if sum(segment.extent.length for segment in new.segments) + new.tail_bytes != new.size or new.tail_bytes < 0:
        raise ValueError(f"object {new.key}: its segments and its tail do not sum to its {new.size} bytes")
    for segment, stripes in zip(new.segments, new.block_stripes, strict=True):
        if segment.extent.offset + segment.extent.length > stripes * geometry.stripe_size:
            raise ValueError(f"object {new.key}: a segment is longer than its block of {stripes} stripes")


def _is_recorded(connection: Connection, current: ObjectRow, new: NewLargeObject) -> bool:
    if current.state is not ObjectState.LARGE or current.version != new.version:
        return False
    return object_rows.segments(connection, current.object_id, current.version) == list(new.segments)


def _put_large_row(
    connection: Connection, current: ObjectRow | None, new: NewLargeObject, now_ms: int, *, is_below: bool
) -> int:
    """Write the row of a large object, and return its object id. `is_below`: it is noncurrent from the start."""
    # 1. The columns that a new row and one that is overwritten have in common.
    values: dict[str, object] = {
        "version": new.version,
        "size": new.size,
        "crc32c": new.crc32c,
        "md5": new.md5,
        "state": _LARGE,
        "landing_id": None,
        "block_id": None,
        "block_offset": None,
        "created_ms": now_ms,
        "attributes": new.attributes,
    }
    # 2. Take over the row of the version that this one overwrites: its key and its object id stay.
    if current is not None:
        connection.execute(update(OBJECTS).where(_O.object_id == current.object_id).values(values))
        return current.object_id
    # 3. Otherwise add a row. The mark of a noncurrent one is made of its object id (`retire_large`), which is not known
    #    yet. Until then the version number makes the mark unique within the key.
    key: dict[str, object] = {"bucket": new.key.bucket, "name": new.key.name}
    if is_below:
        key["trashed"] = noncurrent_mark(new.version)
    made = connection.execute(insert(OBJECTS).values(key | values)).inserted_primary_key
    assert made is not None
    return int(made[0])


def segment_rows(object_id: int, new: NewLargeObject) -> list[dict[str, object]]:
    """Return the rows of its segments."""
    return [
        {
            "object_id": object_id,
            "version": new.version,
            "part": part,
            "block_id": segment.extent.block_id,
            "block_offset": segment.extent.offset,
            "length": segment.extent.length,
            "crc32c": segment.crc32c,
        }
        for part, segment in enumerate(new.segments)
    ]

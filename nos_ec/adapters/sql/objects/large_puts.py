"""Records large objects, whose blocks are already written.

The blocks have the number of the version in their headers, so it cannot be changed any more: a PUT that a newer version
has overtaken is noncurrent from the start, or counts as overwritten. But if that version was stored under a condition,
the PUT is refused: the condition would not have held after it.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, update

from nos_ec.adapters.sql.blocks import block_rows, leases
from nos_ec.adapters.sql.objects import floors, make_noncurrent, object_rows, puts, uploads, versions
from nos_ec.adapters.sql.objects.release_version import release
from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.rows import noncurrent_mark
from nos_ec.adapters.sql.tables.schema import OBJECTS, SEGMENTS
from nos_ec.core.errors import NosError, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState, ObjectEvent, ObjectState, advance_object
from nos_ec.core.versions import Versioning, is_conditional
from nos_ec.ports.metadata import Lease, NewLargeObject, ObjectRow

_O = OBJECTS.c
_LARGE = advance_object(None, ObjectEvent.STORE)


class SqlLargePuts(SqlPart):
    """Large PUTs of `Objects` of the port."""

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
        return self._write_again(record_large, self._bound(), new, lease, now_ms)


def record_large(
    connection: Connection, geometry: Geometry, new: NewLargeObject, lease: Lease, now_ms: int
) -> bool | NosError:
    """Record a large object, as `Objects.record_large` of the port promises. Raises Overtaken."""
    _check_large(new, geometry)
    current = object_rows.lock_listed(connection, [new.key]).get(new.key)
    if current is not None and _is_recorded(connection, current, new):
        return True
    newest = _newest(connection, new, current)  # locks it, and may wait for a PUT with the same number
    keeps = new.versioning is Versioning.ENABLED or (current is not None and current.has_version_id)
    beside = None
    if keeps or new.versioning is not None:
        beside = versions.of_number(connection, new.key, new.version)
    if beside is not None and _is_recorded(connection, beside, new):
        return True
    leases.require(connection, lease)
    # A version that a newer one has overtaken is noncurrent from the start, and so is a null one below versions.
    is_below = keeps and newest > new.version and new.condition is None and not is_conditional(newest)
    wins = is_below or newest < new.version or (current is None and new.versioning is not Versioning.ENABLED)
    wins = wins and beside is None
    if wins and new.versioning is Versioning.ENABLED:
        wins = floors.of(connection, new.key) < new.version  # otherwise another version may have had its number
    has_same = beside is not None or (keeps and newest == new.version)
    may_lose = not (_must_not_be_overtaken(new) or is_conditional(newest) or has_same)
    refusal = _refused_large(connection, new, current, now_ms, wins=wins, may_lose=may_lose)
    wins = wins and refusal is None
    state = block_rows.seal_large(connection, geometry, new, lease, now_ms, live=wins, condemned=refusal is not None)
    if state is BlockState.CONDEMNED:  # an earlier call refused it
        return refusal or _changed_meanwhile(new)
    if state is BlockState.SEALED:  # by an earlier call, which has recorded what must not be overtaken
        return _must_not_be_overtaken(new)
    if not wins:
        return refusal or False
    new = puts.beside_others(new, current)
    stays = current is not None and make_noncurrent.stays(current, new.versioning)
    if current is not None and stays and not is_below:
        make_noncurrent.retire(connection, [current])
    elif current is not None and not stays:
        release(connection, [current], now_ms)
    if new.versioning is Versioning.SUSPENDED or (stays and new.versioning is None):
        # `newest` does not include one that was added while it waited for another one that was removed.
        newest = max(newest, make_noncurrent.remove_nulls(connection, [new.key], now_ms).get(new.key, 0))
    over = None if stays or is_below else current
    object_id = _put_large_row(connection, over, new, now_ms, is_below=is_below)
    connection.execute(insert(SEGMENTS), _segment_rows(object_id, new))
    if current is None and not is_below and newest > new.version:
        floors.raise_to(connection, new.key, newest, now_ms)  # what is stored over it is to be newer than that, too
    if is_below:
        make_noncurrent.retire_large(connection, new, object_id, now_ms)
    elif current is None and new.versioning is Versioning.ENABLED:
        versions.raise_if_newer(connection, {new.key: new.version}, {new.key: new.version})
    elif current is None and new.versioning is Versioning.SUSPENDED:
        versions.raise_if_null(connection, [new.key])
    return True


def _newest(connection: Connection, new: NewLargeObject, current: ObjectRow | None) -> int:
    """The newest version of its key, or 0; a marker counts only for a bucket with versions."""
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
    """Return why the object must not be recorded, other than because a newer version overtook it. Otherwise take its
    step of an upload. wins: none overtook it. may_lose: otherwise, it may count as one that was overwritten at once."""
    if new.condition is not None:
        refusal = new.condition.refusal(new.key, None if current is None else current.tag)
        if refusal is not None:
            return refusal
    if not wins and not may_lose:
        return _changed_meanwhile(new)
    if wins and new.step is not None:
        return uploads.take_steps(connection, [(new.key, new.step)], now_ms).get(new.key)
    return None


def _must_not_be_overtaken(new: NewLargeObject) -> bool:
    """Whether the PUT may not count as one that was overwritten at once: its condition would not have held then, or
    each PUT makes a version."""
    return new.condition is not None or new.versioning is Versioning.ENABLED


def _changed_meanwhile(new: NewLargeObject) -> Transient:
    """Nothing else is wrong, but its blocks have a version number that another version had, or that is too small."""
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
    """is_below: it is never current. Its mark is then unique among those of its key, and not yet the final one."""
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
    if current is not None:
        connection.execute(update(OBJECTS).where(_O.object_id == current.object_id).values(values))
        return current.object_id
    key: dict[str, object] = {"bucket": new.key.bucket, "name": new.key.name}
    if is_below:
        key["trashed"] = noncurrent_mark(new.version)
    made = connection.execute(insert(OBJECTS).values(key | values)).inserted_primary_key
    assert made is not None
    return int(made[0])


def _segment_rows(object_id: int, new: NewLargeObject) -> list[dict[str, object]]:
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

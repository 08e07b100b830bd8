"""Reads pages of rows of objects as columns, for commands that read them all: without an object for each row or value.

On MySQL and MariaDB, the server joins the columns of a row into one, because the driver takes longer for each column
than for all the rest of a small row (nos_ec.adapters.sql.tables.row_reading). On SQLite, the driver's values are used
as they are. All checks of values are made for a page at once, and so is their conversion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnClause,
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.types import NullType

from nos_ec.adapters.sql.tables.rows import FIRST_MARK, TRASH_COLUMNS, by_index, mark_times
from nos_ec.adapters.sql.tables.schema import ID_BYTES, OBJECTS, SEGMENTS
from nos_ec.core.gc.reclaim import LiveEntry
from nos_ec.core.ids import BlockId, require_keys
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectColumns

_O, _S = OBJECTS.c, SEGMENTS.c
_NO_ID = bytes(ID_BYTES)
_NULL_ID = f"x'{_NO_ID.hex()}'"
_JOINED: ColumnClause[bytes] = literal_column(
    f"CONCAT(md5, COALESCE(landing_id, {_NULL_ID}), COALESCE(block_id, {_NULL_ID}),"
    " CONCAT_WS(' ', object_id, version, size, crc32c, state, COALESCE(block_offset, ''), created_ms,"
    " COALESCE(HEX(attributes), ''), HEX(trashed), CONCAT(bucket, '/', name)))"
)
"""Three ids, then words. The name is the end of the last one, because it may contain spaces."""
_WORDS = 10
_STATES = {state.value: state for state in ObjectState}
_STATES_JOINED = {state.value.encode(): state for state in ObjectState}
_Columns = Sequence[Sequence[Any]]
"""The columns of a page, as in TRASH_COLUMNS: NULL is None, and texts are bytes, except `state`."""


def _raw(*columns: Column[Any]) -> list[ColumnElement[Any]]:
    return [type_coerce(column, NullType()) for column in columns]


def _after(columns: Iterable[Any]) -> Select[Any]:
    return (
        by_index(select(*columns), OBJECTS, "PRIMARY")
        .where(_O.object_id > bindparam("after", type_=BigInteger))
        .order_by(_O.object_id)
        .limit(bindparam("rows_max"))
    )


OBJECTS_AFTER = _after(TRASH_COLUMNS)
_RAW_AFTER = _after(_raw(*TRASH_COLUMNS))
_JOINED_AFTER = _after([_JOINED])


def _live(*columns: ColumnElement[Any], of_segments: Sequence[ColumnElement[Any]]) -> CompoundSelect[Any]:
    return union_all(
        select(*columns).where(_O.block_id == bindparam("block_id")),
        select(*of_segments)
        .join_from(SEGMENTS, OBJECTS, and_(_O.object_id == _S.object_id, _O.version == _S.version))
        .where(_S.block_id == bindparam("block_id")),
    )


def _place_joined(version: str, offset: str, length: str) -> ColumnClause[bytes]:
    """Return a place in one column. A missing offset becomes -1, where nothing is."""
    words = f"{version}, COALESCE({offset}, -1), {length}, CONCAT(objects.bucket, '/', objects.name)"
    return literal_column(f"CONCAT_WS(' ', {words})")


_RAW_LIVE = _live(
    *_raw(_O.bucket, _O.name, _O.version, _O.block_offset, _O.size),
    of_segments=_raw(_O.bucket, _O.name, _S.version, _S.block_offset, _S.length),
)
_LIVE_BYTES = _live(func.count(), func.sum(_O.size), of_segments=[func.count(), func.sum(_S.length)])
_JOINED_LIVE = _live(
    _place_joined("objects.version", "objects.block_offset", "objects.size"),
    of_segments=[_place_joined("segments.version", "segments.block_offset", "segments.length")],
)


def read_live(connection: Connection, block_id: BlockId) -> list[LiveEntry]:
    """Return the objects and segments in a block."""
    md5 = hashlib.md5
    if connection.dialect.name == "sqlite":
        rows = connection.execute(_RAW_LIVE, {"block_id": block_id}).all()
        return [
            LiveEntry(md5(b"%b/%b" % (bucket, name), usedforsecurity=False).digest(), version, offset, length)
            for bucket, name, version, offset, length in rows
        ]
    words = (one.split(b" ", 3) for one in connection.execute(_JOINED_LIVE, {"block_id": block_id}).scalars().all())
    return [
        LiveEntry(md5(key, usedforsecurity=False).digest(), int(version), int(offset), int(length))
        for version, offset, length, key in words
    ]


def read_live_bytes(connection: Connection, block_id: BlockId) -> tuple[int, int]:
    """Return how many objects and segments are in a block, and their bytes."""
    counts = connection.execute(_LIVE_BYTES, {"block_id": block_id}).all()
    return sum(count for count, _ in counts), sum(int(size or 0) for _, size in counts)


def read_columns(connection: Connection, object_id: int, limit: int) -> ObjectColumns:
    """Return the rows with greater ids. Raises ValueError, KeyError or InvalidInput if one of them is damaged."""
    parameters = {"after": object_id, "rows_max": limit}
    if connection.dialect.name == "sqlite":
        rows = connection.execute(_RAW_AFTER, parameters).all()
        return _object_columns([list(column) for column in zip(*rows, strict=True)])
    return _object_columns(_split(connection.execute(_JOINED_AFTER, parameters).scalars().all()))


def _split(joined: Sequence[bytes]) -> _Columns:
    """Return the columns of rows that the server has joined."""
    at = 3 * ID_BYTES
    words = [one[at:].split(b" ", _WORDS - 1) for one in joined]
    if not words:
        return ()
    object_id, version, size, crc32c, state, offset, created_ms, attributes, trashed, key = zip(*words, strict=True)
    keys = [one.split(b"/", 1) for one in key]
    return (
        list(map(int, object_id)),
        [bucket for bucket, _ in keys],
        [name for _, name in keys],
        list(map(int, version)),
        list(map(int, size)),
        list(map(int, crc32c)),
        [one[:ID_BYTES] for one in joined],
        [_STATES_JOINED[one].value for one in state],
        [_id_or_none(one[ID_BYTES : 2 * ID_BYTES]) for one in joined],
        [_id_or_none(one[2 * ID_BYTES : at]) for one in joined],
        [int(one) if one else None for one in offset],
        list(map(int, created_ms)),
        [bytes.fromhex(one.decode()) if one else None for one in attributes],
        [bytes.fromhex(one.decode()) if one else b"" for one in trashed],
    )


def _id_or_none(one: bytes) -> bytes | None:
    return None if one == _NO_ID else one


def _object_columns(columns: _Columns) -> ObjectColumns:
    """Return the columns in the form of the port. Raises ValueError, KeyError or InvalidInput for damaged values."""
    if not columns:
        return ObjectColumns.of(())
    object_id, bucket, name, version, size, crc32c, md5, state, landing, block, offset, created, attributes, marks = (
        columns
    )
    nothing = [None] * len(object_id)
    buckets = {one: one.decode("utf-8") for one in set(bucket)}
    names = [one.decode("utf-8") for one in name]
    require_keys(buckets.values(), names)
    states = [_STATES[one] for one in state]
    has_landing = any(one.in_landing for one in set(states))
    landing_id = [one if in_state.in_landing else None for one, in_state in zip(landing, states, strict=True)]
    placed = [
        in_state is ObjectState.PACKED and block_id is not None and at is not None
        for in_state, block_id, at in zip(states, block, offset, strict=True)
    ]
    is_all_placed = all(placed)
    block_id = block if is_all_placed else [one if is_in else None for one, is_in in zip(block, placed, strict=True)]
    at = offset if is_all_placed else [one if is_in else None for one, is_in in zip(offset, placed, strict=True)]
    if not _are_ids(md5) or not _are_ids(landing) or not _are_ids(block):
        raise ValueError("an id of another length")
    times = [mark_times(one) for one in marks] if any(marks) else None
    return ObjectColumns(
        object_id=object_id,
        bucket=[buckets[one] for one in bucket],
        name=names,
        version=version,
        size=size,
        crc32c=crc32c,
        md5=md5,
        state=states,
        landing_id=landing_id if has_landing else nothing,
        block_id=block_id,
        block_offset=at,
        created_ms=created,
        attributes=[one or None for one in attributes],
        trash_until_ms=nothing if times is None else [until_ms for until_ms, _ in times],
        trashed_ms=nothing if times is None else [trashed_ms for _, trashed_ms in times],
        is_noncurrent=[bool(one) and one < FIRST_MARK for one in marks],
    )


def _are_ids(column: Sequence[bytes | None]) -> bool:
    return {len(one) for one in column if one is not None} <= {ID_BYTES}

"""Sums over the whole store: computed from the rows, and stored for other processes to read.

Stored sums are one row of `stored_totals`, as JSON. They are changed only by compare-and-set of the row's whole text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, LargeBinary, cast, delete, func, insert, literal, select, update

from nos_ec.adapters.sql.blocks import leases
from nos_ec.adapters.sql.blocks.deleted_bytes import deleted_bytes
from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.rows import FIRST_MARK, LIVE, by_index
from nos_ec.adapters.sql.tables.schema import BLOCKS, LANDING_DELETIONS, OBJECTS, SEGMENTS, STORED_TOTALS, WAITING, utf8
from nos_ec.core.publishing.slots import LEASE_PREFIX
from nos_ec.core.quotas.quota import RATE_LEASE_PREFIX
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.core.tails import TAILS_BUCKET
from nos_ec.ports.metadata import StoredTotals, Totals

_B, _O, _T, _W = BLOCKS.c, OBJECTS.c, STORED_TOTALS.c, WAITING.c
_IS_TOTALS = _T.name == "totals"
STORED = select(_T.value).where(_IS_TOTALS)


class SqlTotals(SqlPart):
    """`totals`, `stored_totals` and `store_totals` of `Metadata` of the port."""

    @reads
    def totals(self, connection: Connection) -> Totals:
        blocks = connection.execute(_BLOCK_SUMS).all()
        landed, deleted = _landed_sums(connection), deleted_bytes(connection)
        written = {
            kind: sum(row.live_bytes + row.dead_bytes for row in blocks if row.kind is kind) for kind in BlockKind
        }
        trash_objects, trash_bytes = connection.execute(_TRASH_SUMS).one()
        tails, tail_bytes = connection.execute(_PACKED_TAILS).one()
        return Totals(
            blocks={(row.kind, row.state): row.blocks for row in blocks},
            stripes=sum(row.stripes for row in blocks),
            live_bytes=sum(row.live_bytes for row in blocks),
            dead_bytes=sum(row.dead_bytes for row in blocks),
            overhead_bytes=sum(row.overhead_bytes for row in blocks),
            packed_objects=sum(row.live_objects for row in blocks if row.kind is not BlockKind.LARGE) - tails,
            large_objects=connection.execute(_LARGE_OBJECTS).scalar_one(),
            large_bytes=sum(row.live_bytes for row in blocks if row.kind is BlockKind.LARGE) + (tail_bytes or 0),
            landed_objects=landed[ObjectState.LANDED].objects,
            landed_bytes=landed[ObjectState.LANDED].bytes,
            queued_objects=landed[ObjectState.QUEUED].objects,
            queued_bytes=landed[ObjectState.QUEUED].bytes,
            trash_objects=trash_objects,
            trash_bytes=trash_bytes or 0,
            landing_deletions=connection.execute(select(func.count()).select_from(LANDING_DELETIONS)).scalar_one(),
            leases=connection.execute(_WRITER_LEASES).scalar_one(),
            open_dead_bytes=sum(row.dead_bytes for row in blocks if row.state in (BlockState.OPEN, BlockState.FENCED)),
            condemned_dead_bytes=sum(row.dead_bytes for row in blocks if row.state is BlockState.CONDEMNED),
            user_bytes_written=deleted.user + written[BlockKind.FRESH] + written[BlockKind.LARGE],
            copied_bytes_written=deleted.copied + written[BlockKind.SURVIVOR],
        )

    @reads
    def stored_totals(self, connection: Connection) -> StoredTotals | None:
        text = connection.execute(STORED).scalar()
        return None if text is None else _loaded(text)

    @writes
    def store_totals(self, connection: Connection, new: StoredTotals | None, expected: StoredTotals | None) -> bool:
        if expected is None:
            return new is not None and _insert(connection, new)
        same = (_IS_TOTALS, _T.value == _dumped(expected))
        if new is None:
            return connection.execute(delete(STORED_TOTALS).where(*same)).rowcount == 1
        return connection.execute(update(STORED_TOTALS).where(*same).values(value=_dumped(new))).rowcount == 1


@dataclass(slots=True)
class _Sums:
    objects: int = 0
    bytes: int = 0


def _landed_sums(connection: Connection) -> defaultdict[ObjectState, _Sums]:
    sums: defaultdict[ObjectState, _Sums] = defaultdict(_Sums)
    for state, objects, size in connection.execute(_LANDED_SUMS):
        sums[state] = _Sums(objects, size)
    return sums


def _sum(of: Any, name: str) -> Any:
    """Return a SUM as an integer, because MySQL's SUM is a decimal."""
    return cast(func.sum(of), BigInteger).label(name)


_WRITER_LEASES = select(func.count()).where(~leases.begins_with(LEASE_PREFIX), ~leases.begins_with(RATE_LEASE_PREFIX))
_BLOCK_SUMS = select(
    _B.kind,
    _B.state,
    func.count().label("blocks"),
    _sum(_B.stripes, "stripes"),
    _sum(_B.live_bytes, "live_bytes"),
    _sum(_B.dead_bytes, "dead_bytes"),
    _sum(_B.overhead_bytes, "overhead_bytes"),
    _sum(_B.live_objects, "live_objects"),
).group_by(_B.kind, _B.state)
# This reads as many rows as large objects have blocks, which is no more work than the sums over blocks.
_LARGE_OBJECTS = select(func.count()).where(SEGMENTS.c.part == 0)
# This reads a row for each large object that has a tail.
_PACKED_TAILS = by_index(select(func.count(), _sum(_O.size, "bytes")), OBJECTS, "objects_by_trash_key").where(
    _O.trashed == LIVE,
    _O.bucket >= literal(utf8(TAILS_BUCKET), LargeBinary),
    _O.bucket < literal(utf8(TAILS_BUCKET) + b"\xff", LargeBinary),
    _O.state == ObjectState.PACKED,
)
_TRASH_SUMS = by_index(select(func.count(), _sum(_O.size, "bytes")), OBJECTS, "objects_by_trash_key").where(
    _O.trashed >= FIRST_MARK
)
_LANDED_SUMS = select(_W.state, func.count(), _sum(_W.size, "bytes")).group_by(_W.state)


def _insert(connection: Connection, new: StoredTotals) -> bool:
    """Insert the row, or replace one that cannot be parsed. Return False if there is a valid one. Of two concurrent
    calls, the second one to insert fails as a duplicate and is run again."""
    text = connection.execute(STORED).scalar()
    if text is not None:
        if _loaded(text) is not None:
            return False
        connection.execute(delete(STORED_TOTALS).where(_IS_TOTALS, _T.value == text))
    connection.execute(insert(STORED_TOTALS).values(name="totals", value=_dumped(new)))
    return True


def _dumped(stored: StoredTotals) -> str:
    """Return the JSON text, which is the same for equal values."""
    blocks = sorted([kind.value, state.value, count] for (kind, state), count in stored.totals.blocks.items())
    return json.dumps(asdict(stored) | {"totals": asdict(stored.totals) | {"blocks": blocks}}, sort_keys=True)


def _loaded(text: str) -> StoredTotals | None:
    """Parse the text. Return None for totals of another release, which may have other fields, and for any text that
    `_dumped` could not have written, because compare-and-set could never replace it."""
    try:
        whole: dict[str, Any] = json.loads(text)
        sums: dict[str, Any] = whole.pop("totals")
        blocks = {(BlockKind(kind), BlockState(state)): count for kind, state, count in sums.pop("blocks")}
        found = StoredTotals(totals=Totals(blocks=blocks, **sums), **whole)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    numbers = [*blocks.values(), *sums.values(), *whole.values()]
    return found if all(type(number) is int for number in numbers) and _dumped(found) == text else None

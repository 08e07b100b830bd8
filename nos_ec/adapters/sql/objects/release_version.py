"""Releases the bytes of versions: queues their landing copies for deletion, and counts their bytes in blocks as dead.

The number of statements is fixed, whatever the number of versions. Deletes, overwrites and commits all use this module,
so that the counters of blocks (invariant 6) are changed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection, Insert, Select, bindparam, false, insert, select
from sqlalchemy.exc import IntegrityError

from nos_ec.adapters.sql.driver.transactions import note
from nos_ec.adapters.sql.objects import uploads, usage, waiting
from nos_ec.adapters.sql.objects.locks import require_unlocked
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import (
    IDS,
    OBJECT_COLUMNS,
    OBJECT_IDS,
    by_keys,
    delete_listed,
    id_rows,
    key_rows,
    object_row,
    require_all,
)
from nos_ec.adapters.sql.tables.schema import BLOCKS, ID_BYTES, LANDING_DELETIONS, OBJECTS, SEGMENTS
from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.core.locking.lock_note import note_key
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectRow

_log = structlog.get_logger(__name__)

_BURIED = JsonRows("buried", block_id=ID_BYTES, data_bytes=0, objects=0)
_B, _S = BLOCKS.c, SEGMENTS.c

_BURY = (
    UpdateListed(BLOCKS)
    .where(_B.block_id == _BURIED["block_id"])
    .values(
        live_bytes=_B.live_bytes - _BURIED["data_bytes"],
        dead_bytes=_B.dead_bytes + _BURIED["data_bytes"],
        live_objects=_B.live_objects - _BURIED["objects"],
    )
)

_QUEUE = insert(LANDING_DELETIONS)
_LOCK_NOTES = by_keys(*OBJECT_COLUMNS).with_for_update()
_ROWS_OF_BLOCKS = looked_up(select(_B.block_id).join_from(IDS.table, BLOCKS, _B.block_id == IDS["id"]), BLOCKS)


def queueing(copies: Select[Any]) -> Insert:
    """Return an INSERT that queues copies for deletion. `copies` selects their landing id, object id and version; the
    parameter is not_before_ms."""
    not_before_ms = bindparam("not_before_ms", type_=LANDING_DELETIONS.c.not_before_ms.type)
    columns = ["landing_id", "object_id", "version", "not_before_ms", "doomed"]
    return insert(LANDING_DELETIONS).from_select(columns, copies.add_columns(not_before_ms, false()))


_SEGMENTS_OF = (
    select(_S.block_id, _S.length)
    .join_from(OBJECT_IDS.table, SEGMENTS, _S.object_id == OBJECT_IDS["object_id"])
    .where(_S.version == OBJECT_IDS["version"])
)


@dataclass(slots=True)
class Burial:
    """Bytes and objects that become dead, by block."""

    _by_block: dict[BlockId, list[int]] = field(default_factory=dict)

    def add(self, block_id: BlockId, data_bytes: int) -> None:
        """Add the bytes of one object or segment in this block."""
        sums = self._by_block.setdefault(block_id, [0, 0])
        sums[0] += data_bytes
        sums[1] += 1

    def apply(self, connection: Connection) -> None:
        """Add the sums to the counters of the blocks, all in one statement, in order of block.

        A block without a row is damage to the metadata, because no block can be forgotten while a row points into it.
        There are no counters to change, and deleting or overwriting its objects reduces the damage. So the work
        continues, and the damage is logged as an error.
        """
        if not self._by_block:
            return
        rows = _BURIED.dump((block_id, *sums) for block_id, sums in sorted(self._by_block.items()))
        changed = connection.execute(_BURY, rows).rowcount
        if changed < len(self._by_block):
            missing = self._without_row(connection)
            if missing:
                _log.error(
                    "metadata damaged: objects lie in blocks that have no row; their bytes are not counted",
                    blocks=[block_id.hex() for block_id in missing],
                )
            changed += len(missing)
        require_all(changed, len(self._by_block), "blocks")

    def _without_row(self, connection: Connection) -> list[BlockId]:
        found = set(connection.execute(_ROWS_OF_BLOCKS, id_rows(self._by_block)).scalars())
        return sorted(block_id for block_id in self._by_block if block_id not in found)


def release(connection: Connection, rows: Sequence[ObjectRow], not_before_ms: int, *, moved: bool = False) -> None:
    """Release the landing copies and blocks of these versions. Their rows must be locked; the caller removes or
    overwrites them.

    `not_before_ms` is the present, from which landing copies may be deleted. The dead versions are noted for
    `Survival.watch_deaths`. Raises Locked if one of the versions is locked, unless they are only copies of versions of
    another cell (`moved`).
    """
    if not moved:
        require_unlocked(connection, rows)
    usage.uncounts(connection, rows)
    if rows:
        note(connection, (rows, not_before_ms))
    copies = [(row.landing_id, row.object_id, row.version) for row in rows if row.landing_id is not None]
    _queue_copies(connection, copies, not_before_ms)
    waiting.leave(connection, [landing_id for landing_id, _, _ in copies])
    burial = Burial()
    for row in rows:
        if row.extent is not None:
            burial.add(row.extent.block_id, row.extent.length)
    _remove_segments(connection, [row for row in rows if row.state is ObjectState.LARGE], burial)
    burial.apply(connection)
    with_attributes = [row for row in rows if row.attributes]
    uploads.release_parts(connection, with_attributes, not_before_ms)
    notes = [note_key(row.key, lock.note) for row in with_attributes if (lock := row.lock) is not None and lock.note]
    if notes:
        _remove_notes(connection, notes, not_before_ms)


def _remove_notes(connection: Connection, notes: Sequence[ObjectKey], not_before_ms: int) -> None:
    """Remove the notes about the locks of versions that are released."""
    found = [object_row(row) for row in connection.execute(_LOCK_NOTES, key_rows(notes))]
    if found:
        release(connection, found, not_before_ms)
        listed = OBJECT_IDS.dump(sorted((row.object_id, row.version) for row in found))
        gone = delete_listed(connection, OBJECTS, OBJECTS.c.object_id, OBJECT_IDS, "object_id")
        require_all(connection.execute(gone, listed).rowcount, len(found), "lock notes")


def _queue_copies(connection: Connection, copies: Sequence[tuple[LandingId, int, int]], not_before_ms: int) -> None:
    """Queue (landing id, object id, version) for deletion at `not_before_ms`. The rows are literal, because most are
    single, and a JSON table of one row costs the servers three times as much."""
    rows = [
        {
            "landing_id": landing_id,
            "object_id": object_id,
            "version": version,
            "not_before_ms": not_before_ms,
            "doomed": False,
        }
        for landing_id, object_id, version in sorted(copies)
    ]
    if rows:
        queued = enter_copies(connection, _QUEUE, rows, lambda: [landing_id for landing_id, _, _ in copies])
        require_all(queued, len(rows), "landing copies to delete")


def enter_copies(
    connection: Connection, insertion: Insert, parameters: Any, copies: Callable[[], Iterable[LandingId]]
) -> int:
    """Run an INSERT into the deletion queue, and return the number of copies. `copies` returns their ids.

    While an object waits with its copy, there should be no entry of it. If there is one nevertheless, it is replaced:
    the object no longer needs the copy, because it is packed or removed.
    """
    try:
        return connection.execute(insertion, parameters).rowcount
    except IntegrityError:
        gone = delete_listed(connection, LANDING_DELETIONS, LANDING_DELETIONS.c.landing_id, IDS, "id")
        removed = connection.execute(gone, id_rows(sorted(copies()))).rowcount
        _log.error("metadata damaged: copies that objects waited with were queued for deletion", copies=removed)
        return connection.execute(insertion, parameters).rowcount


def _remove_segments(connection: Connection, large: Sequence[ObjectRow], burial: Burial) -> None:
    if not large:
        return
    listed = OBJECT_IDS.dump(sorted((row.object_id, row.version) for row in large))
    for block_id, length in connection.execute(_SEGMENTS_OF, listed):
        burial.add(BlockId(block_id), length)
    # The object_id is enough: segments of older versions are gone, and those of a newer one do not exist yet.
    connection.execute(delete_listed(connection, SEGMENTS, _S.object_id, OBJECT_IDS, "object_id"), listed)

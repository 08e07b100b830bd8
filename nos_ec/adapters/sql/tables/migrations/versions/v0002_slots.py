"""Slots: each object's row records its range of bucket hashes, and the index of due objects starts with it.

A process of the previous release may still write while this runs, and afterwards. Its rows get slot 0, which works as
well as any other, except that the rows are then not spread evenly.

MySQL commits after every DDL statement, so this may be interrupted anywhere. Every step checks whether it is done. The
slots are computed in batches, and a mark records how far they have come: running the migration again continues from
there. SQLite does all of it in one transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BATCH_ROWS = 5000
"""Rows whose slots are computed at a time. It keeps transactions short, and needs fewer parameters than SQLite's
limit."""

_SLOT_BITS = 4
_MARK = "slots_computed_to"
_OBJECTS = sa.table("objects", *map(sa.column, ("object_id", "bucket", "slot")))
_INFO = sa.table("store_info", sa.column("name"), sa.column("value"))
_O, _I = _OBJECTS.c, _INFO.c


def upgrade() -> None:
    """Add the column, compute its values, and change the index."""
    if "slot" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("objects")}:
        op.add_column("objects", sa.Column("slot", sa.SmallInteger, nullable=False, server_default="0"))
    _compute_slots()
    indexes = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("objects")}
    if "objects_due_by_slot" not in indexes:
        columns = ["slot", "due_ms", "object_id"]
        op.create_index("objects_due_by_slot", "objects", columns, sqlite_where=sa.column("due_ms").is_not(None))
    if "objects_by_due" in indexes:
        op.drop_index("objects_by_due", "objects")
    op.execute(sa.delete(_INFO).where(_I.name == _MARK))


def downgrade() -> None:
    """Always refused: producers of the previous release, running beside new ones, would publish everything twice."""
    raise NotImplementedError("there is no way back from slots; restore a backup instead")


def _compute_slots() -> None:
    connection = op.get_bind()
    after = int(connection.scalar(sa.select(_I.value).where(_I.name == _MARK)) or 0)
    batch = sa.select(_O.object_id, _O.bucket).order_by(_O.object_id).limit(BATCH_ROWS)
    while rows := connection.execute(batch.where(_O.object_id > after)).all():
        _set_slots(connection, rows)
        after = rows[-1].object_id
        connection.execute(sa.delete(_INFO).where(_I.name == _MARK))
        connection.execute(sa.insert(_INFO).values(name=_MARK, value=str(after)))
        if connection.dialect.name != "sqlite":
            op.execute("COMMIT")


def _set_slots(connection: sa.Connection, rows: Sequence[Any]) -> None:
    """Set the slots of these rows, with one statement per slot."""
    ids = defaultdict(list)
    for object_id, bucket in rows:
        ids[_murmur2(bytes(bucket)) >> (32 - _SLOT_BITS)].append(object_id)
    for slot, listed in sorted(ids.items()):
        connection.execute(sa.update(_OBJECTS).where(_O.object_id.in_(listed)).values(slot=slot))


def _murmur2(data: bytes) -> int:
    """The hash as it was when this schema was created: a migration must not change with the program's code."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    hash_ = 0x9747B28C ^ len(data)
    tail_start = len(data) & ~3
    for at in range(0, tail_start, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        hash_ = hash_ * multiplier & mask ^ (word ^ word >> 24) * multiplier & mask
    if tail_start < len(data):
        hash_ = (hash_ ^ int.from_bytes(data[tail_start:], "little")) * multiplier & mask
    hash_ = (hash_ ^ hash_ >> 13) * multiplier & mask
    return hash_ ^ hash_ >> 15

"""Reads rows of `objects` for listings, whole or in summary: on MySQL and MariaDB as one column each.

The driver is written in Python, and spends most of the time of a page on reading columns. So the server joins the
columns of a row into one string of bytes: a page of 1,000 rows takes 0.58 to 0.80 of the CPU time. SQLite's driver
reads columns fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnClause, ColumnElement, Connection, Select, literal_column, select

from nos_ec.adapters.sql.tables.rows import OBJECT_COLUMNS, object_row
from nos_ec.adapters.sql.tables.schema import ID_BYTES, OBJECTS
from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectRow, ObjectSummary, summary

_Read = TypeVar("_Read")
_NO_ID = f"x'{bytes(ID_BYTES).hex()}'"
_JOINED: ColumnClause[bytes] = literal_column(
    f"CONCAT(md5, COALESCE(landing_id, {_NO_ID}), COALESCE(block_id, {_NO_ID}),"
    " CONCAT_WS(' ', object_id, version, size, crc32c, state, created_ms,"
    " COALESCE(block_offset, 0), COALESCE(HEX(attributes), ''), name))"
)
"""Three ids, then words. The name is the last one, because it may contain spaces."""
_SUMMARY_JOINED: ColumnClause[bytes] = literal_column(
    "CONCAT(md5, CONCAT_WS(' ', size, created_ms, COALESCE(HEX(attributes), ''), name))"
)
_SUMMARY_COLUMNS = (OBJECTS.c.name, OBJECTS.c.size, OBJECTS.c.md5, OBJECTS.c.created_ms, OBJECTS.c.attributes)
_STATES = {state.value.encode(): state for state in ObjectState}


def _summary(_bucket: str, joined: bytes) -> ObjectSummary:
    size, created_ms, attributes, name = joined[ID_BYTES:].split(b" ", 3)
    attribute_bytes = bytes.fromhex(attributes.decode()) if attributes else b""
    return summary(name.decode(), int(size), joined[:ID_BYTES], int(created_ms), attribute_bytes)


def _object_row(bucket: str, joined: bytes) -> ObjectRow:
    words = joined[3 * ID_BYTES :].split(b" ", 8)
    object_id, version, size, crc32c, state, created_ms, offset, attributes, name = words
    now, size_bytes = _STATES[state], int(size)
    return ObjectRow(
        object_id=int(object_id),
        key=ObjectKey(bucket, name.decode()),
        version=int(version),
        size=size_bytes,
        crc32c=int(crc32c),
        md5=joined[:ID_BYTES],
        state=now,
        landing_id=LandingId(joined[ID_BYTES : 2 * ID_BYTES]) if now.in_landing else None,
        extent=Extent(BlockId(joined[2 * ID_BYTES : 3 * ID_BYTES]), int(offset), size_bytes)
        if now is ObjectState.PACKED
        else None,
        created_ms=int(created_ms),
        attributes=bytes.fromhex(attributes.decode()) if attributes else b"",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Shape(Generic[_Read]):
    """How a row is read: as a whole or as a summary.

    `of_joined` makes the value from the bucket and the column `joined`; it raises ValueError, KeyError or InvalidInput
    for a damaged row. `of_columns` makes it from `columns`, and raises Corrupt.
    """

    joined: ColumnClause[bytes]
    of_joined: Callable[[str, bytes], _Read]
    columns: Sequence[ColumnElement[Any]]
    of_columns: Callable[[Sequence[Any]], _Read]


WHOLE = Shape(_JOINED, _object_row, OBJECT_COLUMNS, object_row)
SUMMARY = Shape(_SUMMARY_JOINED, _summary, _SUMMARY_COLUMNS, lambda row: summary(*row))
"""The part of a row that listings return. It takes a third of the work of a whole row."""


class RowsQuery(Generic[_Read]):
    """A query of rows. `narrowed` adds the conditions to a select of `objects`. Keep a query that runs repeatedly with
    different parameters: building one takes as long as reading ten rows."""

    def __init__(self, shape: Shape[_Read], narrowed: Callable[[Select[Any]], Select[Any]]) -> None:
        self._shape = shape
        self._narrowed = narrowed

    @cached_property
    def _joined(self) -> Select[Any]:
        return self._narrowed(select(self._shape.joined))

    @cached_property
    def _columns(self) -> Select[Any]:
        return self._narrowed(select(*self._shape.columns))

    def read(self, connection: Connection, bucket: str, parameters: Mapping[str, Any]) -> list[_Read]:
        """Run the query, and return the values of the rows, which must be of this bucket. Raises Corrupt for a damaged
        row."""
        shape = self._shape
        if connection.dialect.name != "sqlite":
            try:
                found = connection.execute(self._joined, parameters).scalars().all()
                return [shape.of_joined(bucket, joined) for joined in found]
            except (ValueError, KeyError, InvalidInput):
                pass  # a row is damaged: read the columns, so that the error names it
        return [shape.of_columns(row) for row in connection.execute(self._columns, parameters)]

"""One row by its key on MySQL and MariaDB, straight through the driver: half of the cost of a small GET.

The driver parses a description of each column it is sent, which takes longer than the server takes for the row, and
SQLAlchemy adds as much again for running a statement. So the row comes as one column of text, and is asked for with
the driver's own cursor, on a connection of the pool. Measured on an idle machine, in microseconds: 115, and 255 for
the same row through `objects.find`; a bare look-up of three columns takes 105.

Kept here:
  a  the row is the one that `objects.find` gives: the contract suite compares them
  b  what fails here is asked for again in the ordinary way, which knows what each failure means and what may be retried
  c  a connection with an answer half read never goes back to the pool
"""

from __future__ import annotations

from typing import Any

import pymysql  # type: ignore[import-untyped]
from sqlalchemy import Connection

from nos_ec.adapters.sql import objects
from nos_ec.adapters.sql.schema import utf8
from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.lifecycle import ObjectState
from nos_ec.ports.metadata import ObjectRow

BY_KEY = (
    "SELECT CONCAT_WS(' ', object_id, version, size, crc32c, HEX(md5), state, created_ms,"
    " COALESCE(HEX(landing_id), ''), COALESCE(HEX(block_id), ''), COALESCE(block_offset, ''))"
    " FROM objects WHERE bucket = %s AND name = %s"
)
"""Ids as hexadecimal text; empty text for NULL, which CONCAT_WS would pass over together with its separator."""


def get(connection: Connection, key: ObjectKey) -> ObjectRow:
    """See `Metadata.get`. For a connection outside transactions."""
    row = find(connection, key)
    if row is None:
        raise NotFound(f"object {key} does not exist")
    return row


def find(connection: Connection, key: ObjectKey) -> ObjectRow | None:
    """The current version, not locked. Raises as `objects.find` does."""
    if connection.dialect.name == "sqlite":
        return objects.find(connection, key)
    try:
        found = _asked(connection.connection.cursor(), key)
    except BaseException as error:
        connection.invalidate(error)  # invariant c
        if not isinstance(error, pymysql.err.Error):
            raise
        return objects.find(connection, key)  # invariant b
    return None if found is None else _object_row(key, found)


def _asked(cursor: Any, key: ObjectKey) -> str | None:
    cursor.execute(BY_KEY, (utf8(key.bucket), utf8(key.name)))
    row = cursor.fetchone()
    return None if row is None else row[0]


def _object_row(key: ObjectKey, found: str) -> ObjectRow:
    """The value of a row selected by BY_KEY."""
    object_id, version, size, crc32c, md5, state, created_ms, landing_id, block_id, offset = found.split(" ")
    now = ObjectState(state)
    return ObjectRow(
        object_id=int(object_id),
        key=key,
        version=int(version),
        size=int(size),
        crc32c=int(crc32c),
        md5=bytes.fromhex(md5),
        state=now,
        landing_id=LandingId(bytes.fromhex(landing_id)) if now.in_landing else None,
        extent=Extent(BlockId(bytes.fromhex(block_id)), int(offset), int(size)) if now is ObjectState.PACKED else None,
        created_ms=int(created_ms),
    )

"""One row by its key on MySQL and MariaDB, straight through the driver: half of the cost of a small GET.

The driver parses a description of each column it is sent, which takes longer than the server takes for the row;
SQLAlchemy adds as much again for running a statement, and half of that for handing out a connection. So the row comes
as one column of text, asked for with the driver's own cursor, on a connection that is kept from the pool for the next
look-up. Microseconds between two reads of an OSD, lower quartiles on a busy machine: 250 for a bare look-up of three
columns, 290 for this, 320 when the pool hands the connection out each time, 470 for `objects.find`.

Kept here:
  a  the row is the one that `objects.find` gives: the contract suite compares them
  b  what fails here is asked for again in the ordinary way, which knows what each failure means and what may be retried
  c  a connection with an answer half read is never used again
  d  no more than LOOK_UPS_IDLE_MAX connections are kept, none for longer than the pool would keep it
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pymysql  # type: ignore[import-untyped]
from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.exc import SQLAlchemyError

from nos_ec.adapters.sql.engine import MYSQL_RECYCLE_S, POOL_SIZE
from nos_ec.adapters.sql.schema import utf8
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.lifecycle import ObjectState
from nos_ec.ports.metadata import ObjectRow

LOOK_UPS_IDLE_MAX = POOL_SIZE
"""Reads of other kinds still have POOL_OVERFLOW connections."""

FAILURES = (pymysql.err.Error, SQLAlchemyError)
"""Of the driver, and of the pool when it opens a connection."""

BY_KEY = (
    "SELECT CONCAT_WS(' ', object_id, version, size, crc32c, HEX(md5), state, created_ms,"
    " COALESCE(HEX(landing_id), ''), COALESCE(HEX(block_id), ''), COALESCE(block_offset, ''))"
    " FROM objects WHERE bucket = %s AND name = %s"
)
"""Ids as hexadecimal text; empty text for NULL, which CONCAT_WS would pass over together with its separator."""


class LookUps:
    """Look-ups by key. Safe to call from several threads: each has a connection to itself meanwhile."""

    def __init__(self, engine: Engine) -> None:
        """`engine` commits each statement by itself."""
        self._engine = engine
        self._idle: list[_Kept] = []

    def find(self, key: ObjectKey) -> ObjectRow | None:
        """The current version, not locked. Raises FAILURES: then ask in the ordinary way (invariant b)."""
        kept = self._take()
        try:
            found = _asked(kept.connection.cursor(), key)
        except BaseException as error:
            kept.connection.invalidate(error)  # invariant c
            raise
        self._give_back(kept)
        return None if found is None else _object_row(key, found)

    def close(self) -> None:
        """Give all connections back to the pool."""
        while self._idle:
            self._idle.pop().connection.close()

    def _take(self) -> _Kept:
        try:
            kept = self._idle.pop()
        except IndexError:
            return _Kept(self._engine.raw_connection(), time.monotonic())
        if time.monotonic() - kept.since_s < MYSQL_RECYCLE_S:
            return kept
        kept.connection.close()  # the pool opens another instead of one so old
        return _Kept(self._engine.raw_connection(), time.monotonic())

    def _give_back(self, kept: _Kept) -> None:
        if len(self._idle) < LOOK_UPS_IDLE_MAX:
            self._idle.append(kept)
        else:
            kept.connection.close()


class _Kept(NamedTuple):
    """A connection, and when the pool gave it."""

    connection: PoolProxiedConnection
    since_s: float


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

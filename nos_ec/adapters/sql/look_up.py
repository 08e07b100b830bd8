"""Looks up one row by its key on MySQL and MariaDB, directly through the driver. The look-up is half of the cost of a
small GET.

The driver parses a description of each column that it receives, which takes longer than the server needs for the row.
SQLAlchemy adds as much again for running a statement, and half of that for handing out a connection. So the row is
fetched as one column of text, with the driver's own cursor, on a connection that is kept out of the pool for the next
look-up. Microseconds between two reads of an OSD, lower quartiles on a busy machine: 250 for a bare look-up of three
columns, 290 for this one, 320 when the pool hands the connection out each time, 470 for `objects.find`. The same column
says whether the server accepts writes (nos_ec.adapters.sql.primary), for 20 more; a separate query costs 250.

Invariants kept here:
  a  The row is the one that `objects.find` returns. The contract suite compares them.
  b  A look-up that fails here is repeated as an ordinary read, which knows what each failure means and what may be
     retried.
  c  A connection with a half-read answer is never used again.
  d  No more than LOOK_UPS_IDLE_MAX connections are kept, and none for longer than the pool would keep it.
  e  A connection ends with its pool: none is used that was opened before the pool was disposed of.
  f  The answers of a read-only server are not trusted, not even that a row does not exist.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, NamedTuple

import pymysql  # type: ignore[import-untyped]
from sqlalchemy import Engine, Pool, PoolProxiedConnection
from sqlalchemy.exc import SQLAlchemyError

from nos_ec.adapters.sql.engine import MYSQL_RECYCLE_S, POOL_SIZE
from nos_ec.adapters.sql.primary import READ_ONLY_FLAGS, ReadOnlyServer, as_text, check_flags
from nos_ec.adapters.sql.schema import utf8
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.lifecycle import ObjectState
from nos_ec.ports.metadata import ObjectRow

LOOK_UPS_IDLE_MAX = POOL_SIZE
"""This leaves POOL_OVERFLOW connections for other kinds of reads."""

FAILURES = (pymysql.err.Error, SQLAlchemyError, ReadOnlyServer)
"""The errors of the driver, those of the pool when it opens a connection, and that of invariant f."""

BY_KEY = (
    f"SELECT CONCAT_WS(' ', {READ_ONLY_FLAGS},"  # noqa: S608 - our own words
    " (SELECT CONCAT_WS(' ', object_id, version, size, crc32c, HEX(md5), state, created_ms,"
    " COALESCE(HEX(landing_id), ''), COALESCE(HEX(block_id), ''), COALESCE(block_offset, ''),"
    " COALESCE(HEX(attributes), ''))"
    " FROM objects WHERE trashed = '' AND bucket = %s AND name = %s))"
)
"""The flags, and the row if there is one. Ids are hexadecimal text. NULL is empty text, because CONCAT_WS would skip a
NULL together with its separator."""


class LookUps:
    """Looks up objects by key. Safe to call from several threads: each has its own connection during a look-up."""

    def __init__(self, engine: Engine, *, replica: bool = False) -> None:
        """`engine` commits each statement by itself. With `replica`, read-only servers are trusted."""
        self._engine = engine
        self._replica = replica
        self._idle: list[_Kept] = []

    def find(self, key: ObjectKey) -> ObjectRow | None:
        """Return the current version, not locked. After one of FAILURES, the caller repeats this as an ordinary read
        (invariant b)."""
        kept = self._take()
        try:
            flags, _, found = _asked(kept.connection.cursor(), key).partition(" ")
            if not self._replica:
                check_flags(flags)
        except BaseException as error:
            kept.connection.invalidate(error)  # invariants c, f
            raise
        self._give_back(kept)
        return _object_row(key, found) if found else None

    def close(self) -> None:
        """Give all connections back to the pool."""
        while self._idle:
            with suppress(IndexError):  # another thread took the last one
                self._end(self._idle.pop())

    def _take(self) -> _Kept:
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:
                break  # another thread took it
            if kept.pool is self._engine.pool and time.monotonic() - kept.since_s < MYSQL_RECYCLE_S:
                return kept
            self._end(kept)  # invariants d, e
            if kept.pool is self._engine.pool:
                break  # the pool replaces a connection that is so old
        pool = self._engine.pool
        return _Kept(self._engine.raw_connection(), time.monotonic(), pool)

    def _give_back(self, kept: _Kept) -> None:
        if len(self._idle) < LOOK_UPS_IDLE_MAX and kept.pool is self._engine.pool:
            self._idle.append(kept)
        else:
            self._end(kept)

    def _end(self, kept: _Kept) -> None:
        """Return the connection to its pool if that is still in use, or else close it."""
        if kept.pool is self._engine.pool:
            kept.connection.close()
        else:
            kept.connection.invalidate()


class _Kept(NamedTuple):
    """A connection, the time when the pool handed it out, and that pool."""

    connection: PoolProxiedConnection
    since_s: float
    pool: Pool


def _asked(cursor: Any, key: ObjectKey) -> str:
    cursor.execute(BY_KEY, (utf8(key.bucket), utf8(key.name)))
    return as_text(cursor.fetchone()[0])


def _object_row(key: ObjectKey, found: str) -> ObjectRow:
    """The row in an answer to BY_KEY, as a value of the port."""
    object_id, version, size, crc32c, md5, state, created_ms, landing_id, block_id, offset, attributes = found.split(
        " "
    )
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
        attributes=bytes.fromhex(attributes),
    )

"""Looks up one row by its key on MySQL and MariaDB, directly through the driver. The look-up takes a quarter of the CPU
time of a small GET.

SQLAlchemy needs as much time for a statement as the server, and half of that to check out a connection. So the driver
runs the statement and reads the row in a faster way (`MySqlConnection.one_row`), and its connection is kept out of the
pool for the next look-up. The same row contains whether the server accepts writes (nos_ec.adapters.sql.driver.primary).
On an idle machine, a look-up takes 74 microseconds of CPU time in MariaDB and 42 in this process. It took 116 and 75
when the server joined the columns into one, which the driver's own reader needs to be fast. A look-up that finds
nothing takes 130 and 76 instead of 104 and 63, because it runs two statements.

Invariants kept here:
  a  The row is the one that `object_rows.find` returns. The contract suite compares them.
  b  A look-up that fails here is repeated as an ordinary read, which translates failures and retries what it may.
  c  A connection whose response was not read to its end is never used again.
  d  At most LOOK_UPS_IDLE_MAX connections are kept, and none for longer than the pool would keep it.
  e  A connection ends with its pool: a connection that was opened before the pool was disposed of is not used.
  f  Results from a read-only server are not trusted, not even that a row does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pymysql  # type: ignore[import-untyped]
from sqlalchemy import Engine, Pool, PoolProxiedConnection
from sqlalchemy.exc import SQLAlchemyError

from nos_ec.adapters.sql.driver.engine import MYSQL_RECYCLE_S, POOL_SIZE
from nos_ec.adapters.sql.driver.primary import GALERA_FLAGS, READ_ONLY_FLAGS, ReadOnlyServer, check_flags
from nos_ec.adapters.sql.tables.gate import NUMBER_TEXT
from nos_ec.adapters.sql.tables.schema import utf8
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectRow

LOOK_UPS_IDLE_MAX = POOL_SIZE
"""This leaves POOL_OVERFLOW connections for other kinds of reads."""


class Appeared(Exception):
    """The object was created between two statements."""


_WHERE = "FROM objects WHERE trashed = '' AND bucket = x'%s' AND name = x'%s'"
"""Hexadecimal text means the same in every mode of the server."""
BY_KEY = (
    f"SELECT {READ_ONLY_FLAGS}, object_id, version, size, crc32c, md5, state, created_ms, landing_id, block_id,"
    f" block_offset, attributes {_WHERE}"
)
IS_THERE = f"SELECT {READ_ONLY_FLAGS}, EXISTS (SELECT 1 {_WHERE})"
"""Follows BY_KEY if that finds no row and so no flags either. It reads both at once, because a server that has begun to
accept writes only after BY_KEY may not have had the row yet."""
BY_KEY_IN_CELL = BY_KEY.replace(" FROM objects", f", {NUMBER_TEXT} FROM objects", 1)
IS_THERE_IN_CELL = f"{IS_THERE}, {NUMBER_TEXT}"
"""BY_KEY and IS_THERE with the counter `moves` (nos_ec.adapters.sql.tables.gate) as a further, last column."""
PLAIN, IN_CELL = (BY_KEY, IS_THERE), (BY_KEY_IN_CELL, IS_THERE_IN_CELL)
_PLAIN_ON_GALERA, _IN_CELL_ON_GALERA = (
    tuple(each.replace(READ_ONLY_FLAGS, GALERA_FLAGS) for each in pair) for pair in (PLAIN, IN_CELL)
)


class LookUps:
    """Looks up objects by key. Safe to call from several threads: each has its own connection during a look-up."""

    FAILURES = (pymysql.err.Error, SQLAlchemyError, ReadOnlyServer, Appeared)
    """Errors of the driver, of the pool when it opens a connection, of invariant f, and Appeared."""

    def __init__(self, engine: Engine, *, replica: bool = False) -> None:
        """`engine` runs each statement as a transaction of its own. With `replica`, read-only servers are trusted."""
        self._engine = engine
        self._replica = replica
        self._idle: list[_Kept] = []

    def find(self, key: ObjectKey) -> ObjectRow | None:
        """Return the current version, without a lock. After one of FAILURES, the caller repeats this as an ordinary
        read (invariant b)."""
        return self._find(key, in_cell=False)[1]

    def find_in_cell(self, key: ObjectKey) -> tuple[int, ObjectRow | None]:
        """Like `find`, with the number of nos_ec.adapters.sql.tables.gate at the same moment."""
        return self._find(key, in_cell=True)

    def _find(self, key: ObjectKey, *, in_cell: bool) -> tuple[int, ObjectRow | None]:
        kept = self._take()
        try:
            flags, number, row = _read_row(kept.connection.dbapi_connection, key, in_cell)
            if not self._replica:
                check_flags(flags)
        except BaseException as error:
            kept.connection.invalidate(error)  # invariants c, f
            raise
        self._give_back(kept)
        return number, row

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
                break  # the pool replaces such an old connection
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
    """A connection, the time when it was checked out, and its pool."""

    connection: PoolProxiedConnection
    since_s: float
    pool: Pool


def _read_row(connection: Any, key: ObjectKey, in_cell: bool) -> tuple[Sequence[object], int, ObjectRow | None]:
    """Return the flags, the number of the gate if `in_cell`, and the row."""
    name = utf8(key.bucket).hex(), utf8(key.name).hex()
    if connection.is_galera:
        by_key, is_there = _IN_CELL_ON_GALERA if in_cell else _PLAIN_ON_GALERA
    else:
        by_key, is_there = IN_CELL if in_cell else PLAIN
    found = connection.one_row((by_key % name).encode())
    if found is not None:
        number, values = (int(found[-1]), found[2:-1]) if in_cell else (0, found[2:])
        return found[:2], number, _object_row(key, values)
    flag, other_flag, appeared, *numbers = connection.one_row((is_there % name).encode())
    if int(appeared):
        raise Appeared
    return (flag, other_flag), int(numbers[0]) if in_cell else 0, None


def _object_row(key: ObjectKey, values: Sequence[Any]) -> ObjectRow:
    """Return the ObjectRow for the values of BY_KEY after the flags."""
    object_id, version, size, crc32c, md5, state, created_ms, landing_id, block_id, offset, attributes = values
    now, size_bytes = ObjectState(state.decode()), int(size)
    return ObjectRow(
        object_id=int(object_id),
        key=key,
        version=int(version),
        size=size_bytes,
        crc32c=int(crc32c),
        md5=md5,
        state=now,
        landing_id=LandingId(landing_id) if now.in_landing else None,
        extent=Extent(BlockId(block_id), int(offset), size_bytes) if now is ObjectState.PACKED else None,
        created_ms=int(created_ms),
        attributes=attributes or b"",
    )

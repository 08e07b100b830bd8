"""Distinguishes a primary from a read-only server: a replica, or a primary that was demoted by a failover.

A demoted server may keep its connections open and answer on them as before, with data that becomes outdated. So a
result is trusted only if the server reports that it accepts writes, because such a server has every write that was
acknowledged before. A statement that writes needs no such check, because a read-only server refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text

READ_ONLY_FLAGS = "@@global.read_only, @@global.innodb_read_only"
"""Two columns of a SELECT. Aurora uses the second flag. MySQL's super_read_only also sets the first one."""
_OFF = frozenset({0, b"0", "OFF", b"OFF"})
"""The values of a flag that is not set, as the driver returns them or as the server sends them. MariaDB 12 returns a
word."""
_READ_FLAGS = text(f"SELECT {READ_ONLY_FLAGS}")


class ReadOnlyServer(Exception):
    """The server does not accept writes, so its data may be outdated."""


def check_flags(flags: Iterable[object]) -> None:
    """Raise ReadOnlyServer unless these values of READ_ONLY_FLAGS come from a server that accepts writes."""
    if not _OFF.issuperset(flags):
        raise ReadOnlyServer


def require_primary(connection: Connection) -> None:
    """Raise ReadOnlyServer if the server is read-only, or a driver error. Takes one round trip."""
    check_flags(connection.execute(_READ_FLAGS).one())

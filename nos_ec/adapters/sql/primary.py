"""Telling a primary from a server that is read-only: a replica, or a primary that was demoted by a failover.

A demoted server need not cut its connections. It answers on them as before, and what it answers grows old. So whatever
is read there is believed only when the server says that it takes writes: every acknowledged write before is in it then.
A statement that writes needs no question, because a read-only server refuses it.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

READ_ONLY_FLAGS = "CONCAT_WS(',', @@global.read_only, @@global.innodb_read_only)"
"""The second one is how Aurora says it. MySQL's super_read_only sets the first one as well."""
_OFF = frozenset({"0", "OFF"})
"""MariaDB 12 gives a word."""
_ASK = text(f"SELECT {READ_ONLY_FLAGS}")


class ReadOnlyServer(Exception):
    """The server takes no writes, so what it answers may be old."""


def as_text(value: str | bytes) -> str:
    """What the server made of numbers and text; some of them call that bytes."""
    return value if isinstance(value, str) else value.decode()


def check_flags(flags: str) -> None:
    """Raises ReadOnlyServer unless these values of READ_ONLY_FLAGS are those of a server that takes writes."""
    if not _OFF.issuperset(flags.split(",")):
        raise ReadOnlyServer


def require_primary(connection: Connection) -> None:
    """Raises ReadOnlyServer, or a driver error. One round trip."""
    check_flags(as_text(connection.execute(_ASK).scalar_one()))

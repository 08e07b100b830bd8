"""Distinguishes a primary from a read-only server: a replica, or a primary that was demoted by a failover.

A demoted server may keep its connections open and answer on them as before, with data that becomes outdated. So a
result is trusted only if the server reports that it accepts writes, because such a server has every write that was
acknowledged before. A statement that writes needs no such check, because a read-only server refuses it. A replica that
becomes the primary may lack rows until then, so the first work on a connection is also preceded by the check.

In a Galera cluster, all nodes may accept writes. There a result is trusted, and a transaction committed, only on the
node that the database names (nos_ec.adapters.sql.driver.galera).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Connection, TextClause, text

from nos_ec.adapters.sql.driver.cursors import run_on_cursor

READ_ONLY_FLAGS = "@@global.read_only, @@global.innodb_read_only"
"""Two columns of a SELECT. Aurora uses the second flag. MySQL's super_read_only also sets the first one."""
_OTHER_NODE = "value <> CRC32(@@global.wsrep_node_incoming_address) FROM counters WHERE name = 'galera_node'"
GALERA_FLAGS = f"@@global.read_only, (SELECT {_OTHER_NODE})"
"""The two columns on a node of a Galera cluster. The second is set if another node writes."""
_HOLD_NODE = f"SELECT @@global.read_only, {_OTHER_NODE} LOCK IN SHARE MODE"
_OFF = frozenset({0, b"0", "OFF", b"OFF"})
"""The values of a flag that is not set, as the driver returns them or as the server sends them. MariaDB 12 returns a
word."""


FLAGS = "nos_ec_flags"
"""A key of Connection.info: the flags that the work has read last, if it has."""


class ReadOnlyServer(Exception):
    """The server does not accept writes, or is a Galera node that must not, so its data may be outdated."""


def check_flags(flags: Iterable[object]) -> None:
    """Raise ReadOnlyServer unless these values of READ_ONLY_FLAGS come from a server that accepts writes."""
    if not _OFF.issuperset(flags):
        raise ReadOnlyServer


def require_primary(connection: Connection) -> None:
    """Raise ReadOnlyServer if the server is read-only or not the node that writes, or a driver error. Takes one round
    trip, unless `read_last` has read the flags."""
    check_flags(connection.info.pop(FLAGS, None) or run_on_cursor(connection, _select_flags(connection, ""), {}))


def read_last(connection: Connection, value: str) -> Any:
    """Return the value of a subquery, as the last statement of work that only reads. On a server, this also reads the
    flags for `require_primary`, and so saves it a round trip. Raises a driver error."""
    if connection.dialect.name == "sqlite":
        return run_on_cursor(connection, _select(value), {})[0]
    *flags, found = run_on_cursor(connection, _select_flags(connection, f", {value}"), {})
    connection.info[FLAGS] = flags
    return found


def _select_flags(connection: Connection, more: str) -> TextClause:
    return _select(f"{GALERA_FLAGS if is_galera(connection) else READ_ONLY_FLAGS}{more}")


@cache
def _select(columns: str) -> TextClause:
    """Return the same statement for the same columns, which is therefore compiled once."""
    return text(f"SELECT {columns}")


def hold_node(connection: Connection) -> None:
    """Raise ReadOnlyServer unless this Galera node is the one that writes, or a driver error. Takes one round trip.

    The row stays locked until the transaction ends. When another node takes over, Galera ends every transaction that
    holds the lock, even one that was open while this node was cut off from the cluster.
    """
    check_flags(connection.exec_driver_sql(_HOLD_NODE).first() or (True,))


def is_vitess(connection: Connection) -> bool:
    """Return whether a MySQL server is vtgate."""
    return "vitess" in str(connection.exec_driver_sql("SELECT VERSION()").scalar()).lower()


def is_galera(connection: Connection) -> bool:
    """Return whether this connection leads to a node of a Galera cluster, as it was when it was opened."""
    return getattr(connection.connection.dbapi_connection, "is_galera", False)

"""Keeps a store in a Galera cluster on one node that writes, and lets another node take over when that node has left.

All nodes of a cluster may accept writes, and Galera certifies only rows that were written. A lock that a transaction
shares holds on its own node alone, so with two nodes that write, a landing segment could be sealed under a PUT, and a
lease lost during a commit. Therefore the row `galera_node` of `counters` names the node that writes, by the CRC-32 of
its address (wsrep_node_incoming_address). Each transaction compares it with its own node (primary.py).

Invariants kept here:
  a  The row changes only while no other member of the cluster is the node that it names (docs/adr/0049).
  b  The row is changed by a transaction of its own. Galera orders it among all others: a transaction of the former node
     was either ordered before it, or ends when the former node applies it.

Source of the variables: MariaDB Knowledge Base, "Galera Cluster System Variables" and "Status Variables". Percona
XtraDB Cluster has the same ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

_log = structlog.get_logger(__name__)

_NODE = "SELECT @@global.wsrep_node_incoming_address, value FROM counters WHERE name = 'galera_node'"
_MEMBERS = "SHOW GLOBAL STATUS LIKE 'wsrep_incoming_addresses'"
_TAKE_OVER = "UPDATE counters SET value = CRC32(%s) WHERE name = 'galera_node' AND value = %s"
_NO_RIGHT = frozenset({1142, 1143})


def finds_galera(connection: Any) -> bool:
    """Return whether this connection of the driver leads to a node of a Galera cluster. Takes one round trip on other
    servers. Raises pymysql.err.Error."""
    with connection.cursor() as cursor:
        return _variable(cursor, "wsrep_on") == "ON" and _variable(cursor, "wsrep_provider") not in ("", "none")


def _variable(cursor: Any, name: str) -> str:
    cursor.execute(f"SHOW GLOBAL VARIABLES LIKE '{name}'")
    return str((cursor.fetchone() or ("", ""))[1])


class GaleraNode(NamedTuple):
    """A node of a cluster, and the node that writes, as this one sees it.

    `address` is its own, `members` are the addresses of all members; `number` is the CRC-32 in the row, 0 in a new
    store.
    """

    address: str
    members: list[str]
    number: int

    @property
    def writes(self) -> bool:
        """Whether this is the node that writes."""
        return self.number == _number(self.address)

    def refusal(self) -> str | None:
        """Return why this node may not write to the store, or None if it does so or may take over."""
        alike = [_number(member) for member in self.members].count(_number(self.address))
        if self.address in ("", "AUTO") or alike != 1:
            return (
                f"this Galera node has the address {self.address or 'none'!r}, and the cluster's members have"
                f" {', '.join(self.members)}; set wsrep_node_incoming_address of each node to an address of its own,"
                " HOST:PORT"
            )
        writing = [member for member in self.members if _number(member) == self.number]
        if self.writes or not writing:
            return None
        return (
            f"this Galera node, {self.address}, is not the one that writes: {writing[0]} writes to this store and is in"
            " the cluster. Two writing nodes would damage the store, because shared locks hold on one node only. Use"
            f" {writing[0]}; or stop it, and this node takes over; or SET GLOBAL read_only = ON there and release it"
            " (docs/OPERATIONS.md, Galera)"
        )


def look_at_node(connection: Connection) -> GaleraNode:
    """Return what the node of this connection knows. Raises driver errors."""
    address, number = connection.exec_driver_sql(_NODE).one()
    members = str(connection.exec_driver_sql(_MEMBERS).one()[1]).split(",")
    return GaleraNode(str(address or ""), [member for member in members if member], int(number))


def take_over(connection: Connection) -> str | None:
    """Make this node the one that writes if it may, and commit. Return None then, and if it is so already or read-only;
    otherwise the reason. Raises driver errors; after error 1213 another node has taken over at the same time."""
    node = look_at_node(connection)
    why_not = node.refusal()
    if why_not is not None or node.writes or connection.exec_driver_sql("SELECT @@global.read_only").scalar_one():
        return why_not
    try:
        taken = connection.exec_driver_sql(_TAKE_OVER, (node.address, node.number)).rowcount
        connection.commit()
    except DBAPIError as error:
        if error.orig is None or error.orig.args[0] not in _NO_RIGHT:
            raise
        return (
            f"this Galera node, {node.address}, has not written to this store yet, and this user may not change that;"
            " the node takes over with the next transaction of a gateway, a producer, a consumer or GC"
        )
    if taken:
        _log.warning("metadata: this Galera node now writes to the store", node=node.address, members=node.members)
    return None


def _number(address: str) -> int:
    return crc32(address.encode())

"""Checks a metadata server for `config check --connect`, step by step, without changing anything.

Rights are checked by running statements that match no row. They are rolled back.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, Connection, Engine, Executable, Table, delete, false, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.driver.failures import place, read_only, translate
from nos_ec.adapters.sql.driver.galera import look_at_node
from nos_ec.adapters.sql.driver.primary import READ_ONLY_FLAGS, ReadOnlyServer, check_flags, is_galera, is_vitess
from nos_ec.adapters.sql.tables.migrate import check_schema, revision
from nos_ec.adapters.sql.tables.schema import METADATA
from nos_ec.adapters.sql.tables.store_info import find_store_id, has_geometry
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import Geometry
from nos_ec.ports.clock import Clock

_VERSIONS_MIN = {"MySQL": (8, 0), "MariaDB": (10, 6)}
PACKET_BYTES_MIN = 16 << 20
"""One statement contains the rows of a whole stripe group. This is MariaDB's default; MySQL's is larger."""
CLOCK_MS_MAX = 5_000
"""The largest allowed difference of clocks. A lease lasts 30 s by default, and each process checks it with its own
clock."""

ROWS_MIN = 100_000
"""The least number of rows that Vitess must allow in a result. GC reads the objects of a block in one statement."""
_TEN_ROWS = f"({' UNION ALL '.join(['SELECT 1 AS n', *['SELECT 1'] * 9])})"
_MANY_ROWS = f"SELECT a.n FROM {', '.join(f'{_TEN_ROWS} AS {name}' for name in 'abcde')}"  # noqa: S608 - no input

_VARIABLES = (
    "max_allowed_packet",
    "character_set_connection",
    "transaction_isolation",
    "tx_isolation",
    "log_bin",
    "binlog_format",
    "sync_binlog",
    "innodb_flush_log_at_trx_commit",
)
_RIGHTS: dict[str, Callable[[Table, Sequence[Column[Any]]], Executable]] = {
    "SELECT": lambda _, columns: select(*columns).where(false()),
    "INSERT": lambda table, columns: insert(table).from_select(
        [column.name for column in columns], select(*columns).where(false()), include_defaults=False
    ),
    "UPDATE": lambda table, columns: update(table).values({column.name: column for column in columns}).where(false()),
    "DELETE": lambda table, _: delete(table).where(false()),
}
"""For each right, a statement that needs it on these columns and matches no row."""
_NO_RIGHT = frozenset({1142, 1143})
_READ_ONLY = frozenset({1290, 1836})


class DatabaseCheck:
    """One connection to a metadata server. Call `connect` first. Each method checks one thing and returns the result as
    text; it raises ConfigError or Transient, whose message says what to do. Not thread-safe."""

    def __init__(self, url: str, *, replica: bool) -> None:
        """Raises ConfigError for an invalid URL, and for a SQLite file that does not exist."""
        self._engine: Engine = make_engine(url)
        self._replica = replica
        self._connection: Connection | None = None

    @property
    def where(self) -> str:
        """Return the server's host and port, or the file."""
        return place(self._engine.url)

    def connect(self) -> str:
        """Connect and log in. Check the server's version, and that it accepts writes unless it may be a replica."""
        with self._translated():
            self._connection = self._engine.connect()
            if self._is_sqlite:
                return f"SQLite {sqlite3.sqlite_version}, {self._engine.url.database}"
            full_version = str(self._query("SELECT VERSION()"))
            product, version = _version(full_version)
            if version < _VERSIONS_MIN[product]:
                needed = ".".join(map(str, _VERSIONS_MIN[product]))
                raise ConfigError(
                    f"metadata at {self.where}: {product} {full_version} is too old; use {needed} or newer"
                )
            if not self._replica:
                check_flags(self._open().exec_driver_sql(f"SELECT {READ_ONLY_FLAGS}").one())
            encrypted = self._connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Ssl_cipher'").one()[1]
        url = self._engine.url
        return (
            f"{product} {full_version} at {self.where}, database {url.database}, user {url.username or '-'},"
            f" {'TLS' if encrypted else 'not encrypted'}"
        )

    def schema(self) -> str | None:
        """Return the schema of the tables, or None if there are no tables yet. Check that a Galera node is the one that
        writes, or may take over, unless it may be a replica."""
        with self._translated():
            found = revision(self._open())
            if found is None:
                return None
            check_schema(self._open())
            node = look_at_node(self._open()) if is_galera(self._open()) and not self._replica else None
        if node is None:
            return f"schema {found}"
        if (why_not := node.refusal()) is not None:
            raise self._wrong(why_not)
        role = "writes" if node.writes else "will write"
        return f"schema {found}; of {len(node.members)} Galera nodes {node.address} {role}"

    def store(self, geometry: Geometry) -> str | None:
        """Return the id of the store, or None if it is not initialised."""
        with self._translated():
            return find_store_id(self._open()) if has_geometry(self._open(), geometry) else None

    def rights(self) -> str:
        """Return what the user may do with the rows of the tables."""
        tables = METADATA.sorted_tables
        may: dict[str, list[str]] = {right: [] for right in _RIGHTS}
        whole = 0
        for table in tables:
            columns = [column for column in table.columns if column.computed is None]
            for right, statement in _RIGHTS.items():
                if self._allows(statement(table, columns)):
                    may[right].append(table.name)
                    whole += 1
                elif right == "UPDATE" and (some := [one for one in columns if self._allows(statement(table, [one]))]):
                    may[right].append(f"{table.name} ({', '.join(column.name for column in some)})")
        if not may["SELECT"]:
            raise ConfigError(f"metadata at {self.where}: the user may read no table; grant it SELECT")
        if whole == len(tables) * len(_RIGHTS):
            return "SELECT, INSERT, UPDATE and DELETE on all tables"
        everything = [table.name for table in tables]
        allowed = (
            f"{right} on {'all tables' if names == everything else ', '.join(names)}"
            for right, names in may.items()
            if names
        )
        return f"allowed: {'; '.join(allowed)}; nothing else"

    def session(self) -> str:
        """Check packet size, character set, isolation and binary log of the connection, and how many rows Vitess
        returns."""
        if self._is_sqlite:
            with self._translated():
                mode = self._query("PRAGMA journal_mode")
            return f"journal_mode {mode}"
        names = ", ".join(f"'{name}'" for name in _VARIABLES)
        with self._translated():
            found = self._open().execute(text(f"SHOW VARIABLES WHERE Variable_name IN ({names})"))
            values = {str(row[0]).lower(): str(row[1]) for row in found}
            if is_vitess(self._open()):
                self._open().exec_driver_sql(_MANY_ROWS).all()
        isolation = values.get("transaction_isolation") or values.get("tx_isolation", "")
        if int(values["max_allowed_packet"]) < PACKET_BYTES_MIN:
            raise self._wrong(
                f"max_allowed_packet is {values['max_allowed_packet']}; set it to {PACKET_BYTES_MIN} or more"
            )
        if values["character_set_connection"] != "utf8mb4":
            raise self._wrong(f"the connection uses {values['character_set_connection']}; names need utf8mb4")
        if isolation != "READ-COMMITTED":
            raise self._wrong(f"the connection's isolation is {isolation}; nothing may change it from READ-COMMITTED")
        logged = values.get("log_bin") == "ON"
        if logged and values.get("binlog_format") == "STATEMENT":
            raise self._wrong("binlog_format is STATEMENT, which refuses READ COMMITTED; set it to ROW or MIXED")
        weak = [
            f"{name} = {values[name]}"
            for name in ("innodb_flush_log_at_trx_commit", *(["sync_binlog"] if logged else []))
            if values.get(name, "1") != "1"
        ]
        note = f"; a power cut may lose commits ({', '.join(weak)}, durable: 1)" if weak else ""
        return f"max_allowed_packet {values['max_allowed_packet']}, utf8mb4, READ COMMITTED{note}"

    def clock(self, clock: Clock) -> str:
        """Compare the server's clock with this process's."""
        if self._is_sqlite:
            return "the same machine"
        with self._translated():
            began_ms = clock.now_ms()
            server_ms = int(float(str(self._query("SELECT UNIX_TIMESTAMP(NOW(6)) * 1000"))))
            ended_ms = clock.now_ms()
        ahead_ms = max(server_ms - ended_ms, 0) - max(began_ms - server_ms, 0)
        if abs(ahead_ms) > CLOCK_MS_MAX:
            side = "ahead of" if ahead_ms > 0 else "behind"
            raise ConfigError(
                f"the clock of {self.where} is {abs(ahead_ms) / 1000:.1f} s {side} this machine's; synchronise both"
                " (NTP): leases are compared with the clocks of several machines"
            )
        return f"{abs(ahead_ms)} ms apart"

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._engine.dispose()

    # --------------------------------------------------------------------------------------------------

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _open(self) -> Connection:
        if self._connection is None:
            raise ValueError("connect first")
        return self._connection

    def _query(self, statement: str) -> object:
        return self._open().exec_driver_sql(statement).scalar_one()

    def _wrong(self, reason: str) -> ConfigError:
        return ConfigError(f"metadata at {self.where}: {reason}")

    def _allows(self, statement: Executable) -> bool:
        with self._translated():
            try:
                self._open().execute(statement)
            except DBAPIError as error:
                code = error.orig.args[0] if error.orig is not None and error.orig.args else None
                if code in _NO_RIGHT or (self._replica and code in _READ_ONLY):
                    return False
                raise
        return True

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate the driver's errors to ConfigError and Transient. Roll back in any case."""
        try:
            yield
        except ReadOnlyServer as error:
            raise read_only(self._engine.url).error from error
        except DBAPIError as error:
            failure = translate(error, self._engine.url)
            if failure is None:
                raise
            raise failure.error from error
        finally:
            if self._connection is not None and not self._connection.invalidated:
                self._connection.rollback()


def _version(text: str) -> tuple[str, tuple[int, ...]]:
    """Return product and version: ("MariaDB", (10, 11)) for "10.11.6-MariaDB-0+deb12u1"."""
    numbers = tuple(map(int, re.findall(r"\d+", text)[:2]))
    return ("MariaDB" if "mariadb" in text.lower() else "MySQL"), numbers

"""Tries a metadata server for `config check --connect`: one question at a time, without changing anything.

Rights are tried by statements that concern no row, and that are rolled back.
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
from nos_ec.adapters.sql.driver.primary import ReadOnlyServer, require_primary
from nos_ec.adapters.sql.tables.migrate import check_schema, revision
from nos_ec.adapters.sql.tables.schema import METADATA
from nos_ec.adapters.sql.tables.store_info import find_store_id, has_geometry
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import Geometry
from nos_ec.ports.clock import Clock

_VERSIONS_MIN = {"MySQL": (8, 0), "MariaDB": (10, 6)}
PACKET_BYTES_MIN = 16 << 20
"""One statement has the rows of a whole stripe group. This is MariaDB's default, and MySQL's is larger."""
CLOCK_MS_MAX = 5_000
"""By how much clocks may differ. A lease lasts 30 s unless set otherwise, and is compared with each process's clock."""

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
"""Statements that need each right, on these columns, and that concern no row."""
_NO_RIGHT = frozenset({1142, 1143})
_READ_ONLY = frozenset({1290, 1836})


class DatabaseCheck:
    """One connection to a metadata server. Each method asks one question and returns the answer in words; it raises
    ConfigError or Transient with what to do. `connect` comes first. Not thread-safe."""

    def __init__(self, url: str, *, replica: bool) -> None:
        """Raises ConfigError for a URL that cannot work, and for a SQLite file that does not exist."""
        self._engine: Engine = make_engine(url)
        self._replica = replica
        self._connection: Connection | None = None

    @property
    def where(self) -> str:
        """The server or file."""
        return place(self._engine.url)

    def connect(self) -> str:
        """Connect and log in; check the version, and that the server accepts writes."""
        with self._translated():
            self._connection = self._engine.connect()
            if self._is_sqlite:
                return f"SQLite {sqlite3.sqlite_version}, {self._engine.url.database}"
            said = str(self._ask("SELECT VERSION()"))
            product, version = _version(said)
            if version < _VERSIONS_MIN[product]:
                needed = ".".join(map(str, _VERSIONS_MIN[product]))
                raise ConfigError(f"metadata at {self.where}: {product} {said} is too old; use {needed} or newer")
            if not self._replica:
                require_primary(self._open())
            encrypted = self._connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Ssl_cipher'").one()[1]
        url = self._engine.url
        return (
            f"{product} {said} at {self.where}, database {url.database}, user {url.username or '-'},"
            f" {'TLS' if encrypted else 'not encrypted'}"
        )

    def schema(self) -> str | None:
        """The schema that the tables have; None if there are no tables yet."""
        with self._translated():
            found = revision(self._open())
            if found is None:
                return None
            check_schema(self._open())
        return f"schema {found}"

    def store(self, geometry: Geometry) -> str | None:
        """The id of the store; None if it is not initialised."""
        with self._translated():
            return find_store_id(self._open()) if has_geometry(self._open(), geometry) else None

    def rights(self) -> str:
        """What the user may do with the rows of the tables."""
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
        said = (
            f"{right} on {'all tables' if names == everything else ', '.join(names)}"
            for right, names in may.items()
            if names
        )
        return f"allowed: {'; '.join(said)}; nothing else"

    def session(self) -> str:
        """Check packet size, character set, isolation and binary log of the connection."""
        if self._is_sqlite:
            with self._translated():
                mode = self._ask("PRAGMA journal_mode")
            return f"journal_mode {mode}"
        names = ", ".join(f"'{name}'" for name in _VARIABLES)
        with self._translated():
            found = self._open().execute(text(f"SHOW VARIABLES WHERE Variable_name IN ({names})"))
            values = {str(row[0]).lower(): str(row[1]) for row in found}
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
            server_ms = int(float(str(self._ask("SELECT UNIX_TIMESTAMP(NOW(6)) * 1000"))))
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

    def _ask(self, question: str) -> object:
        return self._open().exec_driver_sql(question).scalar_one()

    def _wrong(self, said: str) -> ConfigError:
        return ConfigError(f"metadata at {self.where}: {said}")

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
        """Undo whatever was begun, and raise what the driver's error means."""
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


def _version(said: str) -> tuple[str, tuple[int, ...]]:
    """("MariaDB", (10, 11)) of "10.11.6-MariaDB-0+deb12u1"."""
    numbers = tuple(map(int, re.findall(r"\d+", said)[:2]))
    return ("MariaDB" if "mariadb" in said.lower() else "MySQL"), numbers

"""Creates engines: checks the URL and sets up each connection.

SQLite uses a write-ahead log with synchronous=FULL, so that a commit is on the disk when it returns. The driver's own
transaction handling is switched off. SQLAlchemy's begin event sends BEGIN, or BEGIN IMMEDIATE for a transaction that
writes, so that it waits for its turn at the start instead of failing in the middle. Each connection keeps pages of the
file in memory, and drops all of them when another connection has written. So the pool gives out the connection that was
returned last, which probably made the last write itself. If the disk has no room for the file that connections share, a
connection is opened in exclusive mode, which needs no such file. While that connection is in use, no other can be
opened. If there is no free inode for these files, two spare files are deleted first. On a read-only file system the
database is read without them.

MySQL and MariaDB use READ COMMITTED, because every decision is based on rows read FOR UPDATE, and strict mode, because
a value truncated to fit would be silent damage. PyMySQL is imported only for them, because it would take a tenth of the
time in which a command on SQLite starts.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from nos_ec.adapters.file_system import identity, lacks_inodes, open_new, require_same_file
from nos_ec.adapters.sql.driver.galera import finds_galera
from nos_ec.core.callbacks import called_back
from nos_ec.core.errors import ConfigError

SQLITE_BUSY_MS = 10_000
MYSQL_CONNECT_S = 5
MYSQL_GREETING_S = 10
"""The time limit for the greeting of a connection. MySQL's own clients allow this by default for connecting as a whole.
A server of another protocol may wait for ever for its client to begin, and one that hangs sends none, while a server
with slow statements greets at once."""
NEW_OR_LOST = (
    "run `nos-ec init` if the store is new; if its database was lost, restore it, or write its rows again with `nos-ec"
    " metadata rebuild` (docs/RUNBOOKS.md)"
)
"""The advice in errors about missing metadata."""
MYSQL_LOCK_WAIT_S = 5
"""The longest wait for the lock of a row or of a whole table (LOCK TABLES, a backup, ALTER TABLE); by default, servers
wait a day or a year for a table. After that, the work is retried, and the wait is reported (lock_waits.py)."""
MYSQL_READ_S = 60
"""Longer than any lock wait, so that a slow lock cannot be mistaken for a dead server. A server that does not answer
new connections either is given up much earlier (patience.py)."""
MYSQL_RECYCLE_S = 1_800
POOL_SIZE = 8
POOL_OVERFLOW = 24

WRITES = "nos_ec_writes"
"""An execution option: the transactions of the engine write."""
_SERVER = "nos_ec_server"
"""An execution option of engines for MySQL: the function that connects, and how long a statement may take."""

_ALONE = "nos_ec_alone"
_OPENED = "nos_ec_opened"
_WAL_BYTES_MAX = 16 << 20
"""The size to which the write-ahead log shrinks after a large transaction or a long read has made it grow."""

_CACHE_KIB = 8_192
"""The size of the pages that a connection to SQLite keeps in memory. This is room for the inner pages of the trees of
10^7 objects; with SQLite's default of 2 MB, a page of a listing reads nearly twice as much of the file."""

_MYSQL_SETUP = (
    f"SET SESSION innodb_lock_wait_timeout = {MYSQL_LOCK_WAIT_S}, lock_wait_timeout = {MYSQL_LOCK_WAIT_S},"
    " sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
    f" sql_select_limit = {(1 << 64) - 1}, sql_safe_updates = 0, sql_big_selects = 1, sql_auto_is_null = 0,"
    " completion_type = 0, foreign_key_checks = 1, unique_checks = 1"
)
"""Settings that a session would otherwise take from the server. They could change results, refuse statements or end the
connection with each COMMIT. DEFAULT would mean the server's setting, so each has a value."""


def parse_url(url: str) -> URL:
    """Parse and check the URL. Raises ConfigError, with an example, for a URL of an unsupported kind."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"the metadata URL cannot be parsed; {_EXAMPLES}") from error
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
            raise ConfigError(f"SQLite metadata must be a file, because it has to survive the process; {_EXAMPLES}")
        return parsed.set(drivername="sqlite+pysqlite")
    if parsed.get_backend_name() in ("mysql", "mariadb"):
        if not parsed.database:
            raise ConfigError(f"the metadata URL names no database; {_EXAMPLES}")
        if "@" in (parsed.host or ""):
            # The host begins with the end of the password, and messages would show it.
            raise ConfigError(f"the metadata URL has an @ in its password: write %40 for it; {_EXAMPLES}")
        from nos_ec.adapters.sql.driver import mysql_options

        return mysql_options.checked(parsed.set(drivername="mysql+pymysql"))
    raise ConfigError(f"metadata cannot be kept in {parsed.drivername!r}; {_EXAMPLES}")


_EXAMPLES = "use sqlite:////var/lib/nos-ec/meta.db or mysql+pymysql://user:password@host:3306/nos_ec"


def make_engine(
    url: str | URL, *, create: bool = False, sqlite_busy_ms: int = SQLITE_BUSY_MS, read_s: int = MYSQL_READ_S
) -> Engine:
    """Create an engine for the URL. Does not connect yet. `read_s`: how long a statement on a server may take.

    Raises ConfigError for an invalid URL, or a missing SQLite file (unless `create`).
    """
    parsed = parse_url(url.render_as_string(hide_password=False) if isinstance(url, URL) else url)
    if parsed.get_backend_name() == "sqlite":
        engine = _sqlite_engine(parsed, create=create, busy_ms=sqlite_busy_ms)
    else:
        engine = _mysql_engine(parsed, _mysql_connect(), read_s, isolation_level="READ COMMITTED")
    pool = type(engine.pool)
    logging.getLogger(f"{pool.__module__}.{pool.__name__}").addFilter(_is_no_interrupt)
    return engine


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Drop the pool's log record of a KeyboardInterrupt. If a signal arrives while a connection returns to it, the pool
    logs the exception and raises it again; raising is enough: an interrupted command must end without a traceback."""
    return not record.exc_info or not isinstance(record.exc_info[1], KeyboardInterrupt)


def reading_engine(engine: Engine) -> Engine | None:
    """Return a second engine like `engine` that runs each statement as a separate transaction; None for SQLite.

    With READ COMMITTED, each statement sees everything that was committed when it began, whether it is inside a
    transaction or not. So work that only reads loses nothing, and saves the round trip of its COMMIT.
    """
    if engine.dialect.name == "sqlite":
        return None
    connect, read_s = engine.get_execution_options()[_SERVER]
    return _mysql_engine(engine.url, connect, read_s, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)


def _mysql_engine(url: URL, connect: Callable[..., Any], read_s: int, **options: Any) -> Engine:
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_recycle=MYSQL_RECYCLE_S,
        # Every transaction has ended when its connection returns to the pool. Another ROLLBACK would cost a round trip.
        # If it failed because the server has just gone down, the pool would log that as if it were a bug.
        pool_reset_on_return=None,
        connect_args={
            "charset": "utf8mb4",
            "connect_timeout": MYSQL_CONNECT_S,
            "read_timeout": read_s,
            "write_timeout": MYSQL_READ_S,
            "init_command": _MYSQL_SETUP,
        },
        execution_options={_SERVER: (connect, read_s)},
        **options,
    )
    event.listen(engine, "do_connect", connect)
    return engine


def _mysql_connect() -> Callable[..., Any]:
    """Return a function that connects engines to one server. A server that has greeted once speaks the protocol, so if
    it does not greet later, this counts as a lost connection."""
    from nos_ec.adapters.sql.driver import patience
    from nos_ec.adapters.sql.driver.mysql_connection import MySqlConnection

    probe: patience.ServerProbe | None = None

    def connect(_dialect: Dialect, _record: ConnectionPoolEntry, args: Any, options: Any) -> Any:
        nonlocal probe
        if probe is None:
            connection = MySqlConnection(*args, greeting_s=MYSQL_GREETING_S, **options)
            brief = {**options, "connect_timeout": patience.PROBE_S, "init_command": None}
            probe = patience.ServerProbe(lambda: MySqlConnection(*args, login_s=patience.PROBE_S, **brief))
        else:
            with probe.connecting():
                connection = MySqlConnection(*args, login_s=patience.LOGIN_S, **options)
        try:
            connection.give_up_when_away(probe)
            connection.is_galera = finds_galera(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    return connect


def _sqlite_engine(url: URL, *, create: bool, busy_ms: int) -> Engine:
    path = Path(str(url.database))
    if not create:
        if not _has_file(path):
            raise ConfigError(f"there is no metadata store at {path}; {NEW_OR_LOST}")
    else:
        # SQLite gives its additional files the same owner and mode. A file that exists must not be opened: closing any
        # descriptor of a file releases all locks of this process on it, also those of SQLite's open connections.
        with suppress(OSError):  # SQLite reports it better
            os.close(open_new(path, os.O_RDWR | os.O_EXCL))
    _keep_spares(path)
    engine = create_engine(url, pool_size=POOL_SIZE, max_overflow=POOL_OVERFLOW, pool_use_lifo=True)
    event.listen(engine, "do_connect", _sqlite_connect(path, busy_ms))
    event.listen(engine, "connect", partial(_note_file, path))
    event.listen(engine, "checkin", _sqlite_end_exclusive_use)
    event.listen(engine, "invalidate", _sqlite_let_go)
    event.listen(engine, "begin", partial(_sqlite_begin, path))
    return engine


def is_missing(url: URL) -> bool:
    """Return whether this is the URL of a SQLite file that does not exist. Raises ConfigError."""
    return url.get_backend_name() == "sqlite" and not _has_file(Path(str(url.database)))


def _has_file(path: Path) -> bool:
    """Return whether there is a file. Raises ConfigError when this user may not look."""
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigError(
            f"metadata at SQLite file {path}: {error.strerror}; check owner and mode of the file and of its folders"
        ) from error


def _sqlite_connect(path: Path, busy_ms: int) -> Callable[..., Any]:
    def connect(dialect: Dialect, record: ConnectionPoolEntry, args: Any, options: Any) -> Any:
        def opened(*, alone: bool) -> Any:
            return _when_free(lambda: opened_once(alone=alone), busy_ms)

        def opened_once(*, alone: bool) -> Any:
            connection = dialect.connect(*args, **options)
            try:
                _set_up(connection, busy_ms, alone=alone)
            except BaseException:
                connection.close()
                raise
            return connection

        try:
            return opened(alone=False)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN:
                if _may_be_read_alone(path):
                    record.info[_ALONE] = True  # the next use opens it anew: the disk may be writable by then
                    return _immutable(dialect, path, options)
                if lacks_inodes(path) and _give_up_spares(path):
                    return opened(alone=False)
            if error.sqlite_errorcode != sqlite3.SQLITE_IOERR_SHMSIZE:
                raise
        # No other process has the file open, or the shared file would exist. But one may be about to open it.
        connection = opened(alone=True)
        record.info[_ALONE] = True
        return connection

    return connect


def _spares(path: Path) -> list[Path]:
    """Return the paths of empty files whose inodes can serve the write-ahead log and the file that connections share
    when no others are free, so that objects can be read and deleted even then."""
    return [path.with_name(f"{path.name}-spare{number}") for number in (1, 2)]


def _keep_spares(path: Path) -> None:
    for spare in _spares(path):
        with suppress(OSError):  # it is there, or this user may only read, and needs none
            os.close(open_new(spare, os.O_RDWR | os.O_EXCL))


def _give_up_spares(path: Path) -> bool:
    found = [spare for spare in _spares(path) if spare.exists()]
    with suppress(OSError):
        for spare in found:
            spare.unlink()
    return bool(found)


def _may_be_read_alone(path: Path) -> bool:
    """Return whether the file cannot change, because its whole file system is read-only, and no write-ahead log holds a
    part of it. A read-only mount alone is not enough: other processes may write through another mount."""
    try:
        device = path.stat().st_dev
        if Path(f"{path}-wal").exists():
            return False
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    options = (line.split()[-1].split(",") for line in mounts if line.split()[2] == number)
    return any("ro" in those for those in options)


def _immutable(dialect: Dialect, path: Path, options: Any) -> Any:
    """Open a connection that uses no write-ahead log and no locks, because these need additional files."""
    connection = dialect.connect(f"{path.absolute().as_uri()}?immutable=1", **{**options, "uri": True})
    connection.isolation_level = None
    connection.create_function("unhex", 1, _unhex, deterministic=True)
    return connection


def _when_free(opened: Callable[[], Any], busy_ms: int) -> Any:
    """Open a connection, and retry for `busy_ms` while the file is busy. Two processes that both want an exclusive
    connection, or both switch a new file to a write-ahead log, would wait for each other, so SQLite fails at once.
    Therefore each retries after a random time."""
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            return opened()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def _set_up(connection: Any, busy_ms: int, *, alone: bool) -> None:
    connection.isolation_level = None
    connection.create_function("unhex", 1, _unhex, deterministic=True)
    connection.execute(f"PRAGMA busy_timeout = {0 if alone else busy_ms}")
    if alone:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")  # reads the file, so it comes after the locking mode


def _sqlite_let_go(connection: Any, _record: ConnectionPoolEntry, _error: BaseException | None) -> None:
    """End the transaction of a connection before it is closed. SQLite closes it only after its last statement, and that
    stays while an exception is handled whose traceback has the cursor. Until then, nobody else could write, such as an
    interrupted command that gives up its leases."""
    with suppress(sqlite3.Error):
        connection.rollback()


def _sqlite_end_exclusive_use(_connection: Any, record: ConnectionPoolEntry) -> None:
    """Close a connection as soon as it is not in use if it is exclusive, which is the only way to release its lock, or
    if it assumes that the file never changes."""
    if record.info.pop(_ALONE, False):
        record.invalidate()


@called_back
def _unhex(text: str | None) -> bytes | None:
    """The function UNHEX for SQLite, which has had it only since 3.41."""
    return None if text is None else bytes.fromhex(text)


def _note_file(path: Path, _connection: Any, record: ConnectionPoolEntry) -> None:
    record.info[_OPENED] = identity(path)


def _sqlite_begin(path: Path, connection: Connection) -> None:
    """Begin a transaction. The driver does it directly, because SQLAlchemy needs a tenth of the time of a small read
    for it. Raises DBAPIError, and Transient if the file has been replaced."""
    require_same_file(f"metadata at SQLite file {path}", path, connection.info.get(_OPENED))
    statement = "BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES, False) else "BEGIN"
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    try:
        driver.execute(statement)
    except sqlite3.Error as error:
        raise DBAPIError(statement, None, error) from error

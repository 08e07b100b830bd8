"""The file of the embedded message log: its tables, how to open it, and the meaning of SQLite's errors.

Tables (format 3):

    log       one row per partition: next_offset is the offset of the next message (the high watermark),
              trimmed_offset the first offset that is still stored
    messages  by (partition, offset): a poll is one range scan of the primary key, whatever the backlog;
              published_ms is the Unix time at which the message was published
    groups    one row per group; generation grows with every change of its members or owners
    members   member_id is never reused, so that a removed member cannot be mistaken for its successor
    shares    one row per group and partition: owner holds the partition now, target is to hold it next,
              committed_offset is the first offset that is not processed
    dead_letters  copies of messages that could not be processed, with the reason; number gives the order of arrival

A file of format 2, which has no published_ms, is upgraded when it is opened.

The file must be on a local file system: SQLite's write-ahead log needs memory that its processes share.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from nos_ec.adapters.file_system import NO_SPACE, identity, open_new, reason, require_same_file, unwritable
from nos_ec.adapters.local.files.durable import make_folder, sync_folder
from nos_ec.core.errors import ConfigError, Corrupt, NosError, NoSpace, Transient

FORMAT_VERSION = 3
APPLICATION_ID = 0x4E4C4F47
"""The value `NLOG` in the field that SQLite reserves for such a mark. It distinguishes our file from any other
database."""

PARTITIONS_MAX = 1024
_BUSY_TIMEOUT_S = 10.0
_WAL_BYTES_MAX = 16 << 20
"""The size to which the write-ahead log shrinks after a large transaction or a long read."""

_PUBLISHED_MS = "published_ms INTEGER NOT NULL DEFAULT 0"
"""The default makes messages of format 2 as old as possible, so that no event is published again before the group has
passed them."""

_SCHEMA = f"""
CREATE TABLE log (
    partition INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL, trimmed_offset INTEGER NOT NULL
) STRICT;
CREATE TABLE messages (
    partition INTEGER NOT NULL, offset INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    {_PUBLISHED_MS}, PRIMARY KEY (partition, offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE members (
    member_id INTEGER PRIMARY KEY AUTOINCREMENT, group_name TEXT NOT NULL, name TEXT NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX members_by_expiry ON members (group_name, expires_ms);
CREATE TABLE shares (
    group_name TEXT NOT NULL, partition INTEGER NOT NULL, owner INTEGER, target INTEGER,
    committed_offset INTEGER NOT NULL, PRIMARY KEY (group_name, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE dead_letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    key BLOB NOT NULL, value BLOB NOT NULL, reason TEXT NOT NULL
) STRICT;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
"""


def create_log_file(path: Path, partitions: int) -> bool:
    """Create the file durably, completely or not at all. Returns False, and changes nothing, when it exists.

    The file is written under a temporary name and then linked into place. So when two processes start at once, one of
    them wins, and a crash leaves no incomplete log. Raises ConfigError, NoSpace, Transient.
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ConfigError(f"message log: cannot have {partitions} partitions; use 1 to {PARTITIONS_MAX}")
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        make_folder(path.parent)
        if path.exists():
            return False
        with translated_errors(path):
            _write_draft(draft, partitions)
        return _link_into_place(draft, path)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NoSpace(f"message log: cannot create {path}: {reason(error, path)}; free some there") from error
        raise ConfigError(f"message log: cannot create {path} ({error.strerror}); choose another place") from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):  # a leftover draft does no harm, and an earlier error matters more
                draft.with_name(draft.name + suffix).unlink()


def _link_into_place(draft: Path, path: Path) -> bool:
    """Link the draft to its place. Unlike a rename, a link never replaces the log of a process that was faster."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    sync_folder(path.parent)
    return True


def _write_draft(draft: Path, partitions: int) -> None:
    """Write a complete log. Closing its only connection moves the write-ahead log into the file and syncs it."""
    os.close(open_new(draft, os.O_RDWR | os.O_EXCL))  # SQLite gives its other files the same owner and mode
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        connection.executemany("INSERT INTO log VALUES (?, 0, 0)", [(p,) for p in range(partitions)])


class _Opened(sqlite3.Connection):
    """A connection that also has, in `file`, the identity of the file that was opened."""

    file: tuple[int, int] | None = None


def open_log_file(path: Path) -> _Opened:
    """Return a connection in autocommit mode that syncs every commit. Raises ConfigError, Corrupt, Transient."""
    try:
        path.stat()
    except FileNotFoundError:
        raise ConfigError(f"message log: {path} does not exist; run `nos-ec init`") from None
    except OSError as error:
        raise ConfigError(f"message log: cannot open {path} ({error.strerror}); check its permissions") from error
    with translated_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=_Opened,
        )
        connection.file = identity(path)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}")
            _check_format(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise ConfigError(f"message log: {path} is not a message log; choose another place for it")
    version = _format(connection)
    if version == 2:
        version = _upgrade(connection)
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"message log: {path} has format version {version}, not {FORMAT_VERSION}: use the release that wrote it"
        )


def _upgrade(connection: sqlite3.Connection) -> int:
    """Upgrade the file from format 2 to 3, unless another process has already done so. An older program that has the
    file open can then no longer publish. Returns the format that the file has now."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _format(connection)
        if version == 2:
            connection.execute(f"ALTER TABLE messages ADD COLUMN {_PUBLISHED_MS}")
            connection.execute("PRAGMA user_version = 3")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return _format(connection)


def _format(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def partition_count(connection: sqlite3.Connection) -> int:
    """Return the number of partitions that the log was created with."""
    (count,) = connection.execute("SELECT count(*) FROM log").fetchone()
    return int(count)


@contextmanager
def transaction(connection: _Opened, path: Path) -> Iterator[None]:
    """Run a transaction. On exit, all of it is durable or none of it. The write lock is taken at the start: without a
    read lock to upgrade, there can be no deadlock."""
    require_same_file(f"message log: {path}", path, connection.file)
    with translated_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into the errors that the ports promise."""
    try:
        yield
    except sqlite3.Error as error:
        translated = _translate(error, path)
        if translated is None:
            raise
        raise translated from error


def _translate(error: sqlite3.Error, path: Path) -> NosError | None:
    """Return the port's error, or None for a bug of ours, which must not look like a problem of the file."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    refused = unwritable(f"message log: {path}", path)
    # A full disk gives SQLITE_FULL, except when the shared-memory file cannot grow.
    match sqlite3.SQLITE_FULL if code == sqlite3.SQLITE_IOERR_SHMSIZE else code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Transient(f"message log: {path} is locked by another process; try again")
        case sqlite3.SQLITE_FULL:
            return NoSpace(f"message log: no space left for {path}; free space on its file system")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Corrupt(
                f"message log: {path} is damaged ({error}); remove it and run `nos-ec init`: every object that"
                " was not packed is then published again"
            )
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY if refused is not None:
            return refused
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_PROTOCOL:
            return Transient(f"message log: input/output error on {path} ({error}); check its file system")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return ConfigError(f"message log: cannot write {path} ({error}); check its permissions")
    return None

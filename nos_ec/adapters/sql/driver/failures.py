"""Translates errors of the drivers: which error to raise, and whether the transaction may simply be retried."""

from __future__ import annotations

import errno
import sqlite3
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from nos_ec.adapters.file_system import unwritable
from nos_ec.core.errors import ConfigError, Corrupt, NosError, NoSpace, Transient

if TYPE_CHECKING:
    import pymysql  # type: ignore[import-untyped]

_SQLITE_FULL, _SQLITE_IOERR = sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR

_MYSQL_LOCK_WAIT = 1205
_MYSQL_ROLLED_BACK = {1020, _MYSQL_LOCK_WAIT, 1213}
"""Record changed, lock wait, deadlock: the server has rolled the transaction back, even if COMMIT failed."""
_MYSQL_DUPLICATE = 1062
_MYSQL_REFUSED_CHECK = {3819, 4025}
"""The codes of MySQL and of MariaDB for a violated CHECK."""
_MYSQL_INTERRUPTED = 1317
_VITESS_UNNAMED = 1105
"""Vitess reports its own failures by this code if MySQL has none for them: no primary, one that is being replaced, a
transaction that ended with its tablet. MySQL itself hardly uses it."""
_VITESS_TOO_MANY_ROWS = "row count exceeded"
"""Vitess reports it with the code of an interruption."""
_MYSQL_UNUSABLE = {1047, 1053, 1180, 1290, 1836, 3032, 3100, 3101}
"""The server itself is out of service, and may keep its connections open: a Galera node without quorum, a shutdown, a
Galera node that lost its quorum during COMMIT, --read-only and --super-read-only (a primary that has become a replica),
offline mode, or a member that Group Replication does not allow to commit (two codes)."""
_MYSQL_LOST = {0, 1077, 1079, 1080, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2014, 2055}
_MYSQL_UNREACHABLE = {1040, 1129, 1203, 2002, 2003, 2005}
_MYSQL_UNENCRYPTED = 2026
_MYSQL_FULL = {1021, 1041, 1114, 3675}
_MYSQL_DENIED = {1045, 1130, 1698}
_MYSQL_EXPIRED = {1820, 1862}
"""The password has expired: either the session may only change it, or it is refused at once."""
_MYSQL_LOCKED = {3118, 3955, 4151}
"""The account is locked (MySQL), blocked after too many wrong passwords (MySQL), or locked (MariaDB)."""
_MYSQL_PLUGIN = 2059
_MYSQL_STATEMENT_BINLOG = 1665
"""READ COMMITTED does not work with a binary log of statements."""
_MYSQL_NO_GRANT = {1044, 1142, 1143, 1227, 1370}
_MYSQL_NO_DATABASE, _MYSQL_NO_TABLE = 1049, 1146
_MYSQL_GOT_ERRNO = {3, 1026, 1030}
"""Errors that carry the errno of a file operation, but only in their text."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A translated error of a driver.

    `error` is the exception to raise. If `again`, the work may be retried unless COMMIT was sent; if `undone`, even
    then. If `unusable`, the server is probably out of service on all connections, and another server may answer at its
    address by now. If `lock_wait`, a wait for a lock timed out. If `conflict`, another transaction changed the same
    rows: a deadlock, a record that was changed, or a duplicate.
    """

    error: NosError
    again: bool = False
    undone: bool = False
    unusable: bool = False
    lock_wait: bool = False
    conflict: bool = False


class RefusedCheck(Exception):
    """A CHECK constraint refused a change, because counters are wrong. This is not a NosError but a bug to report: the
    daemon ends with a traceback instead of retrying for ever."""


def place(url: URL) -> str:
    """Return the place of the store for messages: host and port, or the file, but never the password."""
    if url.get_backend_name() == "sqlite":
        return f"SQLite file {url.database}"
    return f"{url.host or '127.0.0.1'}:{url.port or 3306}"


def read_only(url: URL) -> Failure:
    """Return the failure for a server that reports that it is read-only."""
    return Failure(
        Transient(
            f"metadata at {place(url)}: this server is read-only: a replica, or a primary that was demoted. Its data"
            " may be old, so it is not read; try again when the address leads to the primary (store.metadata_replica"
            " lets a process that only reads use a replica)"
        ),
        again=True,
        unusable=True,
    )


def not_writing(url: URL, reason: str) -> Failure:
    """Return the failure for a Galera node that is not the one that writes."""
    return Failure(Transient(f"metadata at {place(url)}: {reason}"), again=True, unusable=True)


def translate(error: Exception, url: URL) -> Failure | None:
    """Translate an error of a driver or of the pool. Return None for an error that is a bug of ours. Raises
    RefusedCheck."""
    if isinstance(error, PoolTimeout):
        return Failure(Transient(f"metadata at {place(url)}: all connections are busy; try again"))
    cause = error.orig if isinstance(error, DBAPIError) else error
    if _is_refused_check(cause):
        raise RefusedCheck(
            f"metadata at {place(url)}: {cause}. The counters of a block would be wrong, so nothing was changed."
            " This is a bug: report it, with the trace and the rows of the block"
        ) from error
    if isinstance(cause, sqlite3.Error):
        return _sqlite(cause, url)
    if is_away(cause):
        # All connections were closed before one is refused without an attempt.
        is_given_up = not getattr(cause, "is_still_away", False)
        return Failure(Transient(f"metadata at {place(url)}: the connection was lost: {cause}"), unusable=is_given_up)
    if _is_mysql(cause):
        return _mysql(cause, url, lost=isinstance(error, DBAPIError) and error.connection_invalidated)
    return None


def _sqlite(cause: sqlite3.Error, url: URL) -> Failure | None:
    extended = getattr(cause, "sqlite_errorcode", None) or 0
    code = extended & 0xFF
    where = f"metadata at {place(url)}: {cause}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Failure(Transient(f"{where}; another process is writing, try again"))
    if code == _SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
        return Failure(NoSpace(f"{where}; free space on its disk"))
    refused_by_disk = {_SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
    if code in refused_by_disk and (refused := unwritable(where, Path(str(url.database)))) is not None:
        return Failure(refused)
    if code == _SQLITE_IOERR:
        return Failure(Transient(f"{where}; check its disk"))
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Failure(Corrupt(f"{where}; restore the file from a backup"))
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return Failure(ConfigError(f"{where}; check that the folder exists and is writable"))
    return None


def _mysql(cause: pymysql.err.Error, url: URL, *, lost: bool) -> Failure | None:
    code = cause.args[0] if cause.args and isinstance(cause.args[0], int) else None
    where = f"metadata at {place(url)}: {cause.args[-1] if cause.args else cause} (error {code})"
    if code in _MYSQL_ROLLED_BACK:
        waited = code == _MYSQL_LOCK_WAIT
        return Failure(Transient(where), again=True, undone=True, lock_wait=waited, conflict=not waited)
    if code == _MYSQL_DUPLICATE:
        return Failure(Transient(where), again=True, conflict=True)
    if code in _MYSQL_FULL or (code in _MYSQL_GOT_ERRNO and _names_no_space(str(cause.args[-1]))):
        return Failure(NoSpace(f"{where}; free space on the server's disk"))
    if code == _MYSQL_UNENCRYPTED:
        return Failure(
            ConfigError(
                f"{where}; the server does not support encryption: set up TLS on it, or remove the ssl options from the"
                " metadata URL"
            )
        )
    if isinstance(getattr(cause, "original_exception", None), ssl.SSLCertVerificationError):
        return Failure(
            ConfigError(
                f"{where}; the server's certificate cannot be verified: ssl_ca in the metadata URL must name the"
                " certificate of the authority that signed it, and it must be valid for the host in the URL"
            )
        )
    if code in _MYSQL_UNREACHABLE:
        return Failure(Transient(f"{where}; check that the server runs and is reachable"), again=True)
    if lost or code in _MYSQL_LOST:
        return Failure(Transient(f"{where}; the connection was lost"), again=True, unusable=True)
    if code in _MYSQL_DENIED:
        return Failure(ConfigError(f"{where}; check user and password in the metadata URL"))
    if code in _MYSQL_EXPIRED:
        return Failure(ConfigError(f"{where}; set a new password for this user (ALTER USER)"))
    if code in _MYSQL_LOCKED:
        return Failure(ConfigError(f"{where}; unlock it (ALTER USER ... ACCOUNT UNLOCK), or use another user"))
    if code == _MYSQL_PLUGIN:
        return Failure(ConfigError(f"{where}; or use a user with another authentication plugin"))
    if code == _MYSQL_STATEMENT_BINLOG:
        return Failure(ConfigError(f"{where}; set binlog_format to ROW or MIXED on the server"))
    if code in _MYSQL_NO_GRANT:
        return Failure(
            ConfigError(
                f"{where}; each kind of process has its own user and rights: use the user of this kind, or run"
                " deploy/sql/grants.sh again, which gives each user its rights (deploy/README.md)"
            )
        )
    if code == _MYSQL_NO_DATABASE:
        return Failure(ConfigError(f"{where}; create it with CREATE DATABASE and run `nos-ec init`"))
    if code == _MYSQL_NO_TABLE:
        return Failure(ConfigError(f"{where}; run `nos-ec init`"))
    if code == _MYSQL_INTERRUPTED:
        if _VITESS_TOO_MANY_ROWS in where.lower():
            return Failure(ConfigError(f"{where}; set queryserver-config-max-result-size of every vttablet higher"))
        return Failure(Transient(f"{where}; the statement was ended by KILL QUERY, or by Vitess"), again=True)
    if code == _VITESS_UNNAMED:
        return Failure(Transient(f"{where}; if this is Vitess, check that the shard has a primary"), again=True)
    if code in _MYSQL_UNUSABLE:
        return Failure(Transient(f"{where}; this server does not work at present"), again=True, unusable=True)
    # Problems of the server, such as too many connections of this user, or lack of memory. A wrong statement raises
    # ProgrammingError instead, and is our bug.
    import pymysql

    of_the_server = (pymysql.err.OperationalError, pymysql.err.InternalError)
    return Failure(Transient(where)) if isinstance(cause, of_the_server) else None


def is_away(cause: BaseException | None) -> bool:
    """Return whether the server was given up because it does not answer new connections either (patience.py). Another
    attempt would only take as long."""
    return getattr(cause, "is_away", False)


def _is_refused_check(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_CHECK
    return _is_mysql(cause) and bool(cause.args) and cause.args[0] in _MYSQL_REFUSED_CHECK


def _is_mysql(cause: BaseException | None) -> TypeGuard[pymysql.err.Error]:
    """Return whether it is an error of PyMySQL. This imports PyMySQL, which a store on SQLite does not need."""
    import pymysql

    return isinstance(cause, pymysql.err.Error)


def _names_no_space(text: str) -> bool:
    """Return whether an error of _MYSQL_GOT_ERRNO reports a full disk. Only its text shows that; there is no code."""
    return any(f"{word}: {errno.ENOSPC}" in text.lower() for word in ("errno", "error", "code"))

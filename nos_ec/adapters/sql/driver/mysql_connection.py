"""PyMySQL's connection, faster in three places: when it connects, when it quotes texts, and when it reads a single row.

Sources: `one_row` follows the MySQL Source Code Documentation, "Client/Server Protocol", on packets, the text resultset
and length-encoded strings. The MySQL C API Developer Guide (mysql_real_escape_string_quote) says which characters must
be escaped: the backslash, and the quote around the text. MariaDB does both in the same way.
"""

from __future__ import annotations

import io
import re
import ssl
import struct
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

from pymysql.connections import Connection as PyMySqlConnection  # type: ignore[import-untyped]
from pymysql.constants import COMMAND, CR, SERVER_STATUS  # type: ignore[import-untyped]
from pymysql.err import InternalError, OperationalError  # type: ignore[import-untyped]
from pymysql.protocol import MysqlPacket  # type: ignore[import-untyped]

from nos_ec.adapters.sql.driver.patience import PATIENCE_S, PatientSocket, ServerProbe

_RECEIVE_BYTES = 8192
_HEAD_BYTES = 4
_INSTANT_S = 0.001
"""The time limit of a step for which no time is left. 0 would mean something else."""
_ERROR, _END, _NULL = b"\xff", b"\xfe", 0xFB
_END_BYTES_MAX = 8
"""A longer packet that begins with _END is a row whose first value is very long."""
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""The first byte of a long value, and the number of bytes after it that hold its length."""
_SELECT_LIMIT = re.compile(r" sql_select_limit = \d+,")
"""A setting in the command that sets up a session. Vitess has none, does not know this number, and would write any
other one into each SELECT. So MySqlConnection omits the setting there."""


class MySqlConnection(PyMySqlConnection):  # type: ignore[misc]
    """A PyMySQL connection that does not read the trusted authorities in vain.

    Without TLS options, PyMySQL encrypts if the server can, and does not check the certificate. Still it reads the
    system's trusted authorities for each connection, which takes longer than the rest of connecting (Debian 12: 74 of
    114 ms).
    """

    init_command: str | None
    _rfile: Any
    _read_timeout: float | None
    _write_timeout: float | None
    _greeting_s: float | None = None
    _login_s: float | None = None
    _login_by_s = float("inf")
    _patient: PatientSocket | None = None
    is_galera = False
    """Whether this is a node of a Galera cluster; `_mysql_connect` sets it."""
    _descriptions = b""
    """The descriptions of the columns of the last row that `one_row` read, as the server sent them before the row."""

    def __init__(
        self, *args: Any, greeting_s: float | None = None, login_s: float | None = None, **options: Any
    ) -> None:
        """Connect. `greeting_s` limits the wait for the server's greeting; None applies the limit of statements.
        `login_s`: the server has greeted before, and all steps until statements can be sent must end in this time."""
        self._greeting_s = greeting_s
        self._login_s = login_s
        super().__init__(*args, **options)

    def connect(self, sock: Any = None) -> None:
        """See PyMySQL."""
        limits_s = self._read_timeout, self._write_timeout
        if self._login_s is not None:
            self._login_by_s = time.monotonic() + self._login_s
        try:
            super().connect(sock)
        finally:
            self._read_timeout, self._write_timeout = limits_s

    def _limit_login(self) -> None:
        """Give the next steps of a login no more time than is left. A server that answers does so at once."""
        if self._login_s is not None:
            self._read_timeout = self._write_timeout = max(_INSTANT_S, self._login_by_s - time.monotonic())

    def give_up_when_away(self, probe: ServerProbe) -> None:
        """Wait from now on as long as statements may take only while the server answers the probe (patience.py)."""
        limit_s = self._read_timeout
        assert limit_s is not None
        patience_s = min(PATIENCE_S, limit_s)
        self._rfile.close()  # it has no bytes left: the server sends none unasked
        self._patient = PatientSocket(self._sock, probe, limit_s, patience_s)
        self._rfile = io.BufferedReader(self._patient)
        self._sock.settimeout(patience_s)
        # One limit for both, so that PyMySQL does not set it before each read and each write.
        self._read_timeout = self._write_timeout = self._current_timeout = patience_s

    def _write_bytes(self, data: bytes) -> None:
        if self._patient is None:
            super()._write_bytes(data)
            return
        try:
            self._patient.send_all(data)
        except OSError as error:
            self._force_close()
            raise OperationalError(CR.CR_SERVER_GONE_ERROR, f"MySQL server has gone away ({error!r})") from error
        except BaseException:
            self._force_close()
            raise

    def one_row(self, statement: bytes) -> list[bytes | None] | None:
        """Return the values of the only row that a SELECT finds, as the text that the server sends, or None without a
        row. The row must be smaller than 16 MiB.

        PyMySQL's own reader parses a description of each column, which takes longer than the server needs for the row.
        This method skips them: in one comparison if they are the same as for the last row.

        Raises pymysql.err.Error, also for a second row. After any exception the connection must not be used again.
        """
        self._execute_command(COMMAND.COM_QUERY, statement)
        columns = self._read_packet().read_length_encoded_integer()
        received = _piece(self._rfile)
        known = len(self._descriptions) if received.startswith(self._descriptions) else 0
        packets = _packets(self._rfile, received, known, self.encoding)
        if not known:
            # With the packet that ends them.
            self._descriptions = b"".join([next(packets)[0] for _ in range(columns + 1)])
        _, row = next(packets)
        if _is_end(row):
            return None
        if not _is_end(next(packets)[1]):
            raise InternalError("more than one row")
        return _values(row)

    def _get_server_information(self) -> None:
        """Read the greeting. Raises OperationalError 2012 when this is not a MySQL server, or when no greeting arrives
        in time from a server that is not known. From one that is known, this is a lost connection (2013)."""
        read_s = self._read_timeout
        self._read_timeout = self._greeting_s or read_s
        self._limit_login()
        try:
            super()._get_server_information()
        except (InternalError, struct.error, IndexError, ValueError) as error:
            raise _no_greeting("something other than the greeting of a MySQL server") from error
        except OperationalError as error:
            if self._login_s is not None or not isinstance(error.__context__, TimeoutError):
                raise
            raise _no_greeting(f"no greeting within {self._read_timeout} s") from error
        finally:
            self._read_timeout = read_s
        if self.init_command and "vitess" in self.server_version.lower():
            self.init_command = _SELECT_LIMIT.sub("", self.init_command)

    def _request_authentication(self) -> None:
        """Log in. Raises OperationalError 2059 when PyMySQL lacks what the authentication plugin of the user needs."""
        self._limit_login()
        try:
            super()._request_authentication()
        except RuntimeError as error:
            raise OperationalError(
                CR.CR_AUTH_PLUGIN_CANNOT_LOAD,
                f"this user's authentication plugin needs a Python package: {error}. Install it along with nos_ec (for"
                " ed25519: PyNaCl)",
            ) from error

    def _escape_string(self, s: str) -> str:
        """Escape the text for single quotes. PyMySQL looks up each character in a table, which takes some 50 ns: 0.2 to
        0.5 ms for the rows of a group of small objects. Two searches take a hundredth of that."""
        if self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES:
            return str(super()._escape_string(s))
        return s.replace("\\", "\\\\").replace("'", "\\'")

    def _create_ssl_ctx(self, options: Any) -> ssl.SSLContext:
        return super()._create_ssl_ctx(options) if options else _tls_without_authority()


def _no_greeting(received: str) -> OperationalError:
    return OperationalError(
        CR.CR_SERVER_HANDSHAKE_ERR,
        f"received {received}; check that the server does not hang, and that the metadata URL has the host and"
        " port of a MySQL or MariaDB server",
    )


@cache
def _tls_without_authority() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _packets(reader: Any, received: bytes, at: int, encoding: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the packets from offset `at` on, each with and without its head. Raises pymysql.err.Error if the connection
    ends, or if a packet reports an error."""
    while True:
        begin = at + _HEAD_BYTES
        end = begin + int.from_bytes(received[at : at + 3], "little")
        if not begin <= len(received) >= end:
            received += _piece(reader)
            continue
        packet = received[begin:end]
        if packet[:1] == _ERROR:
            MysqlPacket(packet, encoding).raise_for_error()
        yield received[at:end], packet
        at = end


def _piece(reader: Any) -> bytes:
    try:
        piece: bytes = reader.read1(_RECEIVE_BYTES)
    except OSError as error:
        raise OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})") from None
    if not piece:
        raise OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
    return piece


def _is_end(packet: bytes) -> bool:
    return packet[:1] == _END and len(packet) <= _END_BYTES_MAX


def _values(row: bytes) -> list[bytes | None]:
    values: list[bytes | None] = []
    at = 0
    while at < len(row):
        size = row[at]
        at += 1
        if size == _NULL:
            values.append(None)
            continue
        if size > _NULL:
            width = _WIDTHS[size]
            size = int.from_bytes(row[at : at + width], "little")
            at += width
        values.append(row[at : at + size])
        at += size
    return values

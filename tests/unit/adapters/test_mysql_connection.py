"""The row of an answer in MySQL's protocol, however its bytes arrive."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest
from pymysql import _auth
from pymysql.connections import Connection as PyMySqlConnection  # type: ignore[import-untyped]
from pymysql.constants import COMMAND, CR  # type: ignore[import-untyped]
from pymysql.err import OperationalError  # type: ignore[import-untyped]

from nos_ec.adapters.sql.driver import engine, mysql_connection, transactions
from nos_ec.adapters.sql.driver.engine import MYSQL_GREETING_S
from nos_ec.adapters.sql.driver.mysql_connection import MySqlConnection
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.core.errors import Transient

END = b"\xfe\0\0\2\0"
KILLED = b"\xff" + struct.pack("<H", 1317) + b"#70100Query execution was interrupted"
COLUMN = b"\x03def\x06nos_ec\x01o\x07objects\x01n\x04name\x0c\x3f\0\0\4\0\0\xfd\x80\0\0\0\0"


def text(value: bytes) -> bytes:
    """A value as a row has it."""
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    return (b"\xfc" + size.to_bytes(2, "little") if size < 1 << 16 else b"\xfd" + size.to_bytes(3, "little")) + value


def sent(*packets: bytes) -> bytes:
    """The packets of an answer, each with its head."""
    return b"".join([len(p).to_bytes(3, "little") + bytes([n % 256]) + p for n, p in zip(count(1), packets)])


class Reader:
    """Gives an answer in pieces that end at these places, and then what `then` says."""

    def __init__(self, answer: bytes, ends: Sequence[int], then: Exception | None = None) -> None:
        self._answer, self._ends, self._at, self._then = answer, [*ends, len(answer)], 0, then

    def read(self, size: int) -> bytes:
        found = self._answer[self._at : self._at + size]
        self._at += len(found)
        return found

    def close(self) -> None:
        self._ends = [0]

    def read1(self, size: int) -> bytes:
        end = next((end for end in self._ends if end > self._at), self._at)
        if end == self._at and self._then is not None:
            raise self._then
        return self.read(min(size, end - self._at))


class Asked(MySqlConnection):
    """A connection on which one answer comes."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(defer_connect=True)
        self._rfile = reader
        self._read_timeout = self._current_timeout = 1.0

    def _execute_command(self, command: int, statement: bytes) -> None:
        assert (command, statement) == (COMMAND.COM_QUERY, b"SELECT")
        self._next_seq_id = 1


def answered(answer: bytes, ends: Sequence[int] = (), then: Exception | None = None) -> Any:
    return Asked(Reader(answer, ends, then)).one_row(b"SELECT")


ROW = [b"7", None, b"", b"\xff\xfe\xfb raw", b"a" * 250, b"b" * 251, b"c" * 300]


def answer_of(*rows: Sequence[bytes | None], columns: int) -> bytes:
    found = [b"".join([b"\xfb" if value is None else text(value) for value in row]) for row in rows]
    return sent(bytes([columns]), *[COLUMN] * columns, END, *found, END)


def test_a_row_has_the_values_that_were_sent() -> None:
    assert answered(answer_of(ROW, columns=len(ROW))) == ROW


def test_a_row_is_read_wherever_the_answer_is_cut() -> None:
    answer = answer_of(ROW, columns=len(ROW))
    for end in range(len(answer)):
        assert answered(answer, [end]) == ROW
    assert answered(answer, list(range(len(answer)))) == ROW


def test_a_row_is_read_behind_known_and_behind_other_descriptions() -> None:
    two, three = [b"1", None], [b"2", b"", b"3"]
    answers = [answer_of(two, columns=2), answer_of(three, columns=3)]
    for ends in ([], [1], range(80), range(200)):
        connection = Asked(Reader(b"", ()))
        for at in (0, 0, 1, 1, 0):
            connection._rfile = Reader(answers[at], ends)
            assert connection.one_row(b"SELECT") == (two, three)[at]


@pytest.mark.parametrize("size", [8191, 65535, 65536, 1 << 20])
def test_a_long_value_is_read(size: int) -> None:
    assert answered(answer_of([b"x" * size, b"1"], columns=2)) == [b"x" * size, b"1"]


def test_a_row_that_begins_like_an_end_is_a_row() -> None:
    """Only a value of 16 MiB or more has such a length; the server may still write a shorter one so."""
    row = b"\xfe" + (9).to_bytes(8, "little") + b"long one."
    assert answered(sent(b"\1", COLUMN, END, row, END)) == [b"long one."]


def test_no_row() -> None:
    assert answered(answer_of(columns=3)) is None


@pytest.mark.parametrize("before", [[], [b"\1", COLUMN, END], [b"\1", COLUMN, END, b"\1x"]], ids=len)
def test_what_the_server_refuses_is_raised(before: list[bytes]) -> None:
    """It is raised at once, or when the statement is killed between two packets."""
    with pytest.raises(pymysql.err.OperationalError) as raised:
        answered(sent(*before, KILLED))
    assert raised.value.args == (1317, "Query execution was interrupted")


def test_two_rows_are_no_answer() -> None:
    with pytest.raises(pymysql.err.InternalError, match="more than one row"):
        answered(answer_of([b"1"], [b"2"], columns=1))


def test_a_connection_that_ends_is_told() -> None:
    answer = answer_of(ROW, columns=len(ROW))
    for end in (0, 1, 4, 5, 60, len(answer) - 1):
        with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
            answered(answer[:end])
    with pytest.raises(pymysql.err.OperationalError, match=r"Lost connection .*timed out"):
        answered(answer[:60], then=TimeoutError("timed out"))


@contextmanager
def another_protocol(banner: bytes) -> Iterator[int]:
    """The port of a server that sends this to each client, and then waits for the client."""
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                clients.append(client)
                client.sendall(banner)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in clients:
                client.close()


@pytest.mark.parametrize(
    "banner",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\0\x02\x02\x50",
        b"\x01\0\0\0\x0a",
        bytes(200),
    ],
    ids=["silent", "ssh", "http", "tls", "short", "zeros"],
)
def test_the_port_of_another_protocol_is_noticed(banner: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to take 61 s, or to end as a bug."""
    monkeypatch.setattr(engine, "MYSQL_GREETING_S", 0.5)
    with another_protocol(banner) as port:
        begun_s = time.monotonic()
        with pytest.raises(Transient, match=f"127.0.0.1:{port}: .*host and port of a MySQL or MariaDB server"):
            open_metadata(f"mysql+pymysql://user:word@127.0.0.1:{port}/nos_ec").is_new()
        assert time.monotonic() - begun_s < 30, "half a second, and no other try"
    assert 5 <= MYSQL_GREETING_S <= 15, "what it is outside of this test"


def test_a_known_server_that_does_not_greet_is_a_lost_connection() -> None:
    """Such an error is retried. It counted as the port of another protocol."""
    begun_s = time.monotonic()
    with another_protocol(b"") as port, pytest.raises(OperationalError) as caught:
        MySqlConnection(host="127.0.0.1", port=port, user="user", read_timeout=600, login_s=0.2)
    assert caught.value.args[0] == CR.CR_SERVER_LOST
    assert time.monotonic() - begun_s < 60, "a greeting is not waited for as long as a statement"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize("at_login_s", [3.0, 9.5])
def test_the_steps_of_a_login_share_one_limit(monkeypatch: pytest.MonkeyPatch, at_login_s: float) -> None:
    """Each used to have the limit of statements, a minute, once the server had greeted."""
    clock, limits_s = Clock(), {}
    monkeypatch.setattr(mysql_connection, "time", clock)

    def connected(connection: Any, _sock: object) -> None:
        clock.now_s += 2  # until the host answers
        connection._get_server_information()
        connection._request_authentication()

    def greeted(connection: Any) -> None:
        limits_s["greeting"] = connection._read_timeout
        connection.server_version = "8.4.6"
        clock.now_s = 1000 + at_login_s

    def logged_in(connection: Any) -> None:
        limits_s["login"] = connection._read_timeout, connection._write_timeout

    monkeypatch.setattr(PyMySqlConnection, "connect", connected)
    monkeypatch.setattr(PyMySqlConnection, "_get_server_information", greeted)
    monkeypatch.setattr(PyMySqlConnection, "_request_authentication", logged_in)
    connection = MySqlConnection(read_timeout=60, write_timeout=70, login_s=9)
    left_s = max(9 - at_login_s, mysql_connection._INSTANT_S)
    assert limits_s == {"greeting": 7, "login": (left_s, left_s)}
    assert (connection._read_timeout, connection._write_timeout) == (60, 70), "the limits of statements"


@pytest.mark.parametrize(("limit_s", "tries"), [(0.2, 1), (60, transactions.ATTEMPTS_MAX)])
def test_a_server_that_lets_connections_wait_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, tries: int
) -> None:
    """Each try takes as long as the first. A connection that is lost at once is tried again."""
    made: list[object] = []

    class Known(MySqlConnection):
        def __init__(self, *args: Any, greeting_s: float, **options: Any) -> None:
            made.append(self)
            super().__init__(*args, login_s=greeting_s, **options)

    monkeypatch.setattr(mysql_connection, "MySqlConnection", Known)
    monkeypatch.setattr(engine, "MYSQL_GREETING_S", 0.2)
    monkeypatch.setattr(transactions, "MYSQL_CONNECT_S", limit_s)
    with another_protocol(b"") as port:
        store = transactions.Transactions(engine.make_engine(f"mysql+pymysql://user:word@127.0.0.1:{port}/nos_ec"))
        for run in (store.read, store.write):
            made.clear()
            with pytest.raises(Transient, match="the connection was lost"):
                run(lambda connection: connection)
            assert len(made) == tries


def test_the_package_for_ed25519_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyMySQL raises RuntimeError when an account of MariaDB asks for it, and PyNaCl is not installed."""

    def asked_for_ed25519(_connection: PyMySqlConnection) -> None:
        _auth.ed25519_password(b"secret", bytes(32))

    monkeypatch.setattr(_auth, "_nacl_bindings", False)
    monkeypatch.setitem(sys.modules, "nacl", None)
    monkeypatch.setattr(PyMySqlConnection, "_request_authentication", asked_for_ed25519)
    connection = MySqlConnection.__new__(MySqlConnection)
    with pytest.raises(OperationalError, match="PyNaCl") as caught:
        connection._request_authentication()
    assert caught.value.args[0] == CR.CR_AUTH_PLUGIN_CANNOT_LOAD


@pytest.mark.parametrize(("version", "is_set"), [("8.4.6-Vitess", False), ("8.4.6", True), ("11.4.2-MariaDB", True)])
def test_the_limit_of_rows_is_lifted_where_a_session_has_one(
    monkeypatch: pytest.MonkeyPatch, version: str, is_set: bool
) -> None:
    """Vitess has none."""

    def greeted(connection: Any) -> None:
        connection.server_version = version

    monkeypatch.setattr(PyMySqlConnection, "_get_server_information", greeted)
    connection = MySqlConnection(defer_connect=True, init_command=engine._MYSQL_SETUP)
    connection._get_server_information()
    command = str(connection.init_command)
    assert ("sql_select_limit" in command) is is_set
    assert "time_zone = '+00:00', sql_s" in command

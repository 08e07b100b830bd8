"""A server that does not answer is given up when it does not answer new connections either, and only then."""

from __future__ import annotations

import io
import socket
import threading
import time
import types
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pymysql  # type: ignore[import-untyped]
import pytest
from pymysql.constants import CR  # type: ignore[import-untyped]
from pymysql.err import OperationalError  # type: ignore[import-untyped]
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from nos_ec.adapters.sql.driver import engine, mysql_connection, patience
from nos_ec.adapters.sql.driver.failures import translate
from nos_ec.adapters.sql.driver.mysql_connection import MySqlConnection
from nos_ec.adapters.sql.driver.patience import PatientSocket, ServerAway, ServerProbe, StillAway
from nos_ec.adapters.sql.driver.transactions import Transactions
from nos_ec.core.errors import Transient
from tests.unit.adapters.test_mysql_connection import Clock, another_protocol, sent

PATIENCE_S = 0.05
TOO_MANY = b"\xff\x10\x04#08004Too many connections"
Pair = tuple[socket.socket, socket.socket]


class Probe(ServerProbe):
    """Answers as it is told, after `then`."""

    def __init__(self, *answers: bool) -> None:
        super().__init__(lambda: None)
        self.left = list(answers)

    def then(self) -> None: ...

    def answers(self) -> bool:
        self.then()
        return self.left.pop(0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with ours, theirs:
        yield ours, theirs


def patient(ours: socket.socket, probe: ServerProbe, limit_s: float = 60) -> PatientSocket:
    return PatientSocket(ours, probe, limit_s, PATIENCE_S)


def test_what_comes_at_once_needs_no_probe(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"rows")
    assert io.BufferedReader(patient(ours, Probe())).read(4) == b"rows"
    patient(ours, Probe()).send_all(b"statement")
    assert theirs.recv(100) == b"statement"


def test_a_slow_statement_of_a_server_that_answers_is_waited_for(pair: Pair) -> None:
    ours, theirs = pair

    class Slow(Probe):
        def then(self) -> None:
            if len(self.left) == 1:
                theirs.sendall(b"rows")

    probe = Slow(True, True, True)
    assert io.BufferedReader(patient(ours, probe)).read(4) == b"rows"
    assert probe.left == []


def test_a_server_that_does_not_answer_is_given_up(pair: Pair) -> None:
    probe = Probe(True, False)
    with pytest.raises(ServerAway, match="nor on a new connection") as caught:
        io.BufferedReader(patient(pair[0], probe)).read(4)
    assert caught.value.args[0] == CR.CR_SERVER_LOST, "SQLAlchemy knows it as a lost connection"
    assert pair[0].gettimeout() == PATIENCE_S


def test_an_answer_that_comes_during_the_probe_counts(pair: Pair) -> None:
    class Late(Probe):
        def then(self) -> None:
            pair[1].sendall(b"rows")

    assert io.BufferedReader(patient(pair[0], Late(False))).read(4) == b"rows"
    assert pair[0].gettimeout() == PATIENCE_S


def test_the_limit_of_statements_holds(pair: Pair) -> None:
    with pytest.raises(ServerAway, match="not answered a statement"):
        io.BufferedReader(patient(pair[0], Probe(*[True] * 9), limit_s=3.5 * PATIENCE_S)).read(4)


def test_a_statement_that_cannot_be_sent_is_given_up(pair: Pair) -> None:
    """The buffers of the kernel are full, because the server does not read."""
    with pytest.raises(ServerAway):
        patient(pair[0], Probe(True, False)).send_all(bytes(16 << 20))


def test_a_long_statement_arrives_whole(pair: Pair) -> None:
    data, found = bytes(range(256)) * 8192, bytearray()

    def read() -> None:
        time.sleep(3 * PATIENCE_S)
        while len(found) < len(data):
            found.extend(pair[1].recv(1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    patient(pair[0], Probe(*[True] * 99)).send_all(data)
    reader.join()
    assert found == data


def probe_of(port: int, limit_s: float = 0.3) -> ServerProbe:
    return ServerProbe(lambda: MySqlConnection(host="127.0.0.1", port=port, user="user", login_s=limit_s))


def test_a_server_that_does_not_greet_does_not_answer() -> None:
    with another_protocol(b"") as port:
        assert not probe_of(port).answers()
    assert not probe_of(port).answers(), "nobody listens there any more"


def test_whatever_a_server_sends_is_an_answer() -> None:
    """An error that there are too many connections is one, too, and so is the end of a connection that a proxy closes
    at once."""
    with another_protocol(sent(TOO_MANY)[:3] + b"\0" + TOO_MANY) as port:
        assert probe_of(port, 30).answers()
    with socket.create_server(("127.0.0.1", 0)) as server:
        closer = threading.Thread(target=lambda: server.accept()[0].close())
        closer.start()
        assert probe_of(server.getsockname()[1], 30).answers()
        closer.join()


def test_a_failure_on_this_side_is_no_silence() -> None:
    def log_in() -> None:
        error = OperationalError(CR.CR_CONN_HOST_ERROR, "no file descriptor is free")
        error.original_exception = OSError(24, "Too many open files")
        raise error

    assert ServerProbe(log_in).answers()


def test_threads_share_an_attempt() -> None:
    begun, may_end, tries = threading.Event(), threading.Event(), []

    def log_in() -> None:
        tries.append(1)
        begun.set()
        assert may_end.wait(60)
        raise OperationalError(CR.CR_SERVER_LOST, "lost") from None

    asked = threading.Semaphore(0)

    def timer() -> float:
        asked.release()
        return time.monotonic()

    probe, found = ServerProbe(log_in, timer), []
    askers = [threading.Thread(target=lambda: found.append(probe.answers())) for _ in range(8)]
    askers[0].start()
    assert begun.wait(60)
    for asker in askers[1:]:
        asker.start()
    for _ in askers:
        assert asked.acquire(timeout=60)
    may_end.set()
    for asker in askers:
        asker.join()
    assert found == [True] * 8
    assert len(tries) == 1
    assert probe.answers(), "a later question needs another attempt"
    assert len(tries) == 2


def test_work_is_not_run_again_on_a_server_that_was_given_up() -> None:
    """All connections are closed: another server may answer at the address by now. After COMMIT, nobody knows whether
    it took effect, as with any lost connection."""
    store = Transactions(engine.make_engine("mysql+pymysql://user:word@127.0.0.1:1/nos_ec"))
    pools, away = [one.pool for one in store.engines], ServerAway(CR.CR_SERVER_LOST, "the server answers neither")
    with pytest.raises(Transient, match=r"the connection was lost: .*neither"):
        store.raise_if_away(away)
    assert not {*pools} & {one.pool for one in store.engines}
    store.raise_if_away(pymysql.err.OperationalError(CR.CR_SERVER_LOST, "another"))
    failure = translate(DBAPIError("SELECT", {}, away), make_url("mysql+pymysql://127.0.0.1:1/nos_ec"))
    assert failure is not None
    assert (failure.again, failure.undone, failure.unusable) == (False, False, True)


def silence() -> OperationalError:
    """A login that has waited in vain."""
    try:
        try:
            raise TimeoutError("timed out")
        except TimeoutError:
            raise OperationalError(CR.CR_SERVER_LOST, "lost")  # noqa: B904 - as PyMySQL does
    except OperationalError as error:
        return error


def connect(probe: ServerProbe, error: Exception | None = None) -> None:
    """Connect, or fail with this error."""
    with probe.connecting():
        if error is not None:
            raise error


def found_away(clock: Clock) -> ServerProbe:
    """A probe that has just found that its server does not answer."""

    def log_in() -> None:
        clock.now_s += patience.PROBE_S
        raise silence()

    probe = ServerProbe(log_in, clock.monotonic)
    assert not probe.answers()
    return probe


def test_new_connections_are_refused_at_once_while_a_server_is_away() -> None:
    clock = Clock()
    probe = found_away(clock)
    for _ in range(3):
        with pytest.raises(StillAway):
            connect(probe)
    clock.now_s += patience.RETRY_S
    with pytest.raises(OperationalError) as caught:
        connect(probe, silence())  # one of them tries
    assert not isinstance(caught.value, ServerAway)
    with pytest.raises(StillAway):
        connect(probe)
    clock.now_s += patience.RETRY_S
    connect(probe)
    connect(probe)
    assert probe._answers


def test_one_connection_at_a_time_tries_a_server_that_is_away() -> None:
    clock = Clock()
    probe = found_away(clock)
    clock.now_s += patience.RETRY_S
    refused = []

    def another() -> None:
        with pytest.raises(StillAway):
            connect(probe)
        refused.append(1)

    with probe.connecting():
        thread = threading.Thread(target=another)
        thread.start()
        thread.join()
    assert refused == [1]
    connect(probe)


def test_a_login_in_vain_shows_that_a_server_is_away() -> None:
    """Otherwise the next step of a request would wait as long again."""
    probe = ServerProbe(lambda: None, Clock().monotonic)
    with pytest.raises(OperationalError):
        connect(probe, silence())
    with pytest.raises(StillAway):
        connect(probe)


def refusal() -> OperationalError:
    """What a port on which nobody listens answers."""
    error = OperationalError(CR.CR_CONN_HOST_ERROR, "connection refused")
    error.original_exception = ConnectionRefusedError()
    return error


def test_a_server_that_refuses_connections_for_a_moment_is_tried_again_at_once() -> None:
    """Work overcomes a restart by its own attempts. Whatever the server itself says counts as an answer."""
    clock = Clock()
    for probe in (ServerProbe(lambda: None, clock.monotonic), found_away(clock)):
        clock.now_s += patience.RETRY_S
        for error in (refusal(), refusal(), OperationalError(1040, "Too many connections"), refusal(), refusal()):
            with pytest.raises(OperationalError) as caught:
                connect(probe, error)
            assert caught.value is error
            clock.now_s += patience.REFUSED_S * 0.75
        connect(probe)


def test_a_server_that_keeps_refusing_connections_is_away() -> None:
    clock = Clock()
    probe = ServerProbe(lambda: None, clock.monotonic)
    for _ in range(2):
        with pytest.raises(OperationalError, match="refused"):
            connect(probe, refusal())
        clock.now_s += patience.REFUSED_S
    for _ in range(3):
        with pytest.raises(StillAway, match="has not answered: connection refused"):
            connect(probe)
        clock.now_s += patience.RETRY_S
        with pytest.raises(OperationalError) as caught:
            connect(probe, refusal())
        assert not isinstance(caught.value, StillAway)
    clock.now_s += patience.RETRY_S
    connect(probe)
    with pytest.raises(OperationalError) as caught:
        connect(probe, refusal())
    connect(probe)  # it has answered, so a refusal begins anew


def test_a_connection_that_is_not_tried_closes_no_others_and_ends_the_work() -> None:
    refused = DBAPIError("SELECT", {}, StillAway(CR.CR_SERVER_LOST, "not answered"))
    failure = translate(refused, make_url("mysql+pymysql://127.0.0.1:1/nos_ec"))
    assert failure is not None
    assert isinstance(failure.error, Transient)
    assert (failure.again, failure.undone, failure.unusable) == (False, False, False)


class Silent:
    """A socket on which nothing arrives. Waiting for it moves the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._limit_s = clock, float(patience.PATIENCE_S)

    def settimeout(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def recv_into(self, _buffer: Any) -> int:
        self._clock.now_s += self._limit_s
        raise TimeoutError


def test_a_request_is_refused_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for an older connection and a new one, and even if the request needs another connection after that."""
    clock = Clock()
    begun_s = clock.now_s

    def log_in() -> None:
        clock.now_s += patience.PROBE_S
        raise silence()

    probe = ServerProbe(log_in, clock.monotonic)
    monkeypatch.setattr(patience, "time", clock)
    with pytest.raises(ServerAway):
        PatientSocket(Silent(clock), probe, engine.MYSQL_READ_S, patience.PATIENCE_S).readinto(bytearray(1))
    with pytest.raises(StillAway):
        connect(probe)
    assert patience.PATIENCE_S < clock.now_s - begun_s < 10
    assert engine.MYSQL_CONNECT_S <= patience.LOGIN_S < 10, "a new connection"


def test_the_connections_of_an_engine_share_what_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both for reading and for writing. Only the first connection may wait for a greeting as long as for any server."""
    made: list[dict[str, Any]] = []

    def connection(*_: object, **options: Any) -> Any:
        made.append(options)
        if len(made) == 1:
            return types.SimpleNamespace(give_up_when_away=lambda _probe: None, is_galera=False, close=lambda: None)
        raise silence()

    monkeypatch.setattr(mysql_connection, "MySqlConnection", connection)
    monkeypatch.setattr(engine, "finds_galera", lambda _connection: False)
    connecting = engine._mysql_connect()
    for error in (None, OperationalError, StillAway, StillAway):
        with nullcontext() if error is None else pytest.raises(error):
            connecting(None, None, (), {"connect_timeout": engine.MYSQL_CONNECT_S})
    assert [(one.get("greeting_s"), one.get("login_s")) for one in made] == [
        (engine.MYSQL_GREETING_S, None),
        (None, patience.LOGIN_S),
    ]

"""Connections and locks of real servers that fail under the metadata store."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from nos_ec.adapters.sql.driver import engine as engine_module
from nos_ec.adapters.sql.driver import patience, transactions
from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.schema import METADATA
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.ids import ObjectKey
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.sql.sql_servers import empty_metadata
from tests.rig.switched_proxy import SwitchedProxy
from tests.rig.waiting import until

pytestmark = pytest.mark.real

KILLED_ROUNDS = 200
KILL_EVERY_S = 0.005


@pytest.fixture(params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def metadata(url: str) -> Iterator[SqlMetadata]:
    with empty_metadata(url) as metadata:
        yield metadata


@pytest.fixture(params=[False, True], ids=["whole", "cell"])
def served(request: pytest.FixtureRequest, metadata: SqlMetadata) -> SqlMetadata:
    """Return the metadata of a store without cells, or of a cell, whose gate uses the driver's own cursor."""
    if request.param:
        metadata.obey_moves(lambda _: None)
    return metadata


def test_killed_connections_are_replaced(url: str, served: SqlMetadata) -> None:
    """More of them are idle than a piece of work is tried again."""
    bench = MetadataBench(served)
    row = bench.put("n")
    admin = create_engine(url)
    calls: list[Callable[[], object]] = [
        partial(bench.get, "n"),
        partial(bench.put, "m"),
        partial(served.list_names, row.key.bucket, "", "", 10),
        partial(bench.delete, "m"),
    ]
    for call in calls:
        with ExitStack() as opened:
            for engine in served._transactions.engines:
                engine.dispose()  # of the connections that were killed for the call before
                for _ in range(engine_module.POOL_SIZE):
                    opened.enter_context(engine.connect())
        assert _kill_connections(admin) >= 2 * engine_module.POOL_SIZE > 2 * transactions.ATTEMPTS_MAX
        call()
    admin.dispose()
    assert bench.get("n") == row


def _kill_connections(admin: Engine) -> int:
    """Kill all other connections to the database, and return their number."""
    with admin.connect() as connection:
        others = text("SELECT id FROM information_schema.processlist WHERE db = 'nos_ec' AND id <> CONNECTION_ID()")
        victims = list(connection.scalars(others))
        for victim in victims:
            with suppress(DBAPIError):  # one that was closed before may still have been listed
                connection.exec_driver_sql(f"KILL {victim}")
    return len(victims)


def test_a_read_whose_connection_is_lost_before_it_is_confirmed_is_repeated(url: str, served: SqlMetadata) -> None:
    """It then returns what was stored meanwhile, also after it has found nothing."""
    bench = MetadataBench(served)
    bucket = bench.put("n").key.bucket
    admin, reading = create_engine(url), served._transactions.reading
    assert reading is not None

    def kill(*_: object) -> None:
        if later:
            name = later.pop()
            killed.append(_kill_connections(admin))
            bench.put(name)

    killed: list[int] = []
    event.listen(reading, "after_cursor_execute", kill)
    later = ["a"]
    assert served.list_names(bucket, "", "", 10) == ["a", "n"]
    later = ["b"]
    assert served.version(ObjectKey(bucket, "b"), None).key.name == "b"
    assert len(killed) == 2
    assert all(killed)
    admin.dispose()


def test_a_known_server_that_hangs_at_its_greeting_is_served_again(
    url: str, monkeypatch: pytest.MonkeyPatch, metadata: SqlMetadata
) -> None:
    """This holds, too, on the first connection that only reads: opening the store has shown that the server speaks the
    protocol. Until it is tried again, work is refused at once."""
    MetadataBench(metadata).put("n")
    server = make_url(url)
    with SwitchedProxy(server.port or 0).running() as proxy, socket.create_server(("127.0.0.1", 0)) as hung:
        there = open_metadata(server.set(port=proxy.port).render_as_string(hide_password=False))
        working, proxy.target = proxy.target, hung.getsockname()[1]
        with monkeypatch.context() as brief:
            brief.setattr(patience, "LOGIN_S", 0.5)
            brief.setattr(patience, "RETRY_S", 3600)
            with pytest.raises(Transient, match="the server has not answered"):
                there.totals()
            proxy.target = working
            with pytest.raises(Transient, match="the server has not answered"):
                there.totals()
        until(lambda: _serves(there))
        assert there.totals() == metadata.totals()
        there.close()


def _serves(metadata: SqlMetadata) -> bool:
    with suppress(Transient):
        metadata.totals()
        return True
    return False


def test_a_statement_that_takes_too_long_is_not_repeated(url: str, metadata: SqlMetadata) -> None:
    """On a server whose disk hangs, each attempt would take as long, while the loops of daemons wait."""
    there, attempts = open_metadata(url, read_s=1), []

    def wait(connection: Connection) -> None:
        attempts.append(connection)
        connection.exec_driver_sql("SELECT SLEEP(60)")

    for run in (there._read, there._write):
        with pytest.raises(Transient, match="has not answered a statement after 1 s"):
            run(wait)
    assert len(attempts) == 2
    assert there.totals() == metadata.totals()
    there.close()


def test_killed_statements_change_all_or_nothing(url: str, served: SqlMetadata) -> None:
    """Whatever a server reports about a killed statement, acknowledged results are true and block counters add up."""
    bench = MetadataBench(served)
    ended = threading.Event()
    killer = threading.Thread(target=_kill_queries, args=(url, ended), daemon=True)
    killer.start()
    wrong: list[str] = []
    failed = 0
    try:
        for number in range(KILLED_ROUNDS):
            names = [f"{name}-{number % 7}" for name in "abcdefgh"]
            try:
                rows = bench.put_all(names, 100 + number)
                wrong += [row.key.name for row in rows if row.size != 100 + number]
                listed = set(served.list_names(rows[0].key.bucket, "", "", 100))
                wrong += [row.key.name for row in rows if row.key.name not in listed]
                lease = bench.lease()
                bench.metadata.commit_group(bench.group(lease, bench.block(lease), rows))
                bench.metadata.delete_many([row.key for row in rows[:2]], bench.now_ms)
            except Transient:
                failed += 1
    finally:
        ended.set()
        killer.join()
    assert wrong == [], "a PUT that was answered had not been recorded"
    assert failed < KILLED_ROUNDS / 2, "hardly any got through: this run shows nothing"
    bench.check_counters()


def _kill_queries(url: str, ended: threading.Event) -> None:
    """Kill all statements that run on the database, again and again."""
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    running = text(
        "SELECT id FROM information_schema.processlist"
        " WHERE db = 'nos_ec' AND command = 'Query' AND id <> CONNECTION_ID()"
    )
    with admin.connect() as connection:
        while not ended.wait(KILL_EVERY_S):
            for victim in connection.scalars(running).all():
                with suppress(DBAPIError):  # it may be gone by now
                    connection.exec_driver_sql(f"KILL QUERY {victim}")
    admin.dispose()


def test_a_committed_transaction_is_not_rolled_back_as_well(url: str, metadata: SqlMetadata) -> None:
    """It would cost a round trip, and show as an error in the log when the server goes down just then."""
    bench = MetadataBench(metadata)
    admin = create_engine(url)

    def rollbacks() -> int:
        with admin.connect() as connection:
            return int(connection.execute(text("SHOW GLOBAL STATUS LIKE 'Com_rollback'")).one()[1])

    before = rollbacks()
    for _ in range(10):
        bench.put("n")
        bench.get("n")
    assert rollbacks() - before <= 1, "this test's own connection is reset once"
    admin.dispose()


@pytest.mark.parametrize("table", ["objects", "counters"])
def test_a_lock_that_is_never_released_is_transient(
    url: str, monkeypatch: pytest.MonkeyPatch, metadata: SqlMetadata, table: str
) -> None:
    row = MetadataBench(metadata).put("n")
    quick = engine_module._MYSQL_SETUP.replace(f"= {engine_module.MYSQL_LOCK_WAIT_S}", "= 1", 1)
    monkeypatch.setattr(engine_module, "_MYSQL_SETUP", quick)
    monkeypatch.setattr(transactions, "LOCK_WAITS_MAX", 2)
    impatient = open_metadata(url)
    impatient.obey_moves(lambda _: None)
    other = create_engine(url)
    with other.connect() as holder, capture_logs() as logged:
        holder.exec_driver_sql(f"SELECT * FROM {table} FOR UPDATE")
        with pytest.raises(Transient, match="1205"):
            impatient.delete(row.key, 5)
        assert impatient.get(row.key) == row, "reading does not wait"
        holder.rollback()
    assert [entry["event"] for entry in logged] == [
        "metadata: held up by a lock of another session; still trying",
        "metadata: gave up waiting for a lock of another session",
    ]
    impatient.require_unblocked()
    assert impatient.delete(row.key, 5) == row
    impatient.close()
    other.dispose()


def test_work_held_up_by_the_lock_of_another_session_is_reported(
    url: str, monkeypatch: pytest.MonkeyPatch, metadata: SqlMetadata
) -> None:
    """It is logged once, and reported by the health check of the process; work continues when the lock is released."""
    row = MetadataBench(metadata).put("n")
    quick = engine_module._MYSQL_SETUP.replace(f"= {engine_module.MYSQL_LOCK_WAIT_S}", "= 1", 1)
    monkeypatch.setattr(engine_module, "_MYSQL_SETUP", quick)
    waiting = open_metadata(url)
    waiting.require_unblocked()
    other = create_engine(url)
    with other.connect() as holder, ThreadPoolExecutor(1) as pool, capture_logs() as logged:
        holder.exec_driver_sql("SELECT * FROM objects FOR UPDATE")
        deleting = pool.submit(waiting.delete, row.key, 5)
        error = await_reported(waiting)
        assert "held up work" in error
        assert "innodb_trx" in error
        holder.rollback()
        assert deleting.result(60) == row
    waiting.require_unblocked()
    assert [entry["event"] for entry in logged] == [
        "metadata: held up by a lock of another session; still trying",
        "metadata: no longer held up by a lock of another session",
    ]
    waiting.close()
    other.dispose()


def test_the_lock_of_a_table_is_waited_for_no_longer_than_that_of_a_row(
    url: str, monkeypatch: pytest.MonkeyPatch, metadata: SqlMetadata
) -> None:
    """By default the servers wait for a day or a year, and the client for 60 s, after which the connection is lost."""
    row = MetadataBench(metadata).put("n")
    quick = engine_module._MYSQL_SETUP.replace(f"= {engine_module.MYSQL_LOCK_WAIT_S}", "= 1", 2)
    monkeypatch.setattr(engine_module, "_MYSQL_SETUP", quick)
    waiting = open_metadata(url)
    other = create_engine(url)
    with other.connect() as holder, ThreadPoolExecutor(1) as pool:
        holder.exec_driver_sql("LOCK TABLES objects READ")
        deleting = pool.submit(waiting.delete, row.key, 5)
        assert "SHOW PROCESSLIST" in await_reported(waiting)
        holder.exec_driver_sql("UNLOCK TABLES")
        assert deleting.result(60) == row
    waiting.close()
    other.dispose()


def await_reported(waiting: SqlMetadata) -> str:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            waiting.require_unblocked()
        except Transient as error:
            return str(error)
        time.sleep(0.05)
    raise AssertionError("nothing was reported")


def test_a_wrong_password_and_a_missing_database_are_configuration_errors(url: str) -> None:
    with pytest.raises(ConfigError, match="user and password"):
        open_metadata(url.replace("root@", "root:wrong@"))
    with pytest.raises(ConfigError, match="CREATE DATABASE"):
        open_metadata(url.replace("/nos_ec", "/nowhere"))


def test_the_migration_creates_the_tables_of_the_schema(metadata: SqlMetadata) -> None:
    with metadata._engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []

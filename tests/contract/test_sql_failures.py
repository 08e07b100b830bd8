"""What a SQL store does when things fail: retries are bounded, nothing is half done, errors say what to do."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import pymysql  # type: ignore[import-untyped]
import pytest
from sqlalchemy import URL, Connection, PoolProxiedConnection, create_engine, make_url, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from nos_ec.adapters.sql.driver import engine as engine_module
from nos_ec.adapters.sql.driver import transactions
from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.driver.failures import Failure, RefusedCheck, translate
from nos_ec.adapters.sql.driver.primary import ReadOnlyServer
from nos_ec.adapters.sql.driver.transactions import ATTEMPTS_MAX, BACKOFF_MAX_S, CONFLICTS_MAX, Transactions
from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.errors import ConfigError, Conflict, NosError, NoSpace, Transient
from nos_ec.core.states import ObjectState
from tests.rig.fakes.metadata_bench import MetadataBench

MYSQL = make_url("mysql+pymysql://user:hush@db.example:3307/nos_ec")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    migrate(url)
    return url


@pytest.fixture
def metadata(url: str) -> Iterator[SqlMetadata]:
    metadata = open_metadata(url)
    yield metadata
    metadata.close()


def _mysql_error(code: int, text: str = "broken") -> OperationalError:
    return OperationalError("SELECT 1", None, pymysql.err.OperationalError(code, text))


def _wrong_statement() -> ProgrammingError:
    return ProgrammingError(
        "SELEKT 1", None, pymysql.err.ProgrammingError(1064, "You have an error in your SQL syntax")
    )


@pytest.mark.parametrize(
    ("code", "text", "expected", "again", "undone"),
    [
        (1213, "Deadlock found", Transient, True, True),
        (1205, "Lock wait timeout exceeded", Transient, True, True),
        (2006, "server has gone away", Transient, True, False),
        (2013, "Lost connection during query", Transient, True, False),
        (2003, "Can't connect", Transient, True, False),
        (1062, "Duplicate entry", Transient, True, False),
        (1040, "Too many connections", Transient, True, False),
        (1290, "running with --read-only", Transient, True, False),
        (1047, "WSREP has not yet prepared node for application use", Transient, True, False),
        (1053, "Server shutdown in progress", Transient, True, False),
        (1180, "provider status: Not connected to Primary Component", Transient, True, False),
        (3101, "Plugin instructed the server to rollback the current transaction.", Transient, True, False),
        (1317, "Query execution was interrupted", Transient, True, False),
        (1317, "transaction 17: ended at 12:00 (exceeded timeout: 30s)", Transient, True, False),
        (1317, "desc = Row count exceeded 10000 (CallerID: userData1)", ConfigError, False, False),
        (1105, "primary is not serving, there may be a reparent operation in progress", Transient, True, False),
        (1203, "transaction pool connection limit exceeded", Transient, True, False),
        (1226, "User has exceeded the 'max_user_connections' resource", Transient, False, False),
        (9999, "a code that is not listed", Transient, False, False),
        (1021, "Disk full", NoSpace, False, False),
        (1114, "The table is full", NoSpace, False, False),
        (1030, "Got error 28 'No space left on device' (errno: 28)", NoSpace, False, False),
        (1045, "Access denied", ConfigError, False, False),
        (1820, "You must reset your password", ConfigError, False, False),
        (1862, "Your password has expired", ConfigError, False, False),
        (3118, "Account is locked", ConfigError, False, False),
        (3955, "Account is blocked", ConfigError, False, False),
        (4151, "Access denied, this account is locked", ConfigError, False, False),
        (1665, "impossible to write to binary log since BINLOG_FORMAT = STATEMENT", ConfigError, False, False),
        (2059, "Authentication plugin 'x' not configured", ConfigError, False, False),
        (1049, "Unknown database", ConfigError, False, False),
        (1146, "Table doesn't exist", ConfigError, False, False),
    ],
)
def test_what_server_errors_mean(code: int, text: str, expected: type[NosError], again: bool, undone: bool) -> None:
    failure = translate(_mysql_error(code, text), MYSQL)
    assert failure is not None
    assert type(failure.error) is expected
    assert (failure.again, failure.undone) == (again, undone)
    assert "db.example:3307" in str(failure.error)
    assert "hush" not in str(failure.error)


def test_an_error_caused_by_a_bug_is_not_translated() -> None:
    assert translate(_wrong_statement(), MYSQL) is None
    assert translate(ValueError("x"), MYSQL) is None


@pytest.mark.parametrize("code", [4025, 3819])
def test_a_refused_check_is_reported_as_a_bug(code: int) -> None:
    with pytest.raises(RefusedCheck, match="This is a bug") as caught:
        translate(_mysql_error(code, "CONSTRAINT `blocks_count_right` failed"), MYSQL)
    assert not isinstance(caught.value, NosError), "no loop takes it for something that may pass"
    assert "hush" not in str(caught.value)


class Flaky:
    """Work that fails with the given error a number of times, then says how often it ran."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error = error
        self.left = times
        self.runs = 0

    def __call__(self, _connection: Connection) -> int:
        self.runs += 1
        if self.left:
            self.left -= 1
            raise self.error
        return self.runs


@pytest.fixture
def deadlocks(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Transactions]:
    monkeypatch.setattr(transactions, "BACKOFF_FIRST_S", 0.0)
    engine = make_engine(url)
    yield Transactions(engine)
    engine.dispose()


def test_a_deadlock_is_retried_but_not_for_ever(deadlocks: Transactions) -> None:
    assert deadlocks.write(Flaky(_mysql_error(1213), 2)) == 3
    for_ever = Flaky(_mysql_error(1213), 999)
    with pytest.raises(Transient, match="1213"):
        deadlocks.write(for_ever)
    assert for_ever.runs == CONFLICTS_MAX


def test_conflicts_and_other_failures_have_limits_of_their_own(deadlocks: Transactions) -> None:
    """Eight threads that store and delete one key at once may find each other more often than a server fails."""
    assert deadlocks.write(Flaky(_mysql_error(1213), CONFLICTS_MAX - 1)) == CONFLICTS_MAX
    assert deadlocks.write(Flaky(_mysql_error(1062), CONFLICTS_MAX - 1)) == CONFLICTS_MAX
    lost = Flaky(_mysql_error(2013), 999)
    with pytest.raises(Transient, match="2013"):
        deadlocks.write(lost)
    assert lost.runs == ATTEMPTS_MAX


def test_the_wait_after_each_conflict_grows_up_to_a_maximum(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("random.uniform", lambda _least, most: most)
    with closing(Transactions(make_engine(url))) as deadlocks, pytest.raises(Transient, match="1213"):
        deadlocks.write(Flaky(_mysql_error(1213), 999))
    assert len(waits) == CONFLICTS_MAX - 1
    assert waits == sorted(waits)
    assert waits[0] < waits[1]
    assert waits[-1] == 1.5 * BACKOFF_MAX_S


def test_work_that_may_have_taken_effect_is_not_retried(deadlocks: Transactions) -> None:
    for error, expected in ((_mysql_error(1021), NoSpace), (_wrong_statement(), ProgrammingError)):
        work = Flaky(error, 1)
        with pytest.raises(expected):
            deadlocks.write(work)
        assert work.runs == 1


@pytest.mark.parametrize("call", [Transactions.read, Transactions.write], ids=["read", "write"])
@pytest.mark.parametrize("code", [1047, 1053, 1180, 1290, 3032])
def test_connections_to_a_server_that_does_not_work_are_closed(
    deadlocks: Transactions, code: int, call: Callable[[Transactions, Callable[[Connection], object]], object]
) -> None:
    """The server may not close them. If they were kept, they would refuse all work for as long as the pool keeps a
    connection: a primary that became a replica, a Galera node without quorum."""

    def used(connection: Connection) -> object:
        return connection.connection.driver_connection

    before = call(deadlocks, used)
    assert call(deadlocks, used) is before
    refused = Flaky(_mysql_error(code), 1)
    connections = []

    def refused_once(connection: Connection) -> int:
        connections.append(used(connection))
        return refused(connection)

    assert call(deadlocks, refused_once) == 2, "the address may lead to the new primary by now"
    assert connections[0] is before
    assert connections[1] is not before
    with pytest.raises(Transient, match=str(code)):
        call(deadlocks, Flaky(_mysql_error(code), 999))


def test_no_work_begins_on_a_replica_that_is_to_become_the_primary(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts writes before the work has ended. The work has then read rows from before the replica had them all."""
    served = Transactions(make_engine(url))
    monkeypatch.setattr(served, "_trusts_all", False)
    asked: list[object] = []

    def require(connection: Connection) -> None:
        asked.append(connection.connection.driver_connection)
        if len(asked) == 1:
            raise ReadOnlyServer

    monkeypatch.setattr(transactions, "require_primary", require)
    used = [served.read(lambda connection: connection.connection.driver_connection) for _ in range(2)]
    assert used[0] is used[1] is not asked[0]
    assert asked[1:] == [used[0]] * 3, "only the first work on a connection is preceded by the question"
    served.close()


@pytest.mark.parametrize(("code", "runs"), [(2013, 1), (1213, 2)], ids=["lost: outcome unknown", "deadlock: undone"])
def test_a_failed_commit_is_retried_only_if_it_was_undone(
    deadlocks: Transactions, monkeypatch: pytest.MonkeyPatch, code: int, runs: int
) -> None:
    failing = [_mysql_error(code)]
    commit = Connection._commit_impl

    def fail_once(self: Connection) -> None:
        if failing:
            raise failing.pop()
        commit(self)

    monkeypatch.setattr(Connection, "_commit_impl", fail_once)
    work = Flaky(ValueError("never"), 0)
    if code == 2013:
        with pytest.raises(Transient, match="connection was lost"):
            deadlocks.write(work)
    else:
        assert deadlocks.write(work) == runs
    assert work.runs == runs


@pytest.mark.parametrize("interrupted", [False, True], ids=["the driver fails", "an interrupt"])
def test_a_failed_rollback_closes_its_connection(url: str, monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    """The pool of a server's engine takes a connection back as it is, so the next work would run inside the old
    transaction."""
    monkeypatch.setattr(engine_module, "create_engine", partial(create_engine, pool_reset_on_return=None))
    engine = make_engine(url)
    rolling_back = Transactions(engine)
    failures = [KeyboardInterrupt() if interrupted else sqlite3.OperationalError("the server went away")]
    roll_back = engine.dialect.do_rollback

    def fail_once(connection: PoolProxiedConnection) -> None:
        if failures:
            raise failures.pop()
        roll_back(connection)

    used: list[sqlite3.Connection] = []

    def conflicting(connection: Connection) -> None:
        used.append(connection.connection.driver_connection)  # type: ignore[arg-type]
        connection.exec_driver_sql("CREATE TABLE half_done (a)")
        raise Conflict("found out late")

    def tables(connection: Connection) -> list[str]:
        used.append(connection.connection.driver_connection)  # type: ignore[arg-type]
        return list(connection.scalars(text("SELECT name FROM sqlite_master WHERE name = 'half_done'")))

    assert rolling_back.read(tables) == []  # the first connection of an engine rolls back for itself
    monkeypatch.setattr(engine.dialect, "do_rollback", fail_once)
    with pytest.raises(KeyboardInterrupt if interrupted else Conflict):
        rolling_back.write(conflicting)
    assert failures == []
    assert rolling_back.read(tables) == []
    _, first, second = used
    assert first is not second
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        first.execute("SELECT 1")
    rolling_back.close()


def test_an_interrupted_write_keeps_no_lock(metadata: SqlMetadata) -> None:
    """Also while the exception is handled, whose traceback has a cursor with rows that were not read."""

    def interrupted(connection: Connection) -> None:
        cursor = connection.connection.cursor()
        cursor.execute("SELECT * FROM counters")
        assert cursor.fetchone() is not None
        connection.invalidate()  # as an interrupt of a statement does
        raise KeyboardInterrupt

    bench = MetadataBench(metadata)
    with pytest.raises(KeyboardInterrupt) as caught:
        metadata._transactions.write(interrupted)
    row = bench.put("n")
    assert caught.traceback[-1].name == "interrupted"
    assert bench.get("n") == row


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), sqlite3.OperationalError("a bug")], ids=["interrupt", "bug"])
def test_an_interrupt_in_the_pool_is_raised_and_not_logged(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: BaseException
) -> None:
    engine = make_engine(url)
    connection = engine.raw_connection()

    def failing(_connection: object) -> None:
        raise failure

    monkeypatch.setattr(engine.pool._dialect, "do_rollback", failing)
    interrupted = isinstance(failure, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        connection.close()
    assert (not caplog.messages) is interrupted
    monkeypatch.undo()
    engine.dispose()


def test_a_locked_file_is_transient_after_the_wait(url: str, tmp_path: Path) -> None:
    metadata = SqlMetadata(make_engine(url, sqlite_busy_ms=50))
    bench = MetadataBench(metadata)
    other = sqlite3.connect(tmp_path / "meta.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Transient, match="another process is writing"):
        bench.put("n", 0)
    assert metadata.list_buckets("", 5) == [], "reading does not wait for a writer"
    other.execute("ROLLBACK")
    other.close()
    bench.put("n", 0)
    metadata.close()


def test_a_full_disk_is_no_space_and_changes_nothing(metadata: SqlMetadata) -> None:
    bench = MetadataBench(metadata)
    row = bench.put("n")
    with metadata._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    for _ in range(2):
        with metadata._engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(NoSpace, match="free space"):
            bench.put_all([f"{i}" * 100 for i in range(1000)])
    assert metadata.list_objects("bucket", "", "", 9) == [row]
    assert bench.delete("n") == row


_KILLED = """
import sys
from nos_ec.adapters.sql.metadata import open_metadata
from tests.rig.fakes.metadata_bench import MetadataBench
bench = MetadataBench(open_metadata(sys.argv[1]))
row = bench.put("n")
lease = bench.lease("w")
bench.metadata.commit_group(bench.group(lease, bench.block(lease), [row]))
print("survived")
"""


@pytest.mark.parametrize("point", ["metadata.record_puts.before_commit", "metadata.commit_group.before_commit", ""])
def test_a_kill_before_the_commit_changes_nothing(url: str, metadata: SqlMetadata, point: str) -> None:
    environment = os.environ | {"NOS_EC_KILL_AT": point}
    ran = subprocess.run([sys.executable, "-c", _KILLED, url], env=environment, capture_output=True, text=True)
    assert ran.returncode == (-signal.SIGKILL if point else 0), ran.stderr
    bench = MetadataBench(metadata)
    rows = metadata.list_objects("bucket", "", "", 9)
    if "record_puts" in point:
        assert rows == []
        assert len(bench.deletions()) == 1, "the reservation outlives the PUT, so nothing leaks"
    else:
        assert [row.state for row in rows] == [ObjectState.LANDED if point else ObjectState.PACKED]
        assert [block.stripes for block in metadata.list_blocks(None, 9)] == [0 if point else 1]
    bench.check_counters()


_WRITER = """
import sys
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.core.errors import Transient
from tests.rig.fakes.metadata_bench import MetadataBench

def again(call, *arguments):
    while True:
        try:
            return call(*arguments)
        except Transient as error:
            if "another process is writing, try again" not in str(error):
                raise

bench = again(MetadataBench, again(open_metadata, sys.argv[1]))
lease = again(bench.lease, sys.argv[2])
for i in range(15):
    rows = [again(bench.put, name) for name in "abc"]
    again(bench.metadata.commit_group, bench.group(lease, again(bench.block, lease), rows))
"""


@pytest.mark.invariant(6)
def test_the_counters_balance_under_several_processes(url: str, metadata: SqlMetadata) -> None:
    """Where syncing takes 60 ms, one of three processes gets no turn for longer than SQLite waits: it tries again, as
    the error says."""
    bench = MetadataBench(metadata)
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, url, f"w{i}"]) for i in range(3)]
    assert [writer.wait(300) for writer in writers] == [0, 0, 0]
    assert sum(block.stripes for block in metadata.list_blocks(None, 999)) == 45
    assert sum(block.live_objects for block in metadata.list_blocks(None, 999)) <= 3
    bench.check_counters()


def test_places_are_named_without_secrets() -> None:
    failure = translate(_mysql_error(1213), URL.create("mysql+pymysql", "u", "hush", None, None, "d"))
    assert isinstance(failure, Failure)
    assert "127.0.0.1:3306" in str(failure.error)


def test_a_delete_whose_journal_row_is_refused_deletes_nothing(metadata: SqlMetadata) -> None:
    """The driver's own cursor inserts it, and its errors are those of every other statement."""
    bench = MetadataBench(metadata)
    row = bench.put("o")
    metadata.keep_journal(10)
    trigger = "CREATE TRIGGER refusing BEFORE INSERT ON journal BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with metadata._engine.begin() as connection:
        connection.execute(text(trigger))
    with pytest.raises(IntegrityError, match="refused"):
        metadata.delete(row.key, bench.now_ms)
    assert metadata.get(row.key) == row
    with metadata._engine.begin() as connection:
        connection.execute(text("DROP TRIGGER refusing"))
    metadata.delete(row.key, bench.now_ms)
    assert len(metadata.journal_after(0, 9)) == 1

"""Opening, creating and migrating a metadata store on SQLite."""

from __future__ import annotations

import shutil
import sqlite3
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier

import pymysql  # type: ignore[import-untyped]
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import QueuePool, text

from nos_ec.adapters.sql.driver.engine import POOL_SIZE, WRITES, make_engine, parse_url
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import _config, _steps, migrate, schema_head
from nos_ec.adapters.sql.tables.schema import METADATA
from nos_ec.core.errors import ConfigError, Corrupt, Transient
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.sql.sql_migrations import SqlMigrations

MIGRATE = "nos_ec.adapters.sql.tables.migrate"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'meta.db'}"


def test_migrating_twice_creates_the_tables_of_the_schema(url: str) -> None:
    migrate(url)
    migrate(url)
    engine = make_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA synchronous")) == 2, "FULL: a commit is on the disk when it returns"
    engine.dispose()


@pytest.mark.invariant(9)
def test_connections_keep_a_bounded_part_of_the_file_in_memory(url: str) -> None:
    migrate(url)
    engine = make_engine(url)
    with ExitStack() as stack:
        for _ in range(POOL_SIZE + 4):
            connection = stack.enter_context(engine.connect())
            assert connection.scalar(text("PRAGMA cache_size")) == -8192, "in KiB"
            assert connection.scalar(text("PRAGMA mmap_size")) == 0, "an error of the disk would kill the process"
    assert isinstance(engine.pool, QueuePool)
    assert engine.pool.checkedin() == POOL_SIZE, "the others are closed after their use"
    engine.dispose()


def test_requests_in_turn_find_the_pages_in_memory(url: str) -> None:
    """A connection drops its pages when another one has written. So requests that are not at the same time must not
    take turns with the connections that others have left."""
    migrate(url)
    engine = make_engine(url)
    with engine.connect(), engine.connect(), engine.connect():
        pass
    writing = engine.execution_options(**{WRITES: True})
    read = []
    for number in range(5):
        before = _read_bytes()
        with writing.begin() as connection:
            connection.execute(text("UPDATE counters SET value = :number WHERE name = 'moves'"), {"number": number})
        with engine.begin() as connection:
            assert connection.scalar(text("SELECT value FROM counters WHERE name = 'moves'")) == number
        read.append(_read_bytes() - before)
    engine.dispose()
    assert max(read[1:]) < 4096, f"not a page of the file: {read}"


def test_nothing_is_written_into_a_file_that_was_replaced(url: str, tmp_path: Path) -> None:
    """The file no longer has a name, and would be gone with this process."""
    migrate(url)
    path, other = tmp_path / "meta.db", tmp_path / "restored.db"
    with closing(open_metadata(url)) as metadata:
        bench = MetadataBench(metadata)
        bench.put("before")
        shutil.copy(path, other)
        other.replace(path)
        with pytest.raises(Transient, match="replaced while this process had it open"):
            bench.put("into the old file")
        path.unlink()
        with pytest.raises(Transient, match="replaced while this process had it open"):
            bench.get("before")


def test_creating_what_is_there_takes_no_lock_from_a_connection(url: str, tmp_path: Path) -> None:
    """To close any descriptor of a file gives up the locks that its process has there (POSIX). Another process would
    then take the file for unused when it ends, and delete the write-ahead log under this one."""
    migrate(url)
    count = f"import sqlite3; c = sqlite3.connect({str(tmp_path / 'meta.db')!r});"
    count += "print(*c.execute('SELECT count(*) FROM objects').fetchone()); c.close()"
    with closing(open_metadata(url)) as metadata:
        bench = MetadataBench(metadata)
        for expected, name in enumerate(("one", "two", "three"), 1):
            bench.put(name)
            migrate(url)
            make_engine(url, create=True).dispose()
            found = subprocess.run([sys.executable, "-c", count], check=True, capture_output=True)
            assert (tmp_path / "meta.db-wal").exists()
            assert int(found.stdout) == expected


def test_connections_may_open_a_new_file_together(tmp_path: Path) -> None:
    """SQLite does not wait for a lock when two connections change a new file to a write-ahead log at once."""

    def connect(path: Path, ready: Barrier) -> str:
        engine = make_engine(f"sqlite:///{path}", create=True)
        ready.wait()
        try:
            with engine.connect() as connection:
                return str(connection.scalar(text("PRAGMA journal_mode")))
        finally:
            engine.dispose()

    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            path, ready = tmp_path / f"{number}.db", Barrier(4)
            assert list(threads.map(connect, [path] * 4, [ready] * 4)) == ["wal"] * 4


def test_the_write_ahead_log_shrinks(url: str, tmp_path: Path) -> None:
    migrate(url)
    engine = make_engine(url).execution_options(**{WRITES: True})
    log = tmp_path / "meta.db-wal"
    for size in (40 << 20, 1, 1):
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS large (data BLOB)"))
            connection.execute(text("INSERT INTO large VALUES (zeroblob(:size))"), {"size": size})
        if size > 1:
            assert log.stat().st_size > size
    assert log.stat().st_size <= 16 << 20
    engine.dispose()


def test_opening_missing_metadata_names_the_command_to_run(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `nos-ec init`"):
        open_metadata(url)
    assert list(tmp_path.iterdir()) == [], "opening must not create anything"
    sqlite3.connect(tmp_path / "meta.db").execute("CREATE TABLE other (x)").connection.close()
    with pytest.raises(ConfigError, match="no tables yet; run `nos-ec init` if the store is new"):
        open_metadata(url)


@pytest.mark.parametrize("call", [open_metadata, migrate])
def test_metadata_of_a_newer_release_is_refused(url: str, call: object) -> None:
    migrate(url)
    _set_revision(url, "9999")
    with pytest.raises(ConfigError, match=r"9999.*newer"):
        call(url)  # type: ignore[operator]


@pytest.mark.parametrize("beside", [0, 1, 2])
def test_a_newer_release_may_let_older_programs_work_beside_it(
    url: str, monkeypatch: pytest.MonkeyPatch, beside: int
) -> None:
    """While programs are replaced one after the other. Each step says whether it allows that; only the newer release
    changes the schema. `beside`: how many of the last steps allow it."""
    steps, head = _steps(_config()), schema_head()
    assert steps[0].revision == head
    for number, step in enumerate(steps):
        step.beside_older = number < beside
    monkeypatch.setattr(f"{MIGRATE}._steps", lambda _config: steps)
    migrate(url)
    _set_revision(url, steps[-1].revision)
    migrate(url)  # the steps run again, and change nothing
    open_metadata(url).close()
    for number, step in enumerate(steps[1:4], 1):
        known = {one.revision for one in steps[number:]}
        monkeypatch.setattr(f"{MIGRATE}._revisions", lambda known=known: known)
        assert schema_head() == step.revision
        if number <= beside:
            open_metadata(url).close()
        else:
            with pytest.raises(ConfigError, match=rf"{head}.*newer"):
                open_metadata(url)
        with pytest.raises(ConfigError, match=rf"{head}.*newer"):
            migrate(url)


@pytest.mark.parametrize("call", [open_metadata, migrate])
def test_metadata_of_a_development_version_that_is_too_old_is_refused(url: str, call: object) -> None:
    migrate(url)
    _set_revision(url, "0014")
    with pytest.raises(ConfigError, match=r"0014.*before 0\.1\.0 created it: CHANGELOG\.md"):
        call(url)  # type: ignore[operator]


@pytest.mark.parametrize(
    "bad",
    ["sqlite://", "sqlite:///:memory:", "postgresql://u@h/d", "not a url", "mysql+pymysql://u:secret@h", "x://["],
)
def test_an_invalid_url_is_refused_with_an_example(bad: str) -> None:
    with pytest.raises(ConfigError, match="use sqlite:////") as caught:
        open_metadata(bad)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("wat=1&read_timeout=5", "does not know: wat; remove"),
        ("ssl=true", "does not know: ssl; remove"),
        ("port=3306", "does not know: port; remove"),
        ("connect_timeout=soon", "invalid value.*soon"),
        ("ssl_ca=/nowhere/ca.pem", "ssl_ca /nowhere/ca.pem: No such file or directory; name PEM files"),
        ("ssl_disabled=maybe", "ssl_disabled has an invalid value .'maybe'.; use true or false"),
        ("ssl_disabled=false&ssl_disabled=true", "more than once: ssl_disabled"),
        ("ssl_disabled=true&ssl_ca=ca.pem", "ssl_disabled=true and ssl_ca; remove the one that you do not mean"),
        ("ssl_verify_cert=true", "ssl_verify_cert=true needs ssl_ca"),
        ("ssl_verify_identity=1", "ssl_verify_identity=true needs ssl_ca"),
        ("ssl_check_hostname=true", "ssl_check_hostname=true needs ssl_ca"),
        ("ssl_ca=ca.pem&ssl_verify_cert=no", "ssl_verify_cert=false; remove one"),
        (
            "ssl_ca=ca.pem&ssl_check_hostname=true&ssl_verify_identity=false",
            "ssl_check_hostname and ssl_verify_identity contradict each other",
        ),
        ("autocommit=true", "autocommit=true cannot work with a store; remove it"),
        ("use_unicode=0", "use_unicode=false cannot work"),
        ("compress=yes", "compress=true cannot work"),
        ("defer_connect=on", "defer_connect=true cannot work"),
    ],
)
def test_invalid_connection_options_are_named(options: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        open_metadata(f"mysql+pymysql://u:secret@127.0.0.1:1/d?{options}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "tries_tls", "insists"),
    [
        ("charset=utf8mb4&use_unicode=1&autocommit=false&local_infile=0", True, False),
        ("ssl_disabled=false", True, False),
        ("ssl_disabled=true", False, False),
        ("ssl_disabled=1", False, False),
        ("ssl_verify_cert=false&ssl_verify_identity=false", True, True),
        ("ssl_verify_identity=false", True, True),
        ("ssl_check_hostname=false&ssl_disabled=no", True, True),
    ],
)
def test_truth_values_of_options_mean_what_they_say(options: str, tries_tls: bool, insists: bool) -> None:
    connection = driver_connection(options)
    assert (connection.ssl, connection._ssl_required) == (tries_tls, insists)
    assert not tries_tls or connection.ctx.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("options", "checks_name"),
    [
        ("", True),
        ("&ssl_verify_cert=true&ssl_verify_identity=true", True),
        ("&ssl_verify_cert=true&ssl_verify_identity=false", False),
        ("&ssl_check_hostname=false&ssl_disabled=false", False),
    ],
)
def test_a_named_certificate_authority_is_always_required(options: str, checks_name: bool) -> None:
    connection = driver_connection(f"ssl_capath=/{options}")
    assert connection._ssl_required
    assert connection.ctx.verify_mode is ssl.CERT_REQUIRED
    assert connection.ctx.check_hostname is checks_name


def driver_connection(options: str) -> pymysql.Connection:
    """PyMySQL's connection for a URL of these options, before it connects."""
    url = parse_url(f"mysql+pymysql://u@127.0.0.1:1/d?{options}")
    assert parse_url(url.render_as_string(hide_password=False)) == url
    _, arguments = url.get_dialect()().create_connect_args(url)
    return pymysql.Connection(**arguments, defer_connect=True)


def test_an_unreachable_server_is_transient_and_named_without_its_password() -> None:
    url = "mysql+pymysql://user:hush@127.0.0.1:1/nos_ec"
    for call in (open_metadata, migrate):
        with pytest.raises(Transient, match=r"127\.0\.0\.1:1\b") as caught:
            call(url)
        assert "hush" not in str(caught.value)


def test_no_part_of_a_password_with_an_unescaped_at_is_taken_for_the_host() -> None:
    for password in ("hu@sh", "@sh", "a@b@sh", "/@sh"):
        with pytest.raises(ConfigError, match="%40") as caught:
            open_metadata(f"mysql+pymysql://user:{password}@127.0.0.1:1/nos_ec")
        assert "sh" not in str(caught.value)
    assert parse_url("mysql+pymysql://user:hu%40sh@127.0.0.1:1/nos_ec").password == "hu@sh"


def test_a_file_that_is_not_a_database_is_corrupt(url: str, tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Corrupt, match="restore"):
        open_metadata(url)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="check that the folder exists"):
        migrate(f"sqlite:///{tmp_path / 'no' / 'meta.db'}")


class TestSqliteMigrations(SqlMigrations):
    """See tests/rig/sql/sql_migrations.py."""


def _read_bytes() -> int:
    """Bytes that this thread has read with system calls."""
    return int(Path("/proc/thread-self/io").read_text().split()[1])


def _set_revision(url: str, revision: str) -> None:
    engine = make_engine(url)
    with engine.execution_options(**{WRITES: True}).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    engine.dispose()

"""Opening, creating and migrating a metadata store on SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from nos_ec.adapters.sql.engine import WRITES, make_engine
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.migrate import migrate
from nos_ec.adapters.sql.schema import METADATA
from nos_ec.core.errors import ConfigError, Corrupt, Transient
from nos_ec.testing.sql_migrations import SqlMigrations


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'meta.db'}"


def test_migrating_twice_is_fine_and_makes_what_the_schema_says(url: str) -> None:
    migrate(url)
    migrate(url)
    engine = make_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA synchronous")) == 2, "FULL: a commit is on the disk when it returns"
    engine.dispose()


def test_a_store_that_is_not_there_names_the_command(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `nos-ec init`"):
        open_metadata(url)
    assert list(tmp_path.iterdir()) == [], "opening must not create anything"
    sqlite3.connect(tmp_path / "meta.db").execute("CREATE TABLE other (x)").connection.close()
    with pytest.raises(ConfigError, match="no tables yet; run `nos-ec init` with this configuration"):
        open_metadata(url)


@pytest.mark.parametrize("call", [open_metadata, migrate])
def test_a_store_of_a_newer_release_is_refused(url: str, call: object) -> None:
    migrate(url)
    _set_revision(url, "9999")
    with pytest.raises(ConfigError, match=r"9999.*newer"):
        call(url)  # type: ignore[operator]


def test_a_store_of_an_older_release_asks_for_the_upgrade(url: str) -> None:
    migrate(url, "0001")
    with pytest.raises(ConfigError, match="schema 0001, needed is 0002; stop its daemons, then run `nos-ec init`"):
        open_metadata(url)
    migrate(url)
    open_metadata(url).close()


@pytest.mark.parametrize(
    "bad",
    ["sqlite://", "sqlite:///:memory:", "postgresql://u@h/d", "not a url", "mysql+pymysql://u:secret@h", "x://["],
)
def test_a_url_that_is_no_good_is_refused_with_an_example(bad: str) -> None:
    with pytest.raises(ConfigError, match="use sqlite:////") as caught:
        open_metadata(bad)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("wat=1&read_timeout=5", "does not know: wat; remove"),
        ("ssl=true", "does not know: ssl; remove"),
        ("connect_timeout=soon", "wrong value.*soon"),
        ("ssl_ca=/nowhere/ca.pem", "ssl_ca /nowhere/ca.pem: No such file or directory; name PEM files"),
    ],
)
def test_options_that_no_connection_takes_are_named(options: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        open_metadata(f"mysql+pymysql://u:secret@127.0.0.1:1/d?{options}")
    assert "secret" not in str(caught.value)


def test_an_unreachable_server_is_transient_and_named_without_its_password() -> None:
    url = "mysql+pymysql://user:hush@127.0.0.1:1/nos_ec"
    for call in (open_metadata, migrate):
        with pytest.raises(Transient, match=r"127\.0\.0\.1:1\b") as caught:
            call(url)
        assert "hush" not in str(caught.value)


def test_a_file_that_is_no_database_is_corrupt(url: str, tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Corrupt, match="restore"):
        open_metadata(url)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="check that the folder exists"):
        migrate(f"sqlite:///{tmp_path / 'no' / 'meta.db'}")


class TestSqliteMigrations(SqlMigrations):
    """See nos_ec/testing/sql_migrations.py."""


def _set_revision(url: str, revision: str) -> None:
    engine = make_engine(url)
    with engine.execution_options(**{WRITES: True}).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    engine.dispose()

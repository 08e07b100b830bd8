"""The tables are created as the schema describes them, also if it takes many attempts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, event, select, text
from sqlalchemy.exc import DBAPIError

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.driver.primary import is_vitess
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import _config, _steps, migrate
from nos_ec.adapters.sql.tables.schema import COUNTERS, METADATA
from nos_ec.core.errors import ConfigError
from tests.rig.fakes.metadata_bench import MetadataBench


class SqlMigrations:
    """Define a fixture `url`: a database without tables, whose tables may be dropped."""

    def test_a_migration_that_is_cut_off_before_every_statement_is_completed(self, url: str) -> None:
        """Where DDL commits, each attempt creates one more table or index, and is cut off before the next one."""
        is_sqlite = url.startswith("sqlite")
        for attempt in range(1, 100):
            try:
                with _cut_off_before("CREATE", attempt if is_sqlite else 2):
                    migrate(url)
                break
            except _CutOffError:
                with pytest.raises(ConfigError, match="`nos-ec init`"):
                    open_metadata(url)
        assert attempt > 30
        _assert_complete(url)

    def test_a_store_of_the_first_schema_is_upgraded_even_if_that_is_cut_off(self, url: str) -> None:
        migrate(url)
        engine = make_engine(url)
        with engine.begin() as connection:
            for column in ("published_ms", "is_spread"):
                connection.execute(text(f"ALTER TABLE waiting DROP COLUMN {column}"))
            connection.execute(text("DELETE FROM counters WHERE name IN ('galera_node', 'lock_time')"))
            connection.execute(text("UPDATE alembic_version SET version_num = '0015'"))
        engine.dispose()
        with _cut_off_before("ALTER", 2), pytest.raises(_CutOffError):
            migrate(url)
        with pytest.raises(ConfigError, match="has schema 0015"):
            open_metadata(url)
        migrate(url)
        _assert_complete(url)

    def test_tables_that_are_in_use_are_changed_online(self, url: str) -> None:
        """Old programs read and write while `nos-ec init` upgrades a large store. So no statement may rewrite a table
        under a lock, and rows are changed only in tables that stay small."""
        if url.startswith("sqlite"):
            pytest.skip("SQLite has one writer at a time, and adds a column at once")
        migrate(url)
        engine = make_engine(url)
        with engine.connect() as connection:
            if is_vitess(connection):
                pytest.skip("its tablets are MySQL servers, and vtgate rewrites what changes a table")
        with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
            for step in _steps(_config())[:-1]:
                step.downgrade()
            connection.execute(text("UPDATE alembic_version SET version_num = '0015'"))
        with _online_alone() as changed:
            migrate(url)
            assert any(one.startswith("ALTER TABLE waiting ADD COLUMN") for one in changed)
            assert any(one.startswith("CREATE INDEX") for one in changed)
            refused = (
                "ALTER TABLE objects MODIFY size DOUBLE",  # the server refuses it, because it must copy the table
                "UPDATE objects SET size = size + 1",
                "RENAME TABLE objects TO more_objects",
            )
            with engine.begin() as connection:
                for statement in refused:
                    with pytest.raises((DBAPIError, AssertionError)):
                        connection.execute(text(statement))
        engine.dispose()
        _assert_complete(url)

    def test_a_statement_may_take_longer_than_in_other_work(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert make_engine.__kwdefaults__ is not None
        monkeypatch.setitem(make_engine.__kwdefaults__, "read_s", 1)
        slow: list[str] = []

        def sleep(_c: Any, cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("CREATE INDEX") and not slow:
                slow.append(statement)
                if not url.startswith("sqlite"):  # which has no such limit
                    cursor.execute("SELECT SLEEP(3)")

        event.listen(Engine, "before_cursor_execute", sleep)
        try:
            migrate(url)
        finally:
            event.remove(Engine, "before_cursor_execute", sleep)
        assert slow
        monkeypatch.undo()
        _assert_complete(url)


def _assert_complete(url: str) -> None:
    engine = make_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        counters = connection.execute(select(COUNTERS.c.name, COUNTERS.c.value).order_by(COUNTERS.c.name))
        assert list(counters) == [
            ("galera_node", 0),
            ("journal", 1),
            ("journal_gap", 0),
            ("lease_epoch", 0),
            ("lock_time", 0),
            ("moves", 0),
        ]
    engine.dispose()
    with closing(open_metadata(url)) as metadata:
        bench = MetadataBench(metadata)
        bench.put("one")
        assert bench.get("one")


SMALL_TABLES = {"access_keys", "alembic_version", "counters", "store_info"}
"""Tables whose rows a migration may change. The others grow with the objects or the buckets."""


@contextmanager
def _online_alone() -> Iterator[list[str]]:
    """Let the server refuse each change of a table that it cannot make while the table is read and written, and refuse
    statements that change rows of large tables, or of which nobody has found out whether they are online. Yields the
    changes of tables that ran."""
    changed: list[str] = []

    def restricted(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        words = statement.split()
        match [word.upper() for word in words[:2]]:
            case ["ALTER", "TABLE"]:
                statement = f"{statement.rstrip()}, ALGORITHM=INPLACE, LOCK=NONE"
                changed.append(" ".join(words))
            case ["CREATE", "INDEX" | "UNIQUE"]:
                statement = f"{statement.rstrip()} ALGORITHM=INPLACE LOCK=NONE"
                changed.append(" ".join(words))
            case ["INSERT", "INTO"] | ["DELETE", "FROM"]:
                assert words[2].strip("`") in SMALL_TABLES, statement
            case ["UPDATE", _]:
                assert words[1].strip("`") in SMALL_TABLES, statement
            case [first, *_]:
                assert first in {"CREATE", "DO", "ROLLBACK", "SELECT", "SET", "SHOW", "DESCRIBE"}, statement
        return statement, parameters

    event.listen(Engine, "before_cursor_execute", restricted, retval=True)
    try:
        yield changed
    finally:
        event.remove(Engine, "before_cursor_execute", restricted)


class _CutOffError(Exception):
    """Stops a migration at a chosen statement."""


@contextmanager
def _cut_off_before(begins: str, number: int) -> Iterator[None]:
    """Raise an exception instead of running the statement with this number of those that begin with `begins`."""
    ran = 0

    def catch(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal ran
        ran += statement.lstrip().startswith(begins)
        if ran == number:
            raise _CutOffError

    event.listen(Engine, "before_cursor_execute", catch)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", catch)

"""Look-ups by key on a real server: the row is right, the index is used, and answers are never mixed up.

Letters are the invariants of nos_ec.adapters.sql.tables.look_up.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from pymysql.constants import COMMAND  # type: ignore[import-untyped]
from sqlalchemy import Engine, QueuePool

from nos_ec.adapters.sql.driver.mysql_connection import MySqlConnection
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.objects import object_rows
from nos_ec.adapters.sql.tables import look_up
from nos_ec.adapters.sql.tables.look_up import LOOK_UPS_IDLE_MAX
from nos_ec.core.errors import NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.sql.sql_plans import scans


class SqlLookUps:
    """Define a fixture `metadata`, an empty SqlMetadata."""

    @pytest.fixture
    def bench(self, metadata: SqlMetadata) -> MetadataBench:
        """The metadata store under test, with shorthands."""
        return MetadataBench(metadata)

    def server(self, metadata: SqlMetadata) -> Engine:
        """The engine of the server that explains statements. Vitess cannot."""
        return metadata._engine

    def test_it_gives_the_row_of_the_ordinary_statement_in_every_state(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        """Invariant a."""
        names = {state: f"{state.value} %s å/✓ \\ 'quoted\"" for state in ObjectState}
        lease = bench.lease()
        for state in ObjectState:
            if state is ObjectState.LARGE:
                metadata.record_large(bench.large(names[state], lease), lease, bench.now_ms)
            else:
                bench.put(names[state], 0 if state is ObjectState.EMPTY else 1000)
        metadata.mark_published([bench.get(names[ObjectState.QUEUED])], bench.now_ms + 9)
        bench.pack([bench.get(names[ObjectState.PACKED])])
        for state, name in names.items():
            key = ObjectKey("bucket", name)
            row = metadata.get(key)
            assert row.state is state
            assert row == metadata._transactions.write(object_rows.find, key), (
                "read in a transaction, by all its columns"
            )

    def test_what_is_not_there_is_asked_for_twice(
        self, metadata: SqlMetadata, bench: MetadataBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An object that appears between the two is found."""
        row, gone = bench.put("n"), ObjectKey("bucket", "gone")
        with pytest.raises(NotFound):
            metadata.get(gone)
        asked, one_row = list[bytes](), MySqlConnection.one_row

        def nothing_at_first(connection: MySqlConnection, statement: bytes) -> Any:
            asked.append(statement)
            return None if len(asked) == 1 else one_row(connection, statement)

        monkeypatch.setattr(MySqlConnection, "one_row", nothing_at_first)
        assert metadata.get(row.key) == row
        assert [b"EXISTS" in statement for statement in asked] == [False, True]
        asked.clear()
        with pytest.raises(NotFound):
            metadata.get(gone)
        assert len(asked) == 2

    def test_it_does_not_scan(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        bench.put_all([f"n{i}" for i in range(300)])
        with self.server(metadata).connect() as connection:
            for statement in (*look_up.PLAIN, *look_up.IN_CELL):
                assert scans(connection, statement % (b"bucket".hex(), b"n7".hex()), ()) == []

    def test_an_answer_half_read_is_nobody_elses(
        self, metadata: SqlMetadata, bench: MetadataBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Invariant c."""
        row, other = bench.put("n"), bench.put("other")

        def interrupted(connection: Any, _key: ObjectKey, *_: object) -> Any:
            connection._execute_command(COMMAND.COM_QUERY, "SELECT 'the answer to something else'")
            raise KeyboardInterrupt

        monkeypatch.setattr(look_up, "_read_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            metadata.get(row.key)
        monkeypatch.undo()
        assert [metadata.get(key) for key in (row.key, other.key)] == [row, other]

    def test_it_keeps_few_connections_and_no_old_ones(
        self, metadata: SqlMetadata, bench: MetadataBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Invariant d."""
        row, many = bench.put("n"), LOOK_UPS_IDLE_MAX + 4
        asked, together = look_up._read_row, Barrier(many)

        def at_once(connection: Any, key: ObjectKey, in_cell: bool) -> Any:
            together.wait(30)
            return asked(connection, key, in_cell)

        monkeypatch.setattr(look_up, "_read_row", at_once)
        with ThreadPoolExecutor(many) as threads:
            assert list(threads.map(metadata.get, [row.key] * many)) == [row] * many
        monkeypatch.undo()
        assert metadata._look_ups is not None
        assert metadata._transactions.reading is not None
        pool = metadata._transactions.reading.pool
        assert isinstance(pool, QueuePool)
        assert pool.checkedout() == LOOK_UPS_IDLE_MAX
        newest = max(kept.since_s for kept in metadata._look_ups._idle)
        monkeypatch.setattr(look_up, "MYSQL_RECYCLE_S", 0)
        assert metadata.get(row.key) == row
        assert pool.checkedout() == LOOK_UPS_IDLE_MAX
        assert max(kept.since_s for kept in metadata._look_ups._idle) > newest, "one was given back for another"
        metadata._look_ups.close()
        assert pool.checkedout() == 0

    @pytest.mark.parametrize("mode", ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES"])
    def test_every_character_of_a_parameter_arrives(self, metadata: SqlMetadata, mode: str) -> None:
        """Some end a text, a statement or its escaping elsewhere. They arrive however the server reads quotes."""
        characters = "".join(map(chr, [*range(0x300), 0x2019, 0xFF07, 0xFF3C, 0x1F512]))
        hostile = ["\\", "\\'", "'\\", "''", "\\\\'", "%s", "'; SELECT 1; -- ", "\x1a\r\n\0"]
        texts = [characters, *characters[:0x80], *hostile]
        with metadata._engine.connect() as connection:
            connection.exec_driver_sql(f"SET SESSION sql_mode = '{mode}'")
            try:
                for text in texts:
                    found = connection.exec_driver_sql("SELECT %s, %s", (text, f"x{text}y")).one()
                    assert tuple(found) == (text, f"x{text}y")
            finally:
                connection.invalidate()

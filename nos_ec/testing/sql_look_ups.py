"""A look-up by key on a real server: the row is right, the index finds it, and answers never mix.

Letters are the invariants of nos_ec.adapters.sql.look_up.
"""

from __future__ import annotations

from typing import Any

import pytest
from pymysql.constants import COMMAND  # type: ignore[import-untyped]

from nos_ec.adapters.sql import look_up, objects
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.core.ids import ObjectKey
from nos_ec.core.lifecycle import ObjectState
from nos_ec.testing.metadata_bench import MetadataBench
from nos_ec.testing.sql_plans import scans


class SqlLookUps:
    """Give a fixture `store`, an empty SqlMetadata."""

    @pytest.fixture
    def bench(self, store: SqlMetadata) -> MetadataBench:
        """The store under test with shorthands around it."""
        return MetadataBench(store)

    def test_it_gives_the_row_of_the_ordinary_statement_in_every_state(
        self, store: SqlMetadata, bench: MetadataBench
    ) -> None:
        """Invariant a."""
        names = {state: f"{state.value} %s å/✓ \\ 'quoted\"" for state in ObjectState}
        lease = bench.lease()
        for state in ObjectState:
            if state is ObjectState.LARGE:
                store.record_large(bench.large(names[state], lease), lease, bench.now_ms)
            else:
                bench.put(names[state], 0 if state is ObjectState.EMPTY else 1000)
        store.mark_published([bench.get(names[ObjectState.QUEUED])], bench.now_ms + 9)
        bench.pack([bench.get(names[ObjectState.PACKED])])
        for state, name in names.items():
            key = ObjectKey("bucket", name)
            row = store.get(key)
            assert row.state is state
            assert row == store._transactions.write(objects.find, key), "read in a transaction, by all its columns"

    def test_it_does_not_scan(self, store: SqlMetadata, bench: MetadataBench) -> None:
        bench.put_all([f"n{i}" for i in range(300)])
        with store._engine.connect() as connection:
            assert scans(connection, look_up.BY_KEY, (b"bucket", b"n7")) == []

    def test_an_answer_half_read_is_nobody_elses(
        self, store: SqlMetadata, bench: MetadataBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Invariant c."""
        row, other = bench.put("n"), bench.put("other")

        def interrupted(cursor: Any, _key: ObjectKey) -> str | None:
            cursor.connection._execute_command(COMMAND.COM_QUERY, "SELECT 'the answer to something else'")
            raise KeyboardInterrupt

        monkeypatch.setattr(look_up, "_asked", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.get(row.key)
        monkeypatch.undo()
        assert [store.get(key) for key in (row.key, other.key)] == [row, other]

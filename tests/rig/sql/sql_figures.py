"""Figures and listings cost the same in a full store as in a small one: what a server reads for them is counted.

Each statement is caught as it runs, and runs again on a connection of its own, whose reads are counted. On SQLite the
instructions of its virtual machine are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, text

from nos_ec.adapters.sql.driver.engine import WRITES
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.tables.schema import COUNTERS, METADATA
from nos_ec.engine.figures import store_totals
from nos_ec.engine.figures.store_totals import StoreTotals
from tests.rig.fakes.clock import FakeClock
from tests.rig.sql.full_store import BUCKETS, FOLDERS, Shape, fill
from tests.rig.sql.sql_plans import Statement, caught

FEW = 20_000
PAGE_ROWS = 1000
RATIO_MAX = 1.5
_READS = text("SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler\\_read%'")


def shape(objects: int) -> Shape:
    """A store with this many packed objects, a hundredth as many that wait, and as many large ones."""
    return Shape(objects, objects // 100, objects // 100, objects // 100)


def cost(engine: Engine, statements: list[Statement]) -> int:
    """The number of rows and index entries that these statements read; on SQLite, of instructions."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            return _instructions(connection.connection.driver_connection, statements)
        before = _reads(connection)
        for statement, parameters in statements:
            connection.exec_driver_sql(statement, parameters).all()
        return _reads(connection) - before


def _reads(connection: Connection) -> int:
    return sum(int(value) for _, value in connection.execute(_READS))


def _instructions(driver: Any, statements: list[Statement]) -> int:
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    driver.set_progress_handler(count, 1)
    try:
        for statement, parameters in statements:
            driver.execute(statement, parameters).fetchall()
    finally:
        driver.set_progress_handler(None, 0)
    return counted


def _empty(engine: Engine) -> None:
    with engine.execution_options(**{WRITES: True}).begin() as connection:
        for table in METADATA.sorted_tables:
            if table is not COUNTERS:
                connection.execute(delete(table))


class SqlFigures:
    """Define a fixture `metadata`, an empty SqlMetadata whose tables are dropped afterwards, and set MANY, the number
    of objects of the full store."""

    MANY = 200_000

    def server(self, metadata: SqlMetadata) -> Engine:
        """The engine of the server that is filled, and counts what statements read. Vitess cannot."""
        return metadata._engine

    def test_figures_and_listings_cost_as_much_in_a_full_store(
        self, metadata: SqlMetadata, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_totals, "CHEAP_ROWS_MAX", 0)
        few, many = (self._costs(metadata, objects) for objects in (FEW, self.MANY))
        assert many.pop("computed sums") > self.MANY / FEW / 2 * few.pop("computed sums"), "growth is noticed"
        assert [name for name in many if many[name] > RATIO_MAX * few[name]] == [], (few, many)

    def _costs(self, metadata: SqlMetadata, objects: int) -> dict[str, int]:
        _empty(self.server(metadata))
        fill(self.server(metadata), shape(objects))
        totals = StoreTotals(metadata, FakeClock(), 15_000)
        totals.keep()
        assert totals.read().totals.packed_objects == objects
        calls: dict[str, Callable[[], object]] = {
            "computed sums": metadata.totals,
            "sums": totals.read,
            "page of names": lambda: metadata.list_names("bucket-3", "", "4", PAGE_ROWS),
            "page of rows": lambda: metadata.list_objects("bucket-3", "", "4", PAGE_ROWS),
            "names with a prefix": lambda: metadata.list_names("bucket-3", "8", "", 9),
            "page of folders": lambda: metadata.list_entries("bucket-3", "", "/", "", FOLDERS // 4, 10**9),
            "buckets": lambda: metadata.list_buckets("", BUCKETS),
        }
        costs = {}
        for name, call in calls.items():
            with caught(metadata) as statements:
                call()
            costs[name] = cost(self.server(metadata), statements)
            assert costs[name] > 0
        return costs

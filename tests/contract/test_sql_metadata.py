"""The metadata contract on SQLite."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from tests.contract.suites.metadata_contract import MetadataContract
from tests.contract.suites.metadata_races import MetadataRaces
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.sql.full_store import Shape, fill
from tests.rig.sql.instructions import Instructions
from tests.rig.sql.sql_damage import SqlDamage
from tests.rig.sql.sql_figures import SqlFigures
from tests.rig.sql.sql_plans import SqlPlans, caught, hot_calls, populate


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database, to copy."""
    path = tmp_path_factory.mktemp("template") / "meta.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def metadata(template: Path, tmp_path: Path) -> Iterator[SqlMetadata]:
    shutil.copy(template, tmp_path / "meta.db")
    opened = open_metadata(f"sqlite:///{tmp_path / 'meta.db'}")
    yield opened
    opened.close()


class TestSqliteRaces(MetadataRaces):
    """See tests/contract/suites/metadata_races.py."""


class TestSqliteDamage(SqlDamage):
    """See tests/rig/sql/sql_damage.py."""


class TestSqlitePlans(SqlPlans):
    """See tests/rig/sql/sql_plans.py."""


class TestSqliteFigures(SqlFigures):
    """See tests/rig/sql/sql_figures.py."""

    def test_hot_calls_cost_as_much_in_a_full_store(self, template: Path, tmp_path: Path) -> None:
        few, many = (_costs(template, tmp_path / f"{objects}.db", objects) for objects in (1_000, 20_000))
        assert len(few) > 50
        assert min(few.values()) > 0
        dearer = {name: (few[name], many[name]) for name in few if many[name] > 2 * few[name]}
        assert dearer == {}, "a scan takes five times as many"


def _costs(template: Path, file: Path, objects: int) -> dict[str, int]:
    """Return the instructions of hot calls in a store with this number of further objects. No program runs ANALYZE, so
    SQLite plans without knowing how many rows there are. The ids are the same each time, because their order decides
    which rows a call reads."""
    shutil.copy(template, file)
    with pytest.MonkeyPatch.context() as patch, closing(open_metadata(f"sqlite:///{file}")) as metadata:
        patch.setattr(secrets, "token_bytes", Random(1).randbytes)
        fill(metadata._engine, Shape(objects, 0, 0, 0))
        bench = MetadataBench(metadata)
        populate(bench)
        instructions, costs = Instructions(), {}
        instructions.watch(metadata)
        calls = hot_calls(bench)
        instructions.start()
        for name, call in calls.items():
            before = instructions.in_all()
            call()
            costs[name] = instructions.in_all() - before
        return costs


class TestSqliteMetadata(MetadataContract):
    """See tests/contract/suites/metadata_contract.py."""


def test_puts_where_an_insert_returns_no_ids(metadata: SqlMetadata) -> None:
    """MySQL returns none, and neither does SQLite before 3.35."""
    bench = MetadataBench(metadata)
    first = bench.put("first")
    with pytest.MonkeyPatch.context() as patch, caught(metadata) as statements:
        patch.setattr(metadata._engine.dialect, "insert_executemany_returning", False)
        rows = bench.record([bench.new("second"), bench.new("first", 5), bench.new("empty", 0)])
    assert not [one for one, _ in statements if "RETURNING" in one]
    assert [bench.get(row.key.name) for row in rows] == rows
    assert rows[1].object_id == first.object_id

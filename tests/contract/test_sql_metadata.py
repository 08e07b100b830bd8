"""The metadata contract on SQLite."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from tests.contract.suites.metadata_contract import MetadataContract
from tests.contract.suites.metadata_races import MetadataRaces
from tests.rig.fakes.metadata_bench import MetadataBench
from tests.rig.sql.sql_damage import SqlDamage
from tests.rig.sql.sql_figures import SqlFigures
from tests.rig.sql.sql_plans import SqlPlans, caught


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


class TestSqliteMetadata(MetadataContract):
    """See tests/contract/suites/metadata_contract.py."""


def test_puts_where_an_insert_returns_no_ids(metadata: SqlMetadata) -> None:
    """As on MySQL, and on SQLite before 3.35."""
    bench = MetadataBench(metadata)
    first = bench.put("first")
    with pytest.MonkeyPatch.context() as patch, caught(metadata) as statements:
        patch.setattr(metadata._engine.dialect, "insert_executemany_returning", False)
        rows = bench.record([bench.new("second"), bench.new("first", 5), bench.new("empty", 0)])
    assert not [one for one, _ in statements if "RETURNING" in one]
    assert [bench.get(row.key.name) for row in rows] == rows
    assert rows[1].object_id == first.object_id

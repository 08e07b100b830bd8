"""The metadata contract, races, query plans, look-ups and migrations on a real MySQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata
from tests.contract.suites.metadata_contract import MetadataContract
from tests.contract.suites.metadata_races import MetadataRaces
from tests.rig.sql.sql_damage import SqlDamage
from tests.rig.sql.sql_figures import SqlFigures
from tests.rig.sql.sql_look_ups import SqlLookUps
from tests.rig.sql.sql_migrations import SqlMigrations
from tests.rig.sql.sql_plans import SqlPlans
from tests.rig.sql.sql_races import SqlRaces
from tests.rig.sql.sql_servers import drop_all, empty_metadata
from tests.rig.sql.sql_version_histories import SqlVersionHistories
from tests.rig.sql.sql_version_races import SqlVersionRaces

pytestmark = [pytest.mark.real, pytest.mark.turn(1)]


@pytest.fixture
def metadata(mysql_url: str) -> Iterator[SqlMetadata]:
    with empty_metadata(mysql_url) as metadata:
        yield metadata


class TestMySQLMetadata(MetadataContract):
    """See tests/contract/suites/metadata_contract.py."""


class TestMySQLRaces(MetadataRaces):
    """See tests/contract/suites/metadata_races.py."""


class TestMySQLLocks(SqlRaces):
    """See tests/rig/sql/sql_races.py."""


class TestMySQLVersionLocks(SqlVersionRaces):
    """See tests/rig/sql/sql_version_races.py."""


class TestMySQLVersionHistories(SqlVersionHistories):
    """See tests/rig/sql/sql_version_histories.py."""


class TestMySQLDamage(SqlDamage):
    """See tests/rig/sql/sql_damage.py."""


class TestMySQLPlans(SqlPlans):
    """See tests/rig/sql/sql_plans.py."""


class TestMySQLLookUps(SqlLookUps):
    """See tests/rig/sql/sql_look_ups.py."""


class TestMySQLMigrations(SqlMigrations):
    """See tests/rig/sql/sql_migrations.py."""

    @pytest.fixture
    def url(self, mysql_url: str) -> Iterator[str]:
        drop_all(mysql_url)
        yield mysql_url
        drop_all(mysql_url)


class TestMySQLFigures(SqlFigures):
    """See tests/rig/sql/sql_figures.py."""

    @pytest.fixture
    def metadata(self, mysql_url: str) -> Iterator[SqlMetadata]:
        drop_all(mysql_url)
        with empty_metadata(mysql_url) as metadata:
            yield metadata
        drop_all(mysql_url)

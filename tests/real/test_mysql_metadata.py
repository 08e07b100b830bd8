"""The metadata contract, races, query plans, look-ups and migrations on a real MySQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.testing.metadata_contract import MetadataContract
from nos_ec.testing.metadata_races import MetadataRaces
from nos_ec.testing.sql_damage import SqlDamage
from nos_ec.testing.sql_look_ups import SqlLookUps
from nos_ec.testing.sql_migrations import SqlMigrations, drop_all
from nos_ec.testing.sql_plans import SqlPlans
from nos_ec.testing.sql_races import SqlRaces
from nos_ec.testing.sql_servers import empty_store

pytestmark = pytest.mark.real


@pytest.fixture
def store(mysql_url: str) -> Iterator[SqlMetadata]:
    with empty_store(mysql_url) as opened:
        yield opened


class TestMySQLMetadata(MetadataContract):
    """See nos_ec/testing/metadata_contract.py."""


class TestMySQLRaces(MetadataRaces):
    """See nos_ec/testing/metadata_races.py."""


class TestMySQLLocks(SqlRaces):
    """See nos_ec/testing/sql_races.py."""


class TestMySQLDamage(SqlDamage):
    """See nos_ec/testing/sql_damage.py."""


class TestMySQLPlans(SqlPlans):
    """See nos_ec/testing/sql_plans.py."""


class TestMySQLLookUps(SqlLookUps):
    """See nos_ec/testing/sql_look_ups.py."""


class TestMySQLMigrations(SqlMigrations):
    """See nos_ec/testing/sql_migrations.py."""

    @pytest.fixture
    def url(self, mysql_url: str) -> Iterator[str]:
        drop_all(mysql_url)
        yield mysql_url
        drop_all(mysql_url)

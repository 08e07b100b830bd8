"""The metadata contract, races, query plans, look-ups and migrations on a real MariaDB server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata
from tests.contract.suites.metadata_contract import MetadataContract
from tests.contract.suites.metadata_races import MetadataRaces
from tests.rig.sampling import sampled
from tests.rig.sql.sql_damage import SqlDamage
from tests.rig.sql.sql_figures import SqlFigures
from tests.rig.sql.sql_look_ups import SqlLookUps
from tests.rig.sql.sql_migrations import SqlMigrations
from tests.rig.sql.sql_plans import SqlPlans
from tests.rig.sql.sql_races import SqlRaces
from tests.rig.sql.sql_servers import drop_all, empty_metadata
from tests.rig.sql.sql_version_histories import SqlVersionHistories
from tests.rig.sql.sql_version_races import SqlVersionRaces

pytestmark = [pytest.mark.real, pytest.mark.turn(0)]


@pytest.fixture
def metadata(mariadb_url: str) -> Iterator[SqlMetadata]:
    with empty_metadata(mariadb_url) as metadata:
        yield metadata


class TestMariaDBMetadata(MetadataContract):
    """See tests/contract/suites/metadata_contract.py."""


class TestMariaDBRaces(MetadataRaces):
    """See tests/contract/suites/metadata_races.py."""


class TestMariaDBLocks(SqlRaces):
    """See tests/rig/sql/sql_races.py."""


class TestMariaDBVersionLocks(SqlVersionRaces):
    """See tests/rig/sql/sql_version_races.py."""


class TestMariaDBVersionHistories(SqlVersionHistories):
    """See tests/rig/sql/sql_version_histories.py."""


class TestMariaDBDamage(SqlDamage):
    """See tests/rig/sql/sql_damage.py."""


class TestMariaDBPlans(SqlPlans):
    """See tests/rig/sql/sql_plans.py."""


class TestMariaDBLookUps(SqlLookUps):
    """See tests/rig/sql/sql_look_ups.py."""


class TestMariaDBMigrations(SqlMigrations):
    """See tests/rig/sql/sql_migrations.py."""

    @pytest.fixture
    def url(self, mariadb_url: str) -> Iterator[str]:
        drop_all(mariadb_url)
        yield mariadb_url
        drop_all(mariadb_url)


class TestMariaDBFigures(SqlFigures):
    """See tests/rig/sql/sql_figures.py."""

    MANY = sampled(200_000, 1_000_000)

    @pytest.fixture
    def metadata(self, mariadb_url: str) -> Iterator[SqlMetadata]:
        drop_all(mariadb_url)
        with empty_metadata(mariadb_url) as metadata:
            yield metadata
        drop_all(mariadb_url)

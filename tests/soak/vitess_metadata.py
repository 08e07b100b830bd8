"""The metadata contract, races, locks and histories through vtgate. Vitess must be built first, so `make vitess` runs
this, and not `make test`.

Plans, look-ups and migrations are not here: they are those of the MySQL behind it, and the suites for them use ANALYZE,
EXPLAIN and counters of a session, which Vitess does not pass on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata
from tests.contract.suites.metadata_contract import MetadataContract
from tests.contract.suites.metadata_races import MetadataRaces
from tests.real.conftest import run_server
from tests.rig.sql.sql_damage import SqlDamage
from tests.rig.sql.sql_races import SqlRaces
from tests.rig.sql.sql_servers import empty_metadata
from tests.rig.sql.sql_version_histories import SqlVersionHistories
from tests.rig.sql.sql_version_races import SqlVersionRaces

pytestmark = pytest.mark.real


@pytest.fixture(scope="session")
def vitess_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from run_server("vitess", tmp_path_factory.mktemp("vitess"))


@pytest.fixture
def metadata(vitess_url: str) -> Iterator[SqlMetadata]:
    with empty_metadata(vitess_url) as metadata:
        yield metadata


class TestVitessMetadata(MetadataContract):
    """See tests/contract/suites/metadata_contract.py."""


class TestVitessRaces(MetadataRaces):
    """See tests/contract/suites/metadata_races.py."""


class TestVitessLocks(SqlRaces):
    """See tests/rig/sql/sql_races.py."""


class TestVitessVersionLocks(SqlVersionRaces):
    """See tests/rig/sql/sql_version_races.py."""


class TestVitessVersionHistories(SqlVersionHistories):
    """See tests/rig/sql/sql_version_histories.py."""


class TestVitessDamage(SqlDamage):
    """See tests/rig/sql/sql_damage.py."""

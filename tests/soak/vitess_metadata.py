"""All suites of the metadata through vtgate. Vitess must be built first, so `make vitess` runs this, and not `make
test`.

vtgate has no ANALYZE, and its sessions have no counters of their own. So the suites for plans and figures send the
statements of the store through vtgate, and explain and count them on the MySQL server of the primary.
"""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from nos_ec.adapters.sql.connection_check import ROWS_MIN, DatabaseCheck
from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.errors import ConfigError, Transient
from tests.contract.suites.metadata_contract import MetadataContract
from tests.contract.suites.metadata_races import MetadataRaces
from tests.real.conftest import start
from tests.rig.sql.sql_damage import SqlDamage
from tests.rig.sql.sql_figures import SqlFigures
from tests.rig.sql.sql_look_ups import SqlLookUps
from tests.rig.sql.sql_migrations import SqlMigrations
from tests.rig.sql.sql_plans import SqlPlans
from tests.rig.sql.sql_races import SqlRaces
from tests.rig.sql.sql_servers import drop_all, empty_metadata
from tests.rig.sql.sql_version_histories import SqlVersionHistories
from tests.rig.sql.sql_version_races import SqlVersionRaces
from tests.rig.vitess_server import VitessServer

pytestmark = pytest.mark.real


@pytest.fixture(scope="session")
def vitess(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VitessServer]:
    server = VitessServer(tmp_path_factory.mktemp("vitess"))
    start(server)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def vitess_url(vitess: VitessServer) -> str:
    return vitess.url


@pytest.fixture(scope="session")
def primary(vitess: VitessServer) -> Iterator[Engine]:
    engine = make_engine(vitess.url_of_primary())
    yield engine
    engine.dispose()


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


class OnPrimary:
    """Plans and counters are those of the MySQL server of the primary."""

    @pytest.fixture(autouse=True)
    def _use_primary(self, primary: Engine) -> None:
        self._primary = primary

    def server(self, _metadata: SqlMetadata) -> Engine:
        """Its engine."""
        return self._primary


class TestVitessPlans(OnPrimary, SqlPlans):
    """See tests/rig/sql/sql_plans.py."""


class TestVitessLookUps(OnPrimary, SqlLookUps):
    """See tests/rig/sql/sql_look_ups.py."""

    @pytest.mark.parametrize("mode", [""])
    def test_every_character_of_a_parameter_arrives(self, metadata: SqlMetadata, mode: str) -> None:
        """vtgate refuses the modes in which MySQL reads quotes differently."""
        super().test_every_character_of_a_parameter_arrives(metadata, mode)


class TestVitessMigrations(SqlMigrations):
    """See tests/rig/sql/sql_migrations.py."""

    @pytest.fixture
    def url(self, vitess_url: str) -> Iterator[str]:
        drop_all(vitess_url)
        yield vitess_url
        drop_all(vitess_url)


class TestVitessFigures(OnPrimary, SqlFigures):
    """See tests/rig/sql/sql_figures.py."""

    @pytest.fixture
    def metadata(self, vitess_url: str) -> Iterator[SqlMetadata]:
        drop_all(vitess_url)
        with empty_metadata(vitess_url) as metadata:
            yield metadata
        drop_all(vitess_url)


def test_the_checks_of_a_session_pass(metadata: SqlMetadata, vitess_url: str) -> None:
    with closing(DatabaseCheck(vitess_url, replica=False)) as check:
        assert "-Vitess" in check.connect()
        assert "READ COMMITTED" in check.session()
        assert check.rights() == "SELECT, INSERT, UPDATE and DELETE on all tables"


def test_a_limit_of_rows_that_is_too_low_is_found(vitess: VitessServer) -> None:
    with _rows_max(vitess, ROWS_MIN - 1), closing(DatabaseCheck(vitess.url, replica=False)) as check:
        check.connect()
        with pytest.raises(ConfigError, match="queryserver-config-max-result-size"):
            check.session()


def test_a_replica_is_not_taken_for_the_primary(vitess_url: str) -> None:
    replica = f"{vitess_url}%40replica"
    with closing(DatabaseCheck(replica, replica=False)) as check, pytest.raises(Transient, match="read-only"):
        check.connect()


def test_tables_change_at_once_even_if_vtgate_would_queue_changes(vitess_url: str) -> None:
    def queue_changes(connection: Any, _record: object) -> None:
        connection.cursor().execute("SET @@ddl_strategy = 'vitess'")

    drop_all(vitess_url)
    event.listen(Engine, "connect", queue_changes)
    try:
        migrate(vitess_url)
    finally:
        event.remove(Engine, "connect", queue_changes)
    with closing(open_metadata(vitess_url)) as metadata:
        assert metadata.list_buckets("", 10) == []


@contextmanager
def _rows_max(vitess: VitessServer, rows: int) -> Iterator[None]:
    """Set --queryserver-config-max-result-size of both vttablets meanwhile."""
    ports = dict(line.split() for line in (vitess.folder / "ports").read_text().splitlines())

    def set_to(value: int) -> None:
        data = urllib.parse.urlencode({"varname": "MaxResultSize", "value": value}).encode()
        for tablet in ("vttablet-1", "vttablet-2"):
            urllib.request.urlopen(f"http://127.0.0.1:{ports[tablet]}/debug/env", data).close()

    set_to(rows)
    try:
        yield
    finally:
        set_to(1_000_000)

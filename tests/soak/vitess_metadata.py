"""The metadata contract, races, locks and histories through vtgate. Vitess must be built first, so `make vitess` runs
this, and not `make test`.

The suites for plans, look-ups, migrations and figures are not here: they use ANALYZE, counters and settings of a
session of MySQL itself.
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
from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.errors import ConfigError, Transient
from tests.contract.suites.metadata_contract import MetadataContract
from tests.contract.suites.metadata_races import MetadataRaces
from tests.real.conftest import run
from tests.rig.dev_servers import DevServer
from tests.rig.sql.sql_damage import SqlDamage
from tests.rig.sql.sql_races import SqlRaces
from tests.rig.sql.sql_servers import drop_all, empty_metadata
from tests.rig.sql.sql_version_histories import SqlVersionHistories
from tests.rig.sql.sql_version_races import SqlVersionRaces

pytestmark = pytest.mark.real


@pytest.fixture(scope="session")
def vitess(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    yield from run("vitess", tmp_path_factory.mktemp("vitess"))


@pytest.fixture
def vitess_url(vitess: DevServer) -> str:
    return vitess.url


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


def test_the_checks_of_a_session_pass(metadata: SqlMetadata, vitess_url: str) -> None:
    with closing(DatabaseCheck(vitess_url, replica=False)) as check:
        assert "-Vitess" in check.connect()
        assert "READ COMMITTED" in check.session()
        assert check.rights() == "SELECT, INSERT, UPDATE and DELETE on all tables"


def test_a_limit_of_rows_that_is_too_low_is_found(vitess: DevServer) -> None:
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
def _rows_max(vitess: DevServer, rows: int) -> Iterator[None]:
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

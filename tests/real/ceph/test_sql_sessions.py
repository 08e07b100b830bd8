"""Sessions and accounts of MySQL and MariaDB: which results a server's own settings must not change, and which accounts
and settings are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import URL, Connection, create_engine, make_url, text

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.errors import ConfigError
from nos_ec.core.states import ObjectState
from tests.rig.fakes.metadata_bench import MetadataBench

pytestmark = pytest.mark.real

PASSWORD = "aPassw0rd"
USER, DATABASE = "nos_ec_trial", "nos_ec_trial"


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> URL:
    return make_url(request.getfixturevalue(f"{request.param}_url"))


@contextmanager
def administrator(url: URL) -> Iterator[Connection]:
    engine = create_engine(url.set(drivername="mysql+pymysql"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def set_globally(url: URL, **values: str) -> Iterator[None]:
    """Change settings of the server for new sessions."""
    with administrator(url) as server:
        before = {name: server.scalar(text(f"SELECT @@GLOBAL.{name}")) for name in values}
        try:
            for name, value in values.items():
                server.exec_driver_sql(f"SET GLOBAL {name} = {value}")
            yield
        finally:
            for name, old in before.items():
                server.exec_driver_sql(f"SET GLOBAL {name} = %s", (old,))


def test_settings_of_the_server_change_no_results(url: URL) -> None:
    settings = {"sql_select_limit": "2", "sql_safe_updates": "1", "completion_type": "'RELEASE'"}
    migrate(url.render_as_string(hide_password=False))
    with set_globally(url, **settings):
        engine = make_engine(url)
        with engine.connect() as connection:
            session = connection.scalar(text("SELECT connection_id()"))
            assert len(connection.execute(text("SELECT 1 UNION SELECT 2 UNION SELECT 3")).all()) == 3
            connection.execute(text("UPDATE stored_totals SET name = name"))
            connection.commit()
            assert connection.scalar(text("SELECT connection_id()")) == session, "COMMIT ended no connection"
        engine.dispose()


@pytest.mark.parametrize("charset", ["ucs2", "utf16", "latin1"])
def test_any_default_character_set_of_the_database(url: URL, charset: str) -> None:
    with administrator(url) as server:
        server.exec_driver_sql(f"DROP DATABASE IF EXISTS {DATABASE}")
        server.exec_driver_sql(f"CREATE DATABASE {DATABASE} CHARACTER SET {charset}")
        try:
            there = url.set(database=DATABASE).render_as_string(hide_password=False)
            migrate(there)
            with closing(open_metadata(there)) as metadata:
                bench = MetadataBench(metadata)
                assert bench.packed("n").state is ObjectState.PACKED
                bench.delete("n")
                bench.check_counters()
        finally:
            server.exec_driver_sql(f"DROP DATABASE {DATABASE}")


@pytest.mark.parametrize(
    ("lacking", "advice"), [("PASSWORD EXPIRE", "set a new password"), ("ACCOUNT LOCK", "ACCOUNT UNLOCK")]
)
def test_an_account_that_cannot_be_used_is_a_wrong_configuration(url: URL, lacking: str, advice: str) -> None:
    with administrator(url) as server:
        server.exec_driver_sql(f"DROP USER IF EXISTS {USER}")
        server.exec_driver_sql(f"CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'")
        server.exec_driver_sql(f"GRANT ALL ON {url.database}.* TO {USER}")
        server.exec_driver_sql(f"ALTER USER {USER} {lacking}")
        try:
            with pytest.raises(ConfigError, match=advice):
                open_metadata(url.set(username=USER, password=PASSWORD).render_as_string(hide_password=False)).close()
        finally:
            server.exec_driver_sql(f"DROP USER {USER}")


def test_a_binary_log_of_statements_is_a_wrong_configuration(url: URL) -> None:
    """This holds only where there is a binary log."""
    there = url.render_as_string(hide_password=False)
    migrate(there)
    with administrator(url) as server:
        has_log = server.scalar(text("SELECT @@log_bin"))
    with set_globally(url, binlog_format="'STATEMENT'"), closing(open_metadata(there)) as metadata:
        if has_log:
            with pytest.raises(ConfigError, match="binlog_format"):
                MetadataBench(metadata).put("n")
        else:
            MetadataBench(metadata).put("n")

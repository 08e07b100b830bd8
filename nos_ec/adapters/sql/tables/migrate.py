"""Creates or upgrades the tables (with alembic, run inside this program), and reads which schema a store has.

Alembic is imported only when tables are created or upgraded, because the import takes a quarter of a command's start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, delete, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from nos_ec.adapters.sql.driver.engine import MYSQL_READ_S, NEW_OR_LOST, WRITES, is_missing, make_engine, parse_url
from nos_ec.adapters.sql.driver.failures import place, translate
from nos_ec.adapters.sql.driver.primary import is_vitess
from nos_ec.adapters.sql.tables.schema import STORE_INFO
from nos_ec.adapters.sql.tables.store_info import find_store_id, has_geometry
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.geometry import Geometry

if TYPE_CHECKING:
    from alembic.config import Config

_SCRIPTS = Path(__file__).parent / "migrations"
_LOCK_WAIT_S = 30
_READ_S = 86_400
"""A statement that builds an index takes some minutes for every ten million rows."""


def migrate(url: str) -> None:
    """Bring the metadata store at `url` to this release's schema. Creates a SQLite file, but not a MySQL database.

    Safe to call repeatedly, and from several processes at once. Raises ConfigError (bad URL, no such database, a store
    of a newer release, or of a development version that is too old), Transient (server unreachable, with host and
    port).
    """
    # A server that hangs must be noticed before it is given a day for each statement.
    with _connected(_writing_engine(url)) as connection:
        if revision(connection) == schema_head():
            return
        _refuse_unknown(connection)
    with _connected(_writing_engine(url, read_s=_READ_S)) as connection, _alone(connection):
        _change_tables_at_once(connection)
        _upgrade(connection)


def find_store(url: str, geometry: Geometry) -> tuple[str | None, bool]:
    """Return the id of the store whose metadata is at `url`, or None, and whether that store is initialised. Works with
    older schemas, and changes nothing.

    Raises ConfigError (also for a store of another geometry or of a newer release), Corrupt, Transient.
    """
    if is_missing(parse_url(url)):
        return None, False
    with _connected(make_engine(url)) as connection:
        if revision(connection) is None:
            return None, False
        _refuse_unknown(connection)
        return find_store_id(connection), has_geometry(connection, geometry)


def _writing_engine(url: str, read_s: int = MYSQL_READ_S) -> Engine:
    return make_engine(url, create=True, read_s=read_s).execution_options(**{WRITES: True})


def _upgrade(connection: Connection) -> None:
    from alembic import command

    _refuse_unknown(connection)
    config = _config()
    config.attributes["connection"] = connection
    if revision(connection) is not None:
        _note_oldest(connection, config)  # before the first step: one that is not for older programs must stop them
    command.upgrade(config, "head")
    _note_oldest(connection, config)
    connection.commit()


_OLDEST = "oldest_schema"
"""The row of `store_info` with two schemas: that of the oldest programs that may use the store, and the one to which it
was brought last."""


def _note_oldest(connection: Connection, config: Config) -> None:
    """Note which older programs may use the store: those from before a step that is `beside_older`, which promises that
    they read and write as before, and do nothing that programs of this release would get wrong."""
    oldest = schema_head()
    for step in _steps(config):
        if not step.beside_older:
            break
        oldest = step.down_revision
    connection.execute(delete(STORE_INFO).where(STORE_INFO.c.name == _OLDEST))
    connection.execute(insert(STORE_INFO).values(name=_OLDEST, value=f"{oldest} {schema_head()}"))


def _steps(config: Config) -> list[Any]:
    """Return the modules of all migrations, newest first."""
    from alembic.script import ScriptDirectory

    return [script.module for script in ScriptDirectory.from_config(config).walk_revisions()]


def _is_for_older(connection: Connection, found: str, head: str) -> bool:
    """Return whether a newer release has upgraded the store, and lets programs with schema `head` use it."""
    noted = connection.scalar(select(STORE_INFO.c.value).where(STORE_INFO.c.name == _OLDEST))
    if noted is None:
        return False
    oldest, newest = str(noted).split()
    return oldest <= head and found <= newest


@contextmanager
def _connected(engine: Engine) -> Iterator[Connection]:
    """Connect, translate errors of the driver to those of `migrate`, and dispose of the engine at the end."""
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        failure = translate(error, engine.url)
        if failure is None:
            raise
        raise failure.error from error
    finally:
        engine.dispose()


def check_schema(connection: Connection) -> None:
    """Raise ConfigError, naming the command to run, unless the metadata has this release's schema, or that of a newer
    release beside which this one may work."""
    found = revision(connection)
    head = schema_head()
    where = place(connection.engine.url)
    if found is None:
        raise ConfigError(f"metadata at {where} has no tables yet; {NEW_OR_LOST}")
    if found != head:
        if found > head and _is_for_older(connection, found, head):
            return
        _refuse_unknown(connection)
        raise ConfigError(
            f"metadata at {where} has schema {found}, but this release needs {head}; stop the daemons, the gateways"
            " and the programs that use the library, then run `nos-ec init`"
        )


def schema_head() -> str:
    """Return the schema version of this release."""
    return max(_revisions())


def _revisions() -> set[str]:
    """The schema versions that this release knows: for example, versions/v0015_first_tables.py creates 0015."""
    return {path.name[1:5] for path in (_SCRIPTS / "versions").glob("v[0-9][0-9][0-9][0-9]_*.py")}


def revision(connection: Connection) -> str | None:
    """Return the store's schema version, or None if it has no tables yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def _refuse_unknown(connection: Connection) -> None:
    found = revision(connection)
    if found is None or found in _revisions():
        return
    where = f"metadata at {place(connection.engine.url)} has schema {found}, which this release does not know"
    if found < min(_revisions()):
        raise ConfigError(
            f"{where}; a development version before 0.1.0 created it: CHANGELOG.md says under Upgrading how to bring it"
            " to a schema that this release can upgrade"
        )
    raise ConfigError(f"{where}; a newer release created it: install that release, then run `nos-ec init`")


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return config


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Allow one migration at a time: by the write transaction on SQLite, and by a named lock on MySQL, whose DDL
    commits."""
    if connection.dialect.name == "sqlite":
        yield
        return
    name = f"nos_ec_migrate_{connection.engine.url.database}"[:64]
    if connection.scalar(text("SELECT GET_LOCK(:name, :wait_s)"), {"name": name, "wait_s": _LOCK_WAIT_S}) != 1:
        raise Transient(f"metadata at {place(connection.engine.url)}: another migration is running; try again")
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": name})


def _change_tables_at_once(connection: Connection) -> None:
    """With another strategy, which may be vtgate's default (`--ddl-strategy`), Vitess only queues a change of a table.
    The next steps would not find the change, and the schema would be noted as complete."""
    if connection.dialect.name == "mysql" and is_vitess(connection):
        connection.exec_driver_sql("SET @@ddl_strategy = 'direct'")


def open_checked(url: str, read_s: int = MYSQL_READ_S) -> Engine:
    """Open an engine and check that its store has the right schema. `read_s`: how long a statement on a server may
    take. Raises ConfigError, Transient and Corrupt as `migrate` does."""
    engine = make_engine(url, read_s=read_s)
    try:
        with engine.connect() as connection:
            check_schema(connection)
    except DBAPIError as error:
        engine.dispose()
        failure = translate(error, engine.url)
        if failure is None:
            raise
        raise failure.error from error
    except BaseException:
        engine.dispose()
        raise
    return engine

"""An empty metadata store on a real SQL server for each test, without creating the tables each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, delete, exists, select, text, update

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.sql.tables.schema import COUNTERS, METADATA

_engines: dict[str, Engine] = {}
"""The engines of metadata stores whose tables a test of this process has created, and no test has dropped since. A new
engine would ask the server a dozen things before it clears the tables."""
_TABLES = [table for table in METADATA.sorted_tables if table is not COUNTERS]
_STOP_LOCK_TIME = update(COUNTERS).where(COUNTERS.c.name == "lock_time", COUNTERS.c.value != 0).values(value=0)
_ARE_FILLED = select(*(exists(select(text("1")).select_from(table)).label(table.name) for table in _TABLES))


@contextmanager
def empty_metadata(url: str) -> Iterator[SqlMetadata]:
    """Yield the metadata store at `url`, migrated, with every row of an earlier test removed."""
    if url not in _engines:
        migrate(url)
        _engines[url] = make_engine(url)
    with _engines[url].begin() as connection:
        filled = connection.execute(_ARE_FILLED).one()
        for table, is_filled in zip(_TABLES, filled, strict=True):
            if is_filled:
                connection.execute(delete(table))
        connection.execute(_STOP_LOCK_TIME)
    _engines[url].dispose()  # some tests count the connections to a server
    metadata = open_metadata(url)
    try:
        yield metadata
    finally:
        metadata.close()


def drop_all(url: str) -> None:
    """Remove every table of the metadata."""
    _engines.pop(url, None)
    engine = make_engine(url)
    with engine.begin() as connection:
        for name in (*METADATA.tables, "alembic_version"):
            connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
    engine.dispose()

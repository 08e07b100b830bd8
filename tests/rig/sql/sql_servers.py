"""An empty metadata store on a real SQL server for each test, without creating the tables each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import delete, text

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.sql.tables.schema import COUNTERS, METADATA

_migrated = set[str]()
"""Metadata stores whose tables a test of this process has created, and none has dropped since."""


@contextmanager
def empty_metadata(url: str) -> Iterator[SqlMetadata]:
    """Yield the metadata store at `url`, migrated, with every row of an earlier test removed."""
    if url not in _migrated:
        migrate(url)
        _migrated.add(url)
    engine = make_engine(url)
    with engine.begin() as connection:
        for table in METADATA.sorted_tables:
            if table is not COUNTERS:
                connection.execute(delete(table))
    engine.dispose()
    metadata = open_metadata(url)
    try:
        yield metadata
    finally:
        metadata.close()


def drop_all(url: str) -> None:
    """Remove every table of the metadata."""
    _migrated.discard(url)
    engine = make_engine(url)
    with engine.begin() as connection:
        for name in (*METADATA.tables, "alembic_version"):
            connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
    engine.dispose()

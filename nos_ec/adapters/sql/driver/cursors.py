"""Runs small statements with the driver's own cursor.

SQLAlchemy takes four times as much CPU time for a look-up of one value, and nearly every request has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, Select, TextClause
from sqlalchemy.exc import DBAPIError


def run_on_cursor(
    connection: Connection, statement: Select[Any] | Insert | TextClause, parameters: Mapping[str, Any]
) -> Any:
    """Run a statement with the driver's own cursor, and return its first row, None if it has none. The values of
    parameters and results are those of the driver. Raises what Connection.execute raises."""
    dialect = connection.dialect
    text, positions = _compiled(dialect, statement, tuple(parameters))
    driver = connection.connection.driver_connection
    assert driver is not None
    cursor = driver.cursor()
    try:
        cursor.execute(text, parameters if positions is None else [parameters[name] for name in positions])
        return cursor.fetchone()
    except dialect.loaded_dbapi.Error as error:
        lost = dialect.is_disconnect(error, driver, cursor)
        if lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            text, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
        ) from error
    except BaseException:
        connection.invalidate()  # the rest of its answer may still come
        raise


@lru_cache
def _compiled(
    dialect: Dialect, statement: Select[Any] | Insert | TextClause, names: tuple[str, ...]
) -> tuple[str, Sequence[str] | None]:
    """Return the text of a statement, and the names of its parameters in their order, None if the driver takes them by
    name."""
    compiled = statement.compile(dialect=dialect, column_keys=names)
    return str(compiled), compiled.positiontup if compiled.positional else None

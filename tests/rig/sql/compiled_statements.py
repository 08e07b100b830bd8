"""Lets all stores on SQLite that this process opens share the statements that SQLAlchemy has compiled.

A process of the product opens its store once. The tests of a suite open thousands, one after the other, and SQLAlchemy
compiles all statements again for each engine: a third of the time of a test on a whole store.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Dialect, Engine, create_engine

from nos_ec.adapters.sql.driver import engine as driver

_new_engine = driver._sqlite_engine
_compiled: dict[Any, Any] = {}


def share_compiled_statements() -> None:
    """From now on, new engines of this process share them."""
    driver._sqlite_engine = _sharing


def _sharing(*place: Any, **options: Any) -> Engine:
    """SQLAlchemy keeps what it compiles by dialect, so engines need to have the same one. Their connections are still
    made by their own."""
    engine = _new_engine(*place, **options)
    engine.dialect = _dialect()
    engine.update_execution_options(compiled_cache=_compiled)
    return engine


@cache
def _dialect() -> Dialect:
    """A dialect becomes complete with the first connection."""
    engine = create_engine("sqlite://")
    engine.connect().close()
    engine.dispose()
    return engine.dialect

"""What the parts of the metadata store share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from nos_ec.adapters.sql.driver.transactions import Overtaken, Transactions, Work
from nos_ec.adapters.sql.tables import store_info
from nos_ec.adapters.sql.tables.look_up import LookUps
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.ports.metadata import AccessOf

OVERTAKEN_TRIES = 20
"""Each further one means that another transaction was committed meanwhile."""

P = ParamSpec("P")
T = TypeVar("T")


class SqlPart:
    """The transactions, the fast way to look up one object, and the geometry."""

    def __init__(self, engine: Engine, *, replica: bool = False) -> None:
        self._engine = engine
        self._transactions = Transactions(engine, replica=replica)
        reading = self._transactions.reading
        self._look_ups = None if reading is None else LookUps(reading, replica=replica)
        if self._look_ups is not None:
            self._transactions.on_close(self._look_ups.close)
        self._read = self._transactions.read
        self._write = self._transactions.write
        self._geometry: Geometry | None = None
        self._access_changed: Callable[[AccessOf, str], object] = lambda _of, _name: None

    def _write_again(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `_write`, for work that others may overtake."""
        for tries_left in reversed(range(OVERTAKEN_TRIES)):
            try:
                return self._write(work, *args, **kwargs)
            except Overtaken:
                if not tries_left:
                    raise Transient("metadata: others changed the same object again and again; try again") from None
        raise AssertionError("unreachable")

    def _bound(self) -> Geometry:
        """The store's geometry. The counters of blocks need the size of a stripe."""
        if self._geometry is None:
            self._geometry = self._read(_require_geometry)
        return self._geometry


def _require_geometry(connection: Connection) -> Geometry:
    geometry = store_info.find_geometry(connection)
    if geometry is None:
        raise ConfigError("this metadata store is not bound to a geometry yet; run `nos-ec init`")
    return geometry

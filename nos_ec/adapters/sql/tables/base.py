"""The base class of the parts of the metadata store, and the decorators that make a transaction of a method.

Each part is a class next to the SQL that it runs. The body of a decorated method is the work of one transaction: it
gets the connection as its first argument, which callers leave out, and it may be run several times (see
`Transactions`). So it changes nothing but the database. A method without a decorator runs its transactions itself: it
returns early without one, needs the geometry first, or does something after COMMIT. What a method promises to callers
is written in the port (nos_ec.ports.metadata).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy import Connection, Engine

from nos_ec.adapters.sql.driver.transactions import Overtaken, Transactions, Work
from nos_ec.adapters.sql.tables import store_info
from nos_ec.adapters.sql.tables.gate import Gate, read_number
from nos_ec.core.errors import ConfigError, NotFound, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.ports.metadata import AccessOf

if TYPE_CHECKING:
    from nos_ec.adapters.sql.tables.look_up import LookUps

OVERTAKEN_TRIES = 20
"""Each further try means that another transaction was committed meanwhile."""

P = ParamSpec("P")
T = TypeVar("T")


class SqlPart:
    """A part of the metadata store. All parts of one store share the transactions, the look-ups by key, and the
    geometry."""

    def __init__(self, engine: Engine, *, replica: bool = False) -> None:
        """Use this engine, whose tables exist. `replica` allows reading from a read-only server."""
        self._engine = engine
        self._transactions = Transactions(engine, replica=replica)
        reading = self._transactions.reading
        self._look_ups: LookUps | None = None
        if reading is not None:
            from nos_ec.adapters.sql.tables.look_up import LookUps  # with PyMySQL

            self._look_ups = LookUps(reading, replica=replica)
            self._transactions.on_close(self._look_ups.close)
        self._read = self._transactions.read
        self._write = self._transactions.write
        self._geometry: Geometry | None = None
        self._access_changed: Callable[[AccessOf, str], object] = lambda _of, _name: None
        self._gate: Gate | None = None
        """The gate of a cell; None in a store without cells, where no bucket is ever moved."""

    def _write_again(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` as `_write` does, and run it again when it raises Overtaken. Raises Transient after
        OVERTAKEN_TRIES."""
        for tries_left in reversed(range(OVERTAKEN_TRIES)):
            try:
                return self._write(work, *args, **kwargs)
            except Overtaken:
                if not tries_left:
                    raise Transient("metadata: others changed the same object again and again; try again") from None
        raise AssertionError("unreachable")

    def _change(self, keys: Iterable[ObjectKey], work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, which changes what users see of these keys, as `_write` does. Raises Moved if this cell does not
        serve their buckets."""
        return self._write(self._gated(work, keys), *args, **kwargs)

    def _change_again(self, keys: Iterable[ObjectKey], work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, which changes what users see of these keys, as `_write_again` does. Raises Moved if this cell
        does not serve their buckets."""
        return self._write_again(self._gated(work, keys), *args, **kwargs)

    def _change_buckets(self, buckets: Iterable[str], work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, which changes the rows, documents or grants of these buckets, and none of their objects or
        uploads, as `_write` does. Raises Moved if this cell does not serve them."""
        return self._write(self._gated(work, buckets=buckets), *args, **kwargs)

    def _gated(self, work: Work[P, T], keys: Iterable[ObjectKey] = (), buckets: Iterable[str] = ()) -> Work[P, T]:
        gate = self._gate
        if gate is None:
            return work
        of_keys, of_buckets = list(keys), list(buckets)

        def gated(connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
            gate.require(connection, of_keys, of_buckets)
            return work(connection, *args, **kwargs)

        return gated

    def _read_in(self, bucket: str, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, which reads from a bucket, as `_read` does. Raises Moved if this cell does not serve it."""
        gate = self._gate
        if gate is None or not gate.guards_reads_of(bucket):
            return self._read(work, *args, **kwargs)

        def numbered(connection: Connection, /) -> tuple[int, NotFound | None, T | None]:
            result = not_found = None
            try:
                result = work(connection, *args, **kwargs)
            except NotFound as error:
                not_found = error
            return read_number(connection), not_found, result

        for _ in range(OVERTAKEN_TRIES):
            known = gate.read_here.get(bucket)
            number, not_found, result = self._read(numbered)
            if not number or number == known:
                if not_found is not None:
                    raise not_found
                return cast("T", result)
            self._read(gate.look, bucket)
        raise Transient(f"metadata: buckets were moved again and again while {bucket} was read; try again")

    def _bound(self) -> Geometry:
        """Return the store's geometry. The counters of blocks need the size of a stripe. Raises ConfigError if the
        store has none yet."""
        if self._geometry is None:
            self._geometry = self._read(_require_geometry)
        return self._geometry


S = TypeVar("S", bound=SqlPart)


def reads(work: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make the method run as `Transactions.read`."""

    @wraps(work)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Work[P, T] = MethodType(work, self)
        return self._read(bound, *args, **kwargs)

    return method


def writes(work: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make the method run as `Transactions.write`."""

    @wraps(work)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Work[P, T] = MethodType(work, self)
        return self._write(bound, *args, **kwargs)

    return method


def writes_again(work: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make the method run as `SqlPart._write_again`."""

    @wraps(work)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Work[P, T] = MethodType(work, self)
        return self._write_again(bound, *args, **kwargs)

    return method


def _require_geometry(connection: Connection) -> Geometry:
    geometry = store_info.find_geometry(connection)
    if geometry is None:
        raise ConfigError("this metadata store is not bound to a geometry yet; run `nos-ec init`")
    return geometry

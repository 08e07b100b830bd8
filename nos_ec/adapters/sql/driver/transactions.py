"""Runs a piece of work in one transaction, and retries it a limited number of times.

Work that fails by a deadlock, a lock wait or a lost connection is retried unless COMMIT was sent. After that, only the
caller can decide whether to call again (the port promises that this is safe), so it gets Transient. It gets this, too,
when a server lets a connection wait until its time is over, or does not answer on a new connection either
(patience.py): the server hangs or is out of reach, so another attempt would only take as long.

Results from a read-only server are not trusted (nos_ec.adapters.sql.driver.primary). When a server is read-only, or
reports that it is out of service, all connections to it are closed, and the work is retried on new ones, which reach
the new primary once the address leads to it. On Galera, a node that finds that it does not write to the store yet takes
over first, if it may (nos_ec.adapters.sql.driver.galera).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Engine, Pool, Transaction, event
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from nos_ec.adapters.sql.driver.engine import MYSQL_CONNECT_S, MYSQL_LOCK_WAIT_S, SQLITE_BUSY_MS, WRITES, reading_engine
from nos_ec.adapters.sql.driver.failures import Failure, is_away, not_writing, place, read_only, translate
from nos_ec.adapters.sql.driver.galera import take_over
from nos_ec.adapters.sql.driver.lock_waits import LockWaits
from nos_ec.adapters.sql.driver.primary import FLAGS, ReadOnlyServer, hold_node, is_galera, require_primary
from nos_ec.core.errors import NosError, Transient

ATTEMPTS_MAX = 5
LOCK_WAITS_MAX = 10
"""The number of lock waits, of MYSQL_LOCK_WAIT_S each, after which the work fails: 50 s in all."""
CONFLICTS_MAX = 10
"""The number of conflicts after which the work fails. With each, another transaction on the same rows has got further,
but on a slow server several that add versions of one key at once may find each other again."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 0.5

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]


class Overtaken(Exception):
    """Another transaction has changed the same key meanwhile, so this one must be run again."""


class Meter(Protocol):
    """Notes what transactions that write change, and writes it before COMMIT (objects/usage.py, objects/journal.py)."""

    def begin(self, connection: Connection) -> None:
        """Begin a transaction, or another attempt."""

    def finish(self, connection: Connection) -> None:
        """Write what the transaction has noted."""


class Transactions:
    """Transactions of one engine. Safe to use from several threads."""

    def __init__(self, engine: Engine, *, replica: bool = False) -> None:
        """`replica` allows `read` to trust a read-only server."""
        self._engine = engine
        self._trusts_all = replica or engine.dialect.name == "sqlite"
        self._reading = reading_engine(engine)
        self._writing = engine.execution_options(**{WRITES: True})
        self._close_others: Callable[[], object] = lambda: None
        self.on_noted: Callable[[list[Any]], object] = lambda _: None
        """Called with everything that a transaction has noted (`note`), once it is durable. It must not raise."""
        self.meter: Meter | None = None
        self.journal: Meter | None = None
        self.lock_waits = LockWaits(place(engine.url))
        self._turn: threading.Lock | None = threading.Lock() if engine.dialect.name == "sqlite" else None
        if not self._trusts_all:
            event.listen(engine, "after_cursor_execute", _note_writes)

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that changes nothing. Raises the errors of the work, Transient, NoSpace, ConfigError, Corrupt."""
        engine = self._reading or self._engine
        return self._retried(engine, lambda connection: work(connection, *args, **kwargs))

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that writes. Its changes are durable on return. Raises the same errors as `read`."""
        noted: list[Any] = []

        def noting(connection: Connection) -> T:
            connection.info.pop(NOTED, None)  # left by an attempt that failed
            meter, journal = self.meter, self.journal
            if meter is not None:
                meter.begin(connection)
            if journal is not None:
                journal.begin(connection)
            result = work(connection, *args, **kwargs)
            if meter is not None:
                meter.finish(connection)
            if journal is not None:
                journal.finish(connection)
            noted[:] = connection.info.pop(NOTED, ())
            return result

        with self._own_turn():
            result = self._retried(self._writing, noting)
        if noted:
            self.on_noted(noted)
        return result

    @property
    def reading(self) -> Engine | None:
        """The engine with which `read` runs each statement as a transaction of its own; None on SQLite."""
        return self._reading

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines that run statements."""
        return (self._engine,) if self._reading is None else (self._engine, self._reading)

    def on_close(self, close_others: Callable[[], object]) -> None:
        """Register a function that gives back the connections of `engines` that are kept elsewhere. Every `close` calls
        it."""
        self._close_others = close_others

    def close(self) -> None:
        """Close idle connections now, and the others after their use. Later work opens new ones."""
        self._close_others()
        for engine in self.engines:
            engine.dispose()

    def raise_if_away(self, error: Exception) -> None:
        """Close all connections and raise Transient if this error of the driver says that the server was given up.
        Otherwise work may be run again at once."""
        if is_away(error):
            self.close()
            failure = translate(error, self._engine.url)
            assert failure is not None
            raise failure.error from error

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """Wait for this thread's turn to write, and hold it. SQLite allows one writer at a time; without this queue,
        threads would sleep and poll. Raises Transient after SQLITE_BUSY_MS."""
        if self._turn is None:
            yield
            return
        if not self._turn.acquire(timeout=SQLITE_BUSY_MS / 1000):
            raise Transient(f"metadata at {place(self._engine.url)}: other threads kept writing; try again")
        try:
            yield
        finally:
            self._turn.release()

    def _retried(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        given_up = False
        try:
            outcome = self._run_again(engine, work)
            given_up = isinstance(outcome, _Failed) and outcome.failure.lock_wait
        finally:
            self.lock_waits.settle(given_up=given_up)
        if isinstance(outcome, _Failed):
            raise outcome.failure.error from outcome.cause
        return outcome

    def _run_again(self, engine: Engine, work: Callable[[Connection], T]) -> T | _Failed:
        attempts = lock_waits = conflicts = 0
        while True:
            outcome = self._attempt(engine, work)
            if not isinstance(outcome, _Failed):
                return outcome
            if outcome.failure.lock_wait:
                self.lock_waits.note(MYSQL_LOCK_WAIT_S)
                lock_waits += 1
            elif outcome.failure.conflict:
                conflicts += 1
            else:
                attempts += 1
            is_last = attempts == ATTEMPTS_MAX or lock_waits == LOCK_WAITS_MAX or conflicts == CONFLICTS_MAX
            if is_last or outcome.connects_in_vain or not outcome.may_run_again:
                return outcome
            backoff_s = min(BACKOFF_FIRST_S * 2 ** max(0, attempts + conflicts - 1), BACKOFF_MAX_S)
            time.sleep(random.uniform(0.5, 1.5) * backoff_s)

    def _attempt(self, engine: Engine, work: Callable[[Connection], T]) -> T | _Failed:
        committing = is_connected = False
        pool, begun_s = engine.pool, time.monotonic()
        try:
            with engine.connect() as connection:
                is_connected = True
                if engine is self._reading:
                    return self._run_on_primary(connection, work)  # its statements commit themselves
                transaction = connection.begin()
                try:
                    result = self._run_on_primary(connection, work)
                    committing = True
                    transaction.commit()
                    return result
                except BaseException:
                    if committing:
                        # A failed COMMIT may leave the transaction open (SQLite, when its disk is full), and the next
                        # user of the connection would be inside it. Only closing the connection surely ends it.
                        connection.invalidate()
                    elif transaction.is_active:
                        _roll_back(connection, transaction)
                    raise
        except (StatementError, PoolTimeout) as error:
            if isinstance(error, StatementError) and isinstance(error.orig, NosError):
                raise error.orig from error  # a column type refused a value
            failure = translate(error, engine.url)
            if failure is None:
                raise
            if failure.unusable:
                self._close_pools(pool, engine)
            connects_in_vain = (
                not is_connected
                and not isinstance(error, PoolTimeout)
                and time.monotonic() - begun_s >= MYSQL_CONNECT_S
            )
            return _Failed(
                failure,
                error,
                may_run_again=failure.undone or (failure.again and not committing),
                connects_in_vain=connects_in_vain,
            )
        except ReadOnlyServer as error:
            self._close_pools(pool, engine)
            return _Failed(self._take_over(), error, may_run_again=True)

    def _run_on_primary(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        """Run the work. Raises ReadOnlyServer if its result comes from a read-only server, or would be committed by a
        Galera node that is not the one that writes."""
        holds = connection.engine is not self._reading and is_galera(connection)
        if self._trusts_all and not holds:
            return work(connection)
        require = hold_node if holds else require_primary
        for left in (_WROTE, FLAGS):
            connection.info.pop(left, None)
        if _WAS_PRIMARY not in connection.info:
            require_primary(connection)
            connection.info[_WAS_PRIMARY] = True
        try:
            result = work(connection)
        except NosError:
            require(connection)
            raise
        if holds or _WROTE not in connection.info:
            require(connection)
        return result

    def _take_over(self) -> Failure:
        """Let a Galera node take over if it may. Return the failure to report if the work finds it, or any other
        server, read-only again."""
        refused = read_only(self._engine.url)
        try:
            with self._engine.connect() as connection:
                why_not = take_over(connection) if is_galera(connection) else None
        except DBAPIError as error:
            return translate(error, self._engine.url) or refused
        return refused if why_not is None else not_writing(self._engine.url, why_not)

    def _close_pools(self, pool: Pool, engine: Engine) -> None:
        """Close all connections of all pools, so that new ones reach the server that has replaced this one. Do nothing
        if another thread has done so since the work got its connection from `pool`."""
        if engine.pool is pool:
            self.close()


NOTED = "nos_ec_noted"
"""A key of Connection.info: the list of everything that the transaction has noted."""


def note(connection: Connection, fact: Any) -> None:
    """Pass `fact` to `Transactions.on_noted` after COMMIT, or drop it when the transaction is rolled back."""
    connection.info.setdefault(NOTED, []).append(fact)


_WROTE = "nos_ec_wrote"
"""A key of Connection.info, present when the server has accepted a statement that writes."""


_WAS_PRIMARY = "nos_ec_was_primary"
"""A key of Connection.info, present when the server was writable before. A replica that becomes the primary while work
runs on it may have lacked rows when the work began, so the first work on a connection also asks before it begins."""


def _note_writes(
    connection: Connection, _cursor: object, _statement: str, _parameters: object, context: Any, _many: bool
) -> None:
    if context is not None and (context.isinsert or context.isupdate or context.isdelete):
        connection.info[_WROTE] = True


def _roll_back(connection: Connection, transaction: Transaction) -> None:
    """Roll back. If that fails, close the connection, because the pool does not reset a connection that returns to it.
    An error here is ignored, so that the original failure is reported. (SQLAlchemy itself closes a connection whose
    ROLLBACK is interrupted.)"""
    try:
        transaction.rollback()
    except Exception:
        connection.invalidate()


class _Failed:
    """An attempt that ended with a driver error or on a read-only server."""

    def __init__(
        self, failure: Failure, cause: Exception, *, may_run_again: bool, connects_in_vain: bool = False
    ) -> None:
        """`connects_in_vain`: the attempt has waited for a connection until the time for that was over."""
        self.failure = failure
        self.cause = cause
        self.may_run_again = may_run_again
        self.connects_in_vain = connects_in_vain

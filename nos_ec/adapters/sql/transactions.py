"""Run a piece of work in one transaction: all of it or nothing, retried a bounded number of times.

What may be retried: deadlocks, lock waits and lost connections, as long as COMMIT was not sent. When it was, only the
caller can know whether to ask again (the port promises that asking again is safe), so it gets Transient.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Transaction
from sqlalchemy.exc import StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from nos_ec.adapters.sql.engine import SQLITE_BUSY_MS, WRITES, reading_engine
from nos_ec.adapters.sql.failures import Failure, place, translate
from nos_ec.core.errors import NosError, Transient

ATTEMPTS_MAX = 5
BACKOFF_FIRST_S = 0.02

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]


class Transactions:
    """Transactions of one engine. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading_engine(engine)
        self._writing = engine.execution_options(**{WRITES: True})
        self._turn: threading.Lock | None = threading.Lock() if engine.dialect.name == "sqlite" else None

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that changes nothing. Raises what the work raises, Transient, NoSpace, ConfigError, Corrupt."""
        engine = self._reading or self._engine
        return self._retried(engine, lambda connection: work(connection, *args, **kwargs))

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that writes; durable on return. Raises as `read` does."""
        with self._own_turn():
            return self._retried(self._writing, lambda connection: work(connection, *args, **kwargs))

    @property
    def reading(self) -> Engine | None:
        """The engine of `read` whose statements commit themselves; None where there is none."""
        return self._reading

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines that statements run on."""
        return (self._engine,) if self._reading is None else (self._engine, self._reading)

    def close(self) -> None:
        """Close all connections that are not in use; those that are, after it. Later work opens new ones."""
        for engine in self.engines:
            engine.dispose()

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """SQLite takes one writer at a time. Threads queue for it here: SQLite's own way is to sleep and look again."""
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
        for attempt in range(1, ATTEMPTS_MAX + 1):
            outcome = self._attempt(engine, work)
            if not isinstance(outcome, _Failed):
                return outcome
            if not outcome.may_run_again or attempt == ATTEMPTS_MAX:
                raise outcome.failure.error from outcome.cause
            time.sleep(random.uniform(0.5, 1.5) * BACKOFF_FIRST_S * 2 ** (attempt - 1))
        raise AssertionError("the loop returns or raises")

    def _attempt(self, engine: Engine, work: Callable[[Connection], T]) -> T | _Failed:
        committing = False
        try:
            with engine.connect() as connection:
                if engine is self._reading:
                    return work(connection)  # its statements commit themselves
                transaction = connection.begin()
                try:
                    result = work(connection)
                    committing = True
                    transaction.commit()
                    return result
                except BaseException:
                    if committing:
                        # A COMMIT that fails may leave the transaction open (SQLite, when its disk is full): the next
                        # user of the connection would be inside it. Closing it is the one sure end.
                        connection.invalidate()
                    elif transaction.is_active:
                        _roll_back(connection, transaction)
                    raise
        except (StatementError, PoolTimeout) as error:
            if isinstance(error, StatementError) and isinstance(error.orig, NosError):
                raise error.orig from error  # a value that a column type refuses
            failure = translate(error, engine.url)
            if failure is None:
                raise
            if failure.demoted:
                self.close()  # of all connections: the next ones lead to the server that took its place
            return _Failed(failure, error, may_run_again=failure.undone or (failure.again and not committing))


def _roll_back(connection: Connection, transaction: Transaction) -> None:
    """Undo what was done, by ending the connection if need be: the pool takes one back as it is. What made the work
    fail stays the reason. (SQLAlchemy itself ends a connection whose ROLLBACK is interrupted.)"""
    try:
        transaction.rollback()
    except Exception:
        connection.invalidate()


class _Failed:
    """An attempt that ended in a driver error."""

    def __init__(self, failure: Failure, cause: Exception, *, may_run_again: bool) -> None:
        self.failure = failure
        self.cause = cause
        self.may_run_again = may_run_again

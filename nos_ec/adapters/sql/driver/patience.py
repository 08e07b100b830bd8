"""Waits for a MySQL server, and gives it up when it does not answer new connections either.

A server with a slow statement and one that hangs look alike on a connection that waits. But a server logs in a new
client at once while its statements are slow, and one that hangs, or whose host is gone, does not. So after
PATIENCE_S, a connection asks `ServerProbe` whether a new one can log in. If so, it waits up to the limit of statements.
A statement that takes longer is not repeated either: on a server whose disk hangs, each attempt would take as long. If
no new connection can log in, new ones are refused at once until the server answers again, so that no request waits
twice. This also applies to a server that has refused connections for REFUSED_S, because attempts cost CPU.

A statement that was given up may still take effect, such as a COMMIT: the connection counts as lost
(nos_ec.adapters.sql.driver.transactions).
"""

from __future__ import annotations

import errno
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pymysql.constants import CR  # type: ignore[import-untyped]
from pymysql.err import Error, OperationalError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pymysql.connections import Connection as PyMySqlConnection  # type: ignore[import-untyped]

PATIENCE_S = 5
PROBE_S = 4
"""The time limit of a probe. With PATIENCE_S, a request on a server that hangs is refused within 10 seconds."""
LOGIN_S = PATIENCE_S + PROBE_S
"""The time limit for a new connection to a server that has answered before, until statements can be sent on it."""
RETRY_S = 1
"""How long new connections are refused after a server was found away. Then one of them tries again."""
REFUSED_S = 0.3
"""How long a server may refuse connections before it counts as away. A transaction that fails is repeated for about as
long (transactions.py)."""
LAST_LOOK_S = 0.01
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}


class ServerAway(OperationalError):  # type: ignore[misc]
    """A connection that was given up: the server answers neither on it nor on a new one, or has not answered a
    statement within its limit."""

    is_away = True


class StillAway(ServerAway):
    """A connection that was not tried, because the server has just been found away."""

    is_still_away = True


class ServerProbe:
    """Finds out, and remembers, whether a server answers. Safe to use from several threads, which share an attempt."""

    def __init__(self, log_in: Callable[[], PyMySqlConnection], timer: Callable[[], float] = time.monotonic) -> None:
        """`log_in` connects, within PROBE_S. `timer` returns seconds."""
        self._log_in = log_in
        self._timer = timer
        self._lock = threading.Lock()
        self._trial = threading.Lock()
        self._ended_s = float("-inf")
        self._answers = True
        self._refused_since_s: float | None = None
        self._reason = ""

    def answers(self) -> bool:
        """Return whether the server answers, by an attempt that ends after this call. An attempt that fails for a
        reason on this side, such as a lack of ports, counts as an answer: nothing is known then."""
        asked_s = self._timer()
        with self._lock:
            if self._ended_s < asked_s:
                self._try_to_log_in()
            return self._answers

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Connect in the block. Raises StillAway at once if the server did not answer when it was last tried. But each
        RETRY_S after that, one caller may try again: whether it gets an answer decides for all."""
        is_trial = not self._answers
        if is_trial and not self._trial.acquire(blocking=False):
            raise self._still_away()
        try:
            if is_trial and not self._answers and self._timer() < self._ended_s + RETRY_S:
                raise self._still_away()
            try:
                yield
            except Error as error:
                self._note(error, is_away=_timed_out(error) or (_is_silence(error) and self._has_refused_long()))
                raise
            self._note(None, is_away=False)
        finally:
            if is_trial:
                self._trial.release()

    def _has_refused_long(self) -> bool:
        """Note a refusal, and return whether the first one after the last answer was REFUSED_S ago."""
        now_s = self._timer()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        return now_s >= self._refused_since_s + REFUSED_S

    def _note(self, error: Error | None, *, is_away: bool) -> None:
        if error is None or not _is_silence(error):
            self._refused_since_s = None
        self._reason = "" if error is None else str(error.args[-1])
        self._ended_s = self._timer()
        self._answers = not is_away

    def _try_to_log_in(self) -> None:
        try:
            connection = self._log_in()
        except Error as error:
            self._note(error, is_away=_is_silence(error))
            return
        with suppress(Error, OSError):
            connection.close()
        self._note(None, is_away=False)

    def _still_away(self) -> StillAway:
        reason = f"the server has not answered: {self._reason}. It is tried again every {RETRY_S} s"
        return StillAway(CR.CR_SERVER_LOST, reason)


def _timed_out(error: Error) -> bool:
    if error.args[0] == CR.CR_CONN_HOST_ERROR:
        return isinstance(getattr(error, "original_exception", None), TimeoutError)
    return error.args[0] == CR.CR_SERVER_LOST and isinstance(error.__context__, TimeoutError)


def _is_silence(error: Error) -> bool:
    if _timed_out(error):
        return True
    cause = getattr(error, "original_exception", None)
    is_refused = isinstance(cause, ConnectionRefusedError) or getattr(cause, "errno", None) in _UNREACHABLE
    return error.args[0] == CR.CR_CONN_HOST_ERROR and is_refused


class PatientSocket(io.RawIOBase):
    """Reads from and writes to the socket of a connection. probe: whether its server answers. limit_s: how long it may
    take to answer a statement. patience_s: the time limit of the socket, which must be set."""

    def __init__(self, socket: Any, probe: ServerProbe, limit_s: float, patience_s: float) -> None:
        self._socket = socket
        self._probe = probe
        self._limit_s = limit_s
        self._patience_s = patience_s

    def readable(self) -> bool:
        """See RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See RawIOBase. Raises ServerAway, also after limit_s."""
        try:
            return int(self._socket.recv_into(buffer))
        except TimeoutError:
            return self._wait(partial(self._socket.recv_into, buffer))

    def send_all(self, data: bytes) -> None:
        """Write all of the data. Raises ServerAway, also after limit_s without progress, and OSError."""
        left = memoryview(data)
        while left:
            try:
                sent = self._socket.send(left)
            except TimeoutError:
                sent = self._wait(partial(self._socket.send, left))
            left = left[sent:]

    def _wait(self, attempt: Callable[[], int]) -> int:
        """Return the result of `attempt`, which has just timed out."""
        end_s = time.monotonic() + self._limit_s - self._patience_s
        while time.monotonic() < end_s:
            if not self._probe.answers():
                return self._look_again(attempt)
            with suppress(TimeoutError):
                return attempt()
        raise ServerAway(CR.CR_SERVER_LOST, f"the server has not answered a statement after {self._limit_s} s")

    def _look_again(self, attempt: Callable[[], int]) -> int:
        """Return the result of `attempt` if the server has answered during the probe after all."""
        self._socket.settimeout(LAST_LOOK_S)
        try:
            return attempt()
        except TimeoutError:
            raise ServerAway(
                CR.CR_SERVER_LOST, f"the server answers neither after {self._patience_s} s nor on a new connection"
            ) from None
        finally:
            self._socket.settimeout(self._patience_s)

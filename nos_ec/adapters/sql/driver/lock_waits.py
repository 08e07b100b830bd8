"""Notices when a lock of another session holds up work, logs it once, and reports it to the health checks.

A session that keeps a row locked, for example one that an operator forgot in a console, holds up every PUT and commit
that needs the row. The server ends each wait after MYSQL_LOCK_WAIT_S, and the work is retried. Only then does the
process learn that it has waited.
"""

from __future__ import annotations

import threading
import time

import structlog

from nos_ec.core.errors import Transient

_log = structlog.get_logger(__name__)


class LockWaits:
    """Records which threads are held up, and since when. Safe to share between threads."""

    def __init__(self, where: str) -> None:
        """`where` names the server in messages."""
        self._where = where
        self._lock = threading.Lock()
        self._since_s: dict[int, float] = {}
        """For each thread, the time when its work began to wait (time.monotonic)."""

    def note(self, waited_s: float) -> None:
        """Note that the server has ended a wait of this thread's work."""
        now_s = time.monotonic()
        with self._lock:
            first = not self._since_s
            self._since_s.setdefault(threading.get_ident(), now_s - waited_s)
        if first:
            _log.warning(
                "metadata: held up by a lock of another session; still trying",
                server=self._where,
                waited_s=round(waited_s),
            )

    def settle(self, *, given_up: bool = False) -> None:
        """Note that this thread's work has ended. `given_up`: it failed because its last wait timed out as well, which
        is logged for each thread."""
        if not self._since_s:
            return
        with self._lock:
            since_s = self._since_s.pop(threading.get_ident(), None)
            last = since_s is not None and not self._since_s
        if since_s is None:
            return
        waited_s = round(time.monotonic() - since_s)
        if given_up:
            _log.warning(
                "metadata: gave up waiting for a lock of another session", server=self._where, waited_s=waited_s
            )
        elif last:
            _log.info("metadata: no longer held up by a lock of another session", server=self._where, waited_s=waited_s)

    def require_none(self) -> None:
        """Raise Transient while work is held up."""
        with self._lock:
            longest_s = max((time.monotonic() - since_s for since_s in self._since_s.values()), default=None)
        if longest_s is not None:
            raise Transient(
                f"metadata at {self._where}: a lock of another session has held up work for {longest_s:.0f} s; find"
                " the session in information_schema.innodb_trx (the lock of a table: in SHOW PROCESSLIST) and end it"
            )

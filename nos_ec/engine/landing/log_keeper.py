"""The thread that does the upkeep of a landing log, so that no PUT waits while a segment is sealed or made.

The log wakes it. It also checks the log at intervals: while no PUTs come, old segments must still be sealed, or they
are never released.
"""

from __future__ import annotations

import threading

import structlog

from nos_ec.engine.landing.landing_log import LandingLog
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)


class LogKeeper:
    """Calls `tend` of one log in the background. The thread starts when the log first has upkeep, or its first batch is
    settled.

    `look_ms` is the time between checks while the log does not wake it. Safe to call from several threads.
    """

    def __init__(self, clock: Clock, look_ms: int) -> None:
        self._clock = clock
        self._look_ms = look_ms
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self, log: LandingLog) -> None:
        """Make the thread check the log now, without waiting for it. All calls must pass the same log."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._keep, args=(log,), name="landing-log", daemon=True)
                self._thread.start()
        self._woken.set()

    def close(self) -> None:
        """End the thread. Close the log first: then this waits for at most one operation of its medium. Idempotent."""
        with self._lock:
            self._closed = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _keep(self, log: LandingLog) -> None:
        while True:
            self._clock.wait(self._woken, self._look_ms)
            self._woken.clear()
            if self._closed:
                return
            try:
                log.tend()
            except Exception:
                # A bug in one check must not end the thread: segments would stay OPEN until the process ends.
                _log.exception("upkeep of the landing log failed; trying again")

"""The thread that tends a landing log, so that no PUT waits for the sealing of a segment or the making of the next one.

The log wakes it. It also looks by itself: while no PUT comes, somebody must seal what is old, or nothing in it is ever
given back.
"""

from __future__ import annotations

import threading

import structlog

from nos_ec.engine.landing.landing_log import LandingLog
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)


class LogKeeper:
    """Tends one log in the background. The thread starts when the log first has upkeep, or its first batch is settled.

    look_ms: time between looks while the log does not wake it. Safe to call from several threads.
    """

    def __init__(self, clock: Clock, look_ms: int) -> None:
        self._clock = clock
        self._look_ms = look_ms
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self, log: LandingLog) -> None:
        """Let the thread look at the log now. Always the same log. Does not wait."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._keep, args=(log,), name="landing-log", daemon=True)
                self._thread.start()
        self._woken.set()

    def close(self) -> None:
        """End the thread. Close the log first: then this waits for one operation of its medium at most. Idempotent."""
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
                # A bug in one look must not end the thread: segments would stay OPEN as long as the process runs.
                _log.exception("landing log not tended; trying again")

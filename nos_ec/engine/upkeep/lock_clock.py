"""Advances the lock time of a store, by which object locks end (docs/adr/0053).

The lock time is stored in the metadata, and never jumps ahead: while a process watches it, it advances by the least of
the times that passed by a monotonic clock, by the clock of the host and by the clock of the database. Time during which
no process watched it is caught up slowly, at CATCH_UP of the speed of a clock. So clocks that are ahead end no lock
early as long as a process watches; if they are ahead when a process begins to watch, a lock ends early by at most that
share of the time that is left.

No lease is needed. A process adds the time since it last saw the lock time, and only if nobody has changed it since. So
no moment is counted twice, however many processes watch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from nos_ec.core.killpoints import kill_point
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Locks

TICK_S = 60.0
"""How often the lock time advances."""
CATCH_UP = 100
"""A gap is caught up by one part in this many of the time that passes."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The lock time, and what the other clocks showed, when this process saw it or set it. `gap_ms` is how far the lock
    time was behind, as far as it was not caught up yet."""

    lock_ms: int
    timer_s: float
    host_ms: int
    database_ms: int
    gap_ms: int


class LockClock:
    """Watches the lock time. Belongs to one thread."""

    def __init__(self, metadata: Locks, clock: Clock, timer: Callable[[], float]) -> None:
        """timer: returns monotonic seconds with an arbitrary origin."""
        self._metadata = metadata
        self._clock = clock
        self._timer = timer
        self._seen: _Seen | None = None

    def run_once(self) -> None:
        """Advance the lock time, unless that was done less than TICK_S ago. Start it if it never was. Raises
        Transient."""
        seen, before_s, host_ms = self._seen, self._timer(), self._clock.now_ms()
        if seen is not None and before_s - seen.timer_s < TICK_S:
            return
        times = self._metadata.lock_times()
        wall_ms = min(host_ms, times.database_ms)
        if not times.lock_ms:
            if self._metadata.advance_lock_time(0, wall_ms):
                kill_point("lock_clock.advanced")
                _log.info("lock time started", lock_ms=wall_ms)
            self._seen = None  # the next round watches it
        elif seen is None or seen.lock_ms != times.lock_ms:
            # Another process has counted the time until its own look, which was before this one's ended.
            gap_ms = max(0, wall_ms - times.lock_ms)
            self._seen = _Seen(times.lock_ms, self._timer(), self._clock.now_ms(), times.database_ms, gap_ms)
        else:
            passed_ms = min(
                int((before_s - seen.timer_s) * 1000), host_ms - seen.host_ms, times.database_ms - seen.database_ms
            )
            passed_ms = max(0, passed_ms)
            more_ms = min(seen.gap_ms, passed_ms // CATCH_UP)
            to_ms = seen.lock_ms + passed_ms + more_ms
            if to_ms > seen.lock_ms and not self._metadata.advance_lock_time(seen.lock_ms, to_ms):
                self._seen = None  # another process was faster
                return
            kill_point("lock_clock.advanced")
            self._seen = _Seen(to_ms, before_s, host_ms, times.database_ms, seen.gap_ms - more_ms)

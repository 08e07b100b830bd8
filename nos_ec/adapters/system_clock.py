"""The operating system's time."""

from __future__ import annotations

import time
from threading import Event


class SystemClock:
    """Wall-clock time. Machines compare the times of leases and sessions, so a monotonic clock would not do.

    Machines are expected to run NTP. A step of the clock can end a session or a lease early. Both are safe to lose,
    because the work is then repeated: a step costs time but never data.
    """

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """Wait until `stop` is set or `wait_ms` have passed. Returns True when `stop` is set."""
        return stop.wait(wait_ms / 1000)


class SteadyClock(SystemClock):
    """Time since an unknown moment, which passes evenly even when the machine's clock is set. For the waits of one
    process: its times mean nothing to another process, or after a restart of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since an unknown moment."""
        return time.monotonic_ns() // 1_000_000

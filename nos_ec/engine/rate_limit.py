"""Limits background work to a number of bytes, or operations, per second."""

from __future__ import annotations

from threading import Event

from nos_ec.ports.clock import Beat, Clock, unwatched

SLICE_MS = 1_000
"""A long wait is divided into waits of this length, so that the watchdog gets its beats."""
CREDIT_MS = 1_000
"""The longest delay of slow work that faster work may make up for."""


class RateLimit:
    """Makes one thread wait after each piece of work. So in any time t the thread does at most
    bytes_per_s * (t + CREDIT_MS), plus one piece. A longer pause does not allow a larger burst after it."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        """bytes_per_s: 0 for no limit."""
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._due_ms = 0
        """When the work so far would have ended at exactly this rate, rounded down."""
        self._rest = 0
        """Thousandths of bytes lost to rounding."""

    def spend(self, count_bytes: int, stop: Event, beat: Beat = unwatched) -> None:
        """Wait until the rate allows this many more bytes, or until `stop` is set."""
        if not self._bytes_per_s:
            return
        now_ms = self._clock.now_ms()
        if not -CREDIT_MS <= self._due_ms - now_ms <= 0:  # there was a pause, or the clock was set back
            self._due_ms, self._rest = now_ms, 0
        took_ms, self._rest = divmod(1000 * count_bytes + self._rest, self._bytes_per_s)
        self._due_ms += took_ms
        left_ms = self._due_ms - now_ms
        while left_ms > 0 and not self._clock.wait(stop, min(SLICE_MS, left_ms)):
            beat(0)
            left_ms -= SLICE_MS

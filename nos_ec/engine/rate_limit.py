"""Limits background work to a number of bytes per second."""

from __future__ import annotations

from threading import Event

from nos_ec.ports.clock import Beat, Clock, unwatched

SLICE_MS = 1_000
"""A long wait is cut into waits of this length, so that a watchdog sees that the work goes on."""
CREDIT_MS = 1_000
"""Work that took longer than its bytes allow is made up for within this time."""


class RateLimit:
    """Makes one thread wait after each piece of work, so that in any time t at most bytes_per_s * (t + CREDIT_MS), and
    one piece, is done. A longer pause of the work earns no burst after it."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        """bytes_per_s: 0 for no limit."""
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._due_ms = 0
        """When the work done so far would be over at exactly this rate, rounded down."""
        self._rest = 0
        """Thousandths of bytes that the rounding left out."""

    def spend(self, count_bytes: int, stop: Event, beat: Beat = unwatched) -> None:
        """Wait until that many more bytes may have been moved, or until `stop` is set."""
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

"""Pauses planning while groups cannot be written, because a store does not answer or is full."""

from __future__ import annotations

import structlog

from nos_ec.core.errors import NosError, NoSpace
from nos_ec.engine.retry_queue import BackOff
from nos_ec.ports.clock import Clock, waits

_log = structlog.get_logger(__name__)

BACK_OFF = BackOff(first_ms=1000, max_ms=60_000)


class Pause:
    """Exponential back-off of the whole consumer.

    A single landing copy that cannot be read does not pause the consumer. `failures_in_row` counts failed rounds.
    Failures during a pause do not count, so several lanes that fail together count once. `cause` is the latest failure.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wait_ms = 0
        self.until_ms = 0
        self.failures_in_row = 0
        self.cause: NosError | None = None

    def holds(self) -> bool:
        """Return whether planning is paused now."""
        return waits(self.until_ms, self._clock.now_ms(), self._wait_ms)

    def failed(self, cause: NosError) -> None:
        """Start a pause because a group could not be written, or none of its sources could be read."""
        self.cause = cause
        if self.holds():
            return
        self.failures_in_row += 1
        self._wait_ms = BACK_OFF.wait_ms(self.failures_in_row)
        self.until_ms = self._clock.now_ms() + self._wait_ms
        if isinstance(cause, NoSpace):
            _log.error("no space to pack; objects stay in the landing store", error=str(cause), wait_ms=self._wait_ms)
        else:
            _log.warning("packing paused", error=str(cause), wait_ms=self._wait_ms)

    def succeeded(self) -> bool:
        """Reset the failures because a group was written. A current pause still lasts its full time. Returns whether
        there were failures to reset."""
        failed, self.failures_in_row = self.failures_in_row > 0, 0
        return failed

    def end(self) -> None:
        """End the pause and reset the failures because the cause is gone."""
        self.failures_in_row = self.until_ms = 0

"""Pauses in planning while nothing can be written: a store is away, or full."""

from __future__ import annotations

import structlog

from nos_ec.core.errors import NosError, NoSpace
from nos_ec.engine.parking import BackOff
from nos_ec.ports.clock import Clock, waits

_log = structlog.get_logger(__name__)

BACK_OFF = BackOff(first_ms=1000, max_ms=60_000)


class Pause:
    """Exponential back-off of the whole consumer.

    An object whose landing copy alone cannot be read is no reason for a pause. `failures_in_row` counts failed rounds;
    failures of several lanes at one moment count once. `cause` is the latest failure.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wait_ms = 0
        self.until_ms = 0
        self.failures_in_row = 0
        self.cause: NosError | None = None

    def holds(self) -> bool:
        """Whether planning waits now."""
        return waits(self.until_ms, self._clock.now_ms(), self._wait_ms)

    def failed(self, cause: NosError) -> None:
        """Nothing could be written, or not one source could be read."""
        self.cause = cause
        if self.holds():
            return
        self.failures_in_row += 1
        self._wait_ms = BACK_OFF.wait_ms(self.failures_in_row)
        self.until_ms = self._clock.now_ms() + self._wait_ms
        if isinstance(cause, NoSpace):
            _log.error("no room to pack; objects stay in the landing store", error=str(cause), wait_ms=self._wait_ms)
        else:
            _log.warning("packing pauses", error=str(cause), wait_ms=self._wait_ms)

    def succeeded(self) -> bool:
        """Something was written. A pause that holds goes on. True when it had failed before."""
        failed, self.failures_in_row = self.failures_in_row > 0, 0
        return failed

    def end(self) -> None:
        """Whatever kept groups from being written is over."""
        self.failures_in_row = self.until_ms = 0

"""Ending a run early: on request, when GC is paused, or when its time is over."""

from __future__ import annotations

from enum import StrEnum
from threading import Event


class Stopped(StrEnum):
    """Why a run ended before it had done what it chose. The next run goes on where it ended."""

    SIGNAL = "signal"
    """The process was asked to end."""
    PAUSED = "paused"
    """`gc pause`."""
    MAX_DURATION = "max_duration"
    """`gc run --max-duration`."""


class RunStop(Event):
    """The stop of one run. It is set when `outer` is, or by `end`, which only the thread of the run calls."""

    def __init__(self, outer: Event | None) -> None:
        super().__init__()
        self._outer = outer
        self._why: Stopped | None = None

    def is_set(self) -> bool:
        """Whether the run is to end."""
        return super().is_set() or (self._outer is not None and self._outer.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is to end, for `timeout` seconds at most. Returns whether it is."""
        if super().is_set() or self._outer is None:
            return super().wait(timeout)
        return self._outer.wait(timeout)

    def end(self, why: Stopped) -> None:
        """End the run. The first reason counts."""
        if not self.is_set():
            self._why = why
        self.set()

    @property
    def why(self) -> Stopped | None:
        """Why the run is to end; None while it is not."""
        return (self._why or Stopped.SIGNAL) if self.is_set() else None

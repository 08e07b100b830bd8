"""Stops a run early: on request, when GC is paused, or when its time limit is reached."""

from __future__ import annotations

from enum import StrEnum
from threading import Event


class Stopped(StrEnum):
    """Why a run ended before it had collected all chosen blocks. The next run continues from there."""

    SIGNAL = "signal"
    """The process received a signal to end."""
    PAUSED = "paused"
    """An operator ran `gc pause`."""
    MAX_DURATION = "max_duration"
    """The time limit of `gc run --max-duration` was reached."""
    SPACE = "space"
    """Too little space is free for several workers, so worker 0 collects alone."""


class RunStop(Event):
    """The stop event of one run. It is set when `outer` is set, or by `end`, which only the thread of the run calls."""

    def __init__(self, outer: Event | None) -> None:
        super().__init__()
        self._outer = outer
        self._why: Stopped | None = None

    def is_set(self) -> bool:
        """Return whether the run must end."""
        return super().is_set() or (self._outer is not None and self._outer.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until the run must end. Returns whether it must."""
        if super().is_set() or self._outer is None:
            return super().wait(timeout)
        return self._outer.wait(timeout)

    def end(self, why: Stopped) -> None:
        """End the run. Only the first reason is kept."""
        if not self.is_set():
            self._why = why
        self.set()

    @property
    def why(self) -> Stopped | None:
        """Why the run must end; None while it may continue."""
        return (self._why or Stopped.SIGNAL) if self.is_set() else None

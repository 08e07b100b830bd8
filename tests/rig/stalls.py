"""Detects when this process was kept from running, for tests that measure durations on a machine that stalls."""

from __future__ import annotations

import time
from threading import Event, Thread
from types import TracebackType

BEAT_S = 0.05
LATE_S = 0.2
"""If a beat comes later than this, the machine has kept it waiting."""


class Stalls:
    """The times when the machine kept this process from running, which a separate thread notices. Use it as a context
    manager. A call that waits for something is not a stall, so a call that takes too long still shows."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []
        self._end = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def took_s(self, begun_s: float, ended_s: float) -> float:
        """The seconds from one time of `time.monotonic` to another, less those of stalls. Very recent stalls may not be
        known yet: call it later, or after the end."""
        stalled = (min(end_s, ended_s) - max(begin_s, begun_s) for begin_s, end_s in self._found)
        return ended_s - begun_s - sum(overlap_s for overlap_s in stalled if overlap_s > 0)

    def _run(self) -> None:
        beat_s = time.monotonic()
        while not self._end.wait(BEAT_S):
            now_s = time.monotonic()
            if now_s - beat_s > LATE_S:
                self._found.append((beat_s, now_s))
            beat_s = now_s

"""Throttles log lines for events that may occur by the thousand: logs the first few of each kind, then a count."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from nos_ec.ports.clock import Clock, waits

LINES_MAX = 10
"""The most lines of one kind in WINDOW_MS."""
WINDOW_MS = 60_000


@dataclass(slots=True)
class _Window:
    ends_ms: int
    lines: int = 0
    suppressed: int = 0


class ThrottledLog:
    """Logs at most LINES_MAX errors of one kind in WINDOW_MS. After that time, one line counts the suppressed ones.

    It is meant for events that a metric also counts. Not thread-safe. The kinds are few and fixed in the program.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._log = structlog.get_logger(name)
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def error(self, kind: str, **fields: object) -> None:
        """Log an event of this kind, or only count it."""
        self.report()
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(self._clock.now_ms() + WINDOW_MS)
        if window.lines < LINES_MAX:
            window.lines += 1
            self._log.error(kind, **fields)
        else:
            window.suppressed += 1

    def report(self, *, closing: bool = False) -> None:
        """Log how many events were suppressed in windows that have ended; when closing, in all windows. Cheap."""
        if not self._windows:
            return
        now_ms = self._clock.now_ms()
        for kind, window in list(self._windows.items()):
            if closing or not waits(window.ends_ms, now_ms, WINDOW_MS):
                del self._windows[kind]
                if window.suppressed:
                    self._log.error(f"{kind}: further lines suppressed", count=window.suppressed, named=window.lines)

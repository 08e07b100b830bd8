"""A clock that tests set."""

from __future__ import annotations

from threading import Event, Lock


class FakeClock:
    """Time advances only by `advance` and by `wait`, which returns at once. Safe to share between threads."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._lock = Lock()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        with self._lock:
            return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` pass. Raises ValueError for a step backwards, which tests need a second clock for."""
        if by_ms < 0:
            raise ValueError(f"advance by {by_ms} ms; time does not run backwards")
        with self._lock:
            self._now_ms += by_ms

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """Let `wait_ms` pass unless `stop` is set. Returns whether it is set."""
        if not stop.is_set():
            self.advance(max(0, wait_ms))
        return stop.is_set()


class SetClock(FakeClock):
    """Time advances only by `advance`. A thread that waits does so until its `stop` is set."""

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """Wait until `stop` is set."""
        return stop.wait()

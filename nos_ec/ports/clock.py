"""Time. The clock is always passed in: only adapters and wiring ask the operating system for the time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Protocol


class Clock(Protocol):
    """A source of time, and a way to wait that a stop request can cut short."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """Wait until `stop` is set or `wait_ms` have passed. Returns True when `stop` is set."""
        ...


Beat = Callable[[int], object]
"""A loop calls this on every iteration, with the milliseconds that it will rest before the next one (0: none).
A watchdog considers the loop stuck when no call comes for much longer than that."""


def unwatched(_rest_ms: int) -> None:
    """A Beat for a loop that nothing watches."""


def waits(until_ms: int, now_ms: int, wait_ms: int) -> bool:
    """Whether a wait of `wait_ms` that ends at `until_ms` is still going on. When more than `wait_ms` seem to be left,
    the clock was set back, and the wait counts as over."""
    return 0 < until_ms - now_ms <= wait_ms

"""Time. The clock is always passed in: only adapters and the code that wires them together ask the operating system."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Protocol


class Clock(Protocol):
    """A source of time, and a way to wait that a stop request can cut short."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """Wait until `stop` is set or `wait_ms` have passed. Returns True when `stop` is set."""


Beat = Callable[[int], object]
"""A callback that a loop calls on every iteration, with the milliseconds that it will rest before the next one (0 if it
does not rest). A watchdog considers the loop stuck when it makes no call for much longer than that."""


def unwatched(_rest_ms: int) -> None:
    """Do nothing: the Beat of a loop that no watchdog observes."""


def waits(until_ms: int, now_ms: int, wait_ms: int) -> bool:
    """Return whether a wait of `wait_ms` that ends at `until_ms` is not over yet. When more than `wait_ms` seem to be
    left, the clock was set back, and the wait counts as over."""
    return 0 < until_ms - now_ms <= wait_ms

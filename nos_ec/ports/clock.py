"""Time. Always passed in: no code outside adapters and wiring asks the operating system for the time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Protocol


class Clock(Protocol):
    """A source of time and a way to wait that a stop can cut short."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def wait(self, stop: Event, wait_ms: int) -> bool:
        """Wait until `stop` is set or `wait_ms` is over. Returns True when `stop` is set."""
        ...


Beat = Callable[[int], object]
"""What a loop calls at every turn, with the milliseconds it is about to rest before the next one (0: none).
Whoever watches the loop takes it for stuck when no call comes for much longer than that."""


def unwatched(_rest_ms: int) -> None:
    """A Beat that nobody listens to."""


def waits(until_ms: int, now_ms: int, wait_ms: int) -> bool:
    """Whether a wait of `wait_ms` is not over. When more than that is left, the clock was set back: it is."""
    return 0 < until_ms - now_ms <= wait_ms

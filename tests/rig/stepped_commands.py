"""Commands that move buckets, each in a thread that stands still at every kill point until a test lets it continue.

Only one thread of a test runs at a time, so what happens depends neither on the speed of the machine nor on chance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nos_ec.engine.moving import bucket_mover, version_copier

STEPS_MAX = 10_000
"""No command of a test stands still more often."""


class Killed(BaseException):
    """Ends a command as if its process was killed: nothing tidies up, but its leases end at once."""


class SteppedCommand(threading.Thread):
    """A command. `at` is the kill point at which it stands, or empty once it has ended. `error` is what ended it."""

    def __init__(self, command: Callable[[], object], passed: Callable[[str], object] = lambda _: None) -> None:
        """`passed` is called with each kill point, in the thread of the command, before it stands still there."""
        super().__init__(name="stepped-command", daemon=True)
        self.at = "the beginning"
        self.error: BaseException | None = None
        self._command = command
        self._passed = passed
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._interruption: BaseException | None = None
        self.start()

    def run(self) -> None:
        """See Thread."""
        self._go.acquire()
        try:
            self._raise()
            self._command()
        except BaseException as error:
            self.error = error
        self.at = ""
        self._stands.release()

    def stand_still(self, point: str) -> None:
        """Wait here for the next `step`. To be called in the thread of the command."""
        self._passed(point)
        self.at = point
        self._stands.release()
        self._go.acquire()
        self._raise()

    def _raise(self) -> None:
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption

    def step(self, interruption: BaseException | None = None) -> None:
        """Let the command continue to its next kill point or its end, or raise an error in it where it stands."""
        assert self.at, "the command has ended"
        self._interruption = interruption
        self._go.release()
        self._stands.acquire()

    def go_to(self, point: str = "") -> None:
        """Let the command continue until it stands at a kill point, or has ended."""
        for _ in range(STEPS_MAX):
            if self.at in ("", point):
                return
            self.step()
        raise AssertionError(f"the command stands at {self.at} after {STEPS_MAX} steps")

    def kill(self) -> None:
        """End the command where it stands."""
        if self.at:
            self.step(Killed())
        assert not self.at, f"the command continues after it was killed, and stands at {self.at}"


@contextmanager
def standing_still() -> Iterator[None]:
    """Let stepped commands stand still at the kill points of moves. Other threads pass these points."""

    def point(name: str) -> None:
        thread = threading.current_thread()
        if isinstance(thread, SteppedCommand):
            thread.stand_still(name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (bucket_mover, version_copier):
            patch.setattr(module, "kill_point", point)
        yield

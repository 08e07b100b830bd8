"""Is a process alive, and can it do its work? Two questions, because the answers lead to different actions.

Alive: every loop beat its heart recently. One that did not hangs, and a restart helps.
Ready: what the process depends on answers. If it does not, a restart helps nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from nos_ec.core.errors import NosError
from nos_ec.monitoring.single_flight import SingleFlight
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)


class Heart:
    """Beaten by one loop at every turn; see `nos_ec.ports.clock.Beat`.

    Times are those of the wall clock: when it is set forward, a loop may look late until its next turn.
    """

    def __init__(self, clock: Clock, stall_ms_max: int) -> None:
        self._clock = clock
        self._stall_ms_max = stall_ms_max
        self(0)

    def __call__(self, rest_ms: int) -> None:
        """The loop turns, and rests for `rest_ms` before its next turn."""
        self._late_from_ms = self._clock.now_ms() + rest_ms + self._stall_ms_max

    def stalled(self) -> bool:
        """True when the loop did not turn for longer than it may."""
        return self._clock.now_ms() > self._late_from_ms


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe is told. `problems` has for each part that is not well the reason; empty: all is well."""

    problems: dict[str, str]

    @property
    def good(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


class Health:
    """The hearts and the dependencies of one process."""

    def __init__(self, clock: Clock, stall_ms_max: int) -> None:
        self._clock = clock
        self._stall_ms_max = stall_ms_max
        self._hearts: dict[str, Heart] = {}
        self._checks: dict[str, Callable[[], object]] = {}
        self._ask_all = SingleFlight(self._asked_all)
        self._phase: Literal["starting", "running", "stopping"] = "starting"

    def heart(self, loop: str) -> Heart:
        """A heart for a loop that starts now."""
        heart = self._hearts[loop] = Heart(self._clock, self._stall_ms_max)
        return heart

    def require(self, name: str, check: Callable[[], object]) -> None:
        """Ready only while `check` does not raise a NosError. It is called from several threads and must only read."""
        self._checks[name] = check

    def started(self) -> None:
        """The loops begin: ready from now on, if what is required answers."""
        self._phase = "running"

    def stopping(self) -> None:
        """The process was asked to stop: not ready any more, it only finishes what it has begun."""
        self._phase = "stopping"

    def alive(self) -> Answer:
        """Did every loop turn recently? Asks nobody else, so it answers at once whatever hangs."""
        stalled = [loop for loop, heart in list(self._hearts.items()) if heart.stalled()]
        return Answer(dict.fromkeys(stalled, f"no turn for more than {self._stall_ms_max} ms"))

    def ready(self) -> Answer:
        """Does everything this process depends on answer? Asks all of it; who asks meanwhile gets the same answer."""
        problems = {} if self._phase == "running" else {"process": str(self._phase)}
        return Answer(problems | self._ask_all())

    def _asked_all(self) -> dict[str, str]:
        problems = {}
        for name, check in list(self._checks.items()):
            try:
                check()
            except NosError as error:
                _log.warning("not ready", dependency=name, error=str(error))
                problems[name] = f"{type(error).__name__}: {error}"
        return problems

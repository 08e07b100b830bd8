"""Is a process alive, and can it do its work? These are two questions, because the answers lead to different actions.

Alive: every loop has taken a turn recently. A loop that has not is hanging, and a restart helps.
Ready: everything that the process depends on answers. If something does not, a restart does not help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from nos_ec.core.errors import NosError
from nos_ec.monitoring.single_flight import SingleFlight
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)


HIDDEN = "see the log of the process"
"""Stands for a reason where anyone may ask."""


class Heart:
    """The heartbeat of one loop, which calls it on every turn; see `nos_ec.ports.clock.Beat`.

    Uses wall-clock time, so when the clock is set forward, a loop may look late until its next turn.
    """

    def __init__(self, clock: Clock, stall_ms_max: int) -> None:
        self._clock = clock
        self._stall_ms_max = stall_ms_max
        self(0)

    def __call__(self, rest_ms: int) -> None:
        """Note that the loop takes a turn, and then rests for `rest_ms` before the next one."""
        self._late_from_ms = self._clock.now_ms() + rest_ms + self._stall_ms_max

    def stalled(self) -> bool:
        """True when the loop's next turn is overdue by more than the allowed time."""
        return self._clock.now_ms() > self._late_from_ms


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a probe. `problems` gives the reason for each part that is not well; empty when all is well."""

    problems: dict[str, str]

    @property
    def good(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems

    def data(self, *, reasons: bool = True) -> dict[str, Any]:
        """The answer as /livez and /readyz give it, on every endpoint: `ok`, and `problems` with the reason by part.
        reasons: False hides them, because they may name servers."""
        problems = self.problems if reasons else dict.fromkeys(self.problems, HIDDEN)
        return {"ok": self.good, "problems": problems}


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
        """Count as ready only while `check` raises no NosError. It must only read; several threads may call it."""
        self._checks[name] = check

    def started(self) -> None:
        """Note that the loops start. From now on, the process is ready if everything that it requires answers."""
        self._phase = "running"

    def stopping(self) -> None:
        """Note that the process was asked to stop. It is no longer ready, and only finishes what it has begun."""
        self._phase = "stopping"

    def alive(self) -> Answer:
        """Has every loop taken a turn recently? Asks no other process, so it answers at once whatever hangs."""
        stalled = [loop for loop, heart in list(self._hearts.items()) if heart.stalled()]
        return Answer(dict.fromkeys(stalled, f"no turn for more than {self._stall_ms_max} ms"))

    def ready(self) -> Answer:
        """Does everything this process depends on answer? Concurrent callers share one round of checks."""
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

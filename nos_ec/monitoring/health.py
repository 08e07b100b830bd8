"""Checks whether a process is alive and whether it can work. These are two checks, because they lead to different
actions.

A process is alive if every loop has completed a turn recently. Otherwise a loop hangs, and a restart helps. A process
is ready if everything that it depends on answers. If something does not, a restart does not help.
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
"""Replaces reasons in answers to unauthenticated requests."""


class Heart:
    """The heartbeat of one loop, which calls it on every turn; see `nos_ec.ports.clock.Beat`.

    It uses wall-clock time, so when the clock is set forward, a loop may look late until its next turn.
    """

    def __init__(self, clock: Clock, stall_ms_max: int) -> None:
        self._clock = clock
        self._stall_ms_max = stall_ms_max
        self(0)

    def __call__(self, rest_ms: int) -> None:
        """Record that the loop has taken a turn, and will rest for `rest_ms` before the next one."""
        self._late_from_ms = self._clock.now_ms() + rest_ms + self._stall_ms_max

    def stalled(self) -> bool:
        """Return whether the loop's next turn is overdue by more than the allowed time."""
        return self._clock.now_ms() > self._late_from_ms


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a probe. `problems` has the reason for each part that fails; it is empty if all parts work."""

    problems: dict[str, str]

    @property
    def good(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def data(self, *, reasons: bool = True) -> dict[str, Any]:
        """Return the JSON of /livez and /readyz: `ok`, and `problems` with the reason for each part. Without `reasons`
        these are hidden, because they may name servers."""
        problems = self.problems if reasons else dict.fromkeys(self.problems, HIDDEN)
        return {"ok": self.good, "problems": problems}


class Health:
    """The heartbeats and dependencies of a process."""

    def __init__(self, clock: Clock, stall_ms_max: int) -> None:
        self.clock = clock
        self._stall_ms_max = stall_ms_max
        self._hearts: dict[str, Heart] = {}
        self._checks: dict[str, Callable[[], object]] = {}
        self._check_all = SingleFlight(self._checked_all)
        self._phase: Literal["starting", "running", "stopping"] = "starting"

    def heart(self, loop: str) -> Heart:
        """Return a heart for a loop that starts now."""
        heart = self._hearts[loop] = Heart(self.clock, self._stall_ms_max)
        return heart

    def require(self, name: str, check: Callable[[], object]) -> None:
        """Make readiness depend on `check`, which raises NosError on failure. It must only read; several threads may
        call it."""
        self._checks[name] = check

    def started(self) -> None:
        """Record that the loops start. From now on, the process is ready if all its dependencies answer."""
        self._phase = "running"

    def stopping(self) -> None:
        """Record that the process was asked to stop. It is no longer ready, and only finishes its current work."""
        self._phase = "stopping"

    def alive(self) -> Answer:
        """Return which loops are stalled. It does not call other processes, so it always returns at once."""
        stalled = [loop for loop, heart in list(self._hearts.items()) if heart.stalled()]
        return Answer(dict.fromkeys(stalled, f"no turn for more than {self._stall_ms_max} ms"))

    def ready(self) -> Answer:
        """Return which dependencies do not answer. Concurrent callers share one round of checks."""
        problems = {} if self._phase == "running" else {"process": str(self._phase)}
        return Answer(problems | self._check_all())

    def _checked_all(self) -> dict[str, str]:
        problems = {}
        for name, check in list(self._checks.items()):
            try:
                check()
            except NosError as error:
                _log.warning("not ready", dependency=name, error=str(error))
                problems[name] = f"{type(error).__name__}: {error}"
        return problems

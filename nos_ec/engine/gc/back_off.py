"""How fast GC may work, so that reads of others stay fast.

GC times small reads of its own: some while none of its groups is under way (quiet), some while it works (busy). Both
wait behind the same queues as the reads of users. When busy ones take too much longer than quiet ones, GC has fewer
groups under way, and once it has only one, it rests for a part of its time. Rests alone would not do: the slowest reads
are those that meet GC at work, and they do not become faster by being fewer. While it rests it times quiet reads again,
so the comparison follows the load of the others. A run begins slowly, and speeds up while reads stay fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

PROBES = 16
"""Reads of each kind that are compared, the latest ones. Fewer busy ones decide nothing."""
QUIET_MIN = 4
"""Without so many quiet reads nothing is compared."""
QUANTILE = 0.9
SLOWER, FASTER = 0.5, 1.15
"""A decision changes the speed by as much as reads are too slow, but not below the first; otherwise by the second."""
SPEED_START, SPEED_MIN = 0.25, 0.05
"""GC begins with the first, and always gets on at the second."""
SLACK_S = 0.0005
"""A slowdown of less than that is noise."""


class BackOff:
    """The speed of a run, 1 for the most that it can do. Not thread-safe.

    slowdown_max: how many times longer busy reads may take than quiet ones; 0: any time.
    """

    def __init__(self, slowdown_max: float) -> None:
        self._slowdown_max = slowdown_max
        self._quiet: deque[float] = deque(maxlen=PROBES)
        self._busy: deque[float] = deque(maxlen=PROBES)
        self.speed = SPEED_START if slowdown_max > 0 else 1.0

    @property
    def is_on(self) -> bool:
        """Whether reads are to be timed."""
        return self._slowdown_max > 0

    @property
    def wants_quiet(self) -> bool:
        """Whether too few quiet reads are known."""
        return self.is_on and len(self._quiet) < QUIET_MIN

    def quiet(self, seconds: float) -> None:
        """A read took that long while no group was under way."""
        self._quiet.append(seconds)

    def busy(self, seconds: float) -> None:
        """A read took that long while groups were written."""
        self._busy.append(seconds)
        if len(self._busy) < PROBES or len(self._quiet) < QUIET_MIN:
            return
        allowed_s = max(_quantile(self._quiet) * self._slowdown_max, _quantile(self._quiet) + SLACK_S)
        busy_s = _quantile(self._busy)
        factor = max(SLOWER, allowed_s / busy_s) if busy_s > allowed_s else FASTER
        self.speed = min(1.0, max(SPEED_MIN, self.speed * factor))
        self._busy.clear()

    def hurry(self) -> None:
        """Work all the time again: space is short."""
        self.speed = 1.0
        self._busy.clear()

    def groups(self, lanes: int) -> int:
        """How many groups may be under way in a run with so many lanes."""
        return max(1, int(lanes * self.speed))

    def rest_s(self, worked_s: float, lanes: int) -> float:
        """How long to rest after so much work: not at all while more than one group may be under way."""
        return worked_s * max(0.0, 1 / (lanes * self.speed) - 1)


def _quantile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]

"""The speed of a GC run, lowered while GC slows down the reads of users.

GC times small reads of its own: some while none of its groups is being written (quiet), some while it works (busy).
Both wait in the same queues as the reads of users. When busy reads take too much longer than quiet ones, GC writes
fewer groups at a time, and once it writes only one, it rests for a share of its time. Rests alone would not help: the
slowest reads are those that meet GC at work, and fewer of them are not faster. GC times quiet reads again while it
rests, so the comparison follows the load of the users. A run starts slowly, and speeds up while reads stay fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

PROBES = 16
"""How many reads of each kind are compared, the latest ones. No decision is made on fewer busy reads."""
QUIET_MIN = 4
"""No decision is made on fewer quiet reads."""
QUANTILE = 0.9
SLOWER, FASTER = 0.5, 1.15
"""Bounds of the factor by which one decision changes the speed: in proportion to the excess of the busy reads, but not
below the first; by the second when they are fast enough."""
SPEED_START, SPEED_MIN = 0.25, 0.05
"""The speed at which a run starts, and the lowest speed."""
SLACK_S = 0.0005
"""A smaller slowdown is noise."""


class RunSpeed:
    """The speed of one run as a share of its full speed. Not thread-safe.

    slowdown_max: how many times longer busy reads may take than quiet ones; 0 for no limit.
    """

    def __init__(self, slowdown_max: float) -> None:
        self._slowdown_max = slowdown_max
        self._quiet: deque[float] = deque(maxlen=PROBES)
        self._busy: deque[float] = deque(maxlen=PROBES)
        self.share = SPEED_START if slowdown_max > 0 else 1.0

    @property
    def is_on(self) -> bool:
        """Whether reads must be timed."""
        return self._slowdown_max > 0

    @property
    def wants_quiet(self) -> bool:
        """Whether more quiet reads are needed for a decision."""
        return self.is_on and len(self._quiet) < QUIET_MIN

    def add_quiet(self, seconds: float) -> None:
        """Record how long a read took while no group was being written."""
        self._quiet.append(seconds)

    def add_busy(self, seconds: float) -> None:
        """Record how long a read took while groups were being written. Every PROBES reads, adjust the speed."""
        self._busy.append(seconds)
        if len(self._busy) < PROBES or len(self._quiet) < QUIET_MIN:
            return
        allowed_s = max(_quantile(self._quiet) * self._slowdown_max, _quantile(self._quiet) + SLACK_S)
        busy_s = _quantile(self._busy)
        factor = max(SLOWER, allowed_s / busy_s) if busy_s > allowed_s else FASTER
        self.share = min(1.0, max(SPEED_MIN, self.share * factor))
        self._busy.clear()

    def hurry(self) -> None:
        """Return to full speed, because space is short."""
        self.share = 1.0
        self._busy.clear()

    def groups(self, lanes: int) -> int:
        """Return how many groups may be written at a time by a run with this many lanes."""
        return max(1, int(lanes * self.share))

    def rest_s(self, worked_s: float, lanes: int) -> float:
        """Return how many seconds to rest after working for `worked_s`: 0 while several groups may be written at a
        time."""
        return worked_s * max(0.0, 1 / (lanes * self.share) - 1)


def _quantile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]

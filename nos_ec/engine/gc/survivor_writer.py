"""Writes the groups of one run, several at a time, until too many of them fail.

9  for each lane, memory holds the pending plans for one block and the bytes of one group
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from nos_ec.core.errors import NosError, NoSpace
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.lanes import Lanes
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriteResult

WRITE_TRIES = 3
"""A run gives up after this many failures in a row. Groups that fail together count once. The writer tries each group
on several blocks."""
WRITE_RETRY_WAIT_MS = 1000


class SurvivorWriter:
    """Writes through lanes with one StripeWriter each. They are opened for the first group, so a run that moves nothing
    opens none. One thread submits and collects."""

    def __init__(self, run: RunContext, new_writer: Callable[[], StripeWriter]) -> None:
        self._run = run
        self._geometry = run.blocks.geometry
        self._lane_count = 1
        self._new_writer = new_writer
        self._lanes: Lanes | None = None

    def expect(self, stripes: float) -> None:
        """Set the number of stripes that the run will write. Call it before the first group. Each lane leaves one block
        that is not full, so there are not more lanes than blocks to fill."""
        lanes = min(self._run.options.lanes, ceil(stripes / self._geometry.stripes_per_block))
        self._lane_count = max(1, lanes)

    def limit(self, lanes: int) -> None:
        """Limit how many lanes may write from now on. Call it before each group."""
        if self._lanes is not None:
            self._lanes.limit(lanes)

    @property
    def full(self) -> bool:
        """Whether enough groups are pending: for each lane that may write, enough to fill a block."""
        return self._lanes is not None and self._lanes.full

    @property
    def pending(self) -> int:
        """How many submitted groups have results that are not collected yet."""
        return 0 if self._lanes is None else self._lanes.pending

    def submit(self, plan: GroupPlan[Packable]) -> None:
        """Hand a group to a lane. The next groups of its stream go to the same lane until its block is full."""
        if self._lanes is None:
            writers = [self._new_writer() for _ in range(self._lane_count)]
            self._lanes = Lanes(writers, self._run.timer, self._geometry)
        self._lanes.submit(plan)

    def withdraw(self) -> list[GroupPlan[Packable]]:
        """Take back the groups that no lane has begun to write."""
        return [] if self._lanes is None else self._lanes.withdraw()

    def collect(self, wait_ms: int) -> list[WriteResult]:
        """Return the available results. While a group is pending, waits at most `wait_ms` for the first one. Raises
        what `StripeWriter.write` raises."""
        return [] if self._lanes is None else self._lanes.collect(wait_ms)

    def wait_or_give_up(self, causes: Sequence[NosError]) -> NosError | None:
        """Wait a moment after failures to write groups. Returns the failure that must end the batch, or None.

        causes: why groups could not be written. NoSpace ends the batch at once, any other failure after WRITE_TRIES in
        a row.
        """
        for cause in causes:
            if isinstance(cause, NoSpace):
                return cause
        if causes and self._lanes is not None:
            if self._lanes.failures_in_row >= WRITE_TRIES:
                return causes[-1]
            self._run.clock.wait(self._run.stop, WRITE_RETRY_WAIT_MS)
        return None

    def close(self) -> None:
        """Let the groups that are being written finish, and seal the open blocks."""
        if self._lanes is not None:
            self._lanes.close()

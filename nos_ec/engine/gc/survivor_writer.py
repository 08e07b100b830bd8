"""Writing the groups of one run, several at a time, until too many of them fail.

9  plans for a block per lane are pending, and the bytes of one group per lane are in memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from nos_ec.core.errors import NosError, NoSpace
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.gc.run_context import RunContext
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.lanes import Lanes
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriteResult

WRITE_TRIES = 3
"""A run gives up after this many tries in a row, with as many groups as there are lanes. The writer tries each group on
several blocks."""
WRITE_RETRY_WAIT_MS = 1000


class SurvivorWriter:
    """Writes through lanes, one StripeWriter each. They are made for the first group: a run that moves nothing needs
    none. One thread submits and collects."""

    def __init__(self, run: RunContext, new_writer: Callable[[], StripeWriter]) -> None:
        self._clock = run.clock
        self._stop = run.stop
        self._timer = run.timer
        self._lanes_max = run.options.lanes
        self._geometry = run.blocks.geometry
        self._lane_count = 1
        self._new_writer = new_writer
        self._lanes: Lanes | None = None

    def expect(self, stripes: float) -> None:
        """Say how much the run will write, before it writes. Each lane leaves a block behind that is not full, so there
        are no more lanes than blocks to fill."""
        self._lane_count = max(1, min(self._lanes_max, ceil(stripes / self._geometry.stripes_per_block)))

    def limit(self, lanes: int) -> None:
        """Let no more than so many lanes begin a group from now on. To be called before each group."""
        if self._lanes is not None:
            self._lanes.limit(lanes)

    @property
    def full(self) -> bool:
        """Whether as many groups are pending as should be: for each lane that may write, as many as fill a block."""
        return self._lanes is not None and self._lanes.full

    @property
    def pending(self) -> int:
        """Groups submitted whose results have not been collected."""
        return 0 if self._lanes is None else self._lanes.pending

    def submit(self, plan: GroupPlan[Packable]) -> None:
        """Hand a group to a lane: the next ones of its stream follow it there, until its block is full."""
        if self._lanes is None:
            writers = [self._new_writer() for _ in range(self._lane_count)]
            self._lanes = Lanes(writers, self._timer, self._geometry)
        self._lanes.submit(plan)

    def withdraw(self) -> list[GroupPlan[Packable]]:
        """Take back the groups that no lane has begun."""
        return [] if self._lanes is None else self._lanes.withdraw()

    def collect(self, wait_ms: int) -> list[WriteResult]:
        """The results that are there. While a group is pending, waits at most `wait_ms` for the first. Raises what
        `StripeWriter.write` raises."""
        return [] if self._lanes is None else self._lanes.collect(wait_ms)

    def wait_or_give_up(self, causes: Sequence[NosError]) -> NosError | None:
        """Wait a moment if groups could not be written, for these causes. Returns the failure when this batch must end,
        None otherwise.

        NoSpace ends the batch at once, any other failure after WRITE_TRIES in a row.
        """
        for cause in causes:
            if isinstance(cause, NoSpace):
                return cause
        if causes and self._lanes is not None:
            if self._lanes.failures_in_row >= WRITE_TRIES:
                return causes[-1]
            self._clock.wait(self._stop, WRITE_RETRY_WAIT_MS)
        return None

    def close(self) -> None:
        """Let the groups under way end, and seal the open blocks, if any."""
        if self._lanes is not None:
            self._lanes.close()

"""Writing the groups of one run, until too many of them fail."""

from __future__ import annotations

from collections.abc import Callable

from nos_ec.core.errors import NosError, NoSpace
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.gc.run_context import RunContext
from nos_ec.engine.packable import Packable
from nos_ec.engine.stripe_writer import StripeWriter, WriteResult

WRITE_TRIES = 3
"""A run gives up after this many groups in a row that cannot be written. The writer tries each on several blocks."""
WRITE_RETRY_WAIT_MS = 1000


class SurvivorWriter:
    """Writes through one StripeWriter, which is made for the first group: a run that moves nothing needs none."""

    def __init__(self, run: RunContext, new_writer: Callable[[], StripeWriter]) -> None:
        self._clock = run.clock
        self._stop = run.stop
        self._new_writer = new_writer
        self._writer: StripeWriter | None = None
        self._failures = 0

    def write(self, plan: GroupPlan[Packable]) -> WriteResult:
        """Write one group. Raises what `StripeWriter.write` raises."""
        if self._writer is None:
            self._writer = self._new_writer()
        return self._writer.write(plan)

    def wait_or_give_up(self, written: WriteResult) -> NosError | None:
        """Wait a moment if the group was not written. Returns the failure when this batch must end, None otherwise.

        NoSpace ends the batch at once, any other failure after WRITE_TRIES groups in a row.
        """
        if written.cause is None:
            self._failures = 0
            return None
        self._failures += 1
        if isinstance(written.cause, NoSpace) or self._failures >= WRITE_TRIES:
            return written.cause
        self._clock.wait(self._stop, WRITE_RETRY_WAIT_MS)
        return None

    def close(self) -> None:
        """Seal the open block, if any."""
        if self._writer is not None:
            self._writer.close()

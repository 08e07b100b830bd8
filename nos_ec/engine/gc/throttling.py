"""Throttles a GC run by rate limits, rests, pauses and a time limit, and publishes its progress.

Used by the thread that plans the groups. Every few seconds it reads the commands of operators (control.py), and
publishes the state of the run (run/note.py).

10  while space is short, a run is not slowed down, but it may be paused
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from nos_ec.core.errors import NosError
from nos_ec.core.geometry import PAGE
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.gc.run.note import RunState, write_run
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.gc.run.speed import QUIET_MIN, RunSpeed
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.space import is_tight
from nos_ec.engine.rate_limit import RateLimit
from nos_ec.ports.metadata import BlockRow

_log = structlog.get_logger(__name__)

POLL_MS = 5_000
"""How often a run reads the commands of operators and publishes its state."""
PROBE_S = 0.05
"""The shortest time between two timed reads."""
REST_S_MIN, REST_S_MAX = 0.2, 5.0
"""The shortest and the longest rest. Shorter rests are added up until one is worth letting all groups finish for it."""
QUIET_EVERY_S = 60.0
"""How often a run at full speed lets all groups finish, to time quiet reads."""
RATE_MS = 60_000
"""The rate of a run is measured over the last minute."""


@dataclass(frozen=True, slots=True)
class Marks:
    """How many bytes the run had moved at a moment."""

    at_ms: int
    bytes_moved: int


class Throttle:
    """Throttles one run. Used by one thread."""

    def __init__(
        self, run: RunContext, rng: random.Random, process: str, max_ms: int | None, *, alone: bool = False
    ) -> None:
        """rng: chooses which reads to time. process: the name of this process, for operators. max_ms: the time limit of
        the run, or None. alone: the run moves a block that an operator named, so it ignores pauses, and its state is
        not published."""
        self._run = run
        self._is_alone = alone
        self._rng = rng
        self._process = process
        self._gc_control = GcControl(run.metadata)
        self._started_ms = run.clock.now_ms()
        self._end_ms = None if max_ms is None else self._started_ms + max_ms
        self._polled_ms: int | None = None
        # Each worker compares reads while it works with reads while only the others work.
        self._speed = RunSpeed(run.options.slowdown_max ** (1 / run.share.workers))
        self._control = Control()
        self._is_urgent = self._is_unlimited = False
        self._set_limits()
        self._blocks: Sequence[BlockRow] = ()
        self._probed_s = self._quiet_s = 0.0
        self._worked_from_s: float | None = None
        self._owed_s = 0.0
        self._marks: deque[Marks] = deque()

    # --- every step -------------------------------------------------------------------------------
    def after_step(self) -> None:
        """Report the progress of the run, and end it when its time limit is reached. Every few seconds, read the
        commands of operators, and publish the state of the run."""
        self._run.progress.show()
        if self._is_alone:
            return
        run, now_ms = self._run, self._run.clock.now_ms()
        if self._end_ms is not None and not self._started_ms <= now_ms < self._end_ms:
            run.stop.end(Stopped.MAX_DURATION)
        if self._polled_ms is not None and 0 <= now_ms - self._polled_ms < POLL_MS:
            return
        self._polled_ms = now_ms
        try:
            self._obey(self._gc_control.read())
            self._check_space()
            self._publish(now_ms, ended=False)
        except NosError as error:
            _log.warning("GC limits not read or progress not published; the run continues", error=str(error))

    def end(self) -> None:
        """Publish that the run has ended."""
        try:
            self._publish(self._run.clock.now_ms(), ended=True)
        except NosError as error:
            _log.warning("end of the GC run not published", error=str(error))

    def _obey(self, control: Control) -> None:
        if control.paused:
            self._run.stop.end(Stopped.PAUSED)
        if control != self._control:
            _log.info("GC limits changed", bytes_per_s=control.bytes_per_s, operations=control.operations_per_s)
            self._control = control
            self._set_limits()

    def _set_limits(self) -> None:
        options, control = self._run.options, self._control
        self._bytes = self._new_limit(control.bytes_per_s, options.bytes_per_s)
        self._operations = self._new_limit(control.operations_per_s, options.operations_per_s)

    def _new_limit(self, of_operator: int | None, of_settings: int) -> RateLimit:
        per_s = of_settings if of_operator is None else of_operator
        own = per_s and max(1, per_s // self._run.share.workers)
        return RateLimit(self._run.clock, 0 if self._is_unlimited else own)

    def _check_space(self) -> None:
        if self._run.share.worker and is_tight(self._run.blocks, self._run.options):
            self._run.stop.end(Stopped.SPACE)
        short_bytes = self._run.options.short_bytes
        free_bytes = self._run.blocks.free_bytes()
        self._is_urgent = free_bytes < 2 * short_bytes
        if self._is_urgent:
            self._speed.hurry()
        if (is_unlimited := free_bytes < short_bytes) != self._is_unlimited:
            self._is_unlimited = is_unlimited
            self._set_limits()

    def _publish(self, now_ms: int, *, ended: bool) -> None:
        result, stop = self._run.progress.result, self._run.stop
        write_run(
            self._run.metadata,
            RunState(
                process=self._process,
                started_ms=self._started_ms,
                seen_ms=now_ms,
                ended_ms=now_ms if ended else None,
                victims=result.blocks_chosen,
                victims_done=result.blocks_finished,
                bytes_chosen=result.bytes_chosen,
                bytes_moved=result.bytes_moved,
                objects_moved=result.objects_moved,
                blocks_deleted=result.blocks_deleted,
                bytes_reclaimed=result.bytes_reclaimed,
                bytes_per_s=self._rate(now_ms, result),
                speed_percent=round(100 * self._speed.share),
                stopped=stop.why,
                behind=result.behind,
            ),
            self._run.share.worker,
        )
        kill_point("gc.run_noted")

    def _rate(self, now_ms: int, result: CollectionResult) -> int:
        self._marks.append(Marks(now_ms, result.bytes_moved))
        while len(self._marks) > 2 and not 0 <= now_ms - self._marks[0].at_ms <= RATE_MS:
            self._marks.popleft()
        first = self._marks[0]
        return max(0, (result.bytes_moved - first.bytes_moved) * 1000 // max(1, now_ms - first.at_ms))

    # --- work -------------------------------------------------------------------------------------
    def begin(self, blocks: Sequence[BlockRow]) -> None:
        """Time quiet reads of these blocks before their first group is written."""
        self._blocks = blocks
        while self._speed.wants_quiet and blocks and not self._run.stop.is_set():
            if not self._probe(quiet=True):
                break

    def spend(self, count_bytes: int, operations: int) -> None:
        """Wait until the rate limits allow this many more bytes and operations."""
        self._bytes.spend(count_bytes, self._run.stop, lambda _: self.after_step())
        self._operations.spend(operations, self._run.stop, lambda _: self.after_step())

    def groups(self, lanes: int) -> int:
        """Return how many groups may be written at a time by at most this many lanes."""
        return self._speed.groups(lanes)

    def watch(self) -> None:
        """Time a read, if the last timed read was long enough ago. Call it while groups are being written."""
        if self._speed.is_on and not self._is_urgent and self._run.timer() - self._probed_s >= PROBE_S:
            self._probe(quiet=False)

    def wants_rest(self, lanes: int) -> bool:
        """Return whether the caller should let all groups finish and then call `rest`. lanes: as for `groups`."""
        if not self._speed.is_on or self._is_urgent:
            return False
        now_s = self._run.timer()
        if self._worked_from_s is None:
            self._worked_from_s, self._quiet_s = now_s, self._quiet_s or now_s
        self._owed_s += self._speed.rest_s(now_s - self._worked_from_s, lanes)
        self._worked_from_s = now_s
        return self._owed_s >= REST_S_MIN or now_s - self._quiet_s >= QUIET_EVERY_S

    def rest(self) -> None:
        """Rest, and time quiet reads. Call it while no group is being written."""
        rest_ms = int(1000 * min(self._owed_s, REST_S_MAX))
        self._run.clock.wait(self._run.stop, min(rest_ms, 1000))
        for _ in range(QUIET_MIN):
            self._probe(quiet=True)
        for _ in range(max(0, rest_ms - 1000) // 1000):
            if self._run.clock.wait(self._run.stop, 1000):
                break
            self.after_step()
        self._owed_s, self._worked_from_s, self._quiet_s = 0.0, None, self._run.timer()

    def _probe(self, *, quiet: bool) -> bool:
        """Time the read of one page of a random victim. Returns whether the page could be read."""
        if not self._blocks:
            return False
        block = self._rng.choice(self._blocks)
        stripe_size = self._run.blocks.geometry.stripe_size
        began_s = self._run.timer()
        try:
            self._run.blocks.read(block.block_id, self._rng.randrange(max(1, block.stripes)) * stripe_size, PAGE)
        except NosError:
            return False
        finally:
            self._probed_s = self._run.timer()
        (self._speed.add_quiet if quiet else self._speed.add_busy)(self._probed_s - began_s)
        return True

"""What keeps a run from being a burden: limits, rests, pauses and its time limit. Also tells others where it is.

Used by the thread that plans the groups. Every few seconds it reads what operators ask of GC (control.py), and notes
where the run is (run_note.py).

10  while space is short nothing slows a run down, except a pause
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
from nos_ec.engine.gc.back_off import QUIET_MIN, BackOff
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.engine.gc.progress import CollectionResult
from nos_ec.engine.gc.run_context import RunContext
from nos_ec.engine.gc.run_note import RunState, write_run
from nos_ec.engine.gc.run_stop import Stopped
from nos_ec.engine.rate_limit import RateLimit
from nos_ec.ports.metadata import BlockRow

_log = structlog.get_logger(__name__)

POLL_MS = 5_000
"""How often a run looks at what is asked of it, and notes where it is."""
PROBE_S = 0.05
"""The least time between two timed reads."""
REST_S_MIN, REST_S_MAX = 0.2, 5.0
"""Rests are collected until they are worth waiting for the groups under way. None is longer than that."""
QUIET_EVERY_S = 60.0
"""How often a run at full speed lets its groups end, to time quiet reads."""
RATE_MS = 60_000
"""The rate of a run is that of the last minute."""


@dataclass(frozen=True, slots=True)
class Marks:
    """How many bytes were moved until when."""

    at_ms: int
    bytes_moved: int


class Throttle:
    """Of one run. Used by one thread."""

    def __init__(
        self, run: RunContext, rng: random.Random, process: str, max_ms: int | None, *, alone: bool = False
    ) -> None:
        """rng: chooses which headers to time. process: names this process to operators. max_ms: the longest time of the
        run, None for any. alone: the run moves a block that an operator named, so no pause holds, and nothing is
        noted."""
        self._run = run
        self._is_alone = alone
        self._rng = rng
        self._process = process
        self._control_row = GcControl(run.metadata)
        self._started_ms = run.clock.now_ms()
        self._end_ms = None if max_ms is None else self._started_ms + max_ms
        self._polled_ms: int | None = None
        self._back_off = BackOff(run.options.slowdown_max)
        self._control = Control()
        self._bytes = RateLimit(run.clock, run.options.bytes_per_s)
        self._operations = RateLimit(run.clock, run.options.operations_per_s)
        self._is_urgent = self._is_boundless = False
        self._blocks: Sequence[BlockRow] = ()
        self._probed_s = self._quiet_s = 0.0
        self._worked_from_s: float | None = None
        self._owed_s = 0.0
        self._marks: deque[Marks] = deque()

    # --- every step -------------------------------------------------------------------------------
    def look(self) -> None:
        """Show that the run goes on, and end it if its time is over. Every few seconds, do what operators ask, and note
        where the run is."""
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
            self._obey(self._control_row.read())
            self._weigh_space()
            self._note(now_ms, ended=False)
        except NosError as error:
            _log.warning("GC cannot read its limits now, or note where it is; it goes on", error=str(error))

    def end(self) -> None:
        """Note that the run is over."""
        try:
            self._note(self._run.clock.now_ms(), ended=True)
        except NosError as error:
            _log.warning("the end of the GC run was not noted", error=str(error))

    def _obey(self, control: Control) -> None:
        if control.paused:
            self._run.stop.end(Stopped.PAUSED)
        if control != self._control:
            _log.info("GC keeps to other limits", bytes_per_s=control.bytes_per_s, operations=control.operations_per_s)
            self._control = control
            self._set_limits()

    def _set_limits(self) -> None:
        options, control = self._run.options, self._control
        found = (control.bytes_per_s, control.operations_per_s)
        of_settings = (options.bytes_per_s, options.operations_per_s)
        count_bytes, operations = (
            0 if self._is_boundless else default if limit is None else limit
            for limit, default in zip(found, of_settings, strict=True)
        )
        self._bytes, self._operations = RateLimit(self._run.clock, count_bytes), RateLimit(self._run.clock, operations)

    def _weigh_space(self) -> None:
        short_bytes = self._run.options.short_bytes
        free_bytes = self._run.blocks.free_bytes()
        self._is_urgent = free_bytes < 2 * short_bytes
        if self._is_urgent:
            self._back_off.hurry()
        if (is_boundless := free_bytes < short_bytes) != self._is_boundless:
            self._is_boundless = is_boundless
            self._set_limits()

    def _note(self, now_ms: int, *, ended: bool) -> None:
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
                speed_percent=round(100 * self._back_off.speed),
                stopped=stop.why,
                behind=result.behind,
            ),
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
        """Time quiet reads of blocks before the first group of them is written."""
        self._blocks = blocks
        while self._back_off.wants_quiet and blocks and not self._run.stop.is_set():
            if not self._probe(quiet=True):
                break

    def spend(self, count_bytes: int, operations: int) -> None:
        """Wait until so many more bytes may be read and written, with so many operations."""
        self._bytes.spend(count_bytes, self._run.stop, lambda _: self.look())
        self._operations.spend(operations, self._run.stop, lambda _: self.look())

    def groups(self, lanes: int) -> int:
        """How many groups may be under way, with so many lanes at most."""
        return self._back_off.groups(lanes)

    def watch(self) -> None:
        """Time a read, if it is time to. To be called while groups are under way."""
        if self._back_off.is_on and not self._is_urgent and self._run.timer() - self._probed_s >= PROBE_S:
            self._probe(quiet=False)

    def wants_rest(self, lanes: int) -> bool:
        """Whether the groups under way should end, and `rest` be called then. lanes: as for `groups`."""
        if not self._back_off.is_on or self._is_urgent:
            return False
        now_s = self._run.timer()
        if self._worked_from_s is None:
            self._worked_from_s, self._quiet_s = now_s, self._quiet_s or now_s
        self._owed_s += self._back_off.rest_s(now_s - self._worked_from_s, lanes)
        self._worked_from_s = now_s
        return self._owed_s >= REST_S_MIN or now_s - self._quiet_s >= QUIET_EVERY_S

    def rest(self) -> None:
        """Rest, and time quiet reads. No group is under way."""
        rest_ms = int(1000 * min(self._owed_s, REST_S_MAX))
        self._run.clock.wait(self._run.stop, min(rest_ms, 1000))
        for _ in range(QUIET_MIN):
            self._probe(quiet=True)
        for _ in range(max(0, rest_ms - 1000) // 1000):
            if self._run.clock.wait(self._run.stop, 1000):
                break
            self.look()
        self._owed_s, self._worked_from_s, self._quiet_s = 0.0, None, self._run.timer()

    def _probe(self, *, quiet: bool) -> bool:
        """Time the read of a page of a victim. Returns whether it could be read."""
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
        (self._back_off.quiet if quiet else self._back_off.busy)(self._probed_s - began_s)
        return True

"""Regular work of a daemon in addition to its own job: recovery, the reaper, the trimmer of the landing log, the lock
time, buckets whose movers died, and sometimes surveys of the lifetimes of objects and of the sizes of headers.

The reaper may have a backlog of hours, so recovery and the trimmer run again between its batches. A failure of recovery
does not stop the reaper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Any

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.sums import Summed
from nos_ec.engine.expiry.survival import Survey
from nos_ec.engine.figures.header_survey import HeaderSurvey
from nos_ec.engine.landing.copy_forward import CopyForward, ForwardResult
from nos_ec.engine.landing.trimmer import Trimmer, TrimResult
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.engine.upkeep.lock_clock import LockClock
from nos_ec.engine.upkeep.move_recovery import MoveRecovery
from nos_ec.engine.upkeep.reaper import Reaper, ReapResult
from nos_ec.engine.upkeep.recovery import Recovery, RecoveryResult
from nos_ec.ports.clock import Beat, Clock, unwatched, waits

_log = structlog.get_logger(__name__)

RECOVERY_WAIT_MS = 1_000
"""How often recovery runs between batches of the reaper. Without work it costs two queries."""
TRIM_WAIT_MS = 10_000
"""How often the trimmer runs between batches of the reaper."""


@dataclass(frozen=True, slots=True)
class HousekeepingResult(Summed):
    """The results of recovery and the reaper, and with a landing log of the trimmer and the copying of stragglers."""

    recovery: RecoveryResult = field(default_factory=RecoveryResult)
    reaper: ReapResult = field(default_factory=ReapResult)
    trimmer: TrimResult = field(default_factory=TrimResult)
    forward: ForwardResult = field(default_factory=ForwardResult)


class _Stopped(Exception):
    """Ends the current round because the process must stop."""


class Housekeeping:
    """Runs rounds of regular work. Several processes may run it at once; each instance belongs to one thread.

    `done` holds the totals of all rounds, and `failures` counts the rounds that failed. Any thread may read both.
    """

    def __init__(
        self,
        recovery: Recovery,
        reaper: Reaper,
        clock: Clock,
        wait_ms: int,
        trimmer: Trimmer | None = None,
        forward: CopyForward | None = None,
        survey: Survey | None = None,
        headers: HeaderSurvey | None = None,
        lock_clock: LockClock | None = None,
        moves: MoveRecovery | None = None,
    ) -> None:
        """trimmer: deletes segments of the landing log. forward: writes stragglers of the landing log again. Both are
        None without a landing log. survey: None with a single stream. headers: None for no survey of headers.
        lock_clock: None if other processes advance the lock time. moves: None in a store without cells."""
        self._recovery = recovery
        self._reaper = reaper
        self._trimmer = trimmer
        self._forward = forward
        self._survey = survey
        self._headers = headers
        self._lock_clock = lock_clock
        self._moves = moves
        self._clock = clock
        self._wait_ms = wait_ms
        self.done = HousekeepingResult()
        self.failures = 0

    @property
    def retry_queues(self) -> tuple[RetryQueue[Any], ...]:
        """The queues of parked items, one per kind. Any thread may read their figures."""
        kinds: list[RetryQueue[Any]] = [self._recovery.parked, self._reaper.parked]
        if self._recovery.logs is not None:
            kinds.append(self._recovery.logs.parked)
        if self._trimmer is not None:
            kinds.append(self._trimmer.parked)
        if self._forward is not None:
            kinds.append(self._forward.parked)
        return tuple(kinds)

    def run_once(self, beat: Beat = unwatched) -> HousekeepingResult:
        """Seal the blocks of dead writers, delete the landing copies that are due, and delete the segments of the
        landing log that are no longer referenced.

        A failure of recovery does not stop the reaper. The first failure is logged, and raised at the end. Raises
        Transient.
        """
        before, total = self.done, HousekeepingResult()
        failure: Exception | None = None
        recovery_ms = self._clock.now_ms()
        trim_ms = recovery_ms + TRIM_WAIT_MS
        # 1. Run the reaper until nothing is due. Recovery and the trimmer run between its batches.
        while True:
            now_ms = self._clock.now_ms()
            if not waits(recovery_ms, now_ms, RECOVERY_WAIT_MS):
                recovery_ms = now_ms + RECOVERY_WAIT_MS
                recovered = self._recover(beat, log=failure is None)
                if self._lock_clock is not None:
                    try:
                        self._lock_clock.run_once()
                    except Transient as error:
                        _log.warning("lock time not advanced; trying again", error=str(error))
                if self._moves is not None:
                    try:
                        self._moves.run_once(beat)
                    except NosError as error:
                        _log.warning("moves of buckets not checked; trying again", error=str(error))
                if isinstance(recovered, Exception):
                    failure = failure or recovered
                else:
                    total += HousekeepingResult(recovered)
                    self.done = before + total
            if self._trimmer is not None and not waits(trim_ms, now_ms, TRIM_WAIT_MS):
                trim_ms = now_ms + TRIM_WAIT_MS
                total += HousekeepingResult(trimmer=self._trimmer.run_once(beat))
            reaped = self._reaper.run_once(beat)
            total += HousekeepingResult(reaper=reaped)
            self.done = before + total
            beat(0)
            if reaped == ReapResult():
                break
        # 2. Delete unreferenced segments, and copy the stragglers that keep others.
        if self._trimmer is not None:
            total += HousekeepingResult(trimmer=self._trimmer.run_once(beat))
            self.done = before + total
        if self._forward is not None:
            total += HousekeepingResult(forward=self._forward.run_once(beat))
            self.done = before + total
        # 3. Survey the store, when surveys are due.
        if self._survey is not None:
            beat(0)
            self._survey.run_once()
        if self._headers is not None:
            self._headers.run_once(beat)
        if failure is not None:
            raise failure
        return total

    def recover(self) -> None:
        """Run recovery alone. A failure is logged."""
        self._recover(unwatched, log=True)

    def _recover(self, beat: Beat, *, log: bool) -> RecoveryResult | Exception:
        try:
            return self._recovery.run_once(beat)
        except _Stopped:
            raise
        except NosError as error:
            if log:
                _log.error("recovery failed; the reaper continues", error=str(error))
            return error
        except Exception as bug:
            if log:
                _log.exception("recovery failed; the reaper continues")
            return bug

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Run a round every `wait_ms` until `stop` is set. The current round then ends before its next call to a
        store; a call may take as long as that store's time limit. A later round does the rest, as after a crash."""

        def beat_or_stop(rest_ms: int) -> None:
            beat(rest_ms)
            if stop.is_set():
                raise _Stopped

        while not stop.is_set():
            beat(0)
            try:
                self.run_once(beat_or_stop)
            except _Stopped:
                return
            except NosError as error:
                self.failures += 1
                _log.error("housekeeping failed; trying again", error=str(error))
            except Exception:
                self.failures += 1
                # A bug in one round must not end all rounds. The daemon keeps packing, and logs the bug each time.
                _log.exception("housekeeping failed")
            beat(self._wait_ms)
            self._clock.wait(stop, self._wait_ms)

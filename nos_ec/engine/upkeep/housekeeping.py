"""Regular work that a daemon does besides its own job: recovery, then the reaper, then the trimmer of the landing log,
and from time to time surveys of how long objects live, and of what headers take.

The reaper may have a backlog of hours, so the others run again between its batches. Recovery and reaper do not wait for
each other to succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Any

import structlog

from nos_ec.core.errors import NosError
from nos_ec.engine.expiry.survival import Survey
from nos_ec.engine.figures.header_survey import HeaderSurvey
from nos_ec.engine.landing.copy_forward import CopyForward, ForwardResult
from nos_ec.engine.landing.trimmer import Trimmer, TrimResult
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.engine.upkeep.reaper import Reaper, ReapResult
from nos_ec.engine.upkeep.recovery import Recovery, RecoveryResult
from nos_ec.ports.clock import Beat, Clock, unwatched, waits

_log = structlog.get_logger(__name__)

RECOVERY_WAIT_MS = 1_000
"""After this time recovery runs again before the reaper's next batch. Without work it costs two queries."""
TRIM_WAIT_MS = 10_000
"""After this time the trimmer runs before the reaper's next batch."""


@dataclass(frozen=True, slots=True)
class HousekeepingResult:
    """What recovery, the reaper, and on a landing log the trimmer and the copying of stragglers did."""

    recovery: RecoveryResult = field(default_factory=RecoveryResult)
    reaper: ReapResult = field(default_factory=ReapResult)
    trimmer: TrimResult = field(default_factory=TrimResult)
    forward: ForwardResult = field(default_factory=ForwardResult)

    def __add__(self, other: HousekeepingResult) -> HousekeepingResult:
        return HousekeepingResult(
            self.recovery + other.recovery,
            self.reaper + other.reaper,
            self.trimmer + other.trimmer,
            self.forward + other.forward,
        )


class _Stopped(Exception):
    """Ends the current round, because the process is to stop."""


class Housekeeping:
    """Safe to run in several processes at once; each instance belongs to one thread.

    `done` sums up what all rounds did, and `failures` counts those that failed. Any thread may read both.
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
    ) -> None:
        """trimmer: gives back segments of the landing log. forward: writes its stragglers again. None without a log.
        survey: None with a single stream. headers: None for no survey of headers."""
        self._recovery = recovery
        self._reaper = reaper
        self._trimmer = trimmer
        self._forward = forward
        self._survey = survey
        self._headers = headers
        self._clock = clock
        self._wait_ms = wait_ms
        self.done = HousekeepingResult()
        self.failures = 0

    @property
    def retry_queues(self) -> tuple[RetryQueue[Any], ...]:
        """The items that housekeeping has parked, by kind. Any thread may read the figures."""
        kinds: list[RetryQueue[Any]] = [self._recovery.parked, self._reaper.parked]
        if self._recovery.logs is not None:
            kinds.append(self._recovery.logs.parked)
        if self._trimmer is not None:
            kinds.append(self._trimmer.parked)
        if self._forward is not None:
            kinds.append(self._forward.parked)
        return tuple(kinds)

    def run_once(self, beat: Beat = unwatched) -> HousekeepingResult:
        """Seal what dead writers left, delete the landing copies that are due, and give back the segments of the
        landing log that nothing refers to.

        A failure of recovery does not stop the reaper. The first one is logged, and raised at the end. Raises
        Transient.
        """
        before, total = self.done, HousekeepingResult()
        failure: Exception | None = None
        recovery_ms = self._clock.now_ms()
        trim_ms = recovery_ms + TRIM_WAIT_MS
        while True:
            now_ms = self._clock.now_ms()
            if not waits(recovery_ms, now_ms, RECOVERY_WAIT_MS):
                recovery_ms = now_ms + RECOVERY_WAIT_MS
                recovered = self._recover(beat, say=failure is None)
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
        if self._trimmer is not None:
            total += HousekeepingResult(trimmer=self._trimmer.run_once(beat))
            self.done = before + total
        if self._forward is not None:
            total += HousekeepingResult(forward=self._forward.run_once(beat))
            self.done = before + total
        if self._survey is not None:
            beat(0)
            self._survey.run_once()
        if self._headers is not None:
            self._headers.run_once(beat)
        if failure is not None:
            raise failure
        return total

    def recover(self) -> None:
        """Recovery alone. A failure is logged."""
        self._recover(unwatched, say=True)

    def _recover(self, beat: Beat, *, say: bool) -> RecoveryResult | Exception:
        try:
            return self._recovery.run_once(beat)
        except _Stopped:
            raise
        except NosError as error:
            if say:
                _log.error("recovery failed; the reaper continues", error=str(error))
            return error
        except Exception as bug:
            if say:
                _log.exception("recovery failed; the reaper continues")
            return bug

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Run a round every `wait_ms` until `stop` is set. The current round then ends before its next call to a
        store; a call may take as long as that store's time limit. A later round does the rest, as after a crash."""

        def go_on(rest_ms: int) -> None:
            beat(rest_ms)
            if stop.is_set():
                raise _Stopped

        while not stop.is_set():
            beat(0)
            try:
                self.run_once(go_on)
            except _Stopped:
                return
            except NosError as error:
                self.failures += 1
                _log.error("housekeeping failed; trying again", error=str(error))
            except Exception:
                self.failures += 1
                # A bug in one round must not end all rounds. The daemon keeps packing, and logs the bug every time.
                _log.exception("housekeeping failed")
            beat(self._wait_ms)
            self._clock.wait(stop, self._wait_ms)

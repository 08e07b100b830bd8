"""What some daemon has to do from time to time whatever its own job is: recovery, then the reaper."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event

import structlog

from nos_ec.core.errors import NosError
from nos_ec.engine.reaper import Reaper, ReapResult
from nos_ec.engine.recovery import Recovery, RecoveryResult
from nos_ec.ports.clock import Beat, Clock, unwatched

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HousekeepingResult:
    """What both did."""

    recovery: RecoveryResult = field(default_factory=RecoveryResult)
    reaper: ReapResult = field(default_factory=ReapResult)

    def __add__(self, other: HousekeepingResult) -> HousekeepingResult:
        return HousekeepingResult(self.recovery + other.recovery, self.reaper + other.reaper)


class Housekeeping:
    """Safe to run in several processes at once; each object is one thread's.

    `done` has what all rounds did and `failures` how many of them failed; any thread may read both.
    """

    def __init__(self, recovery: Recovery, reaper: Reaper, clock: Clock, wait_ms: int) -> None:
        self._recovery = recovery
        self._reaper = reaper
        self._clock = clock
        self._wait_ms = wait_ms
        self._never = Event()
        self.done = HousekeepingResult()
        self.failures = 0

    def run_once(self, beat: Beat = unwatched) -> HousekeepingResult:
        """Seal what dead writers left, then delete the landing copies that are due. Raises Transient."""
        return self._round(self._never, beat)

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Do so every `wait_ms` until `stop` is set; it is heeded after every batch, however many copies are due."""
        while not stop.is_set():
            beat(0)
            try:
                self._round(stop, beat)
            except NosError as error:
                self.failures += 1
                _log.error("housekeeping failed, trying again", error=str(error))
            except Exception:
                self.failures += 1
                # A bug in one round must not end them all: the daemon packs on, and says this aloud every time.
                _log.exception("housekeeping failed")
            beat(self._wait_ms)
            self._clock.wait(stop, self._wait_ms)

    def _round(self, stop: Event, beat: Beat) -> HousekeepingResult:
        before = self.done
        recovery = self._recovery.run_once(beat)

        def watch(reaped: ReapResult) -> None:
            beat(0)
            self.done = before + HousekeepingResult(recovery, reaped)

        watch(ReapResult())
        return HousekeepingResult(recovery, self._reaper.drain(stop, watch, beat))

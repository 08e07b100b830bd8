"""What some daemon has to do from time to time whatever its own job is: recovery, then the reaper."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Any

import structlog

from nos_ec.core.errors import NosError
from nos_ec.engine.parking import Parking
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


class _Stopped(Exception):
    """The process is to end, and a round goes on."""


class Housekeeping:
    """Safe to run in several processes at once; each object is one thread's.

    `done` has what all rounds did and `failures` how many of them failed; any thread may read both.
    """

    def __init__(self, recovery: Recovery, reaper: Reaper, clock: Clock, wait_ms: int) -> None:
        self._recovery = recovery
        self._reaper = reaper
        self._clock = clock
        self._wait_ms = wait_ms
        self.done = HousekeepingResult()
        self.failures = 0

    @property
    def parkings(self) -> tuple[Parking[Any], ...]:
        """What housekeeping has parked, by kind; any thread may read their figures."""
        return (self._recovery.parked,)

    def run_once(self, beat: Beat = unwatched) -> HousekeepingResult:
        """Seal what dead writers left, then delete the landing copies that are due. Raises Transient."""
        before = self.done
        recovery = self._recovery.run_once(beat)

        def watch(reaped: ReapResult) -> None:
            self.done = before + HousekeepingResult(recovery, reaped)
            beat(0)

        watch(ReapResult())
        return HousekeepingResult(recovery, self._reaper.drain(watch, beat))

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Do so every `wait_ms` until `stop` is set. A round then ends before its next call to a store, each of which
        may take as long as that store's time limit; what it leaves is the next round's, as after a crash."""

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
                _log.error("housekeeping failed, trying again", error=str(error))
            except Exception:
                self.failures += 1
                # A bug in one round must not end them all: the daemon packs on, and says this aloud every time.
                _log.exception("housekeeping failed")
            beat(self._wait_ms)
            self._clock.wait(stop, self._wait_ms)

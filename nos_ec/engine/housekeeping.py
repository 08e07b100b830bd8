"""What some daemon has to do from time to time whatever its own job is: recovery, then the reaper."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

import structlog

from nos_ec.core.errors import NosError
from nos_ec.engine.reaper import Reaper, ReapResult
from nos_ec.engine.recovery import Recovery, RecoveryResult
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HousekeepingResult:
    """What one round of both did."""

    recovery: RecoveryResult
    reaper: ReapResult


class Housekeeping:
    """Safe to run in several processes at once."""

    def __init__(self, recovery: Recovery, reaper: Reaper, clock: Clock, wait_ms: int) -> None:
        self._recovery = recovery
        self._reaper = reaper
        self._clock = clock
        self._wait_ms = wait_ms
        self._never = Event()

    def run_once(self) -> HousekeepingResult:
        """Seal what dead writers left, then delete the landing copies that are due. Raises Transient."""
        return self._round(self._never)

    def run(self, stop: Event) -> None:
        """Do so every `wait_ms` until `stop` is set; it is heeded after every batch, however many copies are due."""
        while not stop.is_set():
            try:
                self._round(stop)
            except NosError as error:
                _log.error("housekeeping failed, trying again", error=str(error))
            except Exception:
                # A bug in one round must not end them all: the daemon packs on, and says this aloud every time.
                _log.exception("housekeeping failed")
            self._clock.wait(stop, self._wait_ms)

    def _round(self, stop: Event) -> HousekeepingResult:
        return HousekeepingResult(self._recovery.run_once(), self._reaper.drain(stop))

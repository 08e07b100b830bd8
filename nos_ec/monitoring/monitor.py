"""What is watched of one process, and a cache for figures that cost something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector

from nos_ec import __version__
from nos_ec.monitoring.exposition import Exposition, Sample
from nos_ec.monitoring.health import Health
from nos_ec.monitoring.metrics import INFO
from nos_ec.monitoring.single_flight import SingleFlight
from nos_ec.ports.clock import Clock, waits

_T = TypeVar("_T")

COST_SHARE = 10
"""A cached figure is kept for at least this many times what it took: watching never takes more than a tenth."""


class Monitor:
    """Metrics and health of one process. Made in wiring with a registry of its own; nothing here is global."""

    def __init__(self, service: str, registry: CollectorRegistry, clock: Clock, stall_ms_max: int) -> None:
        self.service = service
        self.metrics = Exposition(registry)
        self.health = Health(clock, stall_ms_max)
        ProcessCollector(registry=registry)
        self.metrics.add("process", lambda: [Sample(INFO, 1, (service, __version__))])


class Cached(Generic[_T]):
    """The result of `make`, made again when it is older than `age_ms_max`.

    One caller makes it; the others get the last one meanwhile, and wait for the new one only while there is none. So
    a slow query holds one thread, not all of them. A failure is raised to those who waited for it, and not kept.
    """

    def __init__(self, make: Callable[[], _T], clock: Clock, age_ms_max: int) -> None:
        self._make = make
        self._clock = clock
        self._age_ms_max = age_ms_max
        self._refresh = SingleFlight(self._made_anew)
        self._good_for_ms = 0
        self._good_until_ms = -1
        self._made = False
        self._value: _T

    def __call__(self) -> _T:
        """The result. Raises what `make` raises."""
        if self._made and (self._refresh.under_way or self._is_good(self._clock.now_ms())):
            return self._value
        return self._refresh()

    def _made_anew(self) -> _T:
        started_ms = self._clock.now_ms()
        if not self._is_good(started_ms):
            self._value = self._make()
            self._made = True
            ended_ms = self._clock.now_ms()
            self._good_for_ms = max(self._age_ms_max, COST_SHARE * (ended_ms - started_ms))
            self._good_until_ms = ended_ms + self._good_for_ms
        return self._value

    def _is_good(self, now_ms: int) -> bool:
        """Not for longer than was meant when the clock is set back."""
        return waits(self._good_until_ms, now_ms, self._good_for_ms)

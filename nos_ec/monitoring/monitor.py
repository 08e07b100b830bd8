"""The metrics and health of one process, and a cache for expensive figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector

from nos_ec import __version__
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.monitoring.declarations.metrics import INFO
from nos_ec.monitoring.exposition import Exposition, Sample
from nos_ec.monitoring.health import Health
from nos_ec.monitoring.single_flight import SingleFlight
from nos_ec.ports.clock import Clock, waits

_T = TypeVar("_T")

COST_SHARE = 10
"""A cached figure is kept for at least this many times as long as it took to compute, so that computing it takes at
most a tenth of the time."""


class Monitor:
    """The metrics and health of a process. It has its own registry; nothing here is global."""

    def __init__(
        self, service: str, store_id: str, registry: CollectorRegistry, clock: Clock, stall_ms_max: int
    ) -> None:
        self.service = service
        self.metrics = Exposition(registry)
        self.parked: list[Callable[[], Sequence[RetryQueue[Any]]]] = []
        """Return the queues of parked items of the process."""
        self.health = Health(clock, stall_ms_max)
        ProcessCollector(registry=registry)
        self.metrics.add("process", lambda: [Sample(INFO, 1, (service, __version__, store_id))])


class Cached(Generic[_T]):
    """The result of `make`, computed again when it is older than `age_ms_max`.

    One caller computes it. Meanwhile the other callers get the previous result; they wait for the new one only if there
    is no previous one. So a slow query occupies one thread, not all of them. A failure is raised to the callers that
    waited for it, and is not cached.
    """

    def __init__(self, make: Callable[[], _T], clock: Clock, age_ms_max: int) -> None:
        self._make = make
        self._clock = clock
        self._age_ms_max = age_ms_max
        self._refresh = SingleFlight(self._compute)
        self._good_for_ms = 0
        self._good_until_ms = -1
        self._made = False
        self._value: _T

    def __call__(self) -> _T:
        """Return the result. Raises whatever `make` raises."""
        if self._made and (self._refresh.under_way or self._is_good(self._clock.now_ms())):
            return self._value
        return self._refresh()

    def _compute(self) -> _T:
        started_ms = self._clock.now_ms()
        if not self._is_good(started_ms):
            self._value = self._make()
            self._made = True
            ended_ms = self._clock.now_ms()
            self._good_for_ms = max(self._age_ms_max, COST_SHARE * (ended_ms - started_ms))
            self._good_until_ms = ended_ms + self._good_for_ms
        return self._value

    def _is_good(self, now_ms: int) -> bool:
        """Return whether the result is still valid. Returns False, too, if the clock was set back and the result would
        last too long."""
        return waits(self._good_until_ms, now_ms, self._good_for_ms)

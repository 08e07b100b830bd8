"""Measures the cost of learning lifetimes (docs/adr/0033), as a share of the CPU time that packing costs a consumer.

For each object, its stream is looked up when it is packed, and its death is counted. From time to time, housekeeping
makes a survey, a packer reads the table, and a process adds the deaths that it has counted: these cost the same for any
number of objects. They are measured at their most expensive: with the maximum number of buckets in the table, and, if
the benchmark has packed thousands of objects, the maximum number of rows in the range of a survey.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.bench.meter import Instruments, spent_s
from nos_ec.composition.wiring import System
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.packing.lifetimes import BUCKETS_MAX, STREAM_CUTS_DAYS, SurvivalTable
from nos_ec.engine.expiry.known_expiry import KnownExpiry
from nos_ec.engine.expiry.survival import (
    BUCKETS_COUNTED_MAX,
    COUNT_WAIT_MS,
    REFRESH_MS,
    SURVEY_WAIT_MS,
    Deaths,
    ExpectedLifetimes,
    StreamSorting,
    Survey,
)
from nos_ec.engine.packable import Packable
from nos_ec.ports.metadata import ObjectRow

PAGE = 1000
REPEATS = 5
"""Each measurement is repeated, so that other work of the servers, which is counted as well, matters less."""


class _LaterClock(SystemClock):
    """A clock that can be set ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        """See SystemClock."""
        return super().now_ms() + self.ahead_ms


class _LastRanges(random.Random):
    """Chooses the last range of object ids and the one before in turn, so that two surveys examine as many rows as one
    survey ever does."""

    before_last = 0

    def randrange(self, ranges: int, *_: Any) -> int:
        """See random.Random."""
        self.before_last = 1 - self.before_last
        return max(0, ranges - 1 - self.before_last)


class LifetimesUpkeep:
    """Measures the cost of learning lifetimes on a store, whose survival table is unusable afterwards."""

    def __init__(self, system: System, instruments: Instruments) -> None:
        self._system = system
        self._instruments = instruments
        self._clock = _LaterClock()

    def figures(self, objects_per_s: float, cpu_ms_per_object: float) -> dict[str, float]:
        """Return microseconds per object, milliseconds for each periodic task, and the sum as a share of the CPU time
        of a consumer, which packs `objects_per_s` with `cpu_ms_per_object`."""
        rows = self._rows()
        stream_us, death_us = self._stream_us(rows), self._death_us(rows)
        self._system.metadata.count_deaths(_table_of(BUCKETS_MAX).rows(), self._clock.now_ms())
        survey_ms, refresh_ms, add_ms = self._survey_ms(), self._cpu_ms(self._refresh), self._add_ms()
        periodic_us_per_s = sum(
            1e6 * cpu_ms / period_ms
            for cpu_ms, period_ms in ((survey_ms, SURVEY_WAIT_MS), (refresh_ms, REFRESH_MS), (add_ms, COUNT_WAIT_MS))
        )
        whole_us = stream_us + death_us + periodic_us_per_s / objects_per_s
        return {
            "stream_us_per_object": stream_us,
            "death_us_per_object": death_us,
            "survey_ms": survey_ms,
            "refresh_ms": refresh_ms,
            "add_deaths_ms": add_ms,
            "share_of_consumer": whole_us / 1000 / cpu_ms_per_object,
        }

    def _rows(self) -> list[ObjectRow]:
        metadata = self._system.metadata
        buckets = metadata.list_buckets("", PAGE)
        return [row for bucket in buckets for row in metadata.list_objects(bucket, "", "", PAGE)]

    # --- each object ----------------------------------------------------------------------------------
    def _stream_us(self, rows: Sequence[ObjectRow]) -> float:
        metadata, settings, now_ms = self._system.metadata, self._system.settings, self._clock.now_ms()
        known = KnownExpiry(metadata, DAY_MS)
        stream_of = StreamSorting(ExpectedLifetimes(metadata), STREAM_CUTS_DAYS[settings.gc.streams - 1], known)
        packables = [_packable(row) for row in rows]
        stream_of(packables[0], now_ms)  # reads the table, which is measured separately
        started_s = time.thread_time()
        for packable in packables:
            stream_of(packable, now_ms)
        return (time.thread_time() - started_s) * 1e6 / len(rows)

    def _death_us(self, rows: Sequence[ObjectRow]) -> float:
        deaths, now_ms = Deaths(self._system.metadata, self._clock), self._clock.now_ms()
        started_s = time.thread_time()
        for row in rows:
            deaths.died([row], now_ms)
        return (time.thread_time() - started_s) * 1e6 / len(rows)

    # --- each period ----------------------------------------------------------------------------------
    def _survey_ms(self) -> float:
        survey = Survey(self._system.metadata, self._clock, _LastRanges())

        def both() -> None:
            for _ in range(2):
                self._clock.ahead_ms += SURVEY_WAIT_MS
                survey.run_once()

        both()  # the very first survey only creates the table
        return self._cpu_ms(both)

    def _refresh(self) -> None:
        ExpectedLifetimes(self._system.metadata).at(self._clock.now_ms())

    def _add_ms(self) -> float:
        counts = _table_of(BUCKETS_COUNTED_MAX).rows()
        return self._cpu_ms(lambda: self._system.metadata.count_deaths(counts, self._clock.now_ms()))

    def _cpu_ms(self, what: Callable[[], object]) -> float:
        """Return the CPU time in milliseconds that `what` takes in all processes."""
        processes = self._instruments.processes
        before = processes.cpu_s()
        for _ in range(REPEATS):
            what()
        spent = spent_s(processes, before).values()
        return sum(seconds for seconds in spent if seconds is not None) * 1000 / REPEATS


def _table_of(buckets: int) -> SurvivalTable:
    table = SurvivalTable(buckets_max=buckets)
    for number in range(buckets):
        table.observe(f"upkeep-{number}", 1.0, 1.0, died=True)
    return table


def _packable(row: ObjectRow) -> Packable:
    source = row.landing_id or row.extent
    assert source is not None
    return Packable(row.object_id, row.key, row.version, row.size, row.crc32c, source)

"""Sums over the whole store that are cheap to read, however large the store is.

Computing the sums takes time in proportion to the blocks and the waiting objects. In a small store that is negligible,
so each reader computes them. In a large store, one process computes and stores the sums, and all others read the stored
ones: one row. The cost is bounded by the time between computations. It depends neither on the number of processes nor
on the number of scrapes. PUTs, commits and deletes do not update the sums (docs/adr/0018).

A process claims the sums before it computes them: by compare-and-set it moves the time of the next computation ahead.
If it dies, that time passes, and another process claims them. Two processes that compute at once only repeat work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Event, Lock

import structlog

from nos_ec.core.errors import NosError
from nos_ec.engine.figures.cost_history import note_cost
from nos_ec.engine.figures.usage import HOUR_MS, UsagePoint, note_point
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import Metadata, StoredTotals, Totals

_log = structlog.get_logger(__name__)

CHEAP_ROWS_MAX = 5_000
"""Sums over at most this many rows are not stored, because computing them takes only milliseconds."""
COST_SHARE = 20
"""Sums are computed again after at least this many times the duration of the last computation. So all processes
together spend at most a twentieth of the time on them."""
CLAIM_MS_MIN = 60_000
CLAIM_SHARE = 10
"""How long a claim lasts: this many times the duration of the last computation, at least CLAIM_MS_MIN."""
KEEP_WAIT_MS_MIN = 1_000
NEXT_MS_MAX = 3_600_000
"""The longest time between computations: one hour, also the most that the settings allow. A next time further ahead
comes from a clock that is or was fast."""


@dataclass(frozen=True, slots=True)
class DatedTotals:
    """Sums over the whole store as they were at `at_ms`."""

    totals: Totals
    at_ms: int


@dataclass(slots=True)
class OwnSums:
    """The sums that this process computed last because the stored ones were out of date, and until when it uses them
    again. While `lock` is held, one thread computes them, and the others wait for the result."""

    lock: Lock = field(default_factory=Lock)
    dated: DatedTotals | None = None
    until_ms: int = 0


class StoreTotals:
    """Reads the sums, and keeps the stored ones up to date. Safe to call from several threads.

    `wait_ms`: sums are computed again after this time at the earliest. `own` is shared by all readers of a process.
    """

    def __init__(self, metadata: Metadata, clock: Clock, wait_ms: int, own: OwnSums | None = None) -> None:
        self._metadata = metadata
        self._clock = clock
        self._wait_ms = wait_ms
        self._keep_wait_ms = max(wait_ms, KEEP_WAIT_MS_MIN)
        self._cost_due_ms = 0
        self._own = OwnSums() if own is None else own

    def read(self) -> DatedTotals:
        """Return the stored sums, or exact ones if none are stored or if they are out of date. Exact sums of a large
        store are used again for COST_SHARE times as long as computing them took. Raises Transient."""
        stored, now_ms = self._metadata.stored_totals(), self._clock.now_ms()
        if stored is not None and waits(
            stored.next_ms + 2 * self._keep_wait_ms, now_ms, NEXT_MS_MAX + 2 * self._keep_wait_ms
        ):
            return DatedTotals(stored.totals, stored.at_ms)
        with self._own.lock:
            return self._computed()

    def _computed(self) -> DatedTotals:
        own, now_ms = self._own, self._clock.now_ms()
        if own.dated is not None and waits(own.until_ms, now_ms, NEXT_MS_MAX):
            return own.dated
        dated = DatedTotals(self._metadata.totals(), now_ms)
        own.dated = dated if dated.totals.rows > CHEAP_ROWS_MAX else None
        own.until_ms = self._next_ms(now_ms, self._clock.now_ms())
        return dated

    def _next_ms(self, began_ms: int, ended_ms: int) -> int:
        """Return when sums may be computed again."""
        return ended_ms + min(max(self._wait_ms, COST_SHARE * max(0, ended_ms - began_ms)), NEXT_MS_MAX)

    def keep(self) -> None:
        """Compute and store the sums if that is due and no other process does it, and record them for the usage of the
        last days and the cost of the last month. Raises Transient."""
        stored, now_ms = self._metadata.stored_totals(), self._clock.now_ms()
        if stored is not None:
            if waits(stored.next_ms, now_ms, NEXT_MS_MAX):
                return
            claim = replace(stored, next_ms=now_ms + min(max(CLAIM_MS_MIN, CLAIM_SHARE * stored.cost_ms), NEXT_MS_MAX))
            if not self._metadata.store_totals(claim, stored):
                return
            stored = claim
        totals = self._metadata.totals()
        ended_ms = self._clock.now_ms()
        note_point(self._metadata, UsagePoint.of(totals, now_ms))
        if not waits(self._cost_due_ms, now_ms, HOUR_MS):
            self._cost_due_ms = note_cost(self._metadata, totals, now_ms)
        if totals.rows <= CHEAP_ROWS_MAX:
            if stored is not None:
                self._metadata.store_totals(None, stored)
            return
        cost_ms, next_ms = max(0, ended_ms - now_ms), self._next_ms(now_ms, ended_ms)
        self._metadata.store_totals(StoredTotals(totals, now_ms, cost_ms, next_ms), stored)

    def run(self, stop: Event) -> None:
        """Keep the sums up to date until `stop` is set."""
        while not stop.is_set():
            try:
                self.keep()
            except NosError as error:
                _log.warning("store totals not updated", error=str(error))
            except Exception:
                # A bug in one update must not end all updates. It is logged each time.
                _log.exception("store totals not updated")
            self._clock.wait(stop, self._keep_wait_ms)

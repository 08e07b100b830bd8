"""Measures how long objects live, and chooses the stream of an object by it (core/packing/lifetimes.py, docs/adr/0033).

Each process counts the deaths that its own deletes and overwrites cause, and adds the counts to the survival table from
time to time. Surveys count the exposure. A survey reads one random range of object ids, whatever the size of the store.
A live object found there counts with the time since the last survey times the number of ranges. So the sum is right on
average, and no state of single objects is stored. Both count the same sample of the keys, one in SAMPLE_ONE_IN.

A killed process loses the deaths of a few minutes, and a damaged table is learned again. Only the order in which
objects are packed depends on it.

9  a process keeps counts of at most BUCKETS_COUNTED_MAX buckets, and a survey reads at most SURVEY_IDS rows
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import structlog

from nos_ec.core.errors import NosError
from nos_ec.core.packing.lifetimes import (
    BUCKETS_MAX,
    OTHERS,
    UNKNOWN,
    Lifetimes,
    SurvivalTable,
    age_range,
    is_sampled,
    stream_of,
)
from nos_ec.engine.expiry.known_expiry import KnownExpiry
from nos_ec.engine.packable import Packable
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import ObjectRow, Survival, SurvivalRow
from nos_ec.ports.metadata.survival import SURVIVAL_ROWS_MAX

_log = structlog.get_logger(__name__)

DAY_MS = 86_400_000
COUNT_WAIT_MS = 300_000
"""How often a process adds its counts of deaths to the table."""
BUCKETS_COUNTED_MAX = 1_000
SURVEY_WAIT_MS = 300_000
"""The time between two surveys of any processes."""
SURVEY_IDS = 8_192
"""How many object ids a survey covers; reading them takes some milliseconds."""
SURVEYED_MS_MAX = 30 * DAY_MS
"""The most time that a survey counts, in case the clock has jumped."""
REFRESH_MS = 300_000
"""The greatest age of the lifetimes that a packer uses."""
_FOLDED_SHARE = 8


class Deaths:
    """Counts the deaths that this process causes. Safe to call from several threads."""

    def __init__(self, metadata: Survival, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        self._table = SurvivalTable(buckets_max=BUCKETS_COUNTED_MAX)
        self._counted_ms = clock.now_ms()

    def died(self, rows: Sequence[ObjectRow], now_ms: int) -> None:
        """Count these versions as dead; see `Survival.watch_deaths`. Every COUNT_WAIT_MS, add the counts to the
        table."""
        sampled = [row for row in rows if row.size and is_sampled(row.key.md5)]
        if not sampled:
            return
        with self._lock:
            for row in sampled:
                age_days = (now_ms - row.created_ms) / DAY_MS
                self._table.observe(row.key.bucket, age_days, age_days, died=True)
            due = not waits(self._counted_ms + COUNT_WAIT_MS, self._clock.now_ms(), COUNT_WAIT_MS)
        if due:
            self.flush()

    def flush(self) -> None:
        """Add the counts to the table. A failure is logged, and the counts are dropped."""
        with self._lock:
            counts, self._table = self._table.rows(), SurvivalTable(buckets_max=BUCKETS_COUNTED_MAX)
            now_ms = self._counted_ms = self._clock.now_ms()
        if not counts:
            return
        try:
            self._metadata.count_deaths(counts, now_ms)
        except NosError as error:
            _log.warning("deaths not counted", error=str(error))


class Survey:
    """Surveys the live objects. If several processes try, one of them does it. Belongs to one thread."""

    def __init__(self, metadata: Survival, clock: Clock, rng: random.Random) -> None:
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._next_ms = 0

    def run_once(self) -> bool:
        """Survey once, if a survey is due. Returns whether this process did it. Raises Transient."""
        now_ms = self._clock.now_ms()
        if waits(self._next_ms, now_ms, SURVEY_WAIT_MS):
            return False
        rows = self._metadata.survival()
        previous_ms = next((row.counted_ms for row in rows if row.bucket == OTHERS), None)
        if previous_ms is not None and waits(previous_ms + SURVEY_WAIT_MS, now_ms, SURVEY_WAIT_MS):
            self._next_ms = previous_ms + SURVEY_WAIT_MS
            return False
        passed_ms = 0 if previous_ms is None else min(max(0, now_ms - previous_ms), SURVEYED_MS_MAX)
        counts = self._survey_range(now_ms, passed_ms / DAY_MS)
        self._next_ms = now_ms + SURVEY_WAIT_MS
        return self._metadata.count_survey(counts.rows(), previous_ms, now_ms, _lightest(rows))

    def _survey_range(self, now_ms: int, passed_days: float) -> SurvivalTable:
        table = SurvivalTable(buckets_max=SURVIVAL_ROWS_MAX)
        ranges = -(-self._metadata.last_object_id() // SURVEY_IDS)
        if not ranges or not passed_days:
            return table
        first = self._rng.randrange(ranges) * SURVEY_IDS + 1
        for key, created_ms, _ in self._metadata.living_between(first, first + SURVEY_IDS - 1):
            if is_sampled(key.md5):
                table.observe_alive(key.bucket, (now_ms - created_ms) / DAY_MS, passed_days * ranges)
        return table


class ExpectedLifetimes:
    """The lifetimes in the survival table, at most REFRESH_MS old. Belongs to one thread."""

    def __init__(self, metadata: Survival) -> None:
        self._metadata = metadata
        self._next_ms = 0
        self._known = UNKNOWN

    def at(self, now_ms: int) -> Lifetimes:
        """Return the lifetimes expected now, or the last known ones while the metadata store does not answer."""
        if not waits(self._next_ms, now_ms, REFRESH_MS):
            self._next_ms = now_ms + REFRESH_MS
            try:
                self._known = lifetimes_of(self._metadata.survival(), now_ms)
            except NosError as error:
                _log.warning("expected lifetimes not read; using the last known ones", error=str(error))
        return self._known


class StreamSorting:
    """Returns the place of an object in the packing order. Belongs to one thread."""

    def __init__(self, lifetimes: ExpectedLifetimes, cuts_days: Sequence[float], expiry: KnownExpiry) -> None:
        self._lifetimes = lifetimes
        self._expiry = expiry
        self._cuts_days = cuts_days
        self._known: Lifetimes | None = None
        self._streams: dict[tuple[str, int], int] = {}
        """A cache of the streams by bucket and age range, computed from `_known`."""

    def __call__(self, packable: Packable, now_ms: int) -> tuple[int, str, str, float]:
        """Return the stream, bucket, prefix and time of birth. The prefix is the name up to its last slash."""
        key, born_ms = packable.key, packable.born_ms
        return self._stream(packable, born_ms, now_ms), key.bucket, key.name.rpartition("/")[0], born_ms

    def _stream(self, packable: Packable, born_ms: int, now_ms: int) -> int:
        lifetimes, bucket = self._lifetimes.at(now_ms), packable.key.bucket
        expires_ms = packable.expires_ms
        if expires_ms is None:
            expires_ms = self._expiry.expires_ms(packable, born_ms, now_ms)
        if expires_ms is not None:
            return stream_of(lifetimes, self._cuts_days, bucket, 0, (expires_ms - now_ms) / DAY_MS)
        if lifetimes is not self._known or len(self._streams) > SURVIVAL_ROWS_MAX:
            self._known = lifetimes
            self._streams.clear()
        age_days = (now_ms - born_ms) / DAY_MS
        place = bucket, age_range(age_days)
        stream = self._streams.get(place)
        if stream is None:
            stream = self._streams[place] = stream_of(lifetimes, self._cuts_days, bucket, age_days)
        return stream


def lifetimes_of(rows: Sequence[SurvivalRow], now_ms: int) -> Lifetimes:
    """Return the lifetimes according to the rows of the table at `now_ms`."""
    return table_of(rows, now_ms).lifetimes()


def table_of(rows: Sequence[SurvivalRow], now_ms: int) -> SurvivalTable:
    """Return the counts of these rows as they have decayed by `now_ms`."""
    table = SurvivalTable(buckets_max=SURVIVAL_ROWS_MAX)
    for bucket, counted_ms, counts in rows:
        counts.decay((now_ms - counted_ms) / DAY_MS)
        table.add(bucket, counts)
    return table


def _lightest(rows: Sequence[SurvivalRow]) -> list[str]:
    """Return the buckets to fold into the others when there are too many: those with the least history. The times of
    their counts hardly differ, compared with the half-life."""
    own = [row for row in rows if row.bucket != OTHERS]
    if len(own) <= BUCKETS_MAX:
        return []
    own.sort(key=lambda row: (row.counts.weight, row.bucket))
    return [row.bucket for row in own[: len(own) - BUCKETS_MAX + BUCKETS_MAX // _FOLDED_SHARE]]

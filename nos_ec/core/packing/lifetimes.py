"""The expected lifetimes of objects, by bucket and age, and the streams in which they are packed.

The survival table counts, for each bucket and each range of ages, how many objects died at that age (deaths) and how
long objects were seen at that age (exposure, in object-days). Deaths / exposure is the death rate at that age. The mean
lifetime of dead objects would not do: it excludes objects that live for years.

One object in SAMPLE_ONE_IN is observed. Its key decides, so that all processes observe the same ones, and no state per
object is needed. Old counts lose half of their weight every `half_life_days`, so that the table follows a bucket whose
users change their habits. A bucket with little history takes the rates of all buckets together as a prior.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import exp, inf, isfinite, log
from typing import Generic, NamedTuple, TypeVar

from nos_ec.core.errors import Corrupt, InvalidInput

AGE_EDGES_DAYS = (0.0, *(2.0**power for power in range(-4, 12)))
"""Where each range of ages begins: 0, 1/16, 1/8 ... 2048 days. The last one has no end."""
AGE_RANGES = len(AGE_EDGES_DAYS)

SAMPLE_ONE_IN = 16
HALF_LIFE_DAYS = 180.0
OTHERS = ""
"""Stands for all buckets that have no counts of their own. No bucket has this name."""
BUCKETS_MAX = 10_000
"""Buckets with counts of their own, by default. A table of that size takes about 5 MB."""

STREAM_CUTS_DAYS: tuple[tuple[float, ...], ...] = (
    (),
    (100.0,),
    (20.0, 200.0),
    (8.0, 40.0, 250.0),
    (4.0, 20.0, 100.0, 400.0),
    (2.0, 8.0, 40.0, 150.0, 500.0),
)
"""The expected remaining lifetimes that separate 1 to 6 streams. docs/GC.md: their exact places matter little."""
STREAMS = 4
"""The default number of streams."""

_FIRST_HAZARD = 0.05
"""Deaths per object and day that are assumed if nothing was ever seen."""
_POOL_PRIOR_DAYS = 2.0
_OWN_PRIOR_WIDTHS = 2.0
"""Weight of the rate of all buckets in the rate of one: as if one object had been seen for twice the range of ages."""
_LAST_WIDTH_DAYS = AGE_EDGES_DAYS[-1]
_HAZARD_MIN = 1e-9
_SHARE_MIN = 1e-12
_LN_2 = log(2)
_WEIGHT_MIN = 1e-3
"""Counts that have decayed to less than this have no effect and are dropped."""

_WIDTHS = (*(end - begin for begin, end in pairwise(AGE_EDGES_DAYS)), _LAST_WIDTH_DAYS)
assert AGE_RANGES == 17
assert len(_WIDTHS) == AGE_RANGES
assert [len(cuts) for cuts in STREAM_CUTS_DAYS] == list(range(6))


def is_sampled(key_md5: bytes) -> bool:
    """Return whether the object with this key is observed. `key_md5` is as in headers.

    Its last byte decides, because the first half chooses the partition of an event.
    """
    return key_md5[-1] % SAMPLE_ONE_IN == 0


def age_range(age_days: float) -> int:
    """Return the range of ages of this age. A negative age, after a clock was set back, counts as 0."""
    return bisect_right(AGE_EDGES_DAYS, age_days) - 1 if age_days > 0 else 0


_COUNTS = struct.Struct(f"<{2 * AGE_RANGES}d")
COUNTS_BYTES = _COUNTS.size


@dataclass(slots=True)
class Counts:
    """Deaths, and exposure in object-days, by range of ages."""

    deaths: list[float] = field(default_factory=lambda: [0.0] * AGE_RANGES)
    exposure_days: list[float] = field(default_factory=lambda: [0.0] * AGE_RANGES)

    @property
    def weight(self) -> float:
        """Return the amount of evidence: object-days and deaths."""
        return sum(self.exposure_days) + sum(self.deaths)

    def add(self, other: Counts) -> None:
        """Add the counts of `other`."""
        for i in range(AGE_RANGES):
            self.deaths[i] += other.deaths[i]
            self.exposure_days[i] += other.exposure_days[i]

    def scale(self, factor: float) -> None:
        """Multiply all counts by `factor`."""
        self.deaths = [value * factor for value in self.deaths]
        self.exposure_days = [value * factor for value in self.exposure_days]

    def decay(self, days: float, half_life_days: float = HALF_LIFE_DAYS) -> None:
        """Let the counts decay for `days`. Values up to 0 do nothing, so that a clock that is set back makes no count
        heavier."""
        if days > 0:
            self.scale(0.5 ** (days / half_life_days))

    def dump(self) -> bytes:
        """Return COUNTS_BYTES bytes: deaths, then exposure, as little-endian doubles."""
        return _COUNTS.pack(*self.deaths, *self.exposure_days)

    @classmethod
    def load(cls, data: bytes) -> Counts:
        """Return the counts that `dump` encoded. Raise Corrupt for any other bytes."""
        if len(data) != COUNTS_BYTES:
            raise Corrupt(f"survival counts of {len(data)} bytes instead of {COUNTS_BYTES}")
        values = _COUNTS.unpack(data)
        if not all(isfinite(value) and value >= 0 for value in values):
            raise Corrupt("survival counts that are negative or no numbers")
        return cls(list(values[:AGE_RANGES]), list(values[AGE_RANGES:]))


class SurvivalTable:
    """The counts of all buckets. Not thread-safe.

    It keeps at most `buckets_max` buckets. If there are more, those with the least history are added to a row that only
    the prior uses: a bucket with little history loses little by that.
    """

    def __init__(self, half_life_days: float = HALF_LIFE_DAYS, buckets_max: int = BUCKETS_MAX) -> None:
        if half_life_days <= 0 or buckets_max < 1:
            raise InvalidInput("a survival table needs a half-life of more than 0 days, and room for at least 1 bucket")
        self._half_life_days = half_life_days
        self._buckets_max = buckets_max
        self._rows: dict[str, Counts] = {}
        self._others = Counts()

    def __len__(self) -> int:
        """Return the number of buckets that have counts of their own."""
        return len(self._rows)

    def observe(self, bucket: str, from_days: float, to_days: float, *, died: bool) -> None:
        """Count one sampled object that was seen from one age to another, and died then or continued to live.

        Each part of an object's life must be counted once, also for objects that are still alive. A life that ends
        before it begins, after a clock was set back, counts as one of no length.
        """
        begin = from_days if from_days > 0 else 0.0
        end = to_days if to_days > begin else begin
        row = self._row(bucket)
        first, last = bisect_right(AGE_EDGES_DAYS, begin) - 1, bisect_right(AGE_EDGES_DAYS, end) - 1
        exposure = row.exposure_days
        for i in range(first, last):
            exposure[i] += AGE_EDGES_DAYS[i + 1] - begin
            begin = AGE_EDGES_DAYS[i + 1]
        exposure[last] += end - begin
        if died:
            row.deaths[last] += 1

    def observe_alive(self, bucket: str, age_days: float, object_days: float) -> None:
        """Count exposure at one age: the object-days that one observation of a living object represents, if
        observations are made at random times."""
        self._row(bucket).exposure_days[age_range(age_days)] += object_days

    def add(self, bucket: str, counts: Counts) -> None:
        """Add counts of a bucket, or of no particular bucket for OTHERS."""
        (self._others if bucket == OTHERS else self._row(bucket)).add(counts)

    def rows(self) -> Mapping[str, Counts]:
        """Return the counts by bucket, with OTHERS if there are any."""
        others = {OTHERS: self._others} if self._others.weight else {}
        return self._rows | others

    def decay(self, days: float) -> None:
        """Let all counts decay for `days`, so that older counts weigh less than newer ones. See `Counts.decay`."""
        if days <= 0:
            return
        self._others.decay(days, self._half_life_days)
        for row in self._rows.values():
            row.decay(days, self._half_life_days)
        for bucket in [bucket for bucket, row in self._rows.items() if row.weight < _WEIGHT_MIN]:
            del self._rows[bucket]

    def lifetimes(self) -> Lifetimes:
        """Return the expected lifetimes in all buckets according to the present counts."""
        pool = Counts()
        pool.add(self._others)
        for row in self._rows.values():
            pool.add(row)
        prior = _pool_hazards(pool)
        return Lifetimes(
            {bucket: _half_lives(_own_hazards(row, prior)) for bucket, row in self._rows.items()}, _half_lives(prior)
        )

    def death_rates(self) -> DeathRates:
        """Return the death rates according to the present counts."""
        pool = Counts()
        pool.add(self._others)
        for row in self._rows.values():
            pool.add(row)
        prior = _pool_hazards(pool)
        return DeathRates({bucket: _own_hazards(row, prior) for bucket, row in self._rows.items()}, prior)

    def _row(self, bucket: str) -> Counts:
        row = self._rows.get(bucket)
        if row is None:
            row = self._rows[bucket] = Counts()
            self._limit(bucket)
        return row

    def _limit(self, newest: str) -> None:
        """Drop an eighth of the rows once there are too many, so that dropping costs little for each object."""
        if len(self._rows) <= self._buckets_max:
            return
        known = sorted((row.weight, bucket) for bucket, row in self._rows.items() if bucket != newest)
        for _, bucket in known[: max(1, self._buckets_max // 8)]:
            self._others.add(self._rows.pop(bucket))


class DeathRates:
    """Deaths per object and day, by bucket and range of ages. Within a range of ages the rate is constant."""

    __slots__ = ("_of_bucket", "_of_others")

    def __init__(self, of_bucket: Mapping[str, Sequence[float]], of_others: Sequence[float]) -> None:
        self._of_bucket = of_bucket
        self._of_others = of_others

    def survival(self, bucket: str, age_days: float) -> float:
        """Return the share of the bucket's objects that reach this age."""
        summed = 0.0
        for begin, rate, width in zip(AGE_EDGES_DAYS, self._rates(bucket), (*_WIDTHS[:-1], inf), strict=True):
            if age_days <= begin:
                break
            summed += rate * min(width, age_days - begin)
        return exp(-summed)

    def remaining_days(self, bucket: str, age_days: float, share: float) -> float:
        """Return the time until only this share of the bucket's objects that have reached this age is left. With a
        share drawn at random from 0 to 1 it is the remaining life of one object."""
        left = -log(max(share, _SHARE_MIN))
        age = max(0.0, age_days)
        for i in range(age_range(age), AGE_RANGES):
            rate = max(self._rates(bucket)[i], _HAZARD_MIN)
            until = inf if i == AGE_RANGES - 1 else AGE_EDGES_DAYS[i + 1]
            if left <= rate * (until - age):
                return age + left / rate - max(0.0, age_days)
            left -= rate * (until - age)
            age = until
        raise AssertionError("the last range of ages has no end")

    def _rates(self, bucket: str) -> Sequence[float]:
        return self._of_bucket.get(bucket, self._of_others)


class Lifetimes:
    """Expected lifetimes, as a survival table had them at one moment. Thread-safe."""

    __slots__ = ("_of_bucket", "_of_others")

    def __init__(self, of_bucket: dict[str, tuple[float, ...]], of_others: tuple[float, ...]) -> None:
        self._of_bucket = of_bucket
        self._of_others = of_others

    def half_life_days(self, bucket: str, age_days: float) -> float:
        """Return the time until half of the bucket's objects that have reached this age are dead. Never infinite."""
        return self._of_bucket.get(bucket, self._of_others)[age_range(age_days)]


def stream_of(
    lifetimes: Lifetimes, cuts_days: Sequence[float], bucket: str, age_days: float, expires_in_days: float | None = None
) -> int:
    """Return the stream that an object is packed in, from 0 (soon dead): the number of cuts that it is expected to
    outlive.

    The rule is the same for fresh objects and survivors. `expires_in_days` is when a lifecycle rule will delete the
    object, if that is known. It overrides the estimate, in both directions.
    """
    remaining = lifetimes.half_life_days(bucket, age_days) if expires_in_days is None else expires_in_days
    return bisect_right(cuts_days, remaining)


T = TypeVar("T")


class ToPack(NamedTuple, Generic[T]):
    """An object to be packed. The fields are in the order in which they matter. `born` is its time of birth, in any
    unit; `ref` is the caller's reference to it."""

    stream: int
    bucket: str
    prefix: str
    born: float
    ref: T


def packing_order(objects: Iterable[ToPack[T]]) -> list[ToPack[T]]:
    """Return the objects in the order in which the packer should see them: by stream, then bucket and prefix, then the
    oldest first.

    Buckets and prefixes are often deleted as a whole, and objects that were written together often expire together. So
    such objects should share a block. Equal objects keep their order.
    """
    return sorted(objects, key=_before_ref)


def _before_ref(one: ToPack[T]) -> tuple[int, str, str, float]:
    return one[:4]


def _pool_hazards(pool: Counts) -> list[float]:
    """Return the death rates of all buckets together, by range of ages. Ranges double in length, and if nothing was
    seen in one, its rate is half of the previous one: objects that have lived long are expected to live longer."""
    found: list[float] = []
    previous = _FIRST_HAZARD
    for deaths, exposure in zip(pool.deaths, pool.exposure_days, strict=True):
        previous = (deaths + previous) / (exposure + _POOL_PRIOR_DAYS)
        found.append(previous)
    return found


def _own_hazards(row: Counts, prior: Sequence[float]) -> list[float]:
    found: list[float] = []
    for deaths, exposure, hazard, width in zip(row.deaths, row.exposure_days, prior, _WIDTHS, strict=True):
        weight = _OWN_PRIOR_WIDTHS * width
        found.append((deaths + weight * hazard) / (exposure + weight))
    return found


def _half_lives(hazards: Sequence[float]) -> tuple[float, ...]:
    """Return, for each range of ages, the time until survival falls to a half, from the middle of the range.

    With H the hazard summed up over the ages, that is where H is ln 2 more. The last range has no end, and counts as
    begun where the others end.
    """
    steps = [max(hazard, _HAZARD_MIN) * width for hazard, width in zip(hazards, _WIDTHS, strict=True)]
    summed = [0.0, *accumulate(steps)]
    found: list[float] = []
    for i in range(AGE_RANGES - 1):
        target = summed[i] + steps[i] / 2 + _LN_2
        until = min(bisect_right(summed, target), AGE_RANGES) - 1
        passed = AGE_EDGES_DAYS[until] - (AGE_EDGES_DAYS[i] + _WIDTHS[i] / 2)
        found.append(passed + (target - summed[until]) / steps[until] * _WIDTHS[until])
    return (*found, _LN_2 / steps[-1] * _WIDTHS[-1])


UNKNOWN = SurvivalTable().lifetimes()
"""The expected lifetimes before any object was seen."""

"""Workloads for measuring GC: when objects arrive, in which bucket, and when they die. All objects have the same size.

name     lifetimes of its objects
A        exponential, mean 100 days, all the same
B        60 buckets: 20 % of the bytes have means of 2 hours to 3 days, 30 % of 7 to 60 days, 50 % of 700 to 1500 days
         (evenly spread on a log scale, Zipf weights). A tenth of the objects of each bucket follow the law of any
C        Weibull of shape 0.5 and scale 100 days: median 48, mean 200. Only age is informative, buckets are not
D        40 % expire after 7, 30, 90 or 365 days, at the next midnight; a bucket for each. 30 % are datasets, 40 of them
         open at a time, each written over 5 days and deleted whole after 120 more (exponential). 30 % belong to 200
         tenants, which are deleted whole every 400 days (exponential), and single objects after 1000 (exponential)
D-mixed  D, with the objects that expire in one bucket
E        B, with arrivals that double every 300 days

These are assumptions, made from published data (docs/GC.md). A, B and C begin in their equilibrium, D, D-mixed and E
with an empty store.
"""

from __future__ import annotations

import random
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from math import ceil, exp, floor, log, sqrt
from typing import NamedTuple, Protocol

from nos_ec.bench.workloads import sizes
from nos_ec.core.errors import InvalidInput
from nos_ec.core.packing.lifetimes import SurvivalTable


class Objects:
    """The columns of all objects, living and dead, in order of arrival. Times are in days.

    `expires` is 1 if the time of death is known in advance, from a lifecycle rule. A column takes at most 8 bytes per
    object; Python objects would take twenty times as much.
    """

    def __init__(self) -> None:
        self.born = array("d")
        self.dies = array("d")
        self.bucket = array("l")
        self.prefix = array("l")
        self.size = array("q")
        self.expires = bytearray()
        self.buckets: list[str] = []
        self.prefixes: list[str] = [""]

    def __len__(self) -> int:
        return len(self.born)

    def add(self, born: float, life: Life, size: int = 1) -> None:
        """Add an object."""
        self.born.append(born)
        self.dies.append(life.dies)
        self.bucket.append(life.bucket)
        self.prefix.append(life.prefix)
        self.size.append(size)
        self.expires.append(life.expires)


class Life(NamedTuple):
    """The fate of an object. `bucket` and `prefix` are numbers in `Objects`; `dies` is in days."""

    bucket: int
    dies: float
    prefix: int = 0
    expires: bool = False


class Law(NamedTuple):
    """A bucket's share of all arrivals, and the share of its objects that live at each age (in days)."""

    share: float
    survival: Callable[[float], float]


class Workload(Protocol):
    """A source of objects. Random choices depend only on its seed.

    `bytes_per_day` is the rate of arrivals; None means the rate that a store of the simulated size needs. `mean_days`
    is live objects / arrivals per day, in equilibrium. The survival table watches the equilibrium for `history_days`
    before the first object is packed; 0 means that the store begins empty. `days` is the time after that, and
    `measured_days` its last part, over which figures are measured. `growth` is the growth of arrivals per day; for E,
    exponential. The bound is computed from `laws`, which are empty if there is no bound.
    """

    mean_days: float
    history_days: float
    days: float
    measured_days: float
    growth: float
    bytes_per_day: float | None

    def begin(self, objects: Objects, count: int) -> None:
        """Name the buckets, and add the objects that live at time 0."""

    def arrive(self, objects: Objects, begins: float, days: float, bytes_per_day: float) -> None:
        """Add the objects that arrive in these days, in order. Called for consecutive spans."""

    def survival(self) -> SurvivalTable:
        """Return the survival table before the first arrival."""

    def laws(self) -> list[Law]:
        """Return the survival by bucket."""


class Drawn(Workload, Protocol):
    """Objects of size 1 that arrive at an even rate, and are drawn on arrival. The survival table begins empty."""

    bytes_per_day: float | None = None
    carried: float = 0.0
    """The fraction of an object that is carried over to the next span."""

    def draw(self, born: float) -> Life:
        """Draw the next object, born at this time. Times never decrease."""

    def arrive(self, objects: Objects, begins: float, days: float, bytes_per_day: float) -> None:
        """See `Workload`."""
        self.carried += bytes_per_day * days
        count = int(self.carried)
        self.carried -= count
        for number in range(count):
            born = begins + days * (number + 0.5) / count
            objects.add(born, self.draw(born))

    def survival(self) -> SurvivalTable:
        """See `Workload`."""
        return SurvivalTable()


class _Alike(Drawn):
    """Workload A."""

    mean_days = 100.0
    history_days = 100.0
    days = 300.0
    measured_days = 150.0
    growth = 0.0

    def __init__(self, rng: random.Random) -> None:
        self._expovariate = rng.expovariate

    def begin(self, objects: Objects, count: int) -> None:
        objects.buckets = ["a"]
        rate = 1 / self.mean_days
        for _ in range(count):
            objects.add(-self._expovariate(rate), Life(0, self._expovariate(rate)))

    def draw(self, born: float) -> Life:
        return Life(0, born + self._expovariate(1 / self.mean_days))

    def laws(self) -> list[Law]:
        return [Law(1.0, lambda age: exp(-age / self.mean_days))]


class _Falling(Drawn):
    """Workload C. A Weibull of shape 1/2 and scale s is s e^2, where e is exponential. In equilibrium (where an object
    that lives twice as long is seen twice as often), e follows a Gamma of shape 3, and the age is uniform in the
    lifetime."""

    mean_days = 200.0
    history_days = 200.0
    days = 600.0
    measured_days = 300.0
    growth = 0.0
    _scale = 100.0

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def begin(self, objects: Objects, count: int) -> None:
        objects.buckets = ["c"]
        for _ in range(count):
            lifetime = self._scale * self._rng.gammavariate(3, 1) ** 2
            age = lifetime * self._rng.random()
            objects.add(-age, Life(0, lifetime - age))

    def draw(self, born: float) -> Life:
        return Life(0, born + self._scale * self._rng.expovariate(1) ** 2)

    def laws(self) -> list[Law]:
        return [Law(1.0, lambda age: exp(-sqrt(age / self._scale)))]


_CLASSES = ((0.2, 1 / 12, 3.0), (0.3, 7.0, 60.0), (0.5, 700.0, 1500.0))
"""The classes of B: share of the bytes, and the shortest and the longest mean lifetime in days."""
_BUCKETS_OF_CLASS = 20
_PURITY = 0.9


class _Buckets(Drawn):
    """Workload B."""

    history_days = 360.0
    days = 1000.0
    measured_days = 500.0
    growth = 0.0

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._means: list[float] = []
        self._weights: list[float] = []
        zipf = [1 / rank for rank in range(1, _BUCKETS_OF_CLASS + 1)]
        for share, low, high in _CLASSES:
            steps = [((7 * rank) % _BUCKETS_OF_CLASS + 0.5) / _BUCKETS_OF_CLASS for rank in range(1, len(zipf) + 1)]
            self._means += [low * (high / low) ** step for step in steps]
            self._weights += [share * weight / sum(zipf) for weight in zipf]
        self._cumulative = list(accumulate(self._weights))
        self.mean_days = self._mean_days()

    def _mean_days(self) -> float:
        """Return the mean lifetime, also for a growing store, which has fewer old objects than in equilibrium."""
        return sum(w / (1 / mean + self.growth) for w, mean in zip(self._weights, self._means, strict=True))

    def begin(self, objects: Objects, count: int) -> None:
        objects.buckets = [f"b{number:02}" for number in range(len(self._means))]
        seen = list(accumulate(w * mean for w, mean in zip(self._weights, self._means, strict=True)))
        for _ in range(count):
            law = self._pick(seen)
            rate = 1 / self._means[law]
            bucket = law if self._rng.random() < _PURITY else self._pick(self._cumulative)
            objects.add(-self._rng.expovariate(rate), Life(bucket, self._rng.expovariate(rate)))

    def draw(self, born: float) -> Life:
        bucket = self._pick(self._cumulative)
        law = bucket if self._rng.random() < _PURITY else self._pick(self._cumulative)
        return Life(bucket, born + self._rng.expovariate(1 / self._means[law]))

    def _pick(self, cumulative: list[float]) -> int:
        return min(bisect_right(cumulative, self._rng.random() * cumulative[-1]), len(cumulative) - 1)

    def laws(self) -> list[Law]:
        known: dict[float, float] = {}

        def of_any(age: float) -> float:
            if age not in known:
                known[age] = sum(w * exp(-age / mean) for w, mean in zip(self._weights, self._means, strict=True))
            return known[age]

        def of_bucket(mean: float) -> Callable[[float], float]:
            return lambda age: _PURITY * exp(-age / mean) + (1 - _PURITY) * of_any(age)

        return [Law(w, of_bucket(mean)) for w, mean in zip(self._weights, self._means, strict=True)]


class _Growing(_Buckets):
    """Workload E."""

    history_days = 0.0
    days = 1200.0
    measured_days = 400.0
    growth = log(2) / 300


_TTL_DAYS = (7, 30, 90, 365)
_DATASETS_OPEN = 40
_DATASET_DAYS = 5.0
_DATASET_MEAN_DAYS = 120.0
_TENANTS = 200
_TENANT_MEAN_DAYS = 400.0
_OF_TENANT_MEAN_DAYS = 1000.0


class _Bulk(Drawn):
    """Workload D. It has four buckets with expiry, one bucket of datasets (a prefix each), and one for each tenant."""

    mean_days = 163.0
    """Below the value in equilibrium (171), which the measured part of a run does not quite reach."""
    history_days = 0.0
    days = 1200.0
    measured_days = 600.0
    growth = 0.0
    mixed = False

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._prefixes: list[str] = []
        self._datasets: dict[tuple[int, int], tuple[int, float]] = {}
        self._deleted = [rng.expovariate(1 / _TENANT_MEAN_DAYS) for _ in range(_TENANTS)]

    def begin(self, objects: Objects, count: int) -> None:
        del count  # The store begins empty.
        ttls = [f"ttl-{days}" for days in _TTL_DAYS]
        objects.buckets = [*ttls, "datasets", *(f"tenant-{number}" for number in range(_TENANTS))]
        self._prefixes = objects.prefixes

    def draw(self, born: float) -> Life:
        kind = self._rng.random()
        if kind < 0.4:
            which = self._rng.randrange(len(_TTL_DAYS))
            return Life(0 if self.mixed else which, ceil(born + _TTL_DAYS[which]), expires=True)
        if kind < 0.7:
            return self._of_dataset(born)
        return self._of_tenant(born)

    def _of_dataset(self, born: float) -> Life:
        place = self._rng.randrange(_DATASETS_OPEN)
        begins = place * _DATASET_DAYS / _DATASETS_OPEN
        turn = floor((born - begins) / _DATASET_DAYS)
        found = self._datasets.get((place, turn))
        if found is None:
            ends = begins + (turn + 1) * _DATASET_DAYS
            found = (len(self._prefixes), ends + self._rng.expovariate(1 / _DATASET_MEAN_DAYS))
            self._prefixes.append(f"{found[0]:08}/")
            self._datasets[place, turn] = found
        prefix, dies = found
        return Life(len(_TTL_DAYS), dies, prefix)

    def _of_tenant(self, born: float) -> Life:
        tenant = self._rng.randrange(_TENANTS)
        while self._deleted[tenant] <= born:
            self._deleted[tenant] += self._rng.expovariate(1 / _TENANT_MEAN_DAYS)
        alone = born + self._rng.expovariate(1 / _OF_TENANT_MEAN_DAYS)
        return Life(len(_TTL_DAYS) + 1 + tenant, min(alone, self._deleted[tenant]))

    def laws(self) -> list[Law]:
        return []


class _BulkMixed(_Bulk):
    """Workload D-mixed."""

    mixed = True


_KINDS: dict[str, Callable[[random.Random], Drawn]] = {
    "A": _Alike,
    "B": _Buckets,
    "C": _Falling,
    "D": _Bulk,
    "D-mixed": _BulkMixed,
    "E": _Growing,
}
GC_WORKLOADS = tuple(_KINDS)


def gc_workload(name: str, seed: int) -> Drawn:
    """Return the workload of this name. Raises InvalidInput if the name is unknown."""
    if name not in _KINDS:
        raise InvalidInput(f"unknown workload {name!r}; choose one of: {', '.join(GC_WORKLOADS)}")
    return _KINDS[name](random.Random(seed))


SIZES_DRAWN = 50_000
"""How many sizes are drawn to estimate their mean."""


def sized(workload: Drawn, sizes_of: str | int, seed: int, size_max: int) -> Sized:
    """Return a workload whose objects have the sizes in bytes of a workload of `simulate packing`, or all the same
    size. Raises InvalidInput for an unknown name, or a `size_max` (bytes) that is too small for it."""
    mean = sum(sizes(sizes_of, SIZES_DRAWN, random.Random(seed), size_max)) / SIZES_DRAWN
    return Sized(workload, sizes(sizes_of, sys.maxsize, random.Random(seed), size_max), mean)


class Sized:
    """A workload whose objects have sizes in bytes. `sizes` never ends, and `mean` is their mean."""

    def __init__(self, workload: Drawn, sizes: Iterator[int], mean: float) -> None:
        self._workload = workload
        self._sizes = sizes
        self._mean = mean
        self.mean_days = workload.mean_days
        self.history_days = workload.history_days
        self.days = workload.days
        self.measured_days = workload.measured_days
        self.growth = workload.growth
        self.bytes_per_day: float | None = None

    def begin(self, objects: Objects, count: int) -> None:
        """See `Workload`; `count` is in bytes."""
        self._workload.begin(objects, round(count / self._mean))
        self._give_sizes(objects, 0)

    def arrive(self, objects: Objects, begins: float, days: float, bytes_per_day: float) -> None:
        """See `Workload`."""
        first = len(objects)
        self._workload.arrive(objects, begins, days, bytes_per_day / self._mean)
        self._give_sizes(objects, first)

    def survival(self) -> SurvivalTable:
        """See `Workload`."""
        return self._workload.survival()

    def laws(self) -> list[Law]:
        """See `Workload`."""
        return self._workload.laws()

    def _give_sizes(self, objects: Objects, first: int) -> None:
        for number in range(first, len(objects)):
            objects.size[number] = next(self._sizes)

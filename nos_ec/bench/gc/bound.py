"""Computes the least write amplification at a given space amplification, if only bucket and age of objects are known.

Objects that die at one rate: blocks are collected when a share u lives. Then space amplification is -ln u / (1 - u),
and write amplification 1 / (1 - u). Greedy collection reaches both.

Otherwise, let copying a byte cost as much as holding a dead one for `price` days. For each bucket, choose the ages at
which its objects are written again. The least cost W follows backwards from old age:

    W(a) = min over t of  dead(a, a + t) + S(a + t) price + W(a + t)

where S is the share of objects that live at an age, and dead(a, b) is the dead part between these ages of the objects
written at age a. The price is then varied until the space amplification is the given one. Real policies have to collect
whole blocks, so they cannot treat each object as well as this bound does. In a growing store, older objects count less,
by exp(-growth age).

The bound was argued, and checked on workload A, but not proved. Small blocks can do 1 to 4 % better, because by chance
some of them die sooner than similar ones. The bound does not apply if deaths are correlated (workload D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1, inf, log

from nos_ec.bench.gc.workloads import Law

_FIRST_DAYS = 0.005
_LAST_DAYS = 30_000.0
_STEP = 1.06
_PRICES = (0.02, 5000.0)
"""The lowest and the highest price in days between which the search runs."""
_ROUNDS = 14


def amplification_at(u_min: float) -> float:
    """Return the space amplification of a store whose blocks die at one rate and are collected at a live share of
    u_min."""
    return -log(u_min) / (1 - u_min)


def live_share_at(space_amplification: float) -> float:
    """Return the live share at which blocks that die at one rate are collected, for a space amplification above 1."""
    low, high = 1e-12, 1 - 1e-12
    for _ in range(60):
        middle = (low + high) / 2
        if amplification_at(middle) > space_amplification:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def bound_write_amplification(
    laws: Sequence[Law], space_amplification: float, growth: float = 0.0, min_age_days: float = 0.0
) -> float | None:
    """Return the bound; None if there are no laws to compute it from, or the space amplification is not above 1.

    Objects that die before the age of `min_age_days` are never written, so the bound may be below 1.
    """
    if not laws or space_amplification <= 1:
        return None
    curves = [_Curve.of(law, growth, min_age_days) for law in laws]
    low, high = _PRICES
    for _ in range(_ROUNDS):
        price = (low * high) ** 0.5
        dead, _ = _sums(curves, price)
        if 1 + dead > space_amplification:
            high = price
        else:
            low = price
    below, above = _sums(curves, low), _sums(curves, high)
    return _between(below, above, space_amplification - 1)


def _between(below: tuple[float, float], above: tuple[float, float], dead: float) -> float:
    """Interpolate between the two nearest points, because ages are on a grid."""
    if above[0] == below[0]:
        return below[1]
    part = min(1.0, max(0.0, (dead - below[0]) / (above[0] - below[0])))
    return below[1] + part * (above[1] - below[1])


def _sums(curves: Sequence[_Curve], price: float) -> tuple[float, float]:
    """Return (dead / live bytes, bytes written per byte that arrives) of the best choice at this price."""
    dead = written = live = 0.0
    for curve in curves:
        its_dead, its_written = curve.best(price)
        dead += curve.share * its_dead
        written += curve.share * its_written
        live += curve.share * curve.held[-1]
    return dead / live, written


@dataclass(frozen=True, slots=True)
class _Curve:
    """One bucket on a grid of ages. `alive` is S, `passed` are the days since the first age, and `held` the days lived
    per object that is born. All three are weighted by `weight`, because old ages count less in a growing store."""

    share: float
    alive: list[float]
    weight: list[float]
    passed: list[float]
    held: list[float]

    @classmethod
    def of(cls, law: Law, growth: float, first_days: float) -> _Curve:
        ages = _grid(first_days)
        alive = [law.survival(age) for age in ages]
        weight = [exp(-growth * age) for age in ages]
        passed, held = [0.0], [0.0]
        for i, (begin, end) in enumerate(pairwise(ages)):
            days = weight[i] * (-expm1(-growth * (end - begin)) / growth if growth else end - begin)
            passed.append(passed[-1] + days)
            # Survival falls nearly exponentially between two ages.
            one, two = alive[i] * weight[i], alive[i + 1] * weight[i + 1]
            even = two <= 0 or one / two < 1 + 1e-9
            held.append(held[-1] + (end - begin) * ((one + two) / 2 if even else (one - two) / log(one / two)))
        return cls(law.share, alive, weight, passed, held)

    def best(self, price: float) -> tuple[float, float]:
        """Return (dead days, times written), per object that is born.

        The best next age never decreases as an object gets older, so the search stops at the one found for the next
        age.
        """
        alive, passed, held = self.alive, self.passed, self.held
        last = len(alive) - 1
        cost = [0.0] * (last + 1)
        following = [last] * (last + 1)
        copied = [price * a * w for a, w in zip(alive, self.weight, strict=True)]
        copied[last] = 0.0
        for i in range(last - 1, -1, -1):
            here = alive[i]
            base = held[i] - here * passed[i]
            least, found = inf, last
            for j in range(i + 1, following[i + 1] + 1):
                value = here * passed[j] - held[j] + copied[j] + cost[j]
                if value < least:
                    least, found = value, j
            cost[i] = least + base
            following[i] = found
        return self._walk(following)

    def _walk(self, following: Sequence[int]) -> tuple[float, float]:
        dead, written, i, last = 0.0, self.alive[0] * self.weight[0], 0, len(self.alive) - 1
        while i < last:
            j = following[i]
            dead += self.alive[i] * (self.passed[j] - self.passed[i]) - (self.held[j] - self.held[i])
            written += self.alive[j] * self.weight[j] if j < last else 0.0
            i = j
        return dead, written


def _grid(first_days: float) -> list[float]:
    ages = [first_days]
    step = _FIRST_DAYS
    while ages[-1] < _LAST_DAYS:
        ages.append(ages[-1] + step)
        step = max(_FIRST_DAYS, min(step * _STEP, (ages[-1] - first_days) * (_STEP - 1)))
    return ages

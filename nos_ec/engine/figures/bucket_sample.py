"""Estimates what each bucket holds, from rows at random places.

No index counts objects by bucket, so a sum would read all rows. Instead, the object ids are divided into N ranges of
RANGE_IDS ids, as a survey of lifetimes does (engine/expiry/survival.py). n of them are drawn without replacement and
read, with one seek each. Let x be what a range holds of a bucket, 0 for most ranges.

    estimate of the total     N / n * sum of x                 unbiased, whatever the order of the ids
    its variance              N^2 * (1 - n / N) * s^2 / n      s^2: the variance of x over the n ranges, zeros included

Rows of one range are not independent, because objects that were stored together are often of one bucket. So only the
differences between ranges count as evidence, never those between rows. Where all ranges were read, the figures are
exact. Shares and means are ratios of two estimates: sum of y / sum of x. Their bias is of the order of 1 / n; for their
variance, s^2 is that of y - ratio * x, divided by the square of the mean of x (Cochran, Sampling Techniques, 3rd ed.,
sections 2.5, 2.11 and 9A.3). Errors are ERROR_WIDTH standard errors, which the estimates keep within in about 95 of
100 samples, if the bucket was found in some tens of ranges.

9  a sample reads at most RANGES_MAX * RANGE_IDS rows
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from nos_ec.core.expiry import DAY_MS
from nos_ec.core.parts import PARTS_BUCKET
from nos_ec.ports.metadata import LivingObject, Survival

RANGES_MAX = 400
RANGE_IDS = 64
"""Few, so that objects that were stored together, of one bucket, weigh little; a seek costs about as much as reading
this many rows."""
NEW_DAYS = 7
ERROR_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its error: the truth is between `value - error` and `value + error` in about 95 of 100 samples."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """The estimates for one bucket. Deleted versions in the trash count, empty objects do not.

    `size_bytes` includes the parts of composed objects, `objects` does not. `new_bytes` is what was stored in the last
    NEW_DAYS days and is still there. `small_share` is the share of rows, parts included, of at most the size that was
    asked for. `age_days` is the mean age of a row, and `row_bytes` the mean size. `ranges` is the number of ranges with
    a row of the bucket, and `rows` the number of rows.
    """

    objects: Estimate
    size_bytes: Estimate
    new_bytes: Estimate
    small_share: Estimate
    age_days: Estimate
    row_bytes: Estimate
    ranges: int
    rows: int


@dataclass(frozen=True, slots=True)
class BucketSample:
    """The estimates by bucket; a bucket without a row in the sample is not in it. `ranges` of `ranges_of_store` were
    read."""

    buckets: Mapping[str, BucketFigures]
    ranges: int
    ranges_of_store: int
    rows: int

    @property
    def is_whole(self) -> bool:
        """Whether all rows were read, so that the figures are exact."""
        return self.ranges == self.ranges_of_store

    @property
    def share(self) -> float:
        """The share of the store's ids that was read."""
        return self.ranges / self.ranges_of_store if self.ranges_of_store else 1.0


@dataclass(slots=True)
class _Held:
    """What one range holds of one bucket."""

    rows: int = 0
    objects: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    small: int = 0
    age_days: float = 0.0


def sample_buckets(metadata: Survival, small_bytes: int, now_ms: int, rng: random.Random) -> BucketSample:
    """Read a sample and return the estimates. Rows of at most `small_bytes` bytes count as small. Raises Transient."""
    ranges, of_store = random_ranges(metadata.last_object_id(), RANGE_IDS, RANGES_MAX, rng)
    held: dict[str, list[_Held]] = defaultdict(list)
    rows = 0
    for first, last in ranges:
        found = metadata.living_between(first, last)
        rows += len(found)
        for bucket, one in _by_bucket(found, small_bytes, now_ms).items():
            held[bucket].append(one)
    figures = {bucket: _figures(of_ranges, len(ranges), of_store) for bucket, of_ranges in held.items()}
    return BucketSample(figures, len(ranges), of_store, rows)


def random_ranges(last_id: int, ids: int, ranges_max: int, rng: random.Random) -> tuple[list[tuple[int, int]], int]:
    """Return ranges of `ids` object ids (first, last) in order, at most `ranges_max` and all different, and the number
    of such ranges up to `last_id`."""
    of_store = -(-last_id // ids)
    drawn = sorted(rng.sample(range(of_store), min(of_store, ranges_max)))
    return [(one * ids + 1, (one + 1) * ids) for one in drawn], of_store


def bucket_of(row: LivingObject) -> str:
    """Return the bucket that a row counts for: for a part, that of its upload."""
    return row.key.bucket.removeprefix(PARTS_BUCKET)


def _by_bucket(rows: Iterable[LivingObject], small_bytes: int, now_ms: int) -> Mapping[str, _Held]:
    found: dict[str, _Held] = defaultdict(_Held)
    for row in rows:
        bucket, age_ms = bucket_of(row), max(0, now_ms - row.created_ms)
        one = found[bucket]
        one.rows += 1
        one.objects += bucket == row.key.bucket
        one.size_bytes += row.size
        one.new_bytes += row.size if age_ms < NEW_DAYS * DAY_MS else 0
        one.small += row.size <= small_bytes
        one.age_days += age_ms / DAY_MS
    return found


def _figures(held: Sequence[_Held], ranges: int, of_store: int) -> BucketFigures:
    rows = [one.rows for one in held]
    return BucketFigures(
        total([one.objects for one in held], ranges, of_store),
        total([one.size_bytes for one in held], ranges, of_store),
        total([one.new_bytes for one in held], ranges, of_store),
        ratio([one.small for one in held], rows, ranges, of_store),
        ratio([one.age_days for one in held], rows, ranges, of_store),
        ratio([one.size_bytes for one in held], rows, ranges, of_store),
        len(held),
        sum(rows),
    )


def total(held: Collection[float], ranges: int, of_store: int) -> Estimate:
    """Return the total over all `of_store` ranges, given the values of those that were read and are not 0, and how many
    were read."""
    return Estimate(of_store / ranges * sum(held), of_store * _error_of_mean(held, ranges, of_store))


def ratio(above: Sequence[float], below: Sequence[float], ranges: int, of_store: int) -> Estimate:
    """Return the sum of `above` by the sum of `below`, each with the values of the same ranges."""
    found = sum(above) / sum(below)
    rest = [y - found * x for y, x in zip(above, below, strict=True)]
    return Estimate(found, _error_of_mean(rest, ranges, of_store) / (sum(below) / ranges))


def _error_of_mean(held: Collection[float], ranges: int, of_store: int) -> float:
    """Return the error of the mean over all ranges that were read. The values left out are 0."""
    if ranges == of_store:
        return 0.0
    mean = sum(held) / ranges
    squares = sum((one - mean) ** 2 for one in held) + (ranges - len(held)) * mean**2
    variance = squares / (ranges - 1)
    return ERROR_WIDTH * sqrt((1 - ranges / of_store) * variance / ranges)

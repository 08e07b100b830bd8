"""Estimates of what buckets hold: right on average, with errors that hold where objects of a bucket lie together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import cast

import pytest

from nos_ec.core.expiry import DAY_MS
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import PARTS_BUCKET
from nos_ec.engine.figures import bucket_sample
from nos_ec.engine.figures.bucket_sample import RANGE_IDS, Estimate, random_ranges, ratio, sample_buckets, total
from nos_ec.ports.metadata import LivingObject, Survival

NOW_MS = 100 * DAY_MS
SMALL = 1000
ROUNDS = 300


class Rows:
    """Living objects, at the ids from 1; None where an id has no row any more."""

    def __init__(self, rows: Sequence[LivingObject | None]) -> None:
        self.rows = rows
        self.read = 0

    def last_object_id(self) -> int:
        return len(self.rows)

    def living_between(self, first: int, last: int) -> list[LivingObject]:
        found = [row for row in self.rows[first - 1 : last] if row is not None]
        self.read += len(found)
        return found


def row(bucket: str, size: int, age_days: float = 0) -> LivingObject:
    return LivingObject(ObjectKey(bucket, "n"), NOW_MS - int(age_days * DAY_MS), size)


def runs_of_buckets(rng: random.Random) -> Iterator[LivingObject | None]:
    """Rows in runs of up to 200 of one bucket, as clients store them."""
    for number in range(400):
        bucket = rng.choices(("large", "medium", "small"), (80, 15, 5))[0]
        for _ in range(rng.randint(1, 200)):
            size = int(rng.lognormvariate(7, 1)) + 1
            yield None if rng.random() < 0.2 else row(bucket, size, number / 20)


def sampled(rows: Rows, seed: int) -> bucket_sample.BucketSample:
    return sample_buckets(cast(Survival, rows), SMALL, NOW_MS, random.Random(seed))


@pytest.fixture
def few_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_sample, "RANGES_MAX", 60)


@pytest.mark.usefixtures("few_ranges")
def test_totals_are_right_on_average_and_errors_hold_although_rows_lie_in_runs() -> None:
    rows = Rows(list(runs_of_buckets(random.Random(5))))
    living = [one for one in rows.rows if one is not None and one.key.bucket == "medium"]
    size = sum(one.size for one in living)
    new = sum(one.size for one in living if one.created_ms > NOW_MS - 7 * DAY_MS)
    small = sum(one.size <= SMALL for one in living) / len(living)
    age = mean((NOW_MS - one.created_ms) / DAY_MS for one in living)
    found = [sampled(rows, seed).buckets["medium"] for seed in range(ROUNDS)]
    assert mean(one.objects.value for one in found) == pytest.approx(len(living), rel=0.05)
    assert mean(one.size_bytes.value for one in found) == pytest.approx(size, rel=0.05)
    assert mean(one.new_bytes.value for one in found) == pytest.approx(new, rel=0.1)
    assert mean(one.small_share.value for one in found) == pytest.approx(small, rel=0.02)

    def held(estimates: Sequence[Estimate], truth: float) -> float:
        return mean(abs(one.value - truth) <= one.error for one in estimates)

    assert held([one.objects for one in found], len(living)) > 0.85
    assert held([one.size_bytes for one in found], size) > 0.85
    assert held([one.small_share for one in found], small) > 0.85
    assert held([one.age_days for one in found], age) > 0.85
    # As if the rows were independent: these errors would hold far too seldom.
    share = [one.rows / (60 * RANGE_IDS * 0.8) for one in found]
    seen = [2 * len(rows.rows) * 0.8 * (p * (1 - p) / (60 * RANGE_IDS * 0.8)) ** 0.5 for p in share]
    naive = [Estimate(one.objects.value, error) for one, error in zip(found, seen, strict=True)]
    assert held(naive, len(living)) < 0.6


@pytest.mark.usefixtures("few_ranges")
def test_a_sample_reads_so_many_rows_however_many_there_are() -> None:
    rows = Rows([row("b", 1)] * 100_000)
    found = sampled(rows, 1)
    assert (found.ranges, found.rows, rows.read) == (60, 60 * RANGE_IDS, 60 * RANGE_IDS)
    assert not found.is_whole
    assert found.share == pytest.approx(60 / found.ranges_of_store)
    assert found.buckets["b"].objects.value == pytest.approx(100_000, rel=0.02)


def test_a_small_store_is_read_whole_and_its_figures_are_exact() -> None:
    rows = [row("a", 10, 1), row("a", 2000, 9), None, row(f"{PARTS_BUCKET}a", 500, 3), row("b", SMALL)]
    found = sampled(Rows(rows), 1)
    assert found.is_whole
    one = found.buckets["a"]
    assert one.objects == Estimate(2, 0)
    assert one.size_bytes == Estimate(2510, 0), "its parts are included"
    assert one.new_bytes == Estimate(510, 0)
    assert one.small_share == Estimate(2 / 3, 0)
    assert one.age_days.value == pytest.approx(13 / 3)
    assert found.buckets["b"].small_share == Estimate(1, 0)
    assert "c" not in found.buckets


def test_an_empty_store_has_no_figures() -> None:
    found = sampled(Rows([]), 1)
    assert (found.buckets, found.ranges_of_store, found.share, found.is_whole) == ({}, 0, 1.0, True)


def test_estimates_of_known_numbers() -> None:
    # Two of four ranges, with 3 and 0: the mean is 1.5, s^2 = 4.5, so the variance of the mean is 0.5 * 4.5 / 2.
    found = total([3], 2, 4)
    assert found.value == 6
    assert found.error == pytest.approx(4 * 2 * 1.125**0.5)
    assert ratio([2, 2], [4, 4], 2, 4) == Estimate(0.5, 0), "always the same ratio: no error"


def test_ranges_are_different_and_cover_all_ids() -> None:
    ranges, of_store = random_ranges(130, 64, 9, random.Random(1))
    assert (ranges, of_store) == ([(1, 64), (65, 128), (129, 192)], 3)
    some, of_store = random_ranges(64_000, 64, 9, random.Random(1))
    assert (len(set(some)), of_store) == (9, 1000)

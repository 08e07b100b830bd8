"""Who computes the sums over the whole store, when, and who reads what is stored."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import cast

import pytest

from nos_ec.core.errors import Transient
from nos_ec.engine.figures.store_totals import (
    CHEAP_ROWS_MAX,
    CLAIM_MS_MIN,
    COST_SHARE,
    KEEP_WAIT_MS_MIN,
    NEXT_MS_MAX,
    OwnSums,
    StoreTotals,
)
from nos_ec.ports.metadata import Metadata, StoredTotals, Totals
from tests.rig.fakes.clock import FakeClock

WAIT_MS = 15_000
NOTHING = Totals({}, *[0] * 19)


class Rows:
    """The part of a metadata store that is asked here. Computing the sums takes `cost_ms`."""

    def __init__(self, waiting: int, cost_ms: int = 100) -> None:
        self.clock = FakeClock()
        self.waiting = waiting
        self.cost_ms = cost_ms
        self.stored: StoredTotals | None = None
        self.usage: str | None = None
        self.computed = 0
        self.failure: Exception | None = None

    def totals(self) -> Totals:
        if self.failure is not None:
            raise self.failure
        self.computed += 1
        self.clock.advance(self.cost_ms)
        return replace(NOTHING, queued_objects=self.waiting)

    def note(self, _name: str) -> str | None:
        return self.usage

    def store_note(self, _name: str, text: str, expected: str | None) -> bool:
        if self.usage != expected:
            return False
        self.usage = text
        return True

    def stored_totals(self) -> StoredTotals | None:
        return self.stored

    def store_totals(self, new: StoredTotals | None, expected: StoredTotals | None) -> bool:
        same = self.stored == expected
        if same:
            self.stored = new
        return same

    def process(self) -> StoreTotals:
        """One of the processes."""
        return StoreTotals(cast(Metadata, self), self.clock, WAIT_MS)


LARGE = CHEAP_ROWS_MAX + 1


def test_sums_of_a_small_store_are_never_stored_and_always_exact() -> None:
    rows = Rows(CHEAP_ROWS_MAX)
    process = rows.process()
    for _ in range(3):
        process.keep()
        now_ms = rows.clock.now_ms()
        assert (process.read().totals.queued_objects, process.read().at_ms) == (rows.waiting, now_ms + rows.cost_ms)
        rows.waiting -= 1
        assert rows.stored is None


def test_sums_of_a_large_store_are_computed_once_for_all() -> None:
    rows = Rows(LARGE)
    processes = [rows.process() for _ in range(5)]
    began_ms = rows.clock.now_ms()
    for process in processes:
        process.keep()
    rows.waiting += 1
    for _ in range(20):
        for process in processes:
            dated = process.read()
            assert (dated.totals.queued_objects, dated.at_ms) == (LARGE, began_ms)
    assert rows.computed == 1
    rows.clock.advance(WAIT_MS)
    for process in processes:
        process.keep()
        assert process.read().totals.queued_objects == LARGE + 1
    assert rows.computed == 2


def test_sums_that_take_long_are_computed_seldom() -> None:
    rows = Rows(LARGE, cost_ms=WAIT_MS)
    process = rows.process()
    process.keep()
    rows.clock.advance(COST_SHARE * WAIT_MS - 1)
    process.keep()
    assert rows.computed == 1
    assert process.read().totals.queued_objects == LARGE
    rows.clock.advance(1)
    process.keep()
    assert rows.computed == 2


def test_while_one_process_computes_the_others_read_what_is_stored() -> None:
    rows = Rows(LARGE)
    process, other = rows.process(), rows.process()
    process.keep()
    rows.clock.advance(WAIT_MS)
    computing = rows.totals

    def compute() -> Totals:
        other.keep()
        assert other.read().totals.queued_objects == LARGE
        return computing()

    rows.totals = compute  # type: ignore[method-assign]
    process.keep()
    assert rows.computed == 2


def test_the_work_of_a_process_that_died_is_taken_over() -> None:
    rows = Rows(LARGE)
    process, other = rows.process(), rows.process()
    process.keep()
    rows.clock.advance(WAIT_MS)
    rows.failure = Transient("the database is away")
    with pytest.raises(Transient):
        process.keep()
    rows.failure = None
    other.keep()
    assert rows.computed == 1, "the first one might still be computing"
    rows.clock.advance(CLAIM_MS_MIN)
    other.keep()
    assert rows.computed == 2


def test_sums_that_nobody_keeps_are_computed_by_their_readers() -> None:
    rows = Rows(LARGE)
    process = rows.process()
    process.keep()
    rows.waiting += 1
    rows.clock.advance(3 * WAIT_MS - 1)
    assert process.read().totals.queued_objects == LARGE
    rows.clock.advance(1)
    assert process.read().totals.queued_objects == LARGE + 1


def test_readers_of_a_process_compute_sums_that_nobody_keeps_for_a_small_share_of_the_time() -> None:
    rows, own = Rows(LARGE, cost_ms=10_000), OwnSums()
    readers = [StoreTotals(cast(Metadata, rows), rows.clock, WAIT_MS, own) for _ in range(4)]
    began_ms = rows.clock.now_ms()
    assert {reader.read().at_ms for reader in readers} == {began_ms}
    rows.clock.advance(COST_SHARE * rows.cost_ms - 1)
    assert {reader.read().at_ms for reader in readers} == {began_ms}
    assert rows.computed == 1
    rows.clock.advance(1)
    assert {reader.read().at_ms for reader in readers} == {rows.clock.now_ms() - rows.cost_ms}
    assert rows.computed == 2
    readers[0].keep()
    rows.waiting += 1
    assert readers[1].read().totals.queued_objects == LARGE, "what is kept comes first"
    assert rows.computed == 3


@pytest.mark.parametrize("ahead_ms", [2 * NEXT_MS_MAX, 20 * 24 * 3_600_000, 10**12])
def test_sums_from_a_clock_far_ahead_are_not_believed_for_ever(ahead_ms: int) -> None:
    rows = Rows(LARGE)
    rows.clock = FakeClock(5 + ahead_ms)
    process = rows.process()
    process.keep()
    rows.waiting += 1
    rows.clock = FakeClock(5)
    process = rows.process()
    assert process.read().totals.queued_objects == LARGE + 1
    process.keep()
    assert rows.stored is not None
    assert rows.stored.at_ms < WAIT_MS


def test_a_clock_that_jumps_while_sums_are_computed_does_not_make_them_last_for_days() -> None:
    rows = Rows(LARGE, cost_ms=24 * 3_600_000)
    process = rows.process()
    process.keep()
    rows.cost_ms = 100
    for _ in range(2):  # the second time it claims them, by what they cost
        rows.waiting += 1
        rows.clock.advance(NEXT_MS_MAX)
        process.keep()
        assert process.read().totals.queued_objects == rows.waiting


def test_nothing_is_stored_any_more_when_a_store_became_small() -> None:
    rows = Rows(LARGE)
    process = rows.process()
    process.keep()
    rows.waiting = 3
    rows.clock.advance(WAIT_MS)
    process.keep()
    assert rows.stored is None
    assert process.read().totals.queued_objects == 3


@pytest.mark.parametrize("failure", [Transient("the database is away"), ZeroDivisionError("a bug")])
def test_a_failure_does_not_end_the_keeping(failure: Exception) -> None:
    rows = Rows(LARGE)
    rows.failure = failure
    stop = Event()
    waited: list[int] = []

    def wait(stop: Event, wait_ms: int) -> bool:
        waited.append(wait_ms)
        rows.failure = None
        if len(waited) == 3:
            stop.set()
        return stop.is_set()

    rows.clock.wait = wait  # type: ignore[method-assign]
    StoreTotals(cast(Metadata, rows), rows.clock, 0).run(stop)
    assert waited == [KEEP_WAIT_MS_MIN] * 3
    assert rows.computed == 1

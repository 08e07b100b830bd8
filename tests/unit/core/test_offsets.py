"""The offset tracker against a model that keeps everything. Invariant 5."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.formats.offsets import OffsetTracker

pytestmark = pytest.mark.invariant(5)


class Model:
    """Every offset ever taken, in one dict per partition; each answer comes from looking at all of them."""

    def __init__(self) -> None:
        self.state: dict[int, dict[int, bool]] = {}
        self.base: dict[int, int] = {}

    def taken(self, partition: int, offset: int) -> bool:
        offsets = self.state.setdefault(partition, {})
        self.base.setdefault(partition, offset)
        if offset < max(offsets, default=self.base[partition] - 1) + 1:
            return False
        offsets[offset] = False
        return True

    def done(self, partition: int, offset: int) -> None:
        if offset in self.state.get(partition, {}):
            self.state[partition][offset] = True

    def first_not_done(self, partition: int) -> int:
        offsets = self.state[partition]
        return min((o for o, done in offsets.items() if not done), default=max(offsets) + 1)

    def committable(self) -> dict[int, int]:
        firsts = {p: self.first_not_done(p) for p in self.state}
        return {p: first for p, first in firsts.items() if first > self.base[p]}

    def committed(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            if partition in self.base:
                self.base[partition] = max(self.base[partition], offset)

    def drop(self, partitions: list[int]) -> None:
        for partition in partitions:
            self.state.pop(partition, None)
            self.base.pop(partition, None)


PARTITIONS = st.integers(0, 2)
OFFSETS = st.integers(0, 15)
STEPS = st.one_of(
    st.tuples(st.just("taken"), PARTITIONS, OFFSETS),
    st.tuples(st.just("done"), PARTITIONS, OFFSETS),
    st.tuples(st.just("drop"), PARTITIONS, st.just(0)),
    st.tuples(st.just("commit"), PARTITIONS, st.just(0)),
)


@given(st.lists(STEPS, max_size=80))
def test_tracker_agrees_with_the_model(steps: list[tuple[str, int, int]]) -> None:
    tracker, model = OffsetTracker(), Model()
    for what, partition, offset in steps:
        if what == "taken":
            assert tracker.taken(partition, offset) == model.taken(partition, offset)
        elif what == "done":
            tracker.done(partition, offset)
            model.done(partition, offset)
        elif what == "drop":
            tracker.drop([partition])
            model.drop([partition])
        else:
            offsets = {p: o for p, o in tracker.committable().items() if p == partition}
            tracker.committed(offsets)
            model.committed(offsets)
        assert tracker.committable() == model.committable()


def test_done_out_of_order_waits_for_the_lowest() -> None:
    tracker = OffsetTracker()
    for offset in (10, 11, 13):
        assert tracker.taken(0, offset)
    tracker.done(0, 13)
    tracker.done(0, 11)
    assert tracker.committable() == {}
    tracker.done(0, 10)
    assert tracker.committable() == {0: 14}
    tracker.committed({0: 14})
    assert tracker.committable() == {}


def test_a_message_delivered_again_after_a_rebalance_is_done_by_its_first_done() -> None:
    tracker = OffsetTracker()
    tracker.taken(0, 5)
    tracker.drop([0])
    tracker.done(0, 5)
    assert tracker.committable() == {}
    assert tracker.taken(0, 5), "the partition came back and starts afresh"
    tracker.done(0, 5)
    tracker.done(0, 5)
    assert tracker.committable() == {0: 6}
    assert not tracker.taken(0, 5), "known: no need to do it again"


def test_cost_per_message_does_not_grow_with_what_is_in_flight() -> None:
    """300,000 in flight, done backwards (the worst order), must not take quadratic time."""
    tracker = OffsetTracker()
    count = 300_000
    started = time.process_time()
    for offset in range(count):
        tracker.taken(0, offset)
    for offset in reversed(range(count)):
        tracker.done(0, offset)
    assert tracker.committable() == {0: count}
    assert time.process_time() - started < 10


def test_committed_says_by_how_much_it_moved() -> None:
    tracker = OffsetTracker()
    for partition, offset in ((0, 5), (0, 6), (0, 9), (1, 3)):
        assert tracker.taken(partition, offset)
        tracker.done(partition, offset)
    assert tracker.committed({0: 7}) == 2
    assert tracker.committed({0: 10, 1: 4, 2: 8}) == 4, "a partition that was given up counts nothing"
    assert tracker.committed({0: 10, 1: 2}) == 0

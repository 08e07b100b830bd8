"""How many plans the lanes take, and which lane gets which."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import cast

import pytest

from nos_ec.core.errors import Transient
from nos_ec.core.geometry import Geometry
from nos_ec.engine.packing.lanes import LATE_S, Lanes, Plan
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriteResult
from tests.rig.waiting import WAIT_S_MAX

WAIT_S = int(WAIT_S_MAX)


class FailingWriter:
    """Stands in for the StripeWriters on a broken disk: each group fails at once."""

    def __init__(self) -> None:
        self.tried: list[object] = []
        self.works = False

    def write(self, plan: object) -> WriteResult:
        self.tried.append(plan)
        return WriteResult() if self.works else WriteResult(cause=Transient("it answers nothing"))

    def close(self) -> None:
        pass


class HeldWriter:
    """Writes a group when the test lets it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.begins, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def write(self, plan: Plan) -> WriteResult:
        self.begun.append(plan.data_length)
        self.begins.release()
        assert self.may_end.acquire(timeout=WAIT_S)
        return WriteResult()

    def close(self) -> None:
        self.begun.append(-1)

    def step(self) -> None:
        """End its group, and wait until it has begun another one."""
        self.may_end.release()
        assert self.begins.acquire(timeout=WAIT_S)


def plan(number: int = 0, stream: int = 0, stripes: int = 1) -> Plan:
    """A plan that is known by its number."""
    return Plan(stripes, 0, 0, (), number, stream)


def new_lanes(
    writers: Sequence[object], block: int = 4, group: int = 1, timer: Callable[[], float] = perf_counter
) -> Lanes:
    """Lanes of writers. block, group: how many stripes these have, at most."""
    geometry = Geometry(stripes_per_block=block, stripes_per_group_max=group)
    return Lanes([cast(StripeWriter, one) for one in writers], timer, geometry)


def lanes_of(
    writers: Sequence[HeldWriter], block: int = 4, group: int = 1, timer: Callable[[], float] = perf_counter
) -> Lanes:
    """Lanes of these writers, each of which has begun a group of its own (a stream that no other plan has), of a
    window."""
    lanes = new_lanes(writers, block, group, timer)
    for number in range(len(writers)):
        lanes.submit(plan(1000 + number, stream=1000 + number, stripes=group))
    for writer in writers:
        assert writer.begins.acquire(timeout=WAIT_S)
        writer.begun.clear()
    return lanes


def end(lanes: Lanes, writers: Sequence[HeldWriter]) -> None:
    """Let all groups end, and close the lanes."""
    for writer in writers:
        writer.may_end.release(100)
    while lanes.pending:
        assert lanes.collect(wait_ms=1000 * WAIT_S)
    assert lanes.close() == []


@pytest.mark.parametrize(("count", "most"), [(1, 2), (3, 12), (20, 60), (40, 80)])
def test_lanes_are_full_with_plans_for_a_block_each(count: int, most: int) -> None:
    """One lane alone needs no runs, only a plan that waits; many lanes share what may be planned ahead. Results that
    nobody has collected count too: otherwise one round of planning would try the whole backlog."""
    writers = [HeldWriter() for _ in range(count)]
    lanes = new_lanes(writers)
    for submitted in range(most):
        assert not lanes.full, submitted
        lanes.submit(plan())
    for writer in writers:
        writer.may_end.release(100)
    for _ in range(most):
        assert lanes.full
        lanes.collect(wait_ms=0)
        if not lanes.full:
            break
    end(lanes, writers)


@pytest.mark.parametrize("count", [1, 3])
def test_after_a_failure_no_lane_begins_a_group_until_somebody_has_acted(count: int) -> None:
    """A disk that refuses everything does so fast: each try costs a block."""
    writer = FailingWriter()
    lanes = new_lanes([writer] * count)
    while not lanes.full:
        lanes.submit(plan())
    submitted = lanes.pending
    assert lanes.collect(wait_ms=1000 * WAIT_S)
    time.sleep(0.1)
    assert 1 <= len(writer.tried) <= count, "the caller that has collected it may withdraw the others first"
    writer.works = True
    while lanes.pending:
        assert lanes.collect(wait_ms=1000 * WAIT_S)
    assert len(writer.tried) == submitted
    lanes.close()


def test_groups_that_fail_together_count_as_one_failure() -> None:
    """Each of three waits for the others, so they fail in rounds."""

    class FailingTogether(FailingWriter):
        def __init__(self) -> None:
            super().__init__()
            self.barrier = threading.Barrier(3)

        def write(self, plan: object) -> WriteResult:
            with suppress(threading.BrokenBarrierError):
                self.barrier.wait(WAIT_S)
            return super().write(plan)

    writer = FailingTogether()
    lanes = new_lanes([writer] * 3)
    for number in range(12):
        lanes.submit(plan(number))
    collected = 0
    while collected < 6:
        collected += len(lanes.collect(wait_ms=1000 * WAIT_S))
        assert lanes.failures_in_row == -(-collected // 3)
    writer.works = True
    writer.barrier.abort()  # nobody waits from now on
    while lanes.pending:
        lanes.collect(wait_ms=1000 * WAIT_S)
    assert lanes.failures_in_row == 0
    lanes.close()


def test_lanes_that_rest_after_a_failure_can_be_closed() -> None:
    writer = FailingWriter()
    lanes = new_lanes([writer])
    lanes.submit(plan())
    lanes.submit(plan())
    (failure,) = lanes.collect(wait_ms=1000 * WAIT_S)
    assert failure.cause
    assert lanes.close() == []
    assert len(writer.tried) == 1
    assert not lanes.pending


def test_a_lane_writes_a_run_of_groups_that_follow_each_other() -> None:
    """A run has as many groups as fill a block. Each stream has runs of its own."""
    writers = [HeldWriter() for _ in range(3)]
    lanes = lanes_of(writers)
    for number in range(6):
        lanes.submit(plan(number, stripes=2))
        lanes.submit(plan(100 + number, stream=1, stripes=2))
    for _ in range(4):
        for writer in writers:
            writer.step()
    for first in (0, 2, 4, 100, 102, 104):
        (lane,) = [writer.begun for writer in writers if first in writer.begun]
        assert first + 1 in lane[lane.index(first) :]
    end(lanes, writers)


def test_an_idle_lane_takes_the_end_of_a_run() -> None:
    writers = [HeldWriter(), HeldWriter()]
    lanes = lanes_of(writers, block=8)
    for number in range(5):
        lanes.submit(plan(number))
    (busy,) = [lane for lane in range(2) if lanes._waiting[lane]]
    for _ in range(3):
        writers[1 - busy].step()
    assert writers[1 - busy].begun == [4, 3, 2]
    writers[busy].step()
    assert writers[busy].begun == [0], "a run continues in its order"
    end(lanes, writers)
    assert sorted([*writers[0].begun, *writers[1].begun]) == [-1, -1, 0, 1, 2, 3, 4], "each group once"


def test_no_group_waits_for_one_that_takes_long() -> None:
    writers = [HeldWriter(), HeldWriter()]
    lanes = lanes_of(writers, block=8)
    for number in range(12):
        lanes.submit(plan(number))
    for _ in range(12):
        writers[1].step()
    assert sorted(writers[1].begun) == list(range(12))
    end(lanes, writers)


def test_what_waits_behind_a_group_that_hangs_is_taken_first() -> None:
    """Otherwise it would wait as long as that one, while the other lanes always have something to do."""
    seconds = [0.0]
    writers = [HeldWriter(), HeldWriter()]
    lanes = lanes_of(writers, block=4, timer=lambda: seconds[0])
    for number in range(8):
        lanes.submit(plan(number))
    (hangs,) = [lane for lane in range(2) if lanes._waiting[lane][0].data_length == 0]
    writers[1 - hangs].step()
    assert writers[1 - hangs].begun == [4]
    seconds[0] += 10
    for _ in range(5):
        writers[1 - hangs].step()
        seconds[0] += 0.1
    assert writers[1 - hangs].begun == [4, 0, 1, 2, 3, 5]
    end(lanes, writers)


def test_a_group_of_several_windows_may_take_as_many_times_longer() -> None:
    seconds = [0.0]
    writers = [HeldWriter(), HeldWriter()]
    lanes = lanes_of(writers, block=40, group=4, timer=lambda: seconds[0])
    lanes.submit(plan(0, stripes=32))
    (long,) = [lane for lane in range(2) if lanes._waiting[lane]]
    writers[long].step()
    for number in (1, 2):
        lanes.submit(plan(number, stripes=4))
    for number in (3, 4, 5):
        lanes.submit(plan(number, stream=1, stripes=4))
    assert [one.data_length for one in lanes._waiting[1 - long]] == [3, 4, 5], "there is less to write before them"
    seconds[0] = 8 * LATE_S - 0.1
    writers[1 - long].step()
    seconds[0] = 8 * LATE_S
    writers[1 - long].step()
    assert writers[1 - long].begun == [3, 1]
    end(lanes, writers)


@pytest.mark.parametrize(("stripes", "most"), [(4, 16), (8, 8), (32, 4), (31, 4)])
def test_lanes_are_full_with_fewer_plans_that_are_long(stripes: int, most: int) -> None:
    """Lanes are full with plans for a block each, but one plan always waits."""
    writers = [HeldWriter(), HeldWriter()]
    lanes = new_lanes(writers, block=32, group=4)
    for number in range(most):
        assert not lanes.full
        lanes.submit(plan(number, stripes=stripes))
    assert lanes.full
    for writer in writers:
        assert writer.begins.acquire(timeout=WAIT_S)
    assert len(lanes.withdraw()) == most - 2
    assert not lanes.full
    end(lanes, writers)
    assert not lanes._windows_pending


def test_a_run_is_cut_short_when_too_much_waits_for_its_lane() -> None:
    writers = [HeldWriter(), HeldWriter()]
    lanes = lanes_of(writers, block=100, group=33)
    for number in range(4):
        assert not lanes.full
        lanes.submit(plan(number))
    assert sorted(len(waiting) for waiting in lanes._waiting) == [1, 3]
    assert lanes.full
    end(lanes, writers)


def test_what_no_lane_has_begun_can_be_withdrawn() -> None:
    writers = [HeldWriter(), HeldWriter()]
    lanes = lanes_of(writers)
    plans = [plan(number) for number in range(5)]
    for one in plans:
        lanes.submit(one)
    assert sorted(lanes.withdraw(), key=lambda one: one.data_length) == plans
    assert lanes.pending == 2
    assert lanes.withdraw() == []
    end(lanes, writers)
    assert [writer.begun for writer in writers] == [[-1], [-1]]


def test_fewer_lanes_may_write_and_keep_the_order() -> None:
    writers = [HeldWriter() for _ in range(3)]
    lanes = lanes_of(writers, block=8)
    lanes.limit(1)
    for number in range(4):
        lanes.submit(plan(number))
    (owner,) = [lane for lane in range(3) if lanes._waiting[lane]]
    for lane in range(3):
        if lane != owner:
            writers[lane].may_end.release()
    while lanes.pending > 5:
        lanes.collect(wait_ms=10_000)
    assert lanes.busy == 1, "the others have ended and begin nothing"
    for _ in range(4):
        writers[owner].step()
        assert lanes.busy == 1
    assert writers[owner].begun == [0, 1, 2, 3]
    lanes.limit(99)
    end(lanes, writers)


def test_lanes_that_close_drop_what_they_have_not_begun() -> None:
    """The caller that submitted it still knows its objects."""
    writers = [HeldWriter(), HeldWriter()]
    lanes = lanes_of(writers)
    for number in range(5):
        lanes.submit(plan(number))
    for writer in writers:
        writer.may_end.release()
    assert len(lanes.close()) == 2
    assert not lanes.pending
    assert [writer.begun for writer in writers] == [[-1], [-1]]

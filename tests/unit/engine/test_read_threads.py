"""Reads that hang are abandoned, others are waited for; slots and limits are respected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from nos_ec.engine import read_threads
from nos_ec.engine.read_threads import ABANDONED_MAX, LATE_S, LATE_S_AFTER_FAILURE, ReadThreads, TimedRead, read_all

SLOTS = 4


class Timer:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Hanging:
    """Reads that end when `answer` is set."""

    def __init__(self) -> None:
        self.answer = Event()
        self.begun = threading.Semaphore(0)
        self.failed = True

    def read(self, size: int = 1, late: Callable[[float], str] | None = lambda _: "late") -> TimedRead[str]:
        def work() -> tuple[str, bool]:
            self.begun.release()
            self.answer.wait()
            return "answered", self.failed

        return TimedRead(work, size, late)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.answer.set()


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def threads(timer: Timer, hanging: Hanging) -> Iterator[ReadThreads]:
    made = ReadThreads(SLOTS, timer)
    yield made
    hanging.answer.set()
    made.close()


def _quick(number: int) -> TimedRead[str]:
    return TimedRead(lambda: (str(number), False), 1, lambda _: "late")


def _read_while_some_hang(
    threads: ReadThreads, timer: Timer, hanging: Hanging, reads: list[TimedRead[str]], hang: int
) -> list[str]:
    """Read all while `hang` of them hang; time passes when these have begun."""
    results: list[str] = []
    reader = threading.Thread(target=lambda: results.extend(read_all(threads, reads)))
    reader.start()
    for _ in range(hang):
        while not hanging.begun.acquire(timeout=0.01):
            timer.now_s += LATE_S  # those that have begun make room for the rest
    while reader.is_alive():
        timer.now_s += LATE_S
        reader.join(0.01)
    return results


def test_all_are_read_in_order(threads: ReadThreads) -> None:
    assert read_all(threads, []) == []
    assert read_all(threads, [_quick(number) for number in range(100)]) == [str(number) for number in range(100)]


@pytest.mark.parametrize("hang", [1, SLOTS, 3 * SLOTS])
def test_reads_that_hang_are_abandoned_and_the_others_are_done(
    threads: ReadThreads, timer: Timer, hanging: Hanging, hang: int
) -> None:
    """This also holds when more reads hang than there are slots."""
    reads = [hanging.read() for _ in range(hang)] + [_quick(number) for number in range(50)]
    expected = ["late"] * hang + [str(number) for number in range(50)]
    assert _read_while_some_hang(threads, timer, hanging, reads, hang) == expected
    assert read_all(threads, [_quick(1)] * 20) == ["1"] * 20, "the slots of those that hang are free again"


def test_a_read_that_must_not_be_abandoned_is_waited_for(threads: ReadThreads, timer: Timer, hanging: Hanging) -> None:
    results: list[str] = []
    reader = threading.Thread(target=lambda: results.extend(read_all(threads, [hanging.read(late=None)])))
    reader.start()
    hanging.begun.acquire()
    timer.now_s += 1000 * LATE_S
    reader.join(0.05)
    assert reader.is_alive()
    hanging.answer.set()
    reader.join()
    assert results == ["answered"]


def test_no_read_is_abandoned_while_the_caller_is_patient(timer: Timer, hanging: Hanging) -> None:
    threads = ReadThreads(SLOTS, timer, late_s=0.01)
    results: list[str] = []
    reads = [hanging.read(), _quick(1)]
    reader = threading.Thread(target=lambda: results.extend(read_all(threads, reads, grace_s=0.2)))
    reader.start()
    hanging.begun.acquire()
    timer.now_s = 0.19
    reader.join(0.3)
    assert reader.is_alive(), "far longer than other reads get"
    timer.now_s = 0.21
    reader.join()
    assert results == ["late", "1"]
    hanging.answer.set()
    threads.close()


def test_after_a_read_that_was_abandoned_has_failed_others_get_less_time(
    threads: ReadThreads, timer: Timer, hanging: Hanging
) -> None:
    assert threads.late_after_s() == LATE_S
    _read_while_some_hang(threads, timer, hanging, [hanging.read()], 1)
    assert threads.late_after_s() == LATE_S, "nothing is known of it yet"
    hanging.answer.set()
    while threads.late_after_s() == LATE_S:
        pass
    assert threads.late_after_s() == LATE_S_AFTER_FAILURE
    timer.now_s += read_threads.FAILURE_COUNTS_FOR_S
    assert threads.late_after_s() == LATE_S


def test_a_slow_store_gets_more_time(threads: ReadThreads, timer: Timer) -> None:
    threads.add_times(10.0, 10)
    assert threads.late_after_s() == read_threads.MEAN_FACTOR * 1.0


@pytest.mark.invariant(9)
def test_no_more_are_abandoned_than_the_limits_allow(threads: ReadThreads) -> None:
    for _ in range(ABANDONED_MAX):
        assert threads.abandon(1)
    assert not threads.abandon(1)
    threads.end_abandoned(1, failed=False)
    assert not threads.abandon(read_threads.ABANDONED_BYTES_MAX)
    assert threads.abandon(1)


def test_what_a_read_raises_is_raised(threads: ReadThreads) -> None:
    def bug() -> tuple[str, bool]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read_all(threads, [_quick(1), TimedRead(bug, 1, None), *[_quick(number) for number in range(20)]])
    assert read_all(threads, [_quick(1)] * 20) == ["1"] * 20

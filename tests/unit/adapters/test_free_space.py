"""Free space of a Ceph pool while the monitors answer late or not at all, without a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from nos_ec.adapters.rados import free_space
from nos_ec.adapters.rados.free_space import FreeSpace, Room, room_of
from nos_ec.core.errors import Transient
from tests.rig import waiting

CALLERS = 10
OBJECT_BYTES_MAX = 100
WAIT_S_MAX = 60.0
until = partial(waiting.until, wait_s=WAIT_S_MAX)


class Monitors:
    """Answer with `free_bytes`, or fail; while `hung`, only once `go_on` is called."""

    def __init__(self) -> None:
        self.free_bytes = 1000
        self.free_objects: int | None = None
        self.fails = False
        self.asked = 0
        self.asked_at_once = 0
        self._asking = 0
        self._go_on = threading.Event()
        self._go_on.set()

    def hang(self) -> None:
        self._go_on.clear()

    def go_on(self) -> None:
        self._go_on.set()

    def __call__(self) -> Room:
        self.asked += 1
        self._asking += 1
        self.asked_at_once = max(self.asked_at_once, self._asking)
        answered = self._go_on.wait(WAIT_S_MAX)
        self._asking -= 1
        if self.fails or not answered:
            raise Transient("no answer")
        return Room(self.free_bytes, self.free_objects)


@pytest.fixture
def monitors() -> Iterator[Monitors]:
    monitors = Monitors()
    yield monitors
    monitors.go_on()


@pytest.fixture
def space(monitors: Monitors, monkeypatch: pytest.MonkeyPatch) -> Iterator[FreeSpace]:
    """Every figure is stale at once. A new one is waited for, unless the test knows that the monitor hangs."""
    monkeypatch.setattr(free_space, "STALE_AFTER_S", 0.0)
    monkeypatch.setattr(free_space, "FRESH_WAIT_S", WAIT_S_MAX)
    space = FreeSpace("pool", monitors, OBJECT_BYTES_MAX)
    yield space
    monitors.go_on()
    space.close()


def is_fresh(monitors: Monitors, space: FreeSpace) -> bool:
    """Whether a change is reported at once."""
    monitors.free_bytes += 1
    return space.free_bytes() == monitors.free_bytes


def test_no_caller_waits_for_a_monitor_that_hangs(
    monitors: Monitors, space: FreeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise this ends only when `hang` ends, which is never."""
    monkeypatch.setattr(free_space, "FRESH_WAIT_S", 0.05)
    assert space.free_bytes() == 1000
    monitors.hang()
    with ThreadPoolExecutor(CALLERS) as pool:
        futures = [pool.submit(space.free_bytes) for _ in range(20 * CALLERS)]
        assert {future.result(WAIT_S_MAX / 2) for future in futures} == {1000}
    assert monitors.asked == 2
    monitors.free_bytes = 500
    monitors.go_on()
    until(lambda: space.free_bytes() == 500)
    assert monitors.asked_at_once == 1


def test_a_monitor_that_answers_is_waited_for(monitors: Monitors, space: FreeSpace) -> None:
    """Otherwise a process that asks once in ten minutes would rely on a figure that is ten minutes old."""
    assert space.free_bytes() == 1000
    monitors.free_bytes = 0
    assert space.free_bytes() == 0


def test_an_answer_that_is_late_is_waited_for_once(
    monitors: Monitors, space: FreeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_space, "FRESH_WAIT_S", 0.05)
    space.free_bytes()
    monitors.hang()
    space.free_bytes()
    monkeypatch.setattr(free_space, "FRESH_WAIT_S", WAIT_S_MAX)
    assert space.free_bytes() == 1000, "no caller waits for the late one any more"
    monitors.go_on()
    until(lambda: is_fresh(monitors, space))
    assert all(is_fresh(monitors, space) for _ in range(10)), "answers come in time again, and are waited for again"


def test_without_any_figure_all_wait_for_one_answer(monitors: Monitors, space: FreeSpace) -> None:
    monitors.hang()
    with ThreadPoolExecutor(CALLERS) as pool:
        futures = [pool.submit(space.free_bytes) for _ in range(CALLERS)]
        until(lambda: monitors.asked >= 1)
        assert not any(future.done() for future in futures)
        monitors.go_on()
        assert {future.result(WAIT_S_MAX) for future in futures} == {1000}
    assert monitors.asked_at_once == 1


def test_without_any_figure_the_failure_is_raised_and_the_next_caller_asks_again(
    monitors: Monitors, space: FreeSpace
) -> None:
    monitors.fails = True
    for asked in (1, 2):
        with pytest.raises(Transient, match="no answer"):
            space.free_bytes()
        assert monitors.asked == asked
    monitors.fails = False
    assert space.free_bytes() == 1000


def test_a_failure_leaves_the_last_figure(monitors: Monitors, space: FreeSpace) -> None:
    space.free_bytes()
    monitors.fails = True
    for _ in range(3):
        assert space.free_bytes() == 1000
    monitors.fails = False
    monitors.free_bytes = 10
    until(lambda: space.free_bytes() == 10)


def test_bytes_written_during_a_request_are_not_forgotten(
    monitors: Monitors, space: FreeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_space, "FRESH_WAIT_S", 0.05)
    space.free_bytes()
    space.spent(100)
    monitors.hang()
    assert space.free_bytes() == 900
    space.spent(50)
    assert space.free_bytes() == 850
    monkeypatch.setattr(free_space, "STALE_AFTER_S", WAIT_S_MAX)
    monitors.go_on()
    until(lambda: space.free_bytes() == 950)  # the answer knows of the first 100, not of the 50
    space.spent(5000)
    assert space.free_bytes() == 0


def test_a_fresh_figure_is_not_asked_for_again(monitors: Monitors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "STALE_AFTER_S", WAIT_S_MAX)
    space = FreeSpace("pool", monitors, OBJECT_BYTES_MAX)
    for _ in range(5):
        space.free_bytes()
    assert monitors.asked == 1
    space.close()
    space.close()


def test_a_quota_on_objects_counts(monitors: Monitors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "STALE_AFTER_S", WAIT_S_MAX)
    monitors.free_objects = 3
    space = FreeSpace("pool", monitors, OBJECT_BYTES_MAX)
    assert space.free_bytes() == 300
    space.spent(10)
    assert space.free_bytes() == 300, "that was an object which was there"
    space.spent(100, objects=1)
    assert space.free_bytes() == 200
    space.spent(0, objects=5)
    assert space.free_bytes() == 0
    space.close()


def test_a_pool_that_refused_has_no_room_until_the_monitors_can_know(
    monitors: Monitors, space: FreeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert space.free_bytes() == 1000
    space.refused()
    assert space.free_bytes() == 1000, "its time is over at once"
    monkeypatch.setattr(free_space, "STALE_AFTER_S", WAIT_S_MAX)
    space.refused()
    assert space.free_bytes() == 0


@pytest.mark.parametrize(
    ("stats", "room"),
    [
        ({"max_avail": 500, "stored": 10, "objects": 2}, Room(500)),
        ({"max_avail": 500, "stored": 10, "objects": 2, "quota_bytes": 0, "quota_objects": 0}, Room(500)),
        ({"max_avail": 500, "stored": 10, "objects": 2, "quota_bytes": 100}, Room(90)),
        ({"max_avail": 50, "stored": 10, "objects": 2, "quota_bytes": 100}, Room(50)),
        ({"max_avail": 500, "stored": 10, "objects": 2, "quota_objects": 2}, Room(500, 0)),
        ({"max_avail": 500, "stored": 10, "objects": 3, "quota_objects": 2}, Room(500, -1)),
    ],
)
def test_quotas_as_the_monitors_report_them(stats: dict[str, int], room: Room) -> None:
    assert room_of(stats) == room

"""How GC spares others: rests, its stop, and the notes that operators read."""

from __future__ import annotations

import json
from dataclasses import replace
from threading import Event

import pytest

from nos_ec.core.errors import Transient
from nos_ec.engine.gc.control import CHANGE_TRIES, CONTROL_NOTE, Control, GcControl
from nos_ec.engine.gc.run.note import RUN_NOTE, RunState, read_run, write_run
from nos_ec.engine.gc.run.speed import PROBES, SPEED_MIN, SPEED_START, RunSpeed
from nos_ec.engine.gc.run.stop import RunStop, Stopped


class InMemoryNotes:
    """Notes in a dict. lose: how many stores in a row find that another process was faster."""

    def __init__(self, lose: int = 0) -> None:
        self.texts: dict[str, str] = {}
        self.lose = lose

    def note(self, name: str) -> str | None:
        return self.texts.get(name)

    def store_note(self, name: str, text: str, expected: str | None) -> bool:
        if self.lose:
            self.lose -= 1
            return False
        if self.texts.get(name) != expected:
            return False
        self.texts[name] = text
        return True


# --- rests ----------------------------------------------------------------------------------------
def backing_off(quiet_s: float, busy_s: float, times: int, slowdown_max: float = 1.5) -> RunSpeed:
    run_speed = RunSpeed(slowdown_max)
    for _ in range(PROBES):
        run_speed.add_quiet(quiet_s)
    for _ in range(times * PROBES):
        run_speed.add_busy(busy_s)
    return run_speed


def test_gc_gets_slower_and_slower_while_reads_are_too_slow_but_always_gets_on() -> None:
    speeds = [backing_off(0.010, 0.020, times).share for times in range(12)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[:2] == pytest.approx([SPEED_START, 0.75 * SPEED_START])
    assert speeds[-1] == SPEED_MIN
    slowest = backing_off(0.010, 0.020, 20)
    assert slowest.groups(4) == 1
    assert slowest.rest_s(1, lanes=4) == pytest.approx(4)
    assert slowest.rest_s(1, lanes=1) == pytest.approx(19)


def test_gc_gets_slower_by_as_much_as_reads_are_too_slow_and_at_most_by_half() -> None:
    for busy_s, factor in ((0.01501, 1.0), (0.018, 1 / 1.2), (0.030, 0.5), (0.300, 0.5)):
        assert backing_off(0.010, busy_s, 1).share == pytest.approx(factor * SPEED_START, rel=0.001)


def test_gc_has_fewer_groups_under_way_before_it_rests() -> None:
    run_speed = RunSpeed(1.5)
    for speed, groups in ((1.0, 4), (0.9, 3), (0.5, 2), (0.3, 1), (0.25, 1)):
        run_speed.share = speed
        assert run_speed.groups(4) == groups
        assert run_speed.rest_s(100, 4) == 0
    assert run_speed.rest_s(1, lanes=1) == pytest.approx(3)


def test_gc_begins_slowly_and_works_all_the_time_while_reads_are_fast_enough() -> None:
    assert RunSpeed(1.5).share == SPEED_START
    assert RunSpeed(0).share == 1, "where nothing is compared"
    assert backing_off(0.010, 0.0149, 20).share == 1
    assert backing_off(0.010, 0.0149, 20).rest_s(5, 4) == 0
    assert backing_off(0.0001, 0.0005, 20).share == 1, "so small a slowdown is noise"


def test_gc_speeds_up_again_when_reads_are_fast() -> None:
    run_speed = backing_off(0.010, 0.050, 20)
    for _ in range(25 * PROBES):
        run_speed.add_busy(0.011)
    assert run_speed.share == 1


def test_gc_speeds_up_when_reads_are_slow_without_it() -> None:
    """Then it is not GC that slows them down."""
    run_speed = backing_off(0.010, 0.050, 20)
    for _ in range(PROBES):
        run_speed.add_quiet(0.045)
    for _ in range(25 * PROBES):
        run_speed.add_busy(0.050)
    assert run_speed.share == 1


def test_short_space_ends_the_rests() -> None:
    run_speed = backing_off(0.010, 0.050, 20)
    run_speed.hurry()
    assert run_speed.groups(4) == 4
    assert run_speed.rest_s(100, 1) == 0


def test_few_reads_decide_nothing() -> None:
    run_speed = RunSpeed(1.5)
    for _ in range(10 * PROBES):
        run_speed.add_busy(9.0)
    assert run_speed.share == SPEED_START
    assert run_speed.wants_quiet
    assert not RunSpeed(0).wants_quiet


# --- the stop of a run ----------------------------------------------------------------------------
def test_a_run_stops_when_its_process_does_or_when_it_is_ended() -> None:
    outer = Event()
    stop = RunStop(outer)
    assert (stop.is_set(), stop.why, stop.wait(0)) == (False, None, False)
    stop.end(Stopped.PAUSED)
    outer.set()
    assert (stop.is_set(), stop.why, stop.wait(0)) == (True, Stopped.PAUSED, True)
    other = RunStop(None)
    assert not other.wait(0)
    other.end(Stopped.MAX_DURATION)
    other.end(Stopped.PAUSED)
    assert other.why is Stopped.MAX_DURATION
    assert (RunStop(outer).why, RunStop(outer).wait(None)) == (Stopped.SIGNAL, True)


# --- notes ----------------------------------------------------------------------------------------
def test_what_is_asked_of_gc_survives_other_changes() -> None:
    control = GcControl(InMemoryNotes(lose=CHANGE_TRIES - 1))
    assert control.read() == Control()
    assert control.change(lambda one: replace(one, bytes_per_s=5)) == Control(bytes_per_s=5)
    control.change(lambda one: replace(one, paused=True))
    control.change(lambda one: replace(one, operations_per_s=0))
    assert control.read() == Control(True, 5, 0)
    with pytest.raises(Transient):
        GcControl(InMemoryNotes(lose=CHANGE_TRIES)).change(lambda one: one)


@pytest.mark.parametrize(
    "text", ["", "[]", "x", "[" * 20_000, '{"paused": 1, "bytes_per_s": "9"}', '{"bytes_per_s": -1}']
)
def test_a_note_that_cannot_be_understood_asks_for_nothing_and_is_replaced(text: str) -> None:
    notes = InMemoryNotes()
    notes.texts[CONTROL_NOTE] = text
    control = GcControl(notes)
    assert control.read() == Control()
    control.change(lambda one: replace(one, paused=True))
    assert control.read() == Control(True)


STATE = RunState("process 1 on host", 5, 9, None, 10, 4, 1000, 400, 7, 3, 2000, 60, 100, None, None)


def test_what_is_left_of_a_run_follows_from_its_rate() -> None:
    assert (STATE.bytes_left, STATE.left_ms) == (600, 10_000)
    assert replace(STATE, bytes_per_s=0).left_ms is None
    done = replace(STATE, victims_done=10)
    assert (done.bytes_left, done.left_ms) == (0, 0)
    assert replace(STATE, bytes_moved=1200).bytes_left == 0


def test_the_note_of_a_run_is_that_of_the_latest() -> None:
    notes = InMemoryNotes()
    assert read_run(notes) is None
    write_run(notes, STATE)
    write_run(notes, later := replace(STATE, stopped=Stopped.PAUSED, ended_ms=20))
    assert read_run(notes) == later
    notes.texts[RUN_NOTE] = json.dumps({"process": "of another release"})
    assert read_run(notes) is None

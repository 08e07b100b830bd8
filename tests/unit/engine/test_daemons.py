"""Which daemons are alive and what they have parked: bounded, and never lost to another daemon."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from nos_ec.core.errors import Transient
from nos_ec.core.expiry import DAY_MS
from nos_ec.engine.figures.daemons import (
    DAEMONS_MAX,
    ITEMS_MAX,
    KEPT_RECORDS,
    SEEN_MS,
    SERVICES,
    SILENT_MS,
    SILENT_RECORDS,
    TRIES,
    Presence,
    read_daemons,
)
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.ports.metadata import NOTE_CHARS_MAX
from tests.rig.fakes.clock import SetClock
from tests.unit.engine.test_events import AwayNotes
from tests.unit.engine.test_gc_throttling import InMemoryNotes

NOW_MS = 1_700_000_000_000


def presence(notes: InMemoryNotes, clock: SetClock, process: str = "one", queues: Any = ()) -> Presence:
    return Presence(notes, clock, "consumer", process, "1.0", lambda: queues)


def failing(clock: SetClock, items: int, reason: str = "it fails") -> RetryQueue[str]:
    queue: RetryQueue[str] = RetryQueue("object", str, clock, BackOff(1000, 1000), 1_000_000)
    for number in range(items):
        queue.park(f"item {number}", Transient(reason))
        clock.advance(1)
    return queue


def test_a_daemon_shows_what_failed_first() -> None:
    notes, clock = InMemoryNotes(), SetClock(NOW_MS)
    queue = failing(clock, 3 * ITEMS_MAX)
    queue.park("item 5", Transient("it fails again"))
    presence(notes, clock, queues=[queue]).record(ended=False)
    (daemon,) = read_daemons(notes)
    assert (daemon.service, daemon.version, daemon.parked) == ("consumer", "1.0", 3 * ITEMS_MAX)
    assert [item.name for item in daemon.items] == [f"item {number}" for number in range(ITEMS_MAX)]
    assert (daemon.items[5].reason, daemon.items[5].failures) == ("it fails again", 2)
    assert daemon.items[5].since_ms == NOW_MS + 5


def test_the_note_is_bounded_however_many_daemons_fail() -> None:
    notes, clock = InMemoryNotes(), SetClock(NOW_MS)
    queue = failing(clock, ITEMS_MAX, "\u202e" * 1000)
    for number in range(2 * DAEMONS_MAX):
        clock.advance(1)
        presence(notes, clock, f"{number} {'p' * 500}", [queue]).record(ended=False)
        assert len(notes.note("daemons consumer") or "") <= NOTE_CHARS_MAX
    found = read_daemons(notes)
    assert found[0].process.startswith(f"{2 * DAEMONS_MAX - 1} ")
    assert len(found) == DAEMONS_MAX
    assert all(one.parked == ITEMS_MAX for one in found)
    assert max(len(f"daemons {service}") for service in SERVICES) <= 16


def test_daemons_that_stopped_make_room_for_one_that_is_silent() -> None:
    notes, clock = InMemoryNotes(), SetClock(NOW_MS)
    presence(notes, clock, "silent", [failing(clock, 1)]).record(ended=False)
    for number in range(2 * DAEMONS_MAX):
        clock.advance(1)
        presence(notes, clock, f"restarted {number}", [failing(clock, 1)]).record(ended=True)
    found = {one.process: one for one in read_daemons(notes)}
    assert len(found) == DAEMONS_MAX
    assert len(found["silent"].items) == 1
    assert all(one.items == () for one in found.values() if one.process != "silent")


def test_daemons_do_not_overwrite_each_other() -> None:
    notes, clock = InMemoryNotes(lose=TRIES - 1), SetClock(NOW_MS)
    one, two = presence(notes, clock, "one"), presence(notes, clock, "two")
    for _ in range(3):
        one.record(ended=False)
        clock.advance(1)
        two.record(ended=False)
        clock.advance(1)
    assert [daemon.process for daemon in read_daemons(notes)] == ["two", "one"]


def test_a_daemon_that_stops_or_falls_silent_is_kept_for_a_day() -> None:
    notes, clock = InMemoryNotes(), SetClock(NOW_MS)
    stop = Event()
    stop.set()
    presence(notes, clock, "stopped").run(stop)
    presence(notes, clock, "silent").record(ended=False)
    clock.advance(SILENT_MS)
    now_ms = clock.now_ms()
    assert {one.process: one.is_alive(now_ms) for one in read_daemons(notes)} == {"stopped": False, "silent": True}
    assert not any(one.is_alive(now_ms + 1) for one in read_daemons(notes))
    new = presence(notes, clock, "new")
    for _ in range(KEPT_RECORDS):
        new.record(ended=False)
        clock.advance(SEEN_MS)
    assert [one.process for one in read_daemons(notes)] == ["new", "silent", "stopped"]
    new.record(ended=False)
    assert [one.process for one in read_daemons(notes)] == ["new"]


@pytest.mark.parametrize("off_ms", [-400 * DAY_MS, 400 * DAY_MS])
def test_a_daemon_with_a_wrong_clock_removes_nothing_of_others(off_ms: int) -> None:
    notes, right, wrong = InMemoryNotes(), SetClock(NOW_MS), SetClock(NOW_MS + off_ms)
    good, stopped = presence(notes, right, "good", [failing(right, 2)]), presence(notes, right, "stopped")
    stopped.record(ended=True)
    off = presence(notes, wrong, "off", [failing(wrong, 1)])
    for _ in range(10):
        good.record(ended=False)
        off.record(ended=False)
        for clock in (right, wrong):
            clock.advance(SEEN_MS)
        found = {one.process: len(one.items) for one in read_daemons(notes)}
        assert found == {"good": 2, "off": 1, "stopped": 0}


def test_one_that_falls_silent_loses_its_items() -> None:
    notes, clock = InMemoryNotes(), SetClock(NOW_MS)
    presence(notes, clock, "silent", [failing(clock, 1)]).record(ended=False)
    other = presence(notes, clock, "other")
    seen = []
    for _ in range(SILENT_RECORDS + 2):
        clock.advance(SEEN_MS)
        other.record(ended=False)
        seen.append(len(read_daemons(notes)[-1].items))
    assert seen == [*([1] * (SILENT_RECORDS + 1)), 0]


def test_a_failure_is_not_raised() -> None:
    def broken() -> Any:
        raise ValueError("a mistake")

    clock = SetClock(NOW_MS)
    presence(AwayNotes(), clock).record(ended=False)
    Presence(InMemoryNotes(), clock, "gc", "one", "1.0", broken).record(ended=True)
    busy = InMemoryNotes(lose=TRIES)
    presence(busy, clock).record(ended=False)
    assert read_daemons(busy) == []


@pytest.mark.parametrize("text", ["", "x", "{}", "[1]", '[{"process": 1, "items": []}]', "[" * 100_000])
def test_a_note_that_cannot_be_read_counts_as_empty(text: str) -> None:
    notes = InMemoryNotes()
    assert notes.store_note("daemons consumer", text, None)
    assert read_daemons(notes) == []
    presence(notes, SetClock(NOW_MS)).record(ended=False)
    assert [one.process for one in read_daemons(notes)] == ["one"]

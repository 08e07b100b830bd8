"""The last events of a store: bounded, never lost to another process, and never in the way of the work."""

from __future__ import annotations

import json

import pytest

from nos_ec.core.errors import Conflict, LeaseLost, NosError, Transient
from nos_ec.core.publishing.slots import SLOTS, slot_lease
from nos_ec.engine.figures.events import KEPT, TEXT_CHARS_MAX, TRIES, EventKind, EventLog, Outcome, read_events
from nos_ec.ports.metadata import NOTE_CHARS_MAX
from tests.rig.fakes.clock import SetClock
from tests.unit.engine.test_gc_throttling import InMemoryNotes

NOW_MS = 1_700_000_000_000


class AwayNotes(InMemoryNotes):
    """Notes of a database that does not answer."""

    def note(self, name: str) -> str | None:
        raise Transient("the database does not answer")


def log(notes: InMemoryNotes, process: str = "one", clock: SetClock | None = None) -> EventLog:
    return EventLog(notes, clock or SetClock(NOW_MS), process)


@pytest.mark.parametrize("text", ["x" * 1000, "\u202e" * 1000, '"\\' * 500])
def test_the_record_is_bounded_and_each_kind_keeps_its_own(text: str) -> None:
    notes = InMemoryNotes()
    log(notes).record(EventKind.DUMP, Outcome.DONE, "the only dump")
    for number in range(3 * KEPT):
        log(notes, "p" * 500).record(EventKind.LEASE, Outcome.FAILED, f"{number} {text}", at_ms=NOW_MS + number)
    assert max(len(notes.note(f"events {kind}") or "") for kind in EventKind) <= NOTE_CHARS_MAX
    found = read_events(notes)
    assert found[0].text.startswith(f"{3 * KEPT - 1} ")
    assert len(found[0].text) == TEXT_CHARS_MAX
    assert 10 < len(found) <= KEPT + 1
    assert found[-1].text == "the only dump"
    assert max(len(f"events {kind}") for kind in EventKind) <= 16


def test_processes_do_not_overwrite_each_others_events() -> None:
    notes = InMemoryNotes(lose=TRIES - 1)
    log(notes, "one").record(EventKind.GC, Outcome.DONE, "freed")
    log(notes, "two").record(EventKind.GC, Outcome.DONE, "freed")
    assert [event.process for event in read_events(notes)] == ["one", "two"]


def test_nothing_is_recorded_and_nothing_raised_while_the_database_is_away_or_others_win() -> None:
    log(AwayNotes()).record(EventKind.GC, Outcome.DONE, "freed")
    busy = InMemoryNotes(lose=TRIES)
    log(busy).record(EventKind.GC, Outcome.DONE, "freed")
    assert read_events(busy) == []


def test_what_occurs_again_and_again_is_one_event_with_a_count() -> None:
    notes = InMemoryNotes()
    for minute in range(500):
        log(notes).record(EventKind.GC, Outcome.FAILED, "no space", at_ms=NOW_MS + 60_000 * minute)
    (event,) = read_events(notes)
    assert (event.times, event.first_ms, event.at_ms) == (500, NOW_MS, NOW_MS + 60_000 * 499)


def test_the_same_moment_is_recorded_once() -> None:
    """Two runs in a row find the same killed one."""
    notes = InMemoryNotes()
    for _ in range(2):
        log(notes).record(EventKind.GC, Outcome.FAILED, "killed", at_ms=NOW_MS)
    assert [event.times for event in read_events(notes)] == [1]


def test_the_events_since_a_time_come_newest_first() -> None:
    notes = InMemoryNotes()
    log(notes).record(EventKind.SCRUB, Outcome.DONE, "old", at_ms=NOW_MS - 1)
    log(notes).record(EventKind.SCRUB, Outcome.DONE, "first", at_ms=NOW_MS)
    log(notes).record(EventKind.DUMP, Outcome.DONE, "second", at_ms=NOW_MS + 1)
    assert [event.text for event in read_events(notes, NOW_MS)] == ["second", "first"]


@pytest.mark.parametrize(
    "text", ["", "nonsense", "{}", "[1]", '[{"at_ms": 1}]', "[" * 100_000, '[{"outcome": "lost", "text": "x"}]']
)
def test_a_note_that_cannot_be_read_counts_as_empty(text: str) -> None:
    notes = InMemoryNotes()
    assert notes.store_note("events gc", text, None)
    assert read_events(notes) == []
    log(notes).record(EventKind.GC, Outcome.DONE, "freed")
    assert [event.text for event in read_events(notes)] == ["freed"]


def test_an_entry_of_another_release_leaves_the_others_readable() -> None:
    notes = InMemoryNotes()
    log(notes).record(EventKind.GC, Outcome.DONE, "freed")
    stored = notes.note("events gc")
    assert stored is not None
    assert notes.store_note("events gc", json.dumps([{"new": 1}, *json.loads(stored)]), stored)
    assert [event.text for event in read_events(notes)] == ["freed"]


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (Transient("the server is away"), Outcome.FAILED, "the server is away"),
        (LeaseLost("fenced"), Outcome.FAILED, "fenced"),
        (ValueError("bad"), Outcome.FAILED, "mistake in the program: ValueError('bad')"),
        (KeyboardInterrupt(), Outcome.STOPPED, "stopped by a signal"),
    ],
)
def test_work_that_fails_is_recorded_and_raises(error: BaseException, outcome: Outcome, text: str) -> None:
    notes, clock = InMemoryNotes(), SetClock(NOW_MS)

    def fail() -> None:
        with log(notes, clock=clock).work(EventKind.GC):
            clock.advance(1500)
            raise error

    with pytest.raises(type(error)):
        fail()
    (event,) = read_events(notes)
    assert (event.outcome, event.text, event.took_ms) == (outcome, text, 1500)


def test_work_that_another_process_does_or_that_finds_nothing_is_no_event() -> None:
    notes = InMemoryNotes()
    with pytest.raises(NosError), log(notes).work(EventKind.GC):
        raise Conflict("another process collects")
    with log(notes).work(EventKind.GC):
        pass
    assert read_events(notes) == []


def test_lost_slots_of_producers_are_only_counted() -> None:
    notes = InMemoryNotes()
    slots = [slot_lease(number) for number in range(SLOTS)]
    log(notes).record_lost(["consumer-a", *slots])
    log(notes).record_lost([])
    assert [event.text for event in read_events(notes)] == [
        f"expired and fenced: consumer-a, {SLOTS} slots of producers"
    ]

"""Counts of GC and scrubs over all processes of a store."""

from __future__ import annotations

import pytest

from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.stored_counts import COUNTS_NOTE, StoredCounts

ZEROS = [Sample(m.GC_RUNS, 0), Sample(m.GC_LAST_RUN, 0)]


class Notes:
    """The notes of a store. Another process may store one between a look and an attempt."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.beside: list[StoredCounts] = []

    def note(self, name: str) -> str | None:
        text = self.texts.get(name)
        if self.beside:
            self.beside.pop().keep()
        return text

    def store_note(self, name: str, text: str, expected: str | None) -> bool:
        if self.texts.get(name) != expected:
            return False
        self.texts[name] = text
        return True


class Process:
    """Counts of one process, which counts runs."""

    def __init__(self, notes: Notes) -> None:
        self.runs = 0
        self.last_run_s = 0.0
        self.counts = StoredCounts(notes, ZEROS)
        self.counts.add(lambda: [Sample(m.GC_RUNS, self.runs), Sample(m.GC_LAST_RUN, self.last_run_s)])

    def run(self, at_s: float) -> None:
        self.runs, self.last_run_s = self.runs + 1, at_s


def shown(counts: StoredCounts) -> list[object]:
    return [sample.value for sample in counts.samples()]


def test_counts_of_all_processes_add_up() -> None:
    notes = Notes()
    reader = StoredCounts(notes, ZEROS)
    assert shown(reader) == [0, 0]
    first, second = Process(notes), Process(notes)
    first.run(10)
    assert shown(first.counts) == [1, 10], "its own counts show at once"
    assert shown(reader) == [0, 0]
    for _ in range(3):
        first.counts.keep()
        assert shown(reader) == shown(first.counts) == [1, 10], "they are added once"
    first.run(30)
    second.run(20)
    first.counts.keep()
    second.counts.keep()
    assert shown(reader) == shown(first.counts) == shown(second.counts) == [3, 30], "the later time counts"


def test_two_that_keep_their_counts_at_once_lose_none() -> None:
    notes = Notes()
    first, second = Process(notes), Process(notes)
    first.run(10)
    second.run(20)
    notes.beside = [second.counts]
    first.counts.keep()
    assert shown(StoredCounts(notes, ZEROS)) == [2, 20]


@pytest.mark.parametrize("text", ["", "{", "[1]", "[[]]", '[["nos_ec_gc_runs", [], "x"]]', "[" * 100_000])
def test_a_note_that_cannot_be_understood_counts_as_nothing(text: str) -> None:
    notes = Notes()
    notes.texts[COUNTS_NOTE] = text
    process = Process(notes)
    process.run(10)
    process.counts.keep()
    assert shown(process.counts) == [1, 10]


def test_counts_of_another_release_are_kept_and_not_shown() -> None:
    notes = Notes()
    notes.texts[COUNTS_NOTE] = '[["nos_ec_gone", ["x"], 7]]'
    process = Process(notes)
    process.run(10)
    process.counts.keep()
    assert shown(process.counts) == [1, 10]
    assert "nos_ec_gone" in notes.texts[COUNTS_NOTE]

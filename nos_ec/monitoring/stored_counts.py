"""Keeps the counts of GC, scrubs and shard rebuilds of a store in a note of the metadata.

Cron or a timer may start them, and such a run ends before Prometheus can scrape it. So every process that does this
work adds its counts to the note, and every process that exports the figures of the whole store exports the sums. Counts
that a killed process had not added yet are lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from threading import Event, Lock

import structlog

from nos_ec.core.errors import NosError
from nos_ec.monitoring.declarations.metric import Kind
from nos_ec.monitoring.exposition import Sample, Source
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Notes

COUNTS_NOTE = "gc counts"
KEEP_MS = 10_000
TRIES = 5
"""How often adding counts to the note is tried if other processes change it at the same time."""

_log = structlog.get_logger(__name__)
_Key = tuple[str, tuple[str, ...]]


class StoredCounts:
    """The counts of a store; `zeros` has a sample of each count. Safe to use from several threads."""

    def __init__(self, notes: Notes, zeros: Iterable[Sample]) -> None:
        self._notes = notes
        self._zeros = {(zero.metric.name, zero.labels): zero for zero in zeros}
        self._sources: list[Source] = []
        self._kept: dict[_Key, float] = {}
        """The counts that this process has added to the note."""
        self._lock = Lock()

    def add(self, source: Source) -> None:
        """Add a source that counts in this process, from 0."""
        self._sources.append(source)

    def samples(self) -> Iterator[Sample]:
        """Yields the counts of all processes. Raises Transient."""
        with self._lock:
            sums = self._joined(_loaded(self._notes.note(COUNTS_NOTE)), self._counted())
        for key, zero in self._zeros.items():
            yield Sample(zero.metric, sums.get(key, 0), zero.labels)

    def keep(self) -> None:
        """Add the counts of this process since the last call to the note. Raises Transient."""
        with self._lock:
            counted = self._counted()
            for _ in range(TRIES):
                text = self._notes.note(COUNTS_NOTE)
                stored = _loaded(text)
                sums = self._joined(stored, counted)
                if sums == stored or self._notes.store_note(COUNTS_NOTE, _dumped(sums), text):
                    self._kept = counted
                    return

    def run(self, stop: Event, clock: Clock) -> None:
        """Add the counts regularly until `stop` is set, and then once more."""
        ended = False
        while not ended:
            ended = clock.wait(stop, KEEP_MS)
            try:
                self.keep()
            except NosError as error:
                _log.warning("counts were not added to the figures of the store", error=str(error))

    def _counted(self) -> dict[_Key, float]:
        """Return the counts of this process."""
        sums: dict[_Key, float] = {}
        for sample in (sample for source in list(self._sources) for sample in source()):
            assert isinstance(sample.value, int | float)
            key = sample.metric.name, sample.labels
            sums[key] = sums.get(key, 0) + sample.value
        return sums

    def _joined(self, stored: dict[_Key, float], counted: dict[_Key, float]) -> dict[_Key, float]:
        """Return the sums in the note plus the part of `counted` that it lacks; for times, return the later one."""
        sums = dict(stored)
        for key, value in counted.items():
            if self._zeros[key].metric.kind is Kind.COUNTER:
                value += stored.get(key, 0) - self._kept.get(key, 0)
            sums[key] = max(value, stored.get(key, 0))
        return sums


def _loaded(text: str | None) -> dict[_Key, float]:
    """Decode a note. A text that cannot be parsed counts as empty."""
    try:
        return {(str(name), tuple(map(str, labels))): 0 + value for name, labels, value in json.loads(text or "[]")}
    except (ValueError, TypeError, RecursionError):
        return {}


def _dumped(sums: dict[_Key, float]) -> str:
    return json.dumps([[name, labels, value] for (name, labels), value in sorted(sums.items())])

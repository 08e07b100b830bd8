"""The last events of a store: runs of GC, scrubs, dumps, checks, lost leases, and changes to the limits of GC.

Each kind is one note of bounded size, changed by compare-and-set, so that frequent events do not displace those of
another kind, and processes do not overwrite each other's. An event that occurs several times in a row is one entry with
a count. Recording never fails the work: a failure is logged, and the event of a killed process may be missing. It
takes as long as the metadata needs for two short transactions, so callers record when nothing waits for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import structlog

from nos_ec.core.errors import ConfigError, Conflict, LeaseLost, NosError
from nos_ec.core.killpoints import kill_point
from nos_ec.core.publishing.slots import leased_slot
from nos_ec.engine.texts import shortened
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import NOTE_CHARS_MAX, Notes

KEPT = 50
"""The most events of a kind that are kept."""
TEXT_CHARS_MAX, PROCESS_CHARS_MAX = 160, 80
TRIES = 5
"""How often recording is tried if other processes record at the same time."""

_log = structlog.get_logger(__name__)


class EventKind(StrEnum):
    """The kinds of events. Each has a note, whose name has at most 16 characters."""

    GC = "gc"
    """A run of GC that changed something, was stopped, or failed."""
    LEASE = "lease"
    """Leases that expired, because their processes died or stalled, and were fenced."""
    SCRUB = "scrub"
    DUMP = "dump"
    CHECK = "check"
    """A check, or the repairs of a plan."""
    CONTROL = "control"
    """An operator paused, resumed or limited GC."""


class Outcome(StrEnum):
    """How something ended."""

    DONE = "done"
    STOPPED = "stopped"
    """It ended early as intended; the next run continues."""
    PROBLEMS = "problems"
    """It was completed, and there is something left to look at."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """An event. Times are Unix milliseconds: `at_ms` is when it ended, or when it occurred last if it occurred `times`
    times in a row, first at `first_ms`. `took_ms` is None for what has no duration. `process` recorded it."""

    kind: EventKind
    outcome: Outcome
    at_ms: int
    first_ms: int
    times: int
    took_ms: int | None
    process: str
    text: str


@dataclass(slots=True)
class Work:
    """A piece of work that is under way. Without a text, its end is not recorded, unless it fails."""

    outcome: Outcome = Outcome.DONE
    text: str = ""

    def ended(self, outcome: Outcome, text: str) -> None:
        """Set how the work has ended."""
        self.outcome, self.text = outcome, text


class EventLog:
    """Records events on behalf of one process. Safe to use from several threads."""

    def __init__(self, notes: Notes, clock: Clock, process: str) -> None:
        self._notes = notes
        self._clock = clock
        self._process = process

    def record(
        self, kind: EventKind, outcome: Outcome, text: str, took_ms: int | None = None, at_ms: int | None = None
    ) -> None:
        """Record an event of now or of `at_ms`. Logs failures, and raises nothing. One that was recorded before, with
        the same `at_ms`, is left out."""
        now_ms = self._clock.now_ms() if at_ms is None else at_ms
        process, text = shortened(self._process, PROCESS_CHARS_MAX), shortened(text, TEXT_CHARS_MAX)
        event = StoreEvent(kind, outcome, now_ms, now_ms, 1, took_ms, process, text)
        try:
            self._add(event)
        except ConfigError as error:
            _log.info("event not recorded", what=text, error=str(error))  # the user may only read, as for checks
        except NosError as error:
            _log.warning("event not recorded", what=text, error=str(error))
        except Exception:
            _log.exception("event not recorded", what=text)

    def record_lost(self, names: Sequence[str]) -> None:
        """Record that leases with these names were fenced. Slots of producers, of which a producer may hold all, are
        only counted. Raises nothing."""
        slots = sum(1 for name in names if leased_slot(name) is not None)
        parts = [name for name in names if leased_slot(name) is None]
        parts += [f"{slots} slots of producers"] if slots else []
        if parts:
            self.record(EventKind.LEASE, Outcome.FAILED, f"expired and fenced: {', '.join(parts)}")

    @contextmanager
    def work(self, kind: EventKind) -> Iterator[Work]:
        """Record how long the block takes and how it ends. A Conflict is not recorded: another
        process does the work already."""
        work, began_ms = Work(), self._clock.now_ms()
        try:
            yield work
        except KeyboardInterrupt:
            work.ended(Outcome.STOPPED, "stopped by a signal")
            raise
        except Exception as error:
            if isinstance(error, LeaseLost) or not isinstance(error, Conflict):
                text = str(error) if isinstance(error, NosError) else f"mistake in the program: {error!r}"
                work.ended(Outcome.FAILED, text)
            raise
        finally:
            if work.text:
                self.record(kind, work.outcome, work.text, max(0, self._clock.now_ms() - began_ms))

    def _add(self, event: StoreEvent) -> None:
        for _ in range(TRIES):
            stored = self._notes.note(_note(event.kind))
            new = _joined(_loaded(stored, event.kind), event)
            if new is None:
                return
            if self._notes.store_note(_note(event.kind), _dumped(new), stored):
                kill_point("event.recorded")
                return
        _log.warning("event not recorded, because other processes kept recording theirs", what=event.text)


def read_events(notes: Notes, since_ms: int = 0) -> list[StoreEvent]:
    """Return the events that are kept and ended at `since_ms` or later, the newest first. Raises Transient."""
    found = [event for kind in EventKind for event in _loaded(notes.note(_note(kind)), kind)]
    return sorted((one for one in found if one.at_ms >= since_ms), key=lambda one: -one.at_ms)


def _note(kind: EventKind) -> str:
    return f"events {kind.value}"


def _joined(events: Sequence[StoreEvent], event: StoreEvent) -> list[StoreEvent] | None:
    """Return the events with this one, or None if they have it already."""
    if not events:
        return [event]
    last = events[-1]
    if (last.outcome, last.process, last.text) != (event.outcome, event.process, event.text):
        return [*events, event]
    if last.at_ms == event.at_ms:
        return None
    return [*events[:-1], replace(event, first_ms=last.first_ms, times=last.times + 1)]


def _dumped(events: Sequence[StoreEvent]) -> str:
    """Return the last events as the text of a note, as many as fit."""
    kept = [{name: value for name, value in asdict(one).items() if name != "kind"} for one in events[-KEPT:]]
    while len(text := json.dumps(kept, separators=(",", ":"))) > NOTE_CHARS_MAX:
        del kept[0]
    return text


def _loaded(text: str | None, kind: EventKind) -> list[StoreEvent]:
    """Decode a note into events, in the order in which they were recorded. Entries that cannot be read are left out:
    another release may have written them."""
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    found = (_event(one, kind) for one in (entries if isinstance(entries, list) else []))
    return [event for event in found if event is not None]


def _event(entry: Any, kind: EventKind) -> StoreEvent | None:
    try:
        event = StoreEvent(kind=kind, **(entry | {"outcome": Outcome(entry["outcome"])}))
    except (TypeError, ValueError, KeyError):
        return None
    numbers = (event.at_ms, event.first_ms, event.times, event.took_ms or 0)
    is_whole = all(type(number) is int and number >= 0 for number in numbers)
    return event if is_whole and isinstance(event.text, str) and isinstance(event.process, str) else None

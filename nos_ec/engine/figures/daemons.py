"""Which daemons are alive, their versions, and what each has set aside after failures.

Each daemon that packs or reclaims records this every minute. The daemons of a service share one note of bounded size,
changed by compare-and-set. It keeps daemons that have stopped or died for a day: until a daemon that runs has recorded
itself for so long without a change of their entries. Times of different hosts are not compared for that, so that a
daemon whose clock is wrong does not remove the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import Any

import structlog

from nos_ec.core.errors import NosError
from nos_ec.core.expiry import DAY_MS
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.engine.texts import shortened
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import NOTE_CHARS_MAX, Notes

SERVICES = ("producer", "consumer", "gc")
"""The services whose daemons may write notes. Each has a note, whose name has at most 16 characters."""
SEEN_MS = 60_000
"""How often a daemon records that it is alive."""
SILENT_MS = 3 * SEEN_MS
"""A daemon that has recorded nothing for this long is dead, or cannot reach the metadata."""
SILENT_RECORDS = SILENT_MS // SEEN_MS
KEPT_RECORDS = DAY_MS // SEEN_MS
"""When a daemon has recorded itself this often while the entry of another one did not change, it removes that entry."""
DAEMONS_MAX = 64
ITEMS_MAX = 20
"""The most parked items of a daemon that are recorded: those that failed first. Fewer if the note would be too long."""
TEXT_CHARS_MAX = 120
TRIES = 5

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ParkedItem:
    """An item that a daemon has set aside, and tries again later. `what` is its kind."""

    what: str
    name: str
    reason: str
    since_ms: int
    failures: int


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon as it was at `seen_ms`. `ended_ms` is when it stopped as asked, or None. `parked` is how many items it
    had set aside; `items` are the first of them."""

    service: str
    process: str
    version: str
    started_ms: int
    seen_ms: int
    ended_ms: int | None
    parked: int
    items: tuple[ParkedItem, ...] = ()

    def is_alive(self, now_ms: int) -> bool:
        """Return whether the daemon has been seen lately and has not stopped. A time in the future comes from a clock
        that is ahead."""
        return self.ended_ms is None and now_ms - self.seen_ms <= SILENT_MS


@dataclass(frozen=True, slots=True)
class _Other:
    """Another daemon, and how often this one has recorded itself since the other one last did."""

    daemon: Daemon
    records: int

    @property
    def may_live(self) -> bool:
        """Return whether the daemon may still run: it has not stopped, and has not been silent for long."""
        return self.daemon.ended_ms is None and self.records <= SILENT_RECORDS


class Presence:
    """Records that this daemon is alive. `queues` returns its queues of parked items. Used by one thread."""

    def __init__(
        self,
        notes: Notes,
        clock: Clock,
        service: str,
        process: str,
        version: str,
        queues: Callable[[], Sequence[RetryQueue[Any]]],
    ) -> None:
        self._notes = notes
        self._clock = clock
        self._queues = queues
        now_ms = clock.now_ms()
        self._daemon = Daemon(service, _cut(process), _cut(version), now_ms, now_ms, None, 0)
        self._others: list[_Other] = []

    def run(self, stop: Event) -> None:
        """Record it every minute until `stop` is set, and then that it has stopped."""
        ended = False
        while not ended:
            self.record(ended=False)
            ended = self._clock.wait(stop, SEEN_MS)
        self.record(ended=True)

    def record(self, *, ended: bool) -> None:
        """Record the present state. Logs failures, and raises nothing."""
        try:
            now_ms = self._clock.now_ms()
            queues = self._queues()
            items = sorted((item for queue in queues for item in _items(queue)), key=lambda one: one.since_ms)
            daemon = replace(
                self._daemon,
                seen_ms=now_ms,
                ended_ms=now_ms if ended else None,
                parked=sum(queue.figures().items for queue in queues),
                items=tuple(items[:ITEMS_MAX]),
            )
            self._store(daemon)
        except NosError as error:
            _log.warning("daemon not recorded as alive", error=str(error))
        except Exception:
            # A bug here must not end the thread, or the daemon would look dead.
            _log.exception("daemon not recorded as alive")

    def _store(self, daemon: Daemon) -> None:
        for _ in range(TRIES):
            stored = self._notes.note(_note(daemon.service))
            found = [one for one in _loaded(stored, daemon.service) if not _is_same(one, daemon)]
            known = {_moment(one.daemon): one.records for one in self._others}
            others = [_Other(one, known.get(_moment(one), -1) + 1) for one in found]
            kept = [one for one in others if one.records < KEPT_RECORDS]
            if self._notes.store_note(_note(daemon.service), _dumped(daemon, kept), stored):
                self._others = kept
                return
        _log.warning("daemon not recorded as alive, because others kept recording theirs")


def read_daemons(notes: Notes) -> list[Daemon]:
    """Return the daemons that are recorded, by service, those seen last first. Raises Transient."""
    found: list[Daemon] = []
    for service in SERVICES:
        daemons = _loaded(notes.note(_note(service)), service)
        found += sorted(daemons, key=lambda one: (one.ended_ms is not None, -one.seen_ms))
    return found


def _note(service: str) -> str:
    return f"daemons {service}"


def _is_same(one: Daemon, other: Daemon) -> bool:
    return (one.process, one.started_ms) == (other.process, other.started_ms)


def _moment(one: Daemon) -> tuple[str, int, int]:
    return (one.process, one.started_ms, one.seen_ms)


def _cut(text: str) -> str:
    return shortened(text, TEXT_CHARS_MAX)


def _items(queue: RetryQueue[Any]) -> Iterator[ParkedItem]:
    for name, parked in queue.first(ITEMS_MAX):
        yield ParkedItem(queue.what, _cut(name), _cut(parked.reason), parked.since_ms, parked.failures)


def _dumped(own: Daemon, others: Sequence[_Other]) -> str:
    """Return daemons as the text of a note, with as many of their items as fit. Those that stopped as asked make room
    first, and then those that were silent for longest. Only daemons that may be alive have items."""
    order = sorted(others, key=lambda one: (one.daemon.ended_ms is not None, one.records, -one.daemon.seen_ms))
    rest = [one.daemon if one.may_live else replace(one.daemon, items=()) for one in order]
    kept = [own if own.ended_ms is None else replace(own, items=()), *rest][:DAEMONS_MAX]
    most = ITEMS_MAX
    while len(text := _text(kept, most)) > NOTE_CHARS_MAX:
        if most:
            most -= 1
        else:
            kept.pop()
    return text


def _text(daemons: Sequence[Daemon], items_max: int) -> str:
    entries = [asdict(replace(one, items=one.items[:items_max])) for one in daemons]
    return json.dumps([{k: v for k, v in one.items() if k != "service"} for one in entries], separators=(",", ":"))


def _loaded(text: str | None, service: str) -> list[Daemon]:
    """Decode a note. Entries that cannot be read are left out: another release may have written them."""
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    found = (_daemon(one, service) for one in (entries if isinstance(entries, list) else []))
    return [daemon for daemon in found if daemon is not None]


def _daemon(entry: Any, service: str) -> Daemon | None:
    try:
        items = tuple(ParkedItem(**one) for one in entry["items"])
        daemon = Daemon(service=service, **(entry | {"items": items}))
    except (TypeError, KeyError):
        return None
    numbers = [daemon.started_ms, daemon.seen_ms, daemon.ended_ms or 0, daemon.parked]
    numbers += [number for one in items for number in (one.since_ms, one.failures)]
    texts = [daemon.process, daemon.version, *(text for one in items for text in (one.what, one.name, one.reason))]
    is_whole = all(type(number) is int and number >= 0 for number in numbers)
    return daemon if is_whole and all(isinstance(text, str) for text in texts) else None

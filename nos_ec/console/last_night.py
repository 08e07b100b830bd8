"""The page for 3 a.m.: what has happened since yesterday, who is alive, what is parked, and whether the store could be
restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.backends import read_dead_letters
from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import System
from nos_ec.console.panels import Panels, Source
from nos_ec.console.view import View
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.placement import GroupState
from nos_ec.core.ratios import ratio
from nos_ec.engine.check.quarantine import Held, held
from nos_ec.engine.dump.stored import newest_dump_ms
from nos_ec.engine.figures.daemons import Daemon, ParkedItem, read_daemons
from nos_ec.engine.figures.events import EventKind, StoreEvent, read_events
from nos_ec.engine.figures.usage import SPANS_MS, UsagePoint, read_points
from nos_ec.ports.message_log import DeadLetter
from nos_ec.ports.metadata import ScrubPass

LETTERS_MAX = 20
LETTERS_MS = 60_000
"""Reading dead letters opens a client of the message log, so it is not done more often."""
HELD_MAX = 100
REASON_CHARS_MAX = 500
KNOWN_MS_MIN = 3_600_000
"""The growth of a shorter time than this is not extended: the first minutes of a store would fill it within days."""

KINDS = {
    EventKind.GC: "GC",
    EventKind.LEASE: "Leases lost",
    EventKind.SCRUB: "Scrub",
    EventKind.DUMP: "Dump",
    EventKind.CHECK: "Check",
    EventKind.CONTROL: "Control",
}
GROUP_STATES = {
    GroupState.COMPLETE: "The data is on all the OSDs where it should be.",
    GroupState.DEGRADED: "Some data is still missing on some OSDs, or differs between them.",
    GroupState.UNDERSIZED: "An OSD is missing.",
    GroupState.INACTIVE: "So many OSDs are missing that operations wait.",
}


@dataclass(frozen=True, slots=True)
class Parked:
    """An item that a living daemon has set aside."""

    daemon: Daemon
    item: ParkedItem


@dataclass(frozen=True, slots=True)
class Daemons:
    """The daemons that are recorded, those that are alive first, and what they have set aside. `parked_more` is the
    number of parked items of living daemons that are not listed."""

    alive: Sequence[Daemon]
    gone: Sequence[Daemon]
    versions: Sequence[str]
    parked: Sequence[Parked]
    parked_more: int

    @property
    def silent(self) -> Sequence[Daemon]:
        """Return the daemons that have neither recorded themselves lately nor said that they stop."""
        return [one for one in self.gone if one.ended_ms is None]

    @property
    def missing(self) -> Sequence[Daemon]:
        """Return, for each service without a live daemon, the silent one that was seen last."""
        alive = {one.service for one in self.alive}
        last = {one.service: one for one in sorted(self.silent, key=lambda one: one.seen_ms)}
        return [one for service, one in sorted(last.items()) if service not in alive]


@dataclass(frozen=True, slots=True)
class Growth:
    """How the blocks have grown: by `grown_bytes` in the last `span_ms`, headers and padding included. If this
    continues, PUTs are refused after `full_in_ms`; None if the blocks do not grow."""

    span_ms: int
    grown_bytes: int
    full_in_ms: int | None


@dataclass(frozen=True, slots=True)
class Filling:
    """The free space until PUTs are refused, the bytes of headers and padding for each byte of objects in the blocks
    now, and the growth over the last day and week, as far as it is known."""

    free_bytes: int
    left_bytes: int
    overhead: float
    growth: Sequence[Growth]


@dataclass(frozen=True, slots=True)
class Groups:
    """How many placement groups there are in each state, by what their pool holds, and the OSDs that are down."""

    states: Mapping[str, Mapping[GroupState, int]]
    osds_down: Sequence[int]


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore of the store would find. Times are None where there was none."""

    dump_ms: int | None
    dump_age_ms: int | None
    last_scrub: ScrubPass | None
    scrub: ScrubPass | None
    now_ms: int


def daemons(found: Sequence[Daemon], now_ms: int) -> Daemons:
    """Return who is alive, given the daemons that are recorded."""
    alive = [one for one in found if one.is_alive(now_ms)]
    parked = [Parked(one, item) for one in alive for item in one.items]
    return Daemons(
        alive,
        [one for one in found if not one.is_alive(now_ms)],
        sorted({one.version for one in alive}),
        sorted(parked, key=lambda one: one.item.since_ms),
        sum(one.parked - len(one.items) for one in alive),
    )


def filling(
    points: Sequence[UsagePoint], now: UsagePoint, free_bytes: int, reserve_bytes: int, overhead: float
) -> Filling:
    """Return when the store is full, given what it held lately, and the bytes of headers and padding that it has now
    for each byte of objects. The growth of a span begins at the last point that is as old as the span, else at the
    oldest one; spans with the same beginning are one. Points of the last KNOWN_MS_MIN do not count."""
    left_bytes, growth = max(0, free_bytes - reserve_bytes), dict[int, Growth]()
    for span_ms in SPANS_MS.values():
        earlier = [one for one in points if now.at_ms - one.at_ms >= KNOWN_MS_MIN]
        before = [one for one in earlier if now.at_ms - one.at_ms >= span_ms]
        if not earlier:
            continue
        first = before[-1] if before else earlier[0]
        grown_bytes = round((now.stored_bytes - first.stored_bytes) * (1 + overhead))
        known_ms = now.at_ms - first.at_ms
        full_in_ms = left_bytes * known_ms // grown_bytes if grown_bytes > 0 else None
        growth[known_ms] = Growth(known_ms, grown_bytes, full_in_ms)
    return Filling(free_bytes, left_bytes, overhead, list(growth.values()))


class Readings:
    """Reads the store for the page. All raise Transient."""

    def __init__(self, system: System) -> None:
        self._system = system

    def events(self) -> Sequence[StoreEvent]:
        """Return what has happened in the last day, the newest first."""
        return read_events(self._system.metadata, self._system.clock.now_ms() - DAY_MS)

    def daemons(self) -> Daemons:
        """Return who is alive."""
        return daemons(read_daemons(self._system.metadata), self._system.clock.now_ms())

    def filling(self) -> Filling:
        """Return when the store is full."""
        system = self._system
        dated = system.operator.store_totals().read()
        totals, points = dated.totals, read_points(system.metadata, dated.at_ms)
        overhead = ratio(totals.overhead_bytes, totals.live_bytes + totals.dead_bytes) or 0.0
        now, free_bytes = UsagePoint.of(totals, dated.at_ms), system.blocks.free_bytes()
        return filling(points, now, free_bytes, system.put_reserve, overhead)

    def restore(self) -> Restore:
        """Return what a restore would find."""
        metadata, now_ms = self._system.metadata, self._system.clock.now_ms()
        dump_ms, state = newest_dump_ms(metadata, now_ms), metadata.scrub_state()
        return Restore(
            dump_ms,
            None if dump_ms is None else max(0, now_ms - dump_ms),
            None if state is None else state.last,
            None if state is None else state.current,
            now_ms,
        )

    def groups(self) -> Groups:
        """Return the states of the placement groups, and the OSDs that are down; both empty without Ceph."""
        groups = self._system.groups
        return Groups(groups.states(), groups.osds_down())

    def letters(self) -> Sequence[DeadLetter]:
        """Return the newest dead letters, the newest first."""
        return read_dead_letters(self._system.settings, LETTERS_MAX)[::-1]

    def held(self) -> Sequence[Held]:
        """Return what is in quarantine: the first HELD_MAX. Reads the rows of all blocks."""
        return list(islice(held(self._system.metadata), HELD_MAX))


class LastNight:
    """The sources of the page. The page of all cells shows some of them, too."""

    def __init__(self, system: System, panels: Panels) -> None:
        self.readings = Readings(system)
        self.of_store: dict[str, Source[Any]] = {
            "events": panels.source(self.readings.events, FIGURES_MS),
            "daemons": panels.source(self.readings.daemons, FIGURES_MS),
            "restore": panels.source(self.readings.restore, FIGURES_MS),
            "filling": panels.source(self.readings.filling, FIGURES_MS),
            "groups": panels.source(self.readings.groups, FIGURES_MS),
            "letters": panels.source(self.readings.letters, LETTERS_MS),
        }


def routes(found: LastNight, panels: Panels, view: View) -> list[Route]:
    """Return the route of the page."""

    def last_night(request: Request) -> Response:
        panels.wait_for(*found.of_store.values())
        shown: dict[str, Any] = {name: panels.shown(source) for name, source in found.of_store.items()}
        asked = request.query_params.get("quarantine") == "1"
        shown["quarantine"] = panels.read(panels.once("quarantine", found.readings.held)) if asked else None
        shown |= {"kinds": KINDS, "group_states": GROUP_STATES, "held_max": HELD_MAX, "reason_max": REASON_CHARS_MAX}
        return view.page(request, "last_night.html", "Last night", **shown)

    return [Route("/last-night", last_night)]

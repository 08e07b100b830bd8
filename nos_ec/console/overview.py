"""The first page: what is wrong, what a byte costs, what waits, and how fast everything goes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.gc_status import gc_status_data
from nos_ec.composition.wiring import System
from nos_ec.console.alerts import Alert, Seen, Work, alerts
from nos_ec.console.last_night import Daemons
from nos_ec.console.panels import Panel, Panels, Source
from nos_ec.console.rates.prometheus import Prometheus
from nos_ec.console.rates.rates import KINDS, Told, read_rate_history, read_rates, read_rules, used_kinds
from nos_ec.console.svg import Area, Segment, segments, stacked_area
from nos_ec.console.view import View, count_text, percent_text
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.gc.raw_cost import REPLICAS, RawCost, raw_cost
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import time_of
from nos_ec.core.packing.bounds import utilisation_max
from nos_ec.core.packing.packer import size_max
from nos_ec.core.publishing.slots import LEASE_PREFIX, leased_slot
from nos_ec.core.ratios import ratio
from nos_ec.engine.figures.cost_history import CostPoint, read_history
from nos_ec.engine.figures.header_survey import read_headers_found
from nos_ec.engine.figures.log_figures import LogFigures
from nos_ec.engine.gc.workers import last_behind
from nos_ec.monitoring.declarations.metrics import PRODUCER_SLOTS
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.gc_samples import interval_samples, move_samples, pass_samples, worker_samples
from nos_ec.monitoring.monitor import Cached
from nos_ec.monitoring.sources import (
    StoreFigures,
    dump_samples,
    group_samples,
    limit_samples,
    store_samples,
    waiting_samples,
)
from nos_ec.ports.metadata import Lease

_T = TypeVar("_T")

PARTS = {
    "live": ("Live", "Bytes of objects that can be read."),
    "coding": ("Coding", "Coding chunks of the live bytes, which make up for lost shards."),
    "headers": ("Headers and names", "Headers of stripe groups and names of objects, with their coding chunks."),
    "padding": ("Padding", "Bytes of stripes without any content, with their coding chunks."),
    "undivided": ("Headers, names and padding", "Not divided before the first survey of headers."),
    "dead": ("Dead", "Bytes of deleted or overwritten objects that GC has not reclaimed, with their coding chunks."),
    "landing": (
        "Landing",
        "One landing copy of each object that waits to be packed; the store may keep several.",
    ),
    "replicas": ("Further replicas", "The second and third copy of each byte."),
}
"""Name and definition of each part of a cost, in raw bytes per live byte."""
RULED = ("figures", "free", "landing_free", "log", "samples", "groups")
"""The sources of the store by which the alert rules are judged."""
SAMPLE_PAGES, SAMPLE_PAGE_ROWS = 8, 250
BOUND_MS = 600_000
"""How often the sizes of objects are sampled for the bound."""
RATE_HISTORY_MS = 600_000
"""How often the rates of the last day and month are asked for; each point of them covers an hour."""
WORK_MS = 60_000
"""The shortest time between two entries of Works."""
RATE_MS = 600_000
"""The time over which rates are taken, if the console has run for so long."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of costs that are compared: its name, its sum and its parts."""

    name: str
    total: float
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class Space:
    """What a live byte costs. `target` is the target of GC for the space amplification; None if it has none."""

    bars: Sequence[Bar]
    utilisation: float | None
    space_amplification: float | None
    target: float | None
    live_bytes: int
    trash_bytes: int
    raw_bytes: int
    objects: int
    behind: str | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Bound:
    """The utilisation that no packing of objects of these sizes can exceed, estimated from a sample."""

    utilisation: float | None
    objects: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits. Times are None if nothing waits; `wait_ms_max` is the longest time that an object should wait."""

    landed_objects: int
    landed_bytes: int
    queued_objects: int
    queued_bytes: int
    oldest_ms: int | None
    wait_ms_max: int
    landing_deletions: int
    overdue_ms: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second that were written to blocks over the last `span_ms`; None while the console has not run long
    enough."""

    span_ms: int | None
    user_bytes_per_s: float | None
    copied_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class History:
    """The cost of a live byte in the last day and month, and its first and last point for a table."""

    day: Area
    month: Area
    points: Sequence[tuple[int, Mapping[str, float]]]


def parts_of(cost: RawCost, waiting_per_live: float) -> dict[str, float]:
    """Return the parts of a cost by the names of PARTS."""
    parts = {part: cost.parts[part] for part in ("live", "coding", "headers", "padding", "undivided")}
    return parts | {"dead": cost.sealed_dead + cost.open_dead + cost.condemned_dead, "landing": waiting_per_live}


def cost_parts(found: StoreFigures) -> dict[str, float] | None:
    """Return the raw bytes per live byte now by the names of PARTS; None without live bytes."""
    totals = found.totals
    cost = totals.raw_cost(found.geometry, None if found.headers is None else found.headers.share)
    return None if cost is None else parts_of(cost, ratio(totals.waiting_bytes, totals.live_bytes) or 0.0)


def bars(rows: Mapping[str, Mapping[str, float]]) -> list[Bar]:
    """Return a bar for each cost, by its name. The longest one has the full length."""
    most = max((sum(parts.values()) for parts in rows.values()), default=1.0)
    return [Bar(name, sum(parts.values()), segments(parts, most)) for name, parts in rows.items()]


def space(found: StoreFigures, target: float | None) -> Space:
    """Return the data of the panel on space."""
    totals, geometry = found.totals, found.geometry
    rows: dict[str, dict[str, float]] = {}
    if (now := cost_parts(found)) is not None:
        rows["Now"] = now
        if target is not None:
            dead = (target - 1) * (geometry.k + geometry.m) / geometry.k
            rows[f"At the target of {target:g}"] = now | {"dead": dead, "landing": 0.0}
        rows["Three replicas"] = {"live": 1.0, "replicas": REPLICAS - 1.0}
    return Space(
        bars(rows),
        totals.utilisation(geometry),
        totals.space_amplification,
        target,
        totals.live_bytes,
        totals.trash_bytes,
        geometry.raw_bytes(totals.stripes),
        totals.packed_objects + totals.large_objects,
        found.behind,
        found.at_ms,
    )


def history(points: Sequence[CostPoint], geometry: Geometry, now_ms: int) -> History:
    """Return the data of the panel on the last day and month. Points without live bytes are left out."""
    series = [
        (point.at_ms, parts_of(cost, point.waiting_bytes / point.live_bytes))
        for point in points
        if (cost := raw_cost(point.stored, geometry)) is not None
    ]
    day = [one for one in series if now_ms - one[0] <= DAY_MS]
    # A point may be late by the time that computing the sums takes, so gaps begin at some missing points.
    return History(stacked_area(day, DAY_MS // 8), stacked_area(series, 3 * DAY_MS), series[::-1])


class Works:
    """The work of the last day, once a minute."""

    def __init__(self) -> None:
        self._works: deque[tuple[Work, int]] = deque(maxlen=DAY_MS // WORK_MS)

    def add(self, found: StoreFigures) -> None:
        """Add the work as of these figures, unless the last entry is younger than a minute. Entries of later times are
        dropped: the clock was set back, and they would count as recent."""
        while self._works and self._works[-1][0].at_ms - found.at_ms >= WORK_MS:
            self._works.pop()
        if not self._works or found.at_ms - self._works[-1][0].at_ms >= WORK_MS:
            totals = found.totals
            work = Work(found.at_ms, totals.queued_bytes, totals.user_bytes_written)
            self._works.append((work, totals.copied_bytes_written))

    def read(self) -> list[Work]:
        """Return the work, oldest first."""
        return [work for work, _ in tuple(self._works)]

    def rates(self) -> Rates:
        """Return the rates of the last ten minutes, or of as many as are known."""
        works = tuple(self._works)
        if len(works) < 2:
            return Rates(None, None, None)
        (last, last_copied), within = works[-1], [one for one in works if works[-1][0].at_ms - one[0].at_ms <= RATE_MS]
        first, first_copied = within[0] if len(within) > 1 else works[-2]
        span_ms = last.at_ms - first.at_ms
        user, copied = last.written_bytes - first.written_bytes, last_copied - first_copied
        if span_ms <= 0 or user < 0 or copied < 0:
            return Rates(None, None, None)
        return Rates(span_ms, 1000 * user / span_ms, 1000 * copied / span_ms)


class Readings:
    """Reads the store for the page."""

    def __init__(self, system: System, rng: random.Random) -> None:
        self._system = system
        self._rng = rng
        self.works = Works()
        self._figures = Cached(self.figures, system.clock, FIGURES_MS)

    def figures(self) -> StoreFigures:
        """Return the figures that are in the metadata; the others are None. Raises Transient."""
        system = self._system
        metadata, dated = system.metadata, system.operator.store_totals().read()
        found = StoreFigures(
            dated.totals,
            dated.at_ms,
            system.geometry,
            free_bytes=None,
            landing_free_bytes=None,
            lag=None,
            behind=last_behind(metadata, system.settings.gc.workers),
            headers=read_headers_found(metadata),
        )
        self.works.add(found)
        return found

    def space(self, found: StoreFigures) -> Space:
        """Return the data of the panel on space."""
        return space(found, self._system.settings.gc.target_space_amp)

    def backlog(self) -> Backlog:
        """Return what waits. Raises Transient."""
        found, metadata, now_ms = self._figures(), self._system.metadata, self._system.clock.now_ms()
        oldest, due_ms, totals = metadata.oldest_landing_id(), metadata.first_deletion_ms(), found.totals
        return Backlog(
            totals.landed_objects,
            totals.landed_bytes,
            totals.queued_objects,
            totals.queued_bytes,
            None if oldest is None else max(0, now_ms - time_of(oldest)),
            self._wait_ms_max,
            totals.landing_deletions,
            0 if due_ms is None else max(0, now_ms - due_ms),
        )

    @property
    def _wait_ms_max(self) -> int:
        consumer = self._system.settings.consumer
        return self._system.settings.put.min_age_ms + max(consumer.linger_ms, consumer.linger_max_ms)

    def bound(self) -> Bound:
        """Return the bound for a sample of the objects. Raises Transient."""
        metadata, settings = self._system.metadata, self._system.settings
        last, sampled = metadata.last_object_id(), dict[int, int]()
        for _ in range(SAMPLE_PAGES):
            page = metadata.objects_after(self._rng.randint(0, last), SAMPLE_PAGE_ROWS)
            sampled |= {row.object_id: row.size for row in page}
        most = size_max(self._system.geometry)
        sizes = [size for size in sampled.values() if 0 < size <= most]
        found = utilisation_max(sizes, self._system.geometry, settings.consumer.split_bytes)
        return Bound(found or None, len(sizes))

    def history(self) -> History:
        """Return the cost in the last day and month. Raises Transient."""
        now_ms = self._system.clock.now_ms()
        return history(read_history(self._system.metadata, now_ms), self._system.geometry, now_ms)

    def samples(self) -> Sequence[Sample]:
        """Return the samples that are read from the metadata and the settings, other than the figures. Raises
        Transient."""
        system, now_ms = self._system, self._system.clock.now_ms()
        gc, metadata = system.settings.gc, system.metadata
        slots = held_slots(metadata.list_leases(LEASE_PREFIX), now_ms)
        return [
            *waiting_samples(metadata, now_ms),
            *dump_samples(metadata, now_ms),
            *limit_samples(gc.reserve_bytes, self._wait_ms_max, gc.target_space_amp),
            *(worker_samples(metadata, gc.workers, system.clock) if gc.workers > 1 else ()),
            *(move_samples(metadata) if system.settings.cell is not None else ()),
            *interval_samples(gc.wait_ms, system.settings.scrub.pass_days * DAY_MS),
            *system.operator.counts.samples(),
            *pass_samples(metadata, DAY_MS),
            Sample(PRODUCER_SLOTS, slots),
        ]

    def groups(self) -> Sequence[Sample]:
        """Return the samples of placement groups. Raises Transient."""
        return list(group_samples(self._system.groups.states()))

    def alerts(
        self,
        figures: Panel[StoreFigures],
        free: Panel[int],
        landing_free: Panel[int],
        log: Panel[LogFigures | None],
        samples: Panel[Sequence[Sample]],
        groups: Panel[Sequence[Sample]],
        told: Panel[dict[str, Told]] | None,
    ) -> Sequence[Alert]:
        """Return what the alert rules say. Panels with errors are left out, so that their rules are not evaluated.
        `told` is what Prometheus says about them."""
        now_ms = self._system.clock.now_ms()
        seen = [*(_current(samples) or ()), *(_current(groups) or ())]
        if (found := _current(figures)) is not None:
            found = replace(
                found,
                free_bytes=_current(free),
                landing_free_bytes=_current(landing_free),
                landing_log=_current(log),
            )
            seen += store_samples(found, now_ms)
        return alerts(Seen(seen, self.works.read(), now_ms), None if told is None else _current(told))


def _current(panel: Panel[_T]) -> _T | None:
    return None if panel.error else panel.value


def _lacks_free_bytes(log: LogFigures | None) -> bool:
    return log is not None and log.free_bytes is None


def used_parts(bars: Sequence[Bar]) -> list[str]:
    """Return the parts that occur in some bar, in the order of PARTS."""
    used = {segment.part for bar in bars for segment in bar.segments}
    return [part for part in PARTS if part in used]


def used_columns(points: Sequence[tuple[int, Mapping[str, float]]]) -> list[str]:
    """Return the parts that occur at some time, in the order of PARTS."""
    return [part for part in PARTS if any(values.get(part) for _, values in points)]


def bound_text(found: Panel[Bound]) -> str:
    """Return the bound and the size of its sample."""
    if found.value is None:
        return found.error
    return f"{percent_text(found.value.utilisation)} (sample of {count_text(found.value.objects)})"


def held_slots(leases: Iterable[Lease], now_ms: int) -> int:
    """Return how many slots producers hold now."""
    return sum(1 for lease in leases if leased_slot(lease.name) is not None and lease.expires_ms > now_ms)


class Overview:
    """The sources of the page. The page of all cells shows some of them, too."""

    def __init__(self, system: System, panels: Panels, rng: random.Random) -> None:
        """`rng` chooses the objects whose sizes are sampled."""
        self.readings = Readings(system, rng)
        readings, store_id, clock = self.readings, system.store_id, system.clock
        # Each is a source of its own, so that what answers is shown, and what does not is asked again soon.
        self.of_store: dict[str, Source[Any]] = {
            "figures": panels.source(readings.figures, FIGURES_MS),
            "free": panels.source(lambda: system.blocks.free_bytes(), FIGURES_MS),
            "landing_free": panels.source(lambda: system.landing.free_bytes(), FIGURES_MS),
            "log": panels.source(system.operator.log_figures, FIGURES_MS, is_partial=_lacks_free_bytes),
            "samples": panels.source(readings.samples, FIGURES_MS),
            "groups": panels.source(readings.groups, FIGURES_MS),
            "backlog": panels.source(readings.backlog, FIGURES_MS),
            "lag": panels.source(system.operator.lag, FIGURES_MS),
            "bound": panels.source(readings.bound, BOUND_MS),
            "history": panels.source(readings.history, WORK_MS),
            "run": panels.source(lambda: gc_status_data(system), FIGURES_MS),
        }
        self.of_prometheus: dict[str, Source[Any]] = {}
        if (url := system.settings.console.prometheus_url) is not None:
            prometheus = Prometheus(url)
            self.of_prometheus = {
                "rates": panels.source(lambda: read_rates(prometheus, store_id), FIGURES_MS),
                "rules": panels.source(lambda: read_rules(prometheus, store_id), FIGURES_MS),
                "history": panels.source(
                    lambda: read_rate_history(prometheus, store_id, clock.now_ms()), RATE_HISTORY_MS
                ),
            }
        panels.keep_reading(self.of_store["figures"])

    def alerts(self, panels: Panels) -> Sequence[Alert]:
        """Return what the alert rules say, given what the sources of RULED and of Prometheus have to show now."""
        rules = self.of_prometheus.get("rules")
        shown = {name: panels.shown(self.of_store[name]) for name in RULED}
        return self.readings.alerts(**shown, told=None if rules is None else panels.shown(rules))


def routes(found: Overview, daemons: Source[Daemons], panels: Panels, view: View) -> list[Route]:
    """Return the route of the page. `daemons` is the source of Last night."""
    readings = found.readings

    def overview(request: Request) -> Response:
        panels.wait_for(*found.of_store.values(), daemons, beside=found.of_prometheus.values())
        shown: dict[str, Any] = {name: panels.shown(source) for name, source in found.of_store.items()}
        return view.page(
            request,
            "overview.html",
            "Overview",
            alerts=found.alerts(panels),
            missing_figures=[name for name in RULED if shown[name].error],
            daemons=panels.shown(daemons),
            processes={name: panels.shown(source) for name, source in found.of_prometheus.items()},
            kinds={key: (kind.name, kind.definition) for key, kind in KINDS.items()},
            used_kinds=used_kinds,
            space=readings.space,
            rates=readings.works.rates(),
            parts_of_cost=PARTS,
            used_parts=used_parts,
            used_columns=used_columns,
            bound_text=bound_text(shown["bound"]),
            **shown,
        )

    return [Route("/", overview)]

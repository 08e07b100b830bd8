"""The page of all cells, side by side, and the way to the pages of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from nos_ec.console.alerts import Alert, Verdict
from nos_ec.console.cells.moves import SHOWN_MAX, STATE_TEXTS, CellMoves, moving
from nos_ec.console.cells.opening import ConsoleCells, OpenCell
from nos_ec.console.flow import LATE_MS
from nos_ec.console.last_night import KINDS, Daemons, Filling, Restore
from nos_ec.console.overview import PARTS, RULED, Backlog, Bar, bars, cost_parts, used_parts
from nos_ec.console.panels import Panel, Panels
from nos_ec.console.view import CELLS, VIEW, View
from nos_ec.core.errors import Transient
from nos_ec.core.ratios import ratio
from nos_ec.engine.figures.daemons import Daemon
from nos_ec.engine.figures.events import EventKind, Outcome, StoreEvent
from nos_ec.monitoring.sources import StoreFigures

BUCKET_CHARS_MAX = 255
SEE_OTHER = HTTPStatus.SEE_OTHER
_OF_OVERVIEW = (*RULED, "backlog")
_OF_LAST_NIGHT = ("restore", "filling", "events", "daemons")
TROUBLES_MAX = 50
"""The most events that the page lists."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a cell holds, or several together. `raw_bytes` are on all shards, by the names of the parts of a cost, with
    one landing copy of what waits; `stripe_bytes` are without coding chunks. `oldest_ms` is the longest wait; None if
    nothing waits."""

    live_bytes: int = 0
    stripe_bytes: int = 0
    raw_bytes: Mapping[str, float] = field(default_factory=dict)
    waiting_objects: int = 0
    waiting_bytes: int = 0
    oldest_ms: int | None = None
    is_late: bool = False
    """Whether the oldest waits for so long that a consumer must be stuck, or too slow."""

    @property
    def raw_per_live(self) -> float | None:
        """Raw bytes per live byte; None without live bytes."""
        return ratio(sum(self.raw_bytes.values()), self.live_bytes)

    @property
    def cost_parts(self) -> dict[str, float]:
        """The raw bytes per live byte, by the names of the parts. There are live bytes."""
        return {part: raw_bytes / self.live_bytes for part, raw_bytes in self.raw_bytes.items()}

    @property
    def utilisation(self) -> float | None:
        """Live bytes as a share of all stripes; None without stripes."""
        return ratio(self.live_bytes, self.stripe_bytes)


@dataclass(frozen=True, slots=True)
class Row:
    """A cell in the table. `away` is why it is not open, None if it is; `late` is why some figures are missing or old,
    "" if none are. A figure that is not known is None."""

    name: str
    weight: int
    away: str | None = None
    late: str = ""
    held: Held | None = None
    firing: Sequence[Alert] = ()
    filling: Filling | None = None
    restore: Restore | None = None
    events: Sequence[StoreEvent] = ()
    daemons: Daemons | None = None
    moves: CellMoves | None = None

    @property
    def full_in_ms(self) -> int | None:
        """The time to full, by the growth over the span in which it is shortest; None if it does not fill, or that is
        not known."""
        times = [one.full_in_ms for one in (() if self.filling is None else self.filling.growth)]
        return min((one for one in times if one is not None), default=None)


def held(figures: StoreFigures | None, backlog: Backlog | None) -> Held | None:
    """Return what a cell holds; None if that is not known."""
    if figures is None or backlog is None:
        return None
    totals, geometry = figures.totals, figures.geometry
    return Held(
        totals.live_bytes,
        totals.stripes * geometry.stripe_size,
        {part: value * totals.live_bytes for part, value in (cost_parts(figures) or {}).items()},
        backlog.landed_objects + backlog.queued_objects,
        backlog.landed_bytes + backlog.queued_bytes,
        backlog.oldest_ms,
        (backlog.oldest_ms or 0) > backlog.wait_ms_max + LATE_MS,
    )


def total(rows: Sequence[Row]) -> Held:
    """Return what all cells hold whose figures are known."""
    every = [row.held for row in rows if row.held is not None]
    return Held(
        sum(one.live_bytes for one in every),
        sum(one.stripe_bytes for one in every),
        {part: sum(one.raw_bytes.get(part, 0.0) for one in every) for part in PARTS},
        sum(one.waiting_objects for one in every),
        sum(one.waiting_bytes for one in every),
        max((one.oldest_ms for one in every if one.oldest_ms is not None), default=None),
        any(one.is_late for one in every),
    )


def cost_bars(rows: Sequence[Row]) -> list[Bar]:
    """Return what a live byte costs in each cell whose figures are known and which has live bytes, and in all of these
    together."""
    costs = {row.name: row.held.cost_parts for row in rows if row.held is not None and row.held.live_bytes}
    return bars(costs | {"Together": total(rows).cost_parts} if len(costs) > 1 else costs)


@dataclass(frozen=True, slots=True)
class Troubles:
    """What went wrong in the last day, by cell: events, the newest first, and daemons that are silent. `more` is the
    number of events that are left out."""

    events: Sequence[tuple[str, StoreEvent]]
    more: int
    silent: Sequence[tuple[str, Daemon]]


def troubles(rows: Sequence[Row]) -> Troubles:
    """Return what went wrong: what failed or left problems, lost leases, and daemons that have not said goodbye."""
    wrong = [
        (row.name, event)
        for row in rows
        for event in row.events
        if event.kind is EventKind.LEASE or event.outcome in (Outcome.FAILED, Outcome.PROBLEMS)
    ]
    wrong.sort(key=lambda one: -one[1].at_ms)
    silent = [(row.name, one) for row in rows if row.daemons is not None for one in row.daemons.silent]
    return Troubles(wrong[:TROUBLES_MAX], len(wrong[TROUBLES_MAX:]), silent)


def read_rows(cells: ConsoleCells, panels: Panels) -> list[Row]:
    """Return the row of each cell. All are read at the same time, and `panels` waits for them as long as for one."""
    opened = cells.opened()
    sources = [source for cell in opened.values() for source in _sources(cell).values()]
    rules = [one for cell in opened.values() if (one := cell.pages.overview.of_prometheus.get("rules")) is not None]
    panels.wait_for(*sources, beside=rules)
    weights = {name: cell.weight for name, cell in cells.settings.cells.items()}
    return [
        _row(name, weight, opened[name]) if name in opened else Row(name, weight, cells.why_away(name))
        for name, weight in weights.items()
    ]


def _sources(cell: OpenCell) -> dict[str, Any]:
    overview, last_night = cell.pages.overview.of_store, cell.pages.last_night.of_store
    found = {name: overview[name] for name in _OF_OVERVIEW} | {name: last_night[name] for name in _OF_LAST_NIGHT}
    return found | {"moves": cell.pages.moves}


def _row(name: str, weight: int, cell: OpenCell) -> Row:
    shown: Mapping[str, Panel[Any]] = {name: cell.panels.shown(source) for name, source in _sources(cell).items()}
    alerts = cell.pages.overview.alerts(cell.panels)
    return Row(
        name,
        weight,
        late=next((panel.error for panel in shown.values() if panel.error), ""),
        held=held(shown["figures"].value, shown["backlog"].value),
        firing=[one for one in alerts if one.verdict is Verdict.FIRING],
        filling=shown["filling"].value,
        restore=shown["restore"].value,
        events=shown["events"].value or (),
        daemons=shown["daemons"].value,
        moves=shown["moves"].value,
    )


def find_cells(cells: ConsoleCells, bucket: str) -> Sequence[str]:
    """Return the cell of a bucket, or those of a wide one, by the directory, and else by the rows of the cells that are
    open; none if none of them has it. Raises Transient if one of them could not be asked."""
    opened, failed = cells.opened(), None
    directory = opened.get(cells.settings.store.directory or "")
    try:
        if directory is not None and (row := directory.system.metadata.directory_row(bucket)) is not None:
            return row.cells
    except Transient as error:
        failed = error
    for name, cell in opened.items():
        try:
            if cell.system.metadata.bucket(bucket) is not None:
                return [name]
        except Transient as error:
            failed = error
    if failed is not None:
        raise failed
    return []


class ByCell:
    """ASGI application: passes a request to the pages of the cell that its path names, or says why it is away."""

    def __init__(self, cells: ConsoleCells, views: Mapping[str, View]) -> None:
        self._cells = cells
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises HTTPException."""
        name = scope["path_params"]["cell"]
        view = scope[VIEW] = self._views.get(name)
        if view is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        cell = self._cells.opened().get(name)
        if cell is not None:
            await cell.app(scope, receive, send)
            return
        answer = view.page(
            Request(scope, receive),
            "error.html",
            f"Cell {name} is away",
            status=HTTPStatus.SERVICE_UNAVAILABLE,
            text=f"{self._cells.why_away(name)} The console tries again by itself.",
        )
        await answer(scope, receive, send)


def routes(cells: ConsoleCells, panels: Panels, views: Mapping[str, View], view: View) -> list[BaseRoute]:
    """Return the routes of the page of all cells, which is shown by `view`, and of each cell, shown by its view."""

    def shown(request: Request, *, bucket: str = "", told: str = "", homes: Sequence[str] = ()) -> Response:
        rows = read_rows(cells, panels)
        away = sum(1 for row in rows if row.held is None)
        return view.page(
            request,
            "cells.html",
            "Cells",
            rows=rows,
            total=total(rows),
            away=away,
            cost_bars=cost_bars(rows),
            parts_of_cost=PARTS,
            used_parts=used_parts,
            troubles=troubles(rows),
            moves=moving({row.name: row.moves for row in rows if row.moves is not None}),
            moves_max=SHOWN_MAX,
            move_texts=STATE_TEXTS,
            kinds=KINDS,
            bucket=bucket,
            told=told,
            homes=homes,
        )

    def all_cells(request: Request) -> Response:
        return shown(request)

    def home(request: Request) -> Response:
        bucket = request.query_params.get("bucket", "")[:BUCKET_CHARS_MAX]
        if not bucket:
            return shown(request)
        found = panels.read(panels.once(("home", bucket), lambda: find_cells(cells, bucket)))
        if found.error:
            return shown(request, bucket=bucket, told=found.error)
        homes = [name for name in found.value or () if name in views]
        if not homes:
            return shown(request, bucket=bucket, told="No cell that is open has a bucket of this name.")
        if len(homes) > 1:
            return shown(request, bucket=bucket, homes=homes)
        return RedirectResponse(f"{CELLS}/{homes[0]}/buckets/one?{urlencode({'bucket': bucket})}", SEE_OTHER)

    return [
        Route("/", all_cells),
        Route("/bucket", home),
        Mount(f"{CELLS}/{{cell}}", app=ByCell(cells, views)),
    ]

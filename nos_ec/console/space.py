"""The page Space and GC: what another target would cost, what holds the space, the run under way, and lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.gc_status import gc_status_data
from nos_ec.composition.packing import collector_options
from nos_ec.composition.wiring import System
from nos_ec.console.panels import Panels
from nos_ec.console.view import VISITOR, View, Visitor
from nos_ec.core.errors import Transient
from nos_ec.core.gc.target_costs import PriceCurve, TargetCost, price_days_of
from nos_ec.core.packing.lifetimes import OTHERS
from nos_ec.engine.expiry.survival import table_of
from nos_ec.engine.gc.control import GcControl
from nos_ec.engine.gc.plan_data import plan_data
from nos_ec.engine.gc.space import ANY_WASTE
from nos_ec.ports.metadata import SurvivalRow, WaitingBlocks, WaitReason
from nos_gc.assemble import gc_collector

GC_NOW = "gc now"
"""The key of what an operator sees of GC, which must not be older than their own change."""
TARGETS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 2.0, 3.0)
"""The targets in the table, as far as they are below what the store has now."""
POINTS_MAX = 200
"""The most points of the drawn curve."""
PLAN_BLOCKS = 200
"""The blocks of a plan that the page lists."""
BUCKETS_SHOWN = 20
"""How many buckets the page shows the lifetimes of, beginning with the most observed one."""
AGES_DAYS = (1 / 24, 1.0, 7.0, 30.0, 365.0)
RUN_MS = 5_000
"""How often a run publishes its state."""
WIDTH, HEIGHT = 640, 220
"""The units of the drawing, without its axes."""
WAIT_TEXTS = {
    WaitReason.OPEN: "Their writers still append to them.",
    WaitReason.FENCED: "Recovery has to seal them first.",
    WaitReason.SET_ASIDE: "GC failed to collect them, or found them packed densely; it looks again later.",
    WaitReason.TOO_FULL: "Less of them is wasted than gc.hole_ratio_min.",
    WaitReason.CONDEMNED: "They are empty, and are deleted after their grace period.",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """What it costs to reach a space amplification. `now` is the present one, and `least` the lowest that GC can reach;
    None while nothing is stored. `points` are those of the drawing in the form of SVG: to the left the store takes less
    space, and the higher the line, the more bytes GC has to copy. `target` is the target of the settings, if the policy
    has one, and `target_x` its place in the drawing, if it is inside. `costs` are those of TARGETS."""

    now: float | None
    least: float | None
    points: str
    copied_bytes_max: int
    target: float | None
    target_x: float | None
    costs: Sequence[TargetCost]


def curve(found: PriceCurve, target: float | None) -> Curve:
    """Return what the page shows of the prices of a store."""
    store = found.store
    if not store.live_bytes:
        return Curve(None, None, "", 0, target, None, ())
    now, least = store.space_amplification, least_amplification(found)
    copied_max = sum(live for _, live, _ in found.classes)
    target_x = None if target is None or not least < target < now else _x(target, least, now)
    targets = {one for one in (*TARGETS, target) if one is not None and one < now}
    return Curve(
        now,
        least,
        _points(found, least, now, copied_max),
        copied_max,
        target,
        target_x,
        [found.cost(one) for one in sorted(targets)],
    )


def least_amplification(found: PriceCurve) -> float:
    """Return the space amplification once everything is collected that has a price."""
    return found.store.less(sum(dead for _, _, dead in found.classes)).space_amplification


def _points(found: PriceCurve, least: float, now: float, copied_max: int) -> str:
    if not found.classes:
        return ""
    store, copied, freed = found.store, 0, 0
    points = [(now, 0)]
    for _, live, dead in found.classes:
        copied, freed = copied + live, freed + dead
        points.append((store.less(freed).space_amplification, copied))
    step = -(-len(points) // POINTS_MAX)
    shown = [*points[:-1:step], points[-1]]
    return " ".join(
        f"{_x(amplification, least, now):.1f},{HEIGHT * (1 - done / copied_max):.1f}" for amplification, done in shown
    )


def _x(amplification: float, least: float, now: float) -> float:
    return round(WIDTH * (amplification - least) / (now - least), 1) if now > least else 0.0


def curve_data(found: PriceCurve) -> dict[str, Any]:
    """Return the prices as JSON values, from which the slider computes the cost of any target. `classes` has (price in
    days, live bytes, dead bytes), the highest price first."""
    return {
        "stored_bytes": found.store.stored_bytes,
        "live_bytes": found.store.live_bytes,
        "least": least_amplification(found) if found.store.live_bytes else None,
        "classes": [[price_days_of(place), live, dead] for place, live, dead in found.classes],
    }


@dataclass(frozen=True, slots=True)
class BucketLives:
    """How long the objects of a bucket live: the shares that reach each of AGES_DAYS. `bucket` is empty for
    all buckets that were observed too little. `weight` is how much was observed, in object-days and deaths."""

    bucket: str
    shares: list[float]
    weight: float


def lives(rows: Sequence[SurvivalRow], now_ms: int) -> list[BucketLives]:
    """Return the lifetimes of the BUCKETS_SHOWN most observed buckets, then of all others together."""
    table = table_of(rows, now_ms)
    rates = table.death_rates()
    weights = {bucket: counts.weight for bucket, counts in table.rows().items() if bucket != OTHERS}
    best = sorted(weights, key=lambda bucket: (-weights[bucket], bucket))[:BUCKETS_SHOWN]
    shown = [*best, OTHERS] if weights else []
    return [
        BucketLives(bucket, [rates.survival(bucket, days) for days in AGES_DAYS], weights.get(bucket, 0.0))
        for bucket in shown
    ]


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the routes of the page and of the data of its slider."""
    metadata, clock, options = system.metadata, system.clock, collector_options(system.settings)
    collector = gc_collector(system)

    def plan() -> dict[str, Any]:
        return plan_data(collector.plan(), system.operator.store_totals().read().totals)

    def read_status() -> dict[str, Any]:
        # The commands first: if they change meanwhile, a form with the older ones is refused.
        control = GcControl(metadata).read()
        return {"control": control, **gc_status_data(system)}

    def waiting() -> list[WaitingBlocks]:
        too_full = options.waste_ratio_min if options.policy is None else ANY_WASTE
        return metadata.waiting_blocks(too_full, clock.now_ms(), options.cool_down_ms_max)

    prices = panels.source(collector.price_curve, FIGURES_MS)
    status = panels.source(read_status, RUN_MS)
    waits = panels.source(waiting, FIGURES_MS)
    buckets = panels.source(lambda: lives(metadata.survival(), clock.now_ms()), FIGURES_MS)
    planned = panels.source(plan, FIGURES_MS)
    target = system.settings.gc.target_space_amp

    def space(request: Request) -> Response:
        with_plan = request.query_params.get("plan") == "1"
        # Who has changed GC must see the change, not what other sessions saw some seconds ago.
        is_operator = bool(request.scope.get(VISITOR, Visitor()).operator)
        gc_now = panels.once(GC_NOW, read_status) if is_operator else status
        panels.wait_for(prices, gc_now, waits, buckets, *([planned] if with_plan else []))
        return view.page(
            request,
            "space.html",
            "Space and GC",
            prices=panels.shown(prices),
            curve=lambda found: curve(found, target),
            gc_now=panels.shown(gc_now),
            waiting=panels.shown(waits),
            wait_texts=WAIT_TEXTS,
            buckets=panels.shown(buckets),
            ages_days=AGES_DAYS,
            plan=panels.shown(planned) if with_plan else None,
            plan_blocks=PLAN_BLOCKS,
            policy=system.settings.gc.policy,
            streams=system.settings.gc.streams,
        )

    def data(_request: Request) -> Response:
        found = panels.read(prices)
        if found.value is None:
            raise Transient(found.error)
        return JSONResponse(curve_data(found.value))

    return [Route("/space", space), Route("/space/prices.json", data)]

"""The first page: what a byte costs, what waits, and what is wrong."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import System
from nos_ec.console.panels import Panels
from nos_ec.console.view import View
from nos_ec.monitoring.sources import StoreFigures


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the route of the page."""
    figures = panels.source(system.operator.figures, FIGURES_MS)

    def overview(request: Request) -> Response:
        return view.page(request, "overview.html", "Overview", store_now=panels.read(figures), figures=_figures)

    return [Route("/", overview)]


def _figures(found: StoreFigures) -> dict[str, object]:
    totals = found.totals
    return {"utilisation": totals.utilisation(found.geometry), "live_bytes": totals.live_bytes}

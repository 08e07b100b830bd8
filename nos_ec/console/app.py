"""The application: its routes, what every request has to pass, and its server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from nos_ec.api.request_limit import REQUESTS_MAX, RequestLimit
from nos_ec.api.safe_answers import SafeAnswers
from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import System
from nos_ec.console import (
    block_page,
    blocks,
    buckets,
    changes,
    flow,
    last_night,
    object_page,
    objects,
    overview,
    report,
    space,
)
from nos_ec.console.access.login import Login, LoginRequired
from nos_ec.console.access.login_token import LoginTokens
from nos_ec.console.access.security import FormsFirst, KnownHosts, SameOrigin, Throttle
from nos_ec.console.access.sessions import Sessions
from nos_ec.console.cells import page as all_cells
from nos_ec.console.cells.moves import read_moves
from nos_ec.console.cells.opening import ConsoleCells, Pages
from nos_ec.console.panels import Panels
from nos_ec.console.simulator import page as simulator
from nos_ec.console.simulator.jobs import Simulations
from nos_ec.console.view import VIEW, View
from nos_ec.core.errors import Conflict, InvalidInput, NosError, NotFound, Transient
from nos_ec.engine.texts import count_text
from nos_ec.monitoring.web_server import WebServer, open_listener
from nos_ec.ports.clock import Clock
from nos_ec.settings import Settings

STOP_WAIT_S = 5
IDLE_WAIT_S = 15
_STATUSES: tuple[tuple[type[NosError], HTTPStatus], ...] = (
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (Transient, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The statuses of errors that end a whole page; all others are 500."""


def create_app(
    system: System, panels: Panels, tokens: LoginTokens | None, random_bytes: Callable[[int], bytes]
) -> ASGIApp:
    """Return the application. Without tokens, everyone who can reach it sees all pages, and the caller must make sure
    that only local users can. `random_bytes` makes session ids and seeds samples."""
    view = View(str(system.settings.store.root), changes=system.settings.console.changes)
    simulations = Simulations(system.clock, random_bytes)
    panels.close_with(simulations.close)
    pages = _pages(system, panels, view, simulations, random_bytes)
    return guarded(pages.routes, view, system.clock, tokens, random_bytes, system.settings.console.hosts)


@contextmanager
def cells_app(
    settings: Settings, clock: Clock, panels: Panels, tokens: LoginTokens | None, random_bytes: Callable[[int], bytes]
) -> Iterator[tuple[ASGIApp, ConsoleCells]]:
    """Yield the application for a store of several cells, which it opens while the block runs, and the cells. Tokens
    and random bytes are as for `create_app`; `panels` are those of the page of all cells."""
    simulations = Simulations(clock, random_bytes)
    panels.close_with(simulations.close)
    views = {
        name: View(
            str(cell.settings.store.root),
            # A cell can be kept from changes; the tokens of operators are those of the whole store.
            changes=settings.console.changes and cell.settings.console.changes,
            cells=settings.cells,
            cell=name,
        )
        for name, cell in settings.cells.items()
    }

    def pages_of(name: str, system: System, panels: Panels) -> Pages:
        return _pages(system, panels, views[name], simulations, random_bytes)

    view = View(count_text(len(settings.cells), "cell"), cells=settings.cells)
    with ConsoleCells(settings, clock, pages_of) as cells:
        routes = all_cells.routes(cells, panels, views, view)
        yield guarded(routes, view, clock, tokens, random_bytes, settings.console.hosts), cells


def _pages(
    system: System, panels: Panels, view: View, simulations: Simulations, random_bytes: Callable[[int], bytes]
) -> Pages:
    """Return the pages of a store, or of a cell."""
    found = overview.Overview(system, panels, random.Random(random_bytes(16)))
    night = last_night.LastNight(system, panels)
    # Each module of pages has a function that returns its routes. view.NAVIGATION lists their pages.
    routes = [
        *overview.routes(found, night.of_store["daemons"], panels, view),
        *flow.routes(system, panels, view),
        *blocks.routes(system, panels, view),
        *block_page.routes(system, panels, view),
        *objects.routes(system, panels, view),
        *object_page.routes(system, panels, view),
        *space.routes(system, panels, view),
        *buckets.routes(system, panels, view, random.Random(random_bytes(16))),
        *simulator.routes(system, simulations, view, random.Random(random_bytes(16))),
        *last_night.routes(night, panels, view),
        *report.routes(system, night, found, panels),
        *changes.routes(system, panels, view),
    ]
    return Pages(routes, found, night, panels.source(lambda: read_moves(system.metadata), FIGURES_MS))


def guarded(
    pages: Sequence[BaseRoute],
    view: View,
    clock: Clock,
    tokens: LoginTokens | None,
    random_bytes: Callable[[int], bytes],
    hosts: str,
) -> ASGIApp:
    """Return an application that shows these pages after the login and all other checks. `hosts` is the setting: it has
    no effect without tokens, because a TLS proxy would show the pages to everyone who can reach the proxy."""
    sessions = Sessions(clock, random_bytes)
    answer = _answer_to(view)
    app = Starlette(
        routes=[
            *pages,
            *([] if tokens is None else Login(view, tokens, sessions, Throttle(clock)).routes()),
            Mount("/static", StaticFiles(packages=[("nos_ec.console", "static")])),
        ],
        exception_handlers={HTTPException: answer, NosError: answer, Exception: answer},
    )
    checked: ASGIApp = app if tokens is None else LoginRequired(app, tokens, sessions)
    known = "" if tokens is None else hosts
    return SafeAnswers(KnownHosts(SameOrigin(FormsFirst(RequestLimit(checked, REQUESTS_MAX))), known))


class Server(WebServer):
    """The server of the console."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        """Raise ConfigError if the address cannot be used."""
        listener = open_listener("console", host, port)
        super().__init__(app, "console", listener, stop_wait_s=STOP_WAIT_S, idle_wait_s=IDLE_WAIT_S)


def _answer_to(view: View) -> Callable[[Request, Exception], Response]:
    """Return a handler that shows an error as a page."""

    def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            status, text = HTTPStatus(error.status_code), error.detail
        elif isinstance(error, NosError):
            status = next((status for kind, status in _STATUSES if isinstance(error, kind)), _BUG)
            text = str(error)
        else:
            status, text = _BUG, "The console made a mistake; its log has the details."
        if status is HTTPStatus.NOT_FOUND and isinstance(error, HTTPException):
            text = "There is no such page."
        own = request.scope.get(VIEW) or view
        page = own.page(request, "error.html", status.phrase, status=status, text=text)
        if isinstance(error, HTTPException):
            page.headers.update(error.headers or {})  # such as Allow, with 405
        return page

    return answer


_BUG = HTTPStatus.INTERNAL_SERVER_ERROR

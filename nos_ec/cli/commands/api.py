"""The commands api and console."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.commands.cell_daemons import serve_cells
from nos_ec.cli.terminal.context import AsJson, context, log_for_daemons, logs_json, stop_on_signals
from nos_ec.cli.terminal.output import announce
from nos_ec.cli.terminal.watching import pulse
from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.operator_side import stall_ms_max
from nos_ec.composition.wiring import open_system
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.monitoring.health import Health
from nos_ec.monitoring.systemd import Notifier, Pulse
from nos_ec.ports.clock import Clock
from nos_ec.settings import Settings
from nos_gc.assemble import gc_collector

if TYPE_CHECKING:
    from nos_ec.monitoring.web_server import WebServer

_TURN_MS = 500


def api(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Serve the read-only admin API over HTTP. Runs until SIGTERM. Requires a token (docs/API.md)."""
    # Imported here, because `nos-ec --help` loads this module and does not need FastAPI.
    from nos_ec.api.access import find_token
    from nos_ec.api.app import Server, make_app
    from nos_ec.api.readings import Readings

    settings = context(ctx).settings()
    if settings.cells:
        serve_cells(context(ctx), settings, "api")
        return
    log_for_daemons(settings)
    token = find_token(settings.api)
    stop = stop_on_signals()
    with open_system(settings) as system:
        system.check_for_daemon(writes=False)
        monitor = system.operator.monitor("api", writes=False)
        system.operator.watch_store(monitor)
        readings = Readings(system, gc_collector(system), FIGURES_MS)
        app = make_app(readings, monitor, token)
        with Server(app, settings.api.host, settings.api.port) as server, pulse(monitor, system.clock):
            announce(server.url, as_json or logs_json())
            _serve(server, monitor.health, system.clock, stop)


def console(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option("--host", help="Listen on this address instead of console.host.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="Listen on this port; 0 picks a free one.")
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Let every user of this machine see the pages without logging in.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Serve pages that show the store in a browser. Runs until SIGTERM. Requires a token (docs/CONSOLE.md).

    The pages change nothing unless console.changes is set.
    """
    settings = context(ctx).settings()
    log_for_daemons(settings)
    serve_console(settings, host, port, anonymous=anonymous, as_json=as_json or logs_json())


def serve_console(
    settings: Settings, host: str | None = None, port: int | None = None, *, anonymous: bool, as_json: bool
) -> None:
    """Serve the console until SIGTERM or SIGINT, on another host or port than that of the settings if they are given.
    Raises ConfigError, Transient."""
    try:
        from nos_ec.console.app import Server, cells_app, create_app
    except ModuleNotFoundError as error:
        raise ConfigError(f"the console needs the Python package {error.name}: install nos-ec[console]") from error
    from nos_ec.console.access.login_token import find_login_tokens
    from nos_ec.console.panels import Panels

    host = settings.console.host if host is None else host
    port = settings.console.port if port is None else port
    tokens = find_login_tokens(settings, host, anonymous=anonymous)
    stop = stop_on_signals()
    with ExitStack() as stack:
        if settings.cells:
            clock: Clock = SystemClock()
            panels = stack.enter_context(closing(Panels(clock)))
            app, cells = stack.enter_context(cells_app(settings, clock, panels, tokens, os.urandom))
            health, turn = Health(clock, stall_ms_max(settings)), cells.turn
        else:
            system = stack.enter_context(open_system(settings))
            clock, panels = system.clock, stack.enter_context(closing(Panels(system.clock)))
            system.check_for_daemon(writes=False, publishes=False)
            app = create_app(system, panels, tokens, os.urandom)
            health, turn = system.operator.monitor("console", writes=False, publishes=False).health, panels.turn
        with Server(app, host, port) as server, Pulse(Notifier(os.environ, os.getpid()), health, clock):
            announce(server.url, as_json)
            _serve(server, health, clock, stop, turn)


def _serve(
    server: WebServer, health: Health, clock: Clock, stop: Event, turn: Callable[[], object] | None = None
) -> None:
    """Wait until `stop` is set, and call `turn` again and again. Raises Transient if the server stops before."""
    beat = health.heart("serving")
    while not clock.wait(stop, _TURN_MS):
        if turn is not None:
            turn()
        if not server.running:
            raise Transient("the HTTP server stopped unexpectedly; see its log for the reason")
        beat(_TURN_MS)

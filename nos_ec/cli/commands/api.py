"""The command api."""

from __future__ import annotations

import typer

from nos_ec.cli.terminal.context import AsJson, context, log_for_daemons, logs_json, stop_on_signals
from nos_ec.cli.terminal.output import announce
from nos_ec.cli.terminal.watching import pulse
from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import open_system
from nos_ec.core.errors import Transient
from nos_gc.assemble import gc_collector

_TURN_MS = 500


def api(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Serve the read-only admin API over HTTP. Runs until SIGTERM. Requires a token (docs/API.md)."""
    # Imported here, because `nos-ec --help` loads this module and does not need FastAPI.
    from nos_ec.api.access import find_token
    from nos_ec.api.app import Server, make_app
    from nos_ec.api.readings import Readings

    settings = context(ctx).settings()
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
            beat = monitor.health.heart("serving")
            while not system.clock.wait(stop, _TURN_MS):
                if not server.running:
                    raise Transient("the HTTP server stopped unexpectedly; see its log for the reason")
                beat(_TURN_MS)

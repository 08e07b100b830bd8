"""The command s3 serve, and the worker processes that it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import structlog
import typer
from prometheus_client import CollectorRegistry

from nos_ec.adapters.system_clock import SteadyClock, SystemClock
from nos_ec.cli.terminal.context import AsJson, context, log_for_daemons, logs_json, stop_on_signals
from nos_ec.cli.terminal.output import announce
from nos_ec.cli.terminal.watching import end_when_shut_out, endpoint, pulse, settle
from nos_ec.composition.cells import Cells, open_cells
from nos_ec.composition.operator_side import stall_ms_max
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import ConfigError, Corrupt, InvalidInput, Transient
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.auth.master_keys import find_master_keys
from nos_ec.monitoring.endpoint import url_of
from nos_ec.monitoring.monitor import Monitor
from nos_ec.settings import Settings

if TYPE_CHECKING:
    from nos_ec.gateway.server.connection_counts import ConnectionCounts
    from nos_ec.gateway.server.http_server import GatewayServer
    from nos_ec.gateway.server.service import Answers

_log = structlog.get_logger(__name__)
_TURN_MS = 500
_READY_MS = 5000
"""How often a worker checks whether it is ready."""


def serve(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Serve S3 clients over HTTP. Runs until SIGTERM. Requires a master key (docs/S3.md)."""
    # Imported here and below, because the other commands of `nos-ec s3` load this module and do not need the server.
    from nos_ec.gateway.server.certificate import find_certificate
    from nos_ec.gateway.server.http_server import open_gateway_listener

    settings = context(ctx).settings()
    if settings.cell is not None:
        raise InvalidInput("the gateway serves all cells; leave out --cell, and NOS_EC_CELL in its environment")
    log_for_daemons(settings)
    find_master_keys(settings.s3)
    certificate = find_certificate(settings.s3)
    stop = stop_on_signals()
    with ExitStack() as stack:
        served = None
        if settings.s3.processes == 1:
            served = stack.enter_context(_open(settings))
        listener = stack.enter_context(open_gateway_listener(settings.s3))
        host, port = listener.getsockname()[:2]
        url = url_of("http" if certificate is None else "https", host, port)

        def show() -> None:
            announce(url, as_json or logs_json())

        if served is None:
            _supervise(ctx, settings, listener, stop, show, as_json)
        else:
            _serve_alone(served, listener, stop, show)


@dataclass(frozen=True, slots=True)
class _Served:
    """The store, or the cells of a store, that a gateway serves. With cells, `system` is the cell that has the
    directory."""

    settings: Settings
    system: System
    cells: Cells | None = None

    def end_when_shut_out(self, stop: Event) -> AbstractContextManager[None]:
        """See `watching.end_when_shut_out`."""
        cells = self.cells
        return end_when_shut_out(self.system, stop, None if cells is None else lambda: cells.opened().values())


@contextmanager
def _open(settings: Settings) -> Iterator[_Served]:
    """Open what the settings describe. Raises ConfigError, Transient."""

    def check(system: System) -> None:
        system.check_for_daemon(writes=True, publishes=False)

    if settings.cells:
        with open_cells(settings, SystemClock(), check) as cells:
            yield _Served(settings, cells.directory, cells)
    else:
        with open_system(settings) as system:
            check(system)
            yield _Served(settings, system)


def worker(
    ctx: typer.Context,
    listener: Annotated[int, typer.Option("--listener", help="Descriptor of the listening socket.")],
    channel: Annotated[int, typer.Option("--channel", help="Descriptor of the socket to the supervisor.")],
    counts: Annotated[int, typer.Option("--counts", help="Descriptor of the shared connection counts.")],
    number: Annotated[int, typer.Option("--number", help="Number of this process.")],
    as_json: AsJson = False,  # noqa: ARG001
) -> None:
    """Serve requests as one of several worker processes of s3 serve, which starts them."""
    from nos_ec.gateway.server.connection_counts import ConnectionCounts
    from nos_ec.gateway.server.reports import REPORT_MS, Report

    settings = context(ctx).settings()
    log_for_daemons(settings)
    stop = stop_on_signals(again_ends=False)
    supervisor = socket.socket(fileno=channel)
    threading.Thread(target=_end_with, args=(supervisor, stop), name="supervisor", daemon=True).start()
    with (
        _open(settings) as served,
        served.end_when_shut_out(stop),
        ConnectionCounts(counts) as shared,
        _gateway(served, socket.socket(fileno=listener), (shared, number)) as (server, monitor),
    ):
        system = served.system
        monitor.health.started()
        ready = monitor.health.ready()

        def check_readiness() -> None:
            nonlocal ready
            while not system.clock.wait(stop, _READY_MS):
                ready = monitor.health.ready()

        threading.Thread(target=check_readiness, name="readiness", daemon=True).start()

        def report() -> None:
            samples, stalled = list(monitor.metrics.samples()), monitor.health.alive().problems
            with suppress(OSError):  # the supervisor is gone, and `stop` will be set
                supervisor.sendall(Report(system.store_id, samples, stalled, ready.problems).line())

        while True:
            report()
            if system.clock.wait(stop, REPORT_MS):
                break
            _require_running(server)
        monitor.health.stopping()
        server.finish()
        report()


def _end_with(supervisor: socket.socket, stop: Event) -> None:
    """Set `stop` when the supervisor has ended, which closes the channel. It never sends anything."""
    with suppress(OSError):
        supervisor.recv(1)
    stop.set()


@contextmanager
def _gateway(
    served: _Served, listener: socket.socket, share: tuple[ConnectionCounts, int] | None = None
) -> Iterator[tuple[GatewayServer, Monitor]]:
    """Yields a gateway that serves requests, and its monitor. For `share` see GatewayServer."""
    from nos_ec.gateway.server.cell_services import CellServices
    from nos_ec.gateway.server.certificate import find_certificate
    from nos_ec.gateway.server.http_server import GatewayServer, make_service
    from nos_ec.gateway.server.samples import gateway_samples, log_samples
    from nos_ec.monitoring.sources import batch_samples

    system, settings = served.system, served.settings.s3
    certificate = find_certificate(settings)
    monitor = system.operator.monitor("s3", writes=True, publishes=False)
    monitor.health.require("free space", system.client.require_put_space)
    masters, accounts = find_master_keys(settings), Accounts(system.metadata, system.clock, os.urandom)
    accounts.require_known_secrets(masters)
    monitor.health.require("master key", lambda: accounts.require_known_secrets(masters))
    ring = KeyRing(system.metadata, masters, system.clock)
    try:
        ring.require_all()
    except (ConfigError, Corrupt) as error:
        _log.error("some encrypted objects cannot be read", error=str(error))
    # An older key may be lost for good, and everything else can be served without it.
    monitor.health.require("encryption key", ring.newest)
    if served.cells is None:
        service: Answers = make_service(system, masters, settings)
    else:
        service = CellServices(served.cells, masters, settings, perf_counter)
    new_id = lambda: os.urandom(8).hex().upper()  # noqa: E731
    with GatewayServer(service, settings, new_id, listener, monitor.health, certificate, share) as server:
        monitor.metrics.add("gateway", lambda: gateway_samples(server.counters))
        monitor.metrics.add("access logs", lambda: log_samples(server.logs))
        monitor.metrics.add("batches", lambda: batch_samples(system.client.puts))
        settle()
        yield server, monitor


def _require_running(server: GatewayServer) -> None:
    if not server.running:
        raise Transient("the HTTP server stopped unexpectedly; see its log for the reason")
    if server.certificate is not None:
        server.certificate.renew()


def _serve_alone(served: _Served, listener: socket.socket, stop: Event, show: Callable[[], None]) -> None:
    """Serve requests in this process until `stop` is set."""
    from nos_ec.gateway.server.samples import process_samples

    system = served.system
    with served.end_when_shut_out(stop), ExitStack() as outer, _gateway(served, listener) as (server, monitor):
        monitor.metrics.add("processes", lambda: process_samples(1, 0))
        # It still answers while the last requests are finished.
        outer.enter_context(endpoint(monitor, served.settings))
        with pulse(monitor, system.clock):
            show()
            while not system.clock.wait(stop, _TURN_MS):
                _require_running(server)


def _supervise(
    ctx: typer.Context,
    settings: Settings,
    listener: socket.socket,
    stop: Event,
    show: Callable[[], None],
    as_json: bool,
) -> None:
    """Let several worker processes serve requests until `stop` is set."""
    from nos_ec.gateway.server.connection_counts import ConnectionCounts
    from nos_ec.gateway.server.supervisor import Supervisor

    clock = SystemClock()
    command = [sys.executable, "-P", "-m", "nos_ec", *context(ctx).arguments()]

    def start(number: int, channel: socket.socket) -> subprocess.Popen[bytes]:
        given = {"--listener": listener.fileno(), "--channel": channel.fileno(), "--counts": counts.fileno()}
        words = ["s3", "worker", *(str(word) for pair in given.items() for word in pair), "--number", str(number)]
        more = ["--json"] if as_json else []
        return subprocess.Popen([*command, *words, *more], pass_fds=[*given.values()], stdin=subprocess.DEVNULL)  # noqa: S603

    with ExitStack() as outer:
        counts = outer.enter_context(ConnectionCounts.create(settings.s3.processes))
        supervisor = Supervisor(start, counts, SteadyClock(), stall_ms_max(settings))
        try:
            try:
                code = supervisor.begin(stop)
            except OSError as error:
                raise Transient(f"no process of the gateway can be started: {error}") from error
            if code is not None:
                raise typer.Exit(code if code > 0 else 1)
            monitor = Monitor("s3", supervisor.store_id, CollectorRegistry(), clock, stall_ms_max(settings))
            monitor.metrics.add("processes", supervisor.samples)
            monitor.health.require("processes", supervisor.require_ready)
            outer.enter_context(endpoint(monitor, settings))
            with pulse(monitor, clock):
                show()
                beat = monitor.health.heart("supervising")
                while not clock.wait(stop, _TURN_MS):
                    supervisor.look()
                    beat(_TURN_MS)
        finally:
            listener.close()
            supervisor.end()

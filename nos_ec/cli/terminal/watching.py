"""Parts that every daemon sets up around its loop: a metrics endpoint if a port is set, notifications to systemd, a
stop when Ceph has blocklisted the process, and less work for the garbage collector."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event

import structlog

from nos_ec import __version__
from nos_ec.composition.processes import background_loop, process_name
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Blocklisted
from nos_ec.engine.figures.daemons import Presence
from nos_ec.monitoring.endpoint import Endpoint
from nos_ec.monitoring.monitor import Monitor
from nos_ec.monitoring.systemd import Notifier, Pulse
from nos_ec.ports.clock import Clock
from nos_ec.settings import Settings

_log = structlog.get_logger(__name__)


SHUT_OUT_LOOK_MS = 10_000
"""How often this process checks whether it is on the blocklist. Each check is two small reads."""


@contextmanager
def end_when_shut_out(
    system: System, stop: Event, opened: Callable[[], Collection[System]] | None = None
) -> Iterator[None]:
    """Set `stop` when Ceph has put this process on its blocklist, even while the process is idle, and raise Blocklisted
    once the loop has ended. Retrying does not help, but a restarted process has a new address. `opened` returns the
    cells that the process has open, which may be on several clusters."""
    if opened is None and system.settings.store.backend != "ceph":
        yield
        return
    found: list[Blocklisted] = []

    def watch(ended: Event) -> None:
        while not system.clock.wait(ended, SHUT_OUT_LOOK_MS):
            for one in (system,) if opened is None else opened():
                if one.settings.store.backend == "ceph" and (reason := one.shut_out()) is not None:
                    _log.error("blocklisted by the storage cluster; this process will stop", reason=str(reason))
                    found.append(reason)
                    stop.set()
                    return

    try:
        with background_loop("shut-out", watch):
            yield
    finally:
        if found:
            raise found[0]


@contextmanager
def endpoint(monitor: Monitor, settings: Settings) -> Iterator[None]:
    """Serve /livez, /readyz and /metrics on monitoring.port while the block runs. With port 0, nothing is served.

    Enter it before the service, so that it still answers while the service finishes its last groups.
    """
    with ExitStack() as stack:
        if settings.monitoring.port:
            stack.enter_context(Endpoint(monitor, settings.monitoring.host, settings.monitoring.port))
        yield


@contextmanager
def keeping_totals(system: System) -> Iterator[None]:
    """Keep the stored figures of the whole store up to date while the block runs. All daemons that may write rows do
    this, but only one at a time does the work."""
    with background_loop("figures", system.operator.store_totals().run):
        yield


PRESENCE_END_S = 5.0
"""How long a daemon that ends waits for the record that it has stopped, while the metadata does not answer."""


@contextmanager
def keeping_presence(system: System, monitor: Monitor) -> Iterator[None]:
    """Record in the store that this daemon is alive, its version and what it has parked, while the block runs."""
    presence = Presence(
        system.metadata,
        system.clock,
        monitor.service,
        process_name(),
        __version__,
        lambda: [queue for queues in monitor.parked for queue in queues()],
    )
    with background_loop("presence", presence.run, PRESENCE_END_S):
        yield


@contextmanager
def keeping_counts(system: System) -> Iterator[None]:
    """Add the counts that GC, scrubs and rebuilds of shards make in this process to the counts of the store, while the
    block runs and at its end."""
    with background_loop("counts", lambda ended: system.operator.counts.run(ended, system.clock)):
        yield


def pulse(monitor: Monitor, clock: Clock) -> Pulse:
    """Return the Pulse that sends READY=1, WATCHDOG=1 and STOPPING=1 to systemd, if systemd started this process. Enter
    it around the loop only."""
    return Pulse(Notifier(os.environ, os.getpid()), monitor.health, clock)


def settle() -> None:
    """Exclude the modules and services loaded so far from garbage collection, because they stay alive. Without this,
    the collector took a tenth of a consumer's CPU time, and a seventh of a gateway's for a listing. Source: gc.freeze
    in Python's library reference."""
    gc.collect()
    gc.freeze()

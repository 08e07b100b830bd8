"""What every daemon has around its loop: an endpoint if the settings give it a port, and systemd's notifications."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nos_ec.monitoring.endpoint import Endpoint
from nos_ec.monitoring.monitor import Monitor
from nos_ec.monitoring.systemd import Notifier, Pulse
from nos_ec.wiring import System


@contextmanager
def endpoint(monitor: Monitor, system: System, port: int) -> Iterator[None]:
    """/livez, /readyz and /metrics on `port` for as long as the block lasts; nothing for port 0.

    Enter it before the service and leave it after: a service that finishes its last groups can then be watched.
    """
    with ExitStack() as stack:
        if port:
            stack.enter_context(Endpoint(monitor, system.settings.monitoring.host, port))
        yield


def pulse(monitor: Monitor, system: System) -> Pulse:
    """READY=1, WATCHDOG=1 and STOPPING=1 to systemd, if it started this process. Enter it around the loop alone."""
    return Pulse(Notifier(os.environ, os.getpid()), monitor.health, system.clock)

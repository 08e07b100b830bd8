"""Reports the state of a service to systemd: sd_notify(3), a datagram with lines of the form NAME=value.

Nothing is sent without NOTIFY_SOCKET in the environment (no systemd, or Type= is not notify).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import Self

import structlog

from nos_ec.monitoring.health import Health
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)


class Notifier:
    """Sends states to systemd. A failure is only logged; systemd then acts on its own time-outs."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        """Read the socket and the watchdog of the process `pid` from the environment. A watchdog of another process
        (WATCHDOG_PID) is ignored."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        mine = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        interval_us = environment.get("WATCHDOG_USEC", "")
        self.watchdog_ms = int(interval_us) // 1000 if mine and interval_us.isdecimal() else None
        """systemd kills the service if it receives nothing for this long; None if there is no watchdog."""

    def send(self, *states: str) -> bool:
        """Send states such as "READY=1". Returns whether they were sent."""
        if not self._address:
            return False
        # A leading @ stands for the NUL byte of the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(address)
                sender.sendall("\n".join(states).encode())
        except OSError as error:
            _log.warning("cannot notify systemd", states=states, error=str(error))
            return False
        return True


class Pulse:
    """Sends WATCHDOG=1 at least as often as systemd recommends, but only while every loop is alive, so that a hang
    leads to a restart.

    It sends READY=1 on entry and STOPPING=1 on exit; /readyz changes with them.
    """

    def __init__(self, notifier: Notifier, health: Health, clock: Clock) -> None:
        self._notifier = notifier
        self._health = health
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Report that the service has started."""
        self._health.started()
        self._notifier.send("READY=1")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Report that the service was asked to stop, or has failed, and now finishes its current work."""
        self._health.stopping()
        self._notifier.send("STOPPING=1")
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        watchdog_ms = self._notifier.watchdog_ms
        if watchdog_ms is None:
            return
        while not self._clock.wait(self._stop, max(1, watchdog_ms // 3)):
            answer = self._health.alive()
            if answer.good:
                self._notifier.send("WATCHDOG=1")
            else:
                _log.error("a loop hangs; not feeding the watchdog", loops=answer.problems)

"""Telling systemd how a service is: sd_notify(3), which is one datagram with lines of NAME=value.

Without NOTIFY_SOCKET in the environment (no systemd, or Type= is not notify) nothing is sent.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import structlog

from nos_ec.monitoring.health import Health
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)


class Notifier:
    """Sends states to systemd. A failure is logged and changes nothing: systemd then acts by its own time-outs."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        """`pid` is this process: WATCHDOG_PID may name another one, whose watchdog is none of ours."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        mine = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        interval_us = environment.get("WATCHDOG_USEC", "")
        self.watchdog_ms = int(interval_us) // 1000 if mine and interval_us.isdecimal() else None
        """systemd kills the service when it hears nothing for so long; None: it does not."""

    def send(self, *states: str) -> bool:
        """Send states such as "READY=1". Returns whether they went out."""
        if not self._address:
            return False
        # A leading @ stands for the NUL of the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(address)
                sender.sendall("\n".join(states).encode())
        except OSError as error:
            _log.warning("systemd cannot be told", states=states, error=str(error))
            return False
        return True


class Pulse:
    """Sends WATCHDOG=1 as often as systemd advises, but only while every loop is alive: a hang ends in a restart.

    READY=1 is sent on entry, STOPPING=1 on exit; /readyz follows.
    """

    def __init__(self, notifier: Notifier, health: Health, clock: Clock) -> None:
        self._notifier = notifier
        self._health = health
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """The service has started."""
        self._health.started()
        self._notifier.send("READY=1")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The service was asked to stop, or failed; it finishes what it has begun."""
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
                _log.error("a loop hangs; the watchdog is not fed", loops=answer.problems)

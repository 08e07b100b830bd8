"""A daemon of a store of several cells: a process for each cell, which this one watches (docs/CELLS.md)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import typer

from nos_ec.adapters.system_clock import SteadyClock
from nos_ec.cli.terminal.context import SUPERVISED_VARIABLE, Context, log_for_daemons, stop_on_signals
from nos_ec.cli.terminal.errors import EXIT_USAGE, exit_code
from nos_ec.composition.processes import Child, end_children
from nos_ec.core.errors import ConfigError
from nos_ec.monitoring.health import Health
from nos_ec.monitoring.systemd import Notifier, Pulse
from nos_ec.ports.clock import Clock
from nos_ec.settings import Settings, load_settings

_PORT_MAX = 65_535
_TURN_MS = 500
_WATCHDOG_MS = 60_000
"""How often a process must say that its loops make progress, as systemd requires of a daemon by WatchdogSec=60."""
_REFUSALS = (EXIT_USAGE, exit_code(ConfigError()))
_START_MS_MAX = 120_000
"""How long a process may take to open its cell."""


def serve_cells(found: Context, settings: Settings, section: Literal["monitoring", "api"] = "monitoring") -> None:
    """Run the daemon that the context's words name in a process for each cell, until SIGTERM or SIGINT. A process that
    ends or hangs is replaced, with a growing delay, and the others run on. `section` has the port of the daemon's
    server. Ends with the code of the processes if they refuse their arguments or settings. Raises ConfigError if there
    are not enough ports, or two cells have the same."""
    # Imported here, because commands of one cell load this module, and most do not need the operator's side.
    from nos_ec.composition.operator_side import stall_ms_max

    environments = _environments(found, settings, section)
    log_for_daemons(settings)
    stop, clock = stop_on_signals(), SteadyClock()
    health = Health(clock, stall_ms_max(settings))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nos-ec-")))
        daemons = []
        for name, environment in environments.items():
            words = [*Context(found.config_file(), name).arguments(), *found.words]
            daemons.append(stack.enter_context(_CellDaemon(name, words, environment, folder / name, clock)))
        try:
            with Pulse(Notifier(os.environ, os.getpid()), health, clock):
                beat = health.heart("supervising")
                while True:
                    for daemon in daemons:
                        daemon.look()
                    if (code := _refusal(daemons)) is not None:
                        raise typer.Exit(code)
                    beat(_TURN_MS)
                    if clock.wait(stop, _TURN_MS):
                        break
        finally:
            end_children([daemon.child for daemon in daemons], clock)


def _refusal(daemons: Sequence[_CellDaemon]) -> int | None:
    """Return the exit code with which to end, because starting the processes again would not help; else None. All have
    the same arguments. Wrong settings of a cell do not stop the others, as when it cannot be opened."""
    codes = [daemon.refusal for daemon in daemons]
    return EXIT_USAGE if EXIT_USAGE in codes else codes[0] if None not in codes else None


def _environments(
    found: Context, settings: Settings, section: Literal["monitoring", "api"]
) -> dict[str, dict[str, str]]:
    """Return the environment of each cell's process, with the port of its server. Raises ConfigError if there are not
    enough ports, or two cells have the same."""
    environments: dict[str, dict[str, str]] = {}
    holders: dict[tuple[str, int], str] = {}
    for number, name in enumerate(settings.cells):
        environment = {**os.environ, **_port_of(settings, section, number), SUPERVISED_VARIABLE: "1"}
        own = load_settings(found.config_file(), environment).of_cell(name)
        server = own.monitoring if section == "monitoring" else own.api
        if server.port and (other := holders.setdefault((server.host, server.port), name)) != name:
            raise ConfigError(
                f"{section}.port: the servers of the cells {other} and {name} would both have port {server.port};"
                " the ports of cells that have none of their own follow each other, so give a cell one that is free",
                settings=(f"{section}.port",),
            )
        environments[name] = environment
    return environments


def _port_of(settings: Settings, section: Literal["monitoring", "api"], number: int) -> dict[str, str]:
    """Return the variable with the port of a cell's server: those of the cells follow each other. A port that the file
    has for a cell is used instead. Raises ConfigError."""
    first = settings.monitoring.port if section == "monitoring" else settings.api.port
    if not first:
        return {}
    if first + number > _PORT_MAX:
        raise ConfigError(
            f"the servers of {len(settings.cells)} cells use the ports from {first} on, and the last port is"
            f" {_PORT_MAX}; set a lower one",
            settings=(f"{section}.port",),
        )
    return {f"NOS_EC_{section.upper()}__PORT": str(first + number)}


class _CellDaemon:
    """The daemon of one cell, and the socket on which it says that its loops make progress."""

    def __init__(self, cell: str, words: list[str], environment: dict[str, str], notify: Path, clock: Clock) -> None:
        """`words` are the arguments of `nos-ec`; `notify` is the path of the socket."""
        self.child = Child(f"the process of cell {cell}", self._start, clock)
        self._command = [sys.executable, "-P", "-m", "nos_ec", *words]
        self._environment = {name: value for name, value in environment.items() if name != "WATCHDOG_PID"}
        self._environment |= {"NOTIFY_SOCKET": str(notify), "WATCHDOG_USEC": str(_WATCHDOG_MS * 1000)}
        self._clock = clock
        self._silent_from_ms = 0
        self._has_served = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(notify))

    def __enter__(self) -> _CellDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        if self.child.process is not None and self.child.process.stdin is not None:
            self.child.process.stdin.close()

    @property
    def refusal(self) -> int | None:
        """The exit code of the process if it has refused its arguments or its settings; None if any process of the cell
        has ever served it."""
        return None if self._has_served or self.child.exit_code not in _REFUSALS else self.child.exit_code

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process. It ends when its standard input does, so it does not outlive this process."""
        self._silent_from_ms = self._clock.now_ms() + _START_MS_MAX
        return subprocess.Popen(self._command, env=self._environment, stdin=subprocess.PIPE)  # noqa: S603

    def look(self) -> None:
        """Start the process if it is due, and kill it if it hangs."""
        with suppress(BlockingIOError):
            while self._socket.recv(4096):
                self._has_served = True
                self._silent_from_ms = self._clock.now_ms() + _WATCHDOG_MS
        child = self.child
        if child.process is None:
            child.begin_if_due()
            return
        stdin = child.process.stdin
        if child.has_ended():
            assert stdin is not None
            stdin.close()
        elif self._clock.now_ms() > self._silent_from_ms:
            child.kill("its loops make no progress")
            self._silent_from_ms = self._clock.now_ms() + _WATCHDOG_MS

"""Real servers through the scripts of deploy/dev: started, killed, started again, stopped."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "deploy" / "dev"
MISSING = 3
"""Exit status of the scripts when something is not there and cannot be installed."""
START_S_MAX = 600
"""The first start may have to install and fetch."""
WHOLE = "server"
"""The part of a server that is one process."""
SIGNAL_S_MAX = 60.0
"""A process that waits for a disk takes no signal."""
STOPPED, ENDED = frozenset("Tt"), frozenset("ZX")
"""States of threads, as proc(5) has them."""


class ServerMissing(Exception):
    """The server is not installed and cannot be; the message says why."""


class ServerFailed(Exception):
    """The server's script failed; the message is what it said."""


_given: set[int] = set()
"""Ports that this process gave to somebody, who may not listen yet, or not now."""


def beside(port: int) -> int:
    """The port that kafka.sh takes for the controller, besides the one it is told, if it is free."""
    return 20_000 + (port + 97) % 10_000


def free_port() -> int:
    """A port nobody uses now, below those that Linux gives to clients: a server that comes back finds it free.

    Nobody else gets it, nor the one `beside` it. Processes that run tests at once have a thousand of them each.
    """
    left = [port for port in _own_ports() if not {port, beside(port)} & _given]
    for port in random.sample(left, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.update((port, beside(port)))
            return port
    raise AssertionError("no free port")


def _own_ports() -> range:
    """Those of this process of pytest -n, or all. With each of them, the one `beside` it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        return range(20_000, 30_000)
    first = 20_000 + 1000 * (int(worker.removeprefix("gw")) % 10)
    return range(first, first + 1000 - 97)


def kill_process(pid: int) -> None:
    """End a process as a crash does, and wait until it has ended: who starts it anew must not find it."""
    os.kill(pid, signal.SIGKILL)
    _await_threads(pid, ENDED)


def stop_process(pid: int) -> None:
    """Let a process hang, and wait until all of it does: threads that have other processors go on for a while."""
    os.kill(pid, signal.SIGSTOP)
    _await_threads(pid, STOPPED | ENDED)


def _await_threads(pid: int, states: frozenset[str]) -> None:
    deadline_s = time.monotonic() + SIGNAL_S_MAX
    while not _states_of_threads(pid) <= states:
        if time.monotonic() > deadline_s:
            raise ServerFailed(f"process {pid} does not take a signal")
        time.sleep(0.002)


def _states_of_threads(pid: int) -> set[str]:
    """Nothing for a process that is gone."""
    states = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                states.add((thread / "stat").read_text().rpartition(") ")[2][0])
    return states


class DevServer:
    """A server with its data in `folder`/`name`, on a port of its own, through its script.

    fast: commits do not wait for the disk. Not for tests that kill a database: what was acknowledged may be lost.
    environment: more of what the script reads.
    """

    def __init__(self, name: str, folder: Path, *, fast: bool = True, **environment: str) -> None:
        self.name = name
        self.folder = folder / name
        self.url = ""
        own = {
            "NOS_EC_DEV_DIR": str(folder),
            "NOS_EC_DEV_PORT": str(free_port()),
            "NOS_EC_DEV_FAST": str(int(fast)),
        }
        self._environment = os.environ | own | environment
        self._starting: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, or what of it does not run. Raises ServerMissing, ServerFailed."""
        self._started(self.script("start"))

    def begin_start(self) -> None:
        """As `start`, without waiting; `settled` tells the end of it."""
        self._starting = subprocess.Popen(
            self._command("start"),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def settled(self) -> bool:
        """Whether no start is under way. Raises ServerFailed when one has failed."""
        starting = self._starting
        if starting is None:
            return True
        if starting.poll() is None:
            return False
        said, errors = starting.communicate()
        self._starting = None
        self._started(subprocess.CompletedProcess(starting.args, starting.returncode, said, errors))
        return True

    def stop(self) -> None:
        """Stop it; its data stays. A start that is under way is waited for. Raises ServerFailed."""
        if self._starting is not None:
            self._starting.communicate(timeout=START_S_MAX)
            self._starting = None
        stopped = self.script("stop")
        if stopped.returncode != 0:
            raise ServerFailed(f"{self.name} cannot be stopped: {stopped.stderr.strip()}")

    def kill(self, part: str = WHOLE) -> None:
        """As a crash of the process leaves it. `part` is a daemon of a server that has several, such as osd.3."""
        kill_process(self._pid(part))

    def put_to_sleep(self, part: str = WHOLE) -> None:
        """Let it hang, as on a machine that swaps or a disk that does not answer. On return it does."""
        stop_process(self._pid(part))

    def wake(self, part: str = WHOLE) -> None:
        """End what `put_to_sleep` began."""
        os.kill(self._pid(part), signal.SIGCONT)

    def _pid(self, part: str) -> int:
        folder = self.folder if part == WHOLE else self.folder / "run"
        return int((folder / f"{part}.pid").read_text())

    def script(self, action: str) -> subprocess.CompletedProcess[str]:
        """Run the server's script."""
        return subprocess.run(
            self._command(action), env=self._environment, capture_output=True, text=True, timeout=START_S_MAX
        )

    def _command(self, action: str) -> list[str]:
        return [str(SCRIPTS / f"{self.name}.sh"), action]

    def _started(self, script: subprocess.CompletedProcess[str]) -> None:
        if script.returncode == MISSING:
            raise ServerMissing(script.stderr.strip())
        if script.returncode != 0:
            raise ServerFailed(f"{self.name} cannot be started: {script.stderr.strip()}")
        self.url = script.stdout.split()[-1]

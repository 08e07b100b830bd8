"""Starts, kills, restarts and stops real servers with the scripts of deploy/dev."""

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
"""The scripts' exit status when something is missing and cannot be installed."""
START_S_MAX = 600
"""The first start may have to download and install programs."""
WHOLE = "server"
"""The `part` of a server that is a single process."""
SIGNAL_S_MAX = 60.0
"""A process that waits for a disk does not handle signals until the wait is over."""
STOPPED, ENDED = frozenset("Tt"), frozenset("ZX")
"""States of threads, as proc(5) defines them."""


class ServerMissing(Exception):
    """The server is not installed and cannot be; the message says why."""


class ServerFailed(Exception):
    """The server's script failed; the message is its output."""


_given: set[int] = set()
"""Ports that this process has given out. Their servers may not be listening yet, or not at the moment."""


def beside(port: int) -> int:
    """The port that kafka.sh uses for the controller, in addition to the given one, if it is free."""
    return 20_000 + (port + 97) % 10_000


def free_port() -> int:
    """A port that is not in use, below those that Linux gives to clients, so that a restarted server finds it free.

    It is not given out again, nor is the one `beside` it. The processes that run tests at once share the ports, each
    has its own.
    """
    left = [port for port in _own_ports() if not {port, beside(port)} & _given]
    for port in random.sample(left, min(len(left), 100)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.update((port, beside(port)))
            return port
    raise AssertionError("no free port")


def _own_ports() -> range:
    """The ports of this process of pytest -n, or all ports. With each of them comes the one `beside` it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        return range(20_000, 30_000)
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    share = 10_000 // count
    first = 20_000 + share * (int(worker.removeprefix("gw")) % count)
    return range(first, first + share - 97)


def kill_process(pid: int) -> None:
    """End a process as a crash does, and wait until it has ended, so that a restart does not find it."""
    os.kill(pid, signal.SIGKILL)
    _await_threads(pid, ENDED)


def stop_process(pid: int) -> None:
    """Make a process hang, and wait until all of its threads do: those on other processors continue for a while."""
    os.kill(pid, signal.SIGSTOP)
    _await_threads(pid, STOPPED | ENDED)


def _await_threads(pid: int, states: frozenset[str]) -> None:
    deadline_s = time.monotonic() + SIGNAL_S_MAX
    while not _states_of_threads(pid) <= states:
        if time.monotonic() > deadline_s:
            raise ServerFailed(f"process {pid} does not react to a signal")
        time.sleep(0.002)


def _states_of_threads(pid: int) -> set[str]:
    """The states of a process's threads; empty for a process that is gone."""
    states = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                states.add((thread / "stat").read_text().rpartition(") ")[2][0])
    return states


class DevServer:
    """A server with its data in `folder`/`name` and its own port, controlled by its script.

    fast: commits do not wait for the disk. Not for tests that kill a database, which may then lose acknowledged data.
    environment: further variables that the script reads.
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
        self.environment = os.environ | own | environment
        self._starting: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the server, or those parts of it that are not running. Raises ServerMissing, ServerFailed."""
        self._started(self.script("start"))

    def begin_start(self) -> None:
        """Like `start`, but without waiting. `settled` reports the end of the start."""
        self._starting = subprocess.Popen(
            self._command("start"),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def settled(self) -> bool:
        """Whether no start is in progress. Raises ServerFailed when one has failed."""
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
        """Stop the server. Its data stays. Waits for a start in progress. Raises ServerFailed."""
        if self._starting is not None:
            self._starting.communicate(timeout=START_S_MAX)
            self._starting = None
        stopped = self.script("stop")
        if stopped.returncode != 0:
            raise ServerFailed(f"{self.name} cannot be stopped: {stopped.stderr.strip()}")

    def kill(self, part: str = WHOLE) -> None:
        """Kill the process, as a crash would. `part` is a daemon of a server that has several, such as osd.3."""
        kill_process(self._pid(part))

    def put_to_sleep(self, part: str = WHOLE) -> None:
        """Make the server hang, as on a swapping machine or with a disk that does not answer. On return it hangs."""
        stop_process(self._pid(part))

    def wake(self, part: str = WHOLE) -> None:
        """Wake the server after `put_to_sleep`."""
        os.kill(self._pid(part), signal.SIGCONT)

    def _pid(self, part: str) -> int:
        folder = self.folder if part == WHOLE else self.folder / "run"
        return int((folder / f"{part}.pid").read_text())

    def script(self, action: str) -> subprocess.CompletedProcess[str]:
        """Run the server's script."""
        return subprocess.run(
            self._command(action), env=self.environment, capture_output=True, text=True, timeout=START_S_MAX
        )

    def _command(self, action: str) -> list[str]:
        return [str(SCRIPTS / f"{self.name}.sh"), action]

    def _started(self, script: subprocess.CompletedProcess[str]) -> None:
        if script.returncode == MISSING:
            raise ServerMissing(script.stderr.strip())
        if script.returncode != 0:
            raise ServerFailed(f"{self.name} cannot be started: {script.stderr.strip()}")
        self.url = script.stdout.split()[-1]

"""The daemons of a chaos run: real processes that are killed and stopped, and restarted whenever they end.

Commands that an operator runs one after another are treated like a daemon.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nos_ec.settings import without_settings
from tests.rig.readiness import readyz

START_S_MAX = 60.0
STOP_S_MAX = 60.0
READY_S_MAX = 10.0
HUNG_WORDS_MAX = 8000

KILLED = -signal.SIGKILL
UNREACHED = 7
"""The exit code of a daemon that could not reach a server when it started."""
CODES = {0, 9, KILLED, -signal.SIGTERM}
"""How a daemon may end: on request, after its lease was lost, killed by the run, or asked to end before it was up."""

_DAMAGE = re.compile(r".*(?:damaged|no readable header|lost stripes|reads back differently).*")


class Errands(Protocol):
    """Decides which commands an actor runs, one after another, and how each may end."""

    def next_command(self) -> tuple[str, ...] | None:
        """Return the arguments of the command to run now; None if there is none yet, or none any more."""

    def ended(self, code: int, said: str) -> bool:
        """Note that the command ended with this exit code, and what it wrote on stderr. Return whether the next one may
        begin at once."""

    @property
    def may_be_struck(self) -> bool:
        """Return whether killing or stopping the command now would prove anything."""

    def struck(self) -> None:
        """Note that the command is killed or stopped."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A daemon: its arguments to `nos-ec`, or the errands of an operator, additional environment, and the ports of its
    endpoints: none, one, or one for each cell."""

    arguments: tuple[str, ...] | Errands
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()


class Fleet:
    """Daemons with one configuration. Each has one log file, which it keeps over restarts."""

    def __init__(self, config: Path, actors: Mapping[str, Actor], *, restart_wait_s: float) -> None:
        """Start all daemons. restart_wait_s: how long a daemon that ended stays away, like systemd's RestartSec."""
        self._config = config
        self._actors = actors
        self._restart_wait_s = restart_wait_s
        self._environment = without_settings(os.environ) | {"PYTHONFAULTHANDLER": "1"}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended_s: dict[str, float] = {}
        self._asleep_until_s: dict[str, float] = {}
        self._asleep_pids: dict[str, list[int]] = {}
        self._outdated: dict[str, subprocess.Popen[bytes]] = {}
        self._hung: list[str] = []
        self._begins: dict[str, int] = {}
        """Where in its log file the last process of each daemon begins."""
        self.codes: Counter[int] = Counter()
        """How often a daemon ended with each exit code. A negative code is a signal. Errands judge the codes of their
        commands themselves."""
        for name in actors:
            self._start(name)

    def log(self, name: str) -> Path:
        """The log file of a daemon."""
        return self._config.parent / f"{name}.log"

    def all(self) -> list[str]:
        """All daemons."""
        return list(self._actors)

    def names(self, kind: str) -> list[str]:
        """The daemons called `kind`-0, `kind`-1, ..."""
        return [name for name in self._actors if name.rpartition("-")[0] == kind]

    def _start(self, name: str) -> None:
        actor = self._actors[name]
        arguments = actor.arguments if isinstance(actor.arguments, tuple) else actor.arguments.next_command()
        if arguments is None:
            self.log(name).touch()
            self._ended_s[name] = time.monotonic()
            return
        command = [sys.executable, "-m", "nos_ec", "--config", str(self._config), *arguments]
        with self.log(name).open("ab") as log:
            self._begins[name] = log.tell()
            self._processes[name] = subprocess.Popen(
                command,
                env=self._environment | dict(actor.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    # --- faults -----------------------------------------------------------------------------------
    def kill(self, name: str) -> None:
        """Kill a daemon with SIGKILL, whatever it is doing. Does nothing if it has already ended."""
        if name in self._processes:
            self._note_strike(name)
            self._processes[name].kill()

    def put_to_sleep(self, name: str, for_s: float) -> None:
        """Stop a daemon with SIGSTOP, together with the processes that it started for the cells. `mend` wakes them
        after this time."""
        if name in self._processes and self._processes[name].poll() is None:
            self._note_strike(name)
            self._processes[name].send_signal(signal.SIGSTOP)
            self._asleep_pids[name] = _children(self._processes[name].pid)
            _signal_all(self._asleep_pids[name], signal.SIGSTOP)
            self._asleep_until_s[name] = time.monotonic() + for_s

    def asleep(self) -> set[str]:
        """The daemons that are stopped now."""
        return set(self._asleep_until_s)

    def is_awake(self, name: str) -> bool:
        """Whether a daemon runs, and is not stopped, as far as `mend` knows."""
        return name in self._processes and name not in self._asleep_until_s

    def may_be_struck(self, name: str) -> bool:
        """Whether killing or stopping a daemon now would prove anything."""
        errands = self._actors[name].arguments
        return self.is_awake(name) and (isinstance(errands, tuple) or errands.may_be_struck)

    def _note_strike(self, name: str) -> None:
        errands = self._actors[name].arguments if name in self._actors else ()
        if not isinstance(errands, tuple):
            errands.struck()

    # --- changes ------------------------------------------------------------------------------------
    def restart(self, name: str) -> None:
        """Ask a daemon to end, as an operator does after a change of the configuration. `mend` starts it again."""
        if name in self._processes:
            self._outdated[name] = self._processes[name]
            self._processes[name].terminate()

    # --- care -------------------------------------------------------------------------------------
    def mend(self) -> None:
        """Wake daemons that have slept long enough, and restart those that ended long enough ago."""
        now_s = time.monotonic()
        for name, until_s in list(self._asleep_until_s.items()):
            if now_s >= until_s:
                self._wake(name)
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                del self._processes[name]
                self._ended_s[name] = (
                    now_s - self._restart_wait_s if self._note_end(name, process.returncode) else now_s
                )
        for name, ended_s in list(self._ended_s.items()):
            if now_s >= ended_s + self._restart_wait_s:
                del self._ended_s[name]
                self._start(name)

    def _note_end(self, name: str, code: int) -> bool:
        """Count the end of a process. Returns whether the next one may start at once."""
        errands = self._actors[name].arguments
        if not isinstance(errands, tuple):
            return errands.ended(code, self.log(name).read_bytes()[self._begins[name] :].decode())
        self.codes[code] += 1
        return False

    def wake(self) -> None:
        """Wake all stopped daemons, because one that is stopped inside a transaction keeps others waiting."""
        for name in list(self._asleep_until_s):
            self._wake(name)

    def _wake(self, name: str) -> None:
        del self._asleep_until_s[name]
        _signal_all(self._asleep_pids.pop(name), signal.SIGCONT)
        if name in self._processes:
            self._processes[name].send_signal(signal.SIGCONT)

    def not_ready(self) -> dict[str, str]:
        """The daemons that do not answer /readyz with 200, in all cells, and the reason. Those without an endpoint
        count as ready."""
        found = {}
        for name, actor in self._actors.items():
            for port in actor.ports:
                if not (answer := readyz(port, timeout_s=READY_S_MAX)).ready:
                    found[name] = f"{answer.status or ''} {answer.text}".strip()
        return found

    def stop(self) -> None:
        """End all daemons as an operator does, each once it catches SIGTERM. One that is still starting dies of it."""
        self.wake()
        for name, process in self._processes.items():
            if self._outdated.get(name) is process and process.poll() is None:
                self._hung.append(f"{name} was asked to end long ago and still runs: {self._last_words(name)}")
            _await_handler(process)
            if process.poll() is None:
                process.terminate()
        for name, process in self._processes.items():
            try:
                self._note_end(name, process.wait(timeout=STOP_S_MAX))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # the fault handler logs where each thread is
                process.wait()
                self._hung.append(f"{name} did not end {STOP_S_MAX:.0f} s after SIGTERM: {self._last_words(name)}")
        self._processes.clear()

    def abandon(self) -> None:
        """End all processes, however the run ended. A process of a cell ends with the daemon that started it."""
        self.wake()
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()

    # --- what they said ---------------------------------------------------------------------------
    def _last_words(self, name: str) -> str:
        return self.log(name).read_text()[-HUNG_WORDS_MAX:]

    def said(self, name: str) -> list[dict[str, object]]:
        """The complete log lines of a daemon. Skips other lines, such as the last output of a process that ended with
        an error."""
        lines = self.log(name).read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def sum_said(self, kind: str, event: str, figure: str) -> int:
        """The sum of a figure over all events with this name that daemons of this kind logged."""
        lines = (line for name in self.names(kind) for line in self.said(name))
        return sum(int(str(line[figure])) for line in lines if line.get("event") == event)

    def misbehaviour(self, codes: set[int]) -> list[str]:
        """Exit codes that are not among `codes`, daemons that hung, logged bugs, and data found damaged."""
        found = [*self._hung]
        found += [f"{count} ended with exit code {code}" for code, count in self.codes.items() if code not in codes]
        for name in self._actors:
            found += [f"{name}: {line}" for line in self.said(name) if line.get("exit_code", 0) not in codes]
            text = self.log(name).read_text()
            if "Traceback" in text:
                found.append(f"{name}: {text[text.index('Traceback') :][:3000]}")
            found += [f"{name}: {line}" for line in _DAMAGE.findall(text)[:5]]
        return found


def _children(pid: int) -> list[int]:
    """The processes that a process has started and that still run; none if it has ended itself."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _await_handler(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process catches SIGTERM or has ended, or a time limit has passed. /proc shows its signal
    handlers."""
    deadline = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < deadline:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
        if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.05)

"""The names of processes, the threads on which they run loops, and the processes that they start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event, Thread

import structlog

from nos_ec.composition.audit import command_of
from nos_ec.ports.clock import Clock, waits

BACK_OFF_MS, BACK_OFF_MS_MAX = 1000, 60_000
"""Delay before a process is replaced: it doubles with each failure, and starts again after a process has run for a
minute."""
END_WAIT_MS = 60_000
"""How long processes may take to end before they are killed."""
_TURN_MS = 50

_log = structlog.get_logger(__name__)


def process_name() -> str:
    """Return a name of this process for operators."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def member_name(service: str, chance: bytes) -> str:
    """Return a name for a process of a service, as unique as the random bytes `chance`, and readable for operators."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}-{chance.hex()}"


def run_name(clock: Clock) -> str:
    """Return a name for the audit trail: this process, when it started, and its command."""
    started = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")
    return f"{socket.gethostname()} {os.getpid()} {started} {command_of(sys.argv)}"


@contextmanager
def background_loop(name: str, loop: Callable[[Event], object], end_wait_s: float | None = None) -> Iterator[None]:
    """Run a loop on a thread within the `with` block. On exit, set the event of the loop, and wait for its end, but at
    most `end_wait_s` if that is given."""
    stop = Event()
    thread = Thread(target=loop, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(end_wait_s)


class Child:
    """A process that this one starts, and starts again when it has ended; or its place while it does not run.

    It is a new process, not a fork, because drivers of databases and of Ceph do not survive a fork. One thread calls
    the methods.
    """

    def __init__(self, what: str, start: Callable[[], subprocess.Popen[bytes]], clock: Clock) -> None:
        """`what` names the process in the log, such as "a process of the gateway"."""
        self.process: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None
        """The exit code of the process that ended last; None if none has ended."""
        self._what = what
        self._start = start
        self._clock = clock
        self._started_ms = 0
        self._failures = 0
        self._due_ms = 0
        self._back_off_ms = 0

    def begin(self) -> None:
        """Start the process. Raises OSError if it cannot be started."""
        self.process = self._start()
        self._started_ms = self._clock.now_ms()
        _log.info(f"started {self._what}", process=self.process.pid)

    def begin_if_due(self) -> None:
        """Start the process, which does not run, unless it is too early after its last failure."""
        now_ms = self._clock.now_ms()
        if waits(self._due_ms, now_ms, self._back_off_ms):
            return
        try:
            self.begin()
        except OSError as error:
            self._back_off(now_ms)
            _log.error(f"cannot start {self._what}", error=str(error), again_in_ms=self._back_off_ms)

    def has_ended(self) -> bool:
        """Return whether the process, which was started, has ended. Then it is due again after the delay."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return False
        self.exit_code = code
        now_ms = self._clock.now_ms()
        if now_ms - self._started_ms >= BACK_OFF_MS_MAX:
            self._failures = 0
        self._back_off(now_ms)
        _log.error(
            f"{self._what} has ended; starting another",
            process=self.process.pid,
            exit_code=code,
            in_ms=self._back_off_ms,
        )
        self.process = None
        return True

    def kill(self, reason: str) -> None:
        """Kill the process, which hangs."""
        assert self.process is not None
        _log.error(f"{self._what} hangs; killing it", process=self.process.pid, reason=reason)
        self.process.kill()

    def _back_off(self, now_ms: int) -> None:
        self._back_off_ms = min(BACK_OFF_MS_MAX, BACK_OFF_MS << min(self._failures, 16))
        self._failures += 1
        self._due_ms = now_ms + self._back_off_ms

    def kill_late(self) -> None:
        """Kill the process, which was asked to end, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            _log.error(f"{self._what} does not end; killing it", process=self.process.pid)
            self.process.kill()
            self.process.wait()


def end_children(children: Iterable[Child], clock: Clock) -> None:
    """Ask the processes to end (SIGTERM), wait for them, and kill those that do not end in time."""
    all_children = list(children)
    running = [child.process for child in all_children if child.process is not None]
    for process in running:
        process.terminate()
    nothing, left_ms = Event(), END_WAIT_MS
    while left_ms > 0 and any(process.poll() is None for process in running):
        clock.wait(nothing, _TURN_MS)
        left_ms -= _TURN_MS
    for child in all_children:
        child.kill_late()

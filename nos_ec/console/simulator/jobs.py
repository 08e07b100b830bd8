"""Runs simulations, one at a time for all sessions, each in a child process (child.py), and keeps the last results.

The results of KEPT_MAX simulations are kept. A list of sizes is kept only if it came from a bucket.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import structlog

from nos_ec.console.simulator.child import CPU_S_MAX, Order
from nos_ec.core.errors import Conflict, NosError, NotFound
from nos_ec.ports.clock import Clock

_log = structlog.get_logger(__name__)

KEPT_MAX = 20
WALL_S_MAX = 3_600
"""How long a simulation may take: a niced process may wait long for its CPU time."""
CLOSE_S_MAX = 5.0
COMMAND = (sys.executable, "-m", "nos_ec.console.simulator.child")
BUG = "It failed because of a mistake in the program; the log of the console has the details."


class Stage(StrEnum):
    """What a simulation does. READING: its list of sizes is read."""

    READING = "reading the sizes"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Simulation:
    """What is known about a simulation. `title` says where its sizes come from, and `note` which share of a bucket they
    are. `sizes` are those of a bucket, one a line; None for a list that was uploaded. `packing` and `gc` have the
    results that the child has written until now, and `error` says why there are no more."""

    id: str
    title: str
    workload: str
    began_ms: int
    stage: Stage = Stage.READING
    percent: int = 0
    step: str = ""
    note: str = ""
    count: int | None = None
    sizes: bytes | None = None
    packing: Sequence[dict[str, Any]] = ()
    gc: Sequence[dict[str, Any]] = ()
    error: str = ""
    ended_ms: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.ended_ms is not None


Prepare = Callable[["Work"], bytes]
"""Returns the list of sizes. Runs in the thread of the simulation."""


@dataclass(slots=True)
class Work:
    """A simulation under way. Other threads may read `shown`, and cancel it. `on_cancel` interrupts the reading of the
    sizes, if that can be interrupted; it must not raise."""

    shown: Simulation
    cancelled: threading.Event = field(default_factory=threading.Event)
    process: subprocess.Popen[bytes] | None = None
    on_cancel: Callable[[], None] | None = None
    done: bool = False
    timed_out: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def show(self, **changed: Any) -> None:
        """Change what is shown. Safe to call from several threads."""
        with self._lock:
            self.shown = replace(self.shown, **changed)


class Simulations:
    """The simulations of a console. Safe to call from several threads."""

    def __init__(
        self,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        command: Sequence[str] = COMMAND,
        wall_s_max: float = WALL_S_MAX,
    ) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._command = command
        self._wall_s_max = wall_s_max
        self._lock = threading.Lock()
        self._works: OrderedDict[str, Work] = OrderedDict()
        self._under_way: Work | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def reserve(self, title: str, workload: str) -> Work:
        """Return a simulation whose list of sizes is to be read. Until `start` or `drop`, there is no other. Raises
        Conflict while another one is under way."""
        with self._lock:
            if self._is_closed or self._under_way is not None:
                if self._under_way is not None and self._under_way.cancelled.is_set():
                    raise Conflict("the simulation that was cancelled still waits for the store; try again in a minute")
                raise Conflict("another simulation is running; wait until it has ended, or cancel it")
            work = Work(Simulation(self._random_bytes(16).hex(), title, workload, self._clock.now_ms()))
            self._under_way = self._works[work.shown.id] = work
        return work

    def drop(self, work: Work) -> None:
        """End a simulation that was reserved and not started, and forget it unless it was cancelled."""
        with self._lock:
            if not work.cancelled.is_set():
                self._works.pop(work.shown.id, None)
            self._under_way = None

    def start(self, work: Work, order: Order, prepare: Prepare) -> None:
        """Begin a simulation that was reserved. The oldest one is forgotten if there are too many."""
        thread = threading.Thread(target=self._run, args=(work, order, prepare), name="simulation", daemon=True)
        with self._lock:
            self._thread = thread
            if len(self._works) > KEPT_MAX:
                self._works.popitem(last=False)
        thread.start()

    def find(self, simulation_id: str) -> Simulation:
        """Return what is known about a simulation. Raises NotFound."""
        return self._work(simulation_id).shown

    def all(self) -> list[Simulation]:
        """Return all simulations that are known, the newest first."""
        with self._lock:
            return [work.shown for work in reversed(self._works.values())]

    def cancel(self, simulation_id: str) -> None:
        """End a simulation. One that has ended stays as it is. No other simulation starts until the statement that
        reads the sizes of this one has been answered. Raises NotFound."""
        self._stop(self._work(simulation_id))

    def close(self) -> None:
        """End what is under way."""
        with self._lock:
            self._is_closed = True
            work, thread = self._under_way, self._thread
        if work is not None:
            self._stop(work)
        if thread is not None:
            thread.join(CLOSE_S_MAX)

    def _work(self, simulation_id: str) -> Work:
        with self._lock:
            work = self._works.get(simulation_id)
        if work is None:
            raise NotFound("this console does not know that simulation (any more); a restart forgets all")
        return work

    def _stop(self, work: Work) -> None:
        with self._lock:
            work.cancelled.set()
            if work.process is not None:
                work.process.kill()
            if work.shown.stage is Stage.READING:
                work.show(stage=Stage.CANCELLED, ended_ms=self._clock.now_ms(), step="")
                if (interrupt := work.on_cancel) is not None:
                    interrupt()

    def _run(self, work: Work, order: Order, prepare: Prepare) -> None:
        stage, error = Stage.FAILED, BUG
        try:
            data = prepare(work)
            stage, error = self._compute(work, replace(order, size_bytes=len(data)), data)
        except NosError as failure:
            error = str(failure)
        except Exception:
            _log.exception("a simulation failed")
        finally:
            if work.cancelled.is_set() and not work.done:
                stage, error = Stage.CANCELLED, ""
            with self._lock:
                if not work.shown.is_over:
                    work.show(stage=stage, error=error, ended_ms=self._clock.now_ms(), step="")
                self._under_way = None

    def _compute(self, work: Work, order: Order, data: bytes) -> tuple[Stage, str]:
        """Run the child. Returns how it ended, and why it failed."""
        with self._lock:
            if work.cancelled.is_set():
                return Stage.CANCELLED, ""
            work.show(stage=Stage.RUNNING)
            work.process = process = subprocess.Popen(  # noqa: S603 - our own program, without user input
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        timer = threading.Timer(self._wall_s_max, self._time_out, (work,))
        timer.daemon = True
        timer.start()
        failed = ""
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(OSError):  # it has ended: its status says why
                process.stdin.write(json.dumps(asdict(order)).encode() + b"\n" + data)
                process.stdin.flush()
            for line in process.stdout:
                if line.endswith(b"\n"):  # the last one may be cut off
                    failed = self._note(work, json.loads(line)) or failed
            status = process.wait()
        finally:
            timer.cancel()
            with self._lock:
                process.kill()
                process.wait()
                work.process = None
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        if failed:
            return Stage.FAILED, failed
        if work.done:
            return Stage.DONE, ""
        return Stage.FAILED, _reason(work, status, self._wall_s_max)

    def _time_out(self, work: Work) -> None:
        with self._lock:
            work.timed_out = True
            if work.process is not None:
                work.process.kill()

    def _note(self, work: Work, line: dict[str, Any]) -> str:
        """Show what a line of the child says. Returns the reason if it has failed."""
        shown = work.shown
        if "percent" in line:
            work.show(percent=line["percent"], step=line["step"])
        elif "sizes" in line:
            work.show(count=line["sizes"])
        elif "packing" in line:
            work.show(packing=(*shown.packing, line["packing"]))
        elif "gc" in line:
            work.show(gc=(*shown.gc, line["gc"]))
        elif "done" in line:
            work.done = True
            work.show(percent=100)
        return str(line.get("failed", ""))


def _reason(work: Work, status: int, wall_s_max: float) -> str:
    """Return why a child has ended early."""
    if work.timed_out:
        return f"It took longer than {wall_s_max / 60:g} minutes. These are the results until then."
    if status == -signal.SIGXCPU:
        return f"It took more than {CPU_S_MAX // 60} minutes of CPU time. These are the results until then."
    if status < 0:
        name = signal.Signals(-status).name
        return f"Its process was killed by {name}, by the kernel if memory was short, or by somebody on the machine."
    return f"Its process ended with status {status}; the log of the console has the details."

"""Runs several processes that serve one address: starts them, replaces those that end or hang, adds up their reports.

Each process inherits the listening socket, the counts of connections, and one end of a socket pair on which it sends
reports. When the supervisor
dies for any reason, the other end closes, and the process finishes its requests and ends. So no process is orphaned.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from nos_ec.composition.processes import Child, end_children
from nos_ec.core.errors import Transient
from nos_ec.gateway.server.connection_counts import ConnectionCounts
from nos_ec.gateway.server.reports import Report, Sums, report_of
from nos_ec.gateway.server.samples import process_samples
from nos_ec.monitoring.exposition import Sample
from nos_ec.ports.clock import Clock

START_MS_MAX = 120_000
"""How long a process may take to open the store. If `stall_ms_max` is longer, that applies."""
_TURN_MS = 50

Start = Callable[[int, socket.socket], "subprocess.Popen[bytes]"]
"""Starts the process of this number, which sends its reports on this socket."""


@dataclass(slots=True)
class _Worker:
    """One of the processes, or the place of a process that has ended and is to be replaced."""

    number: int
    child: Child
    channel: socket.socket | None = None
    reader: threading.Thread | None = None
    report: Report | None = None
    heard_ms: int = 0


class Supervisor:
    """Starts, watches and ends the processes. One thread calls `begin`, `look` and `end`; any thread may call the
    others."""

    def __init__(self, start: Start, counts: ConnectionCounts, clock: Clock, stall_ms_max: int) -> None:
        """`counts` are the connection counts of the processes. A process that sends no report for `stall_ms_max` is
        killed and replaced."""
        self._start = start
        self._counts = counts
        self._clock = clock
        self._stall_ms_max = stall_ms_max
        self._workers: list[_Worker] = []
        for number in range(len(counts)):
            self._workers.append(
                _Worker(number, Child("a process of the gateway", partial(self._begin, number), clock))
            )
        self._sums = Sums()
        self._lock = threading.Lock()
        self._restarts = 0

    # --- processes ------------------------------------------------------------------------------------
    def begin(self, stop: threading.Event) -> int | None:
        """Start the first process, and wait until it serves. Returns None if it serves or `stop` is set. Returns its
        exit code if it ends, for example because of a wrong configuration. Raises OSError if it cannot be started."""
        first = self._workers[0]
        first.child.begin()
        assert first.child.process is not None
        while first.report is None and not self._clock.wait(stop, _TURN_MS):
            code = first.child.process.poll()
            if code is not None and first.report is None:
                self._retire(first)
                return code
        return None

    def look(self) -> None:
        """Start the processes that are due, and kill those that hang. Call it often."""
        now_ms = self._clock.now_ms()
        for worker in self._workers:
            if worker.child.process is None:
                worker.child.begin_if_due()
            elif worker.child.has_ended():
                self._retire(worker)
                self._restarts += 1
            elif reason := self._hangs(worker, now_ms):
                worker.child.kill(reason)
                worker.heard_ms = now_ms

    def end(self) -> None:
        """Make all processes finish their requests, wait for them, and kill those that do not end in time."""
        running = [worker for worker in self._workers if worker.child.process is not None]
        end_children((worker.child for worker in running), self._clock)
        for worker in running:
            self._retire(worker)

    def _begin(self, number: int) -> subprocess.Popen[bytes]:
        worker = self._workers[number]
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._start(number, theirs)
            except BaseException:
                mine.close()
                raise
        worker.channel, worker.report = mine, None
        worker.heard_ms = self._clock.now_ms()
        worker.reader = threading.Thread(target=self._read_reports, args=(worker, mine), name="s3-reports", daemon=True)
        worker.reader.start()
        return process

    def _read_reports(self, worker: _Worker, channel: socket.socket) -> None:
        """Read the reports of one process, on a thread of its own."""
        with channel.makefile("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    worker.report, worker.heard_ms = report_of(line), self._clock.now_ms()

    def _hangs(self, worker: _Worker, now_ms: int) -> str | None:
        report = worker.report
        limit_ms = max(self._stall_ms_max, 0 if report is not None else START_MS_MAX)
        if now_ms - worker.heard_ms > limit_ms:
            return f"no report for {limit_ms} ms"
        return None if report is None or not report.stalled else "; ".join(report.stalled.values())

    def _retire(self, worker: _Worker) -> None:
        """Add up the last report of a process that has ended, and free its place."""
        assert worker.channel is not None
        assert worker.reader is not None
        self._counts.set_absent(worker.number)
        worker.reader.join(1)  # it reads until the end of the socket, which the process has closed
        with self._lock:
            if worker.report is not None:
                self._sums.add_ended(worker.report)
            worker.report = None
        worker.child.process = None
        worker.channel.close()

    # --- reports --------------------------------------------------------------------------------------
    @property
    def store_id(self) -> str:
        """The id of the store; empty before the first report."""
        return next((report.store_id for report in self._reports()), "")

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all processes together."""
        with self._lock:
            reports = self._reports()
            found = list(self._sums.samples(reports))
        yield from found
        yield from process_samples(len(reports), self._restarts)

    def require_ready(self) -> None:
        """Raise Transient unless at least one process can serve requests."""
        problems = [report.problems for report in self._reports()]
        if any(not lacks for lacks in problems):
            return
        lacks = "; ".join(f"{name}: {reason}" for name, reason in (problems[0].items() if problems else ()))
        raise Transient(lacks or "no process serves requests")

    def _reports(self) -> list[Report]:
        return [report for worker in self._workers if (report := worker.report) is not None]

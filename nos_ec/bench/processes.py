"""CPU time of the processes that a run keeps busy, told apart, by Linux' clocks of processes and its /proc."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_PROC = Path("/proc")
_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of Linux: user and system time of all threads, in nanoseconds."""
_LISTENS = "0A"
"""TCP_LISTEN in the state column of /proc/net/tcp."""


class Processes:
    """Groups of processes by name, such as "osd": their pids. Those on other machines are simply not there."""

    def __init__(self, pids: Mapping[str, Iterable[int]]) -> None:
        self._pids = {name: sorted(set(members)) for name, members in pids.items()}

    def cpu_s(self) -> dict[str, float | None]:
        """Seconds of CPU, user and system, that each group has used so far; None for one without processes here."""
        return {name: sum(map(_cpu_s, members)) if members else None for name, members in self._pids.items()}


def listeners(ports: Iterable[int]) -> list[int]:
    """Pids of the processes on this machine that listen at these TCP ports, as far as this user may see."""
    inodes = set(_listening_inodes(frozenset(ports)))
    return [pid for pid in _pids() if not inodes.isdisjoint(_sockets(pid))]


def _cpu_s(pid: int) -> float:
    """0 for a process that is gone. Not from /proc/PID/stat, whose ticks of 10 ms are long for a short run."""
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)  # what clock_getcpuclockid(3) makes of a pid
    except OSError:
        return 0.0


def _listening_inodes(ports: frozenset[int]) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) in ports:
                yield fields[9]


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _sockets(pid: int) -> Iterator[str]:
    """Inodes of the sockets a process has open."""
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            target = str(entry.readlink())
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return

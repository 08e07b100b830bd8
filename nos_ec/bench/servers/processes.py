"""Measures the CPU time of processes during a run, by group, from Linux's process clocks and /proc."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_PROC = Path("/proc")
_CPU_CLOCK = 2
"""Linux's CPUCLOCK_SCHED: user and system time of all threads, in nanoseconds."""
_LISTENS = "0A"
"""TCP_LISTEN in the state column of /proc/net/tcp."""


class Processes:
    """Groups of processes on this machine, by name such as "osd", with their pids."""

    def __init__(self, pids: Mapping[str, Iterable[int]]) -> None:
        self._pids = {name: sorted(set(members)) for name, members in pids.items()}

    def with_group(self, name: str, pids: Iterable[int]) -> Processes:
        """Return these groups and one more."""
        return Processes({**self._pids, name: pids})

    def cpu_s(self) -> dict[str, float | None]:
        """Return the CPU seconds, user and system, that each group has used so far; None for a group without processes
        here."""
        return {name: sum(map(_cpu_s, members)) if members else None for name, members in self._pids.items()}


def listeners(ports: Iterable[int]) -> list[int]:
    """Return the pids of processes on this machine that listen on these TCP ports, as far as this user can see."""
    inodes = set(_listening_inodes(frozenset(ports)))
    return [pid for pid in _pids() if not inodes.isdisjoint(_sockets(pid))]


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process; 0 if it has ended. The 10 ms ticks of /proc/PID/stat are too coarse for a
    short run."""
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)  # as clock_getcpuclockid(3) encodes a pid
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
    """Yields the inodes of the open sockets of a process."""
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            target = str(entry.readlink())
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return

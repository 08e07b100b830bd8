"""Counts the connections of each process of a gateway, in a few words of shared memory.

Each process writes its own word and reads the words of the others. The counts only decide which process accepts the
next connection, so they need no lock.
"""

from __future__ import annotations

import mmap
import os
from typing import Self

_WORD_BYTES = 4
_ABSENT = 0xFFFF_FFFF
"""The value of a process that does not run or does not accept connections."""


class ConnectionCounts:
    """The counts, indexed by number of the process. Closing it in one process leaves the others open."""

    def __init__(self, fd: int) -> None:
        """`fd` is the inherited descriptor of `create`, and is closed with this object."""
        self._fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._counts = memoryview(self._map).cast("I")

    @classmethod
    def create(cls, processes: int) -> Self:
        """Return the counts of this many processes, all of them absent. Raises OSError."""
        fd = os.memfd_create("nos-ec-s3-connections")
        os.write(fd, b"\xff" * (processes * _WORD_BYTES))
        return cls(fd)

    def __len__(self) -> int:
        """Return the number of processes, including absent ones."""
        return len(self._counts)

    def fileno(self) -> int:
        """Return the descriptor that a process inherits."""
        return self._fd

    def set_count(self, number: int, connections: int) -> None:
        """Publish how many connections this process has."""
        self._counts[number] = connections

    def set_absent(self, number: int) -> None:
        """Publish that this process accepts no connections."""
        self._counts[number] = _ABSENT

    def least_of_others(self, number: int) -> int | None:
        """Return the fewest connections that another process has; None if no other process runs."""
        others = [count for place, count in enumerate(self._counts) if place != number and count != _ABSENT]
        return min(others, default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._counts.release()
        self._map.close()
        os.close(self._fd)

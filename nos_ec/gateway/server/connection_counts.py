"""How many connections each process of a gateway has: a few words of memory that all of them share.

Each process writes its own word and reads those of the others. Nothing depends on them but who accepts the next
connection, so nobody locks them.
"""

from __future__ import annotations

import mmap
import os
from types import TracebackType
from typing import Self

_WORD_BYTES = 4
_ABSENT = 0xFFFF_FFFF
"""In place of a count: no process, or one that does not accept connections."""


class ConnectionCounts:
    """The counts, by number of the process. Closing it leaves those of other processes as they are."""

    def __init__(self, fd: int) -> None:
        """fd: that of `create`, inherited; closed with this."""
        self._fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._counts = memoryview(self._map).cast("I")

    @classmethod
    def create(cls, processes: int) -> Self:
        """For so many processes, all of them absent. Raises OSError."""
        fd = os.memfd_create("nos-ec-s3-connections")
        os.write(fd, b"\xff" * (processes * _WORD_BYTES))
        return cls(fd)

    def __len__(self) -> int:
        """How many processes it is for."""
        return len(self._counts)

    def fileno(self) -> int:
        """The descriptor that a process inherits."""
        return self._fd

    def write(self, number: int, connections: int) -> None:
        """Tell the others how many connections this process has."""
        self._counts[number] = connections

    def vacate(self, number: int) -> None:
        """Tell that this process accepts no connections."""
        self._counts[number] = _ABSENT

    def least_of_others(self, number: int) -> int | None:
        """The fewest connections that another process has; None if there is no other one."""
        others = [count for place, count in enumerate(self._counts) if place != number and count != _ABSENT]
        return min(others, default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._counts.release()
        self._map.close()
        os.close(self._fd)

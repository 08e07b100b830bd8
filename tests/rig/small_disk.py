"""A small disk that tests can fill up: a tmpfs if the user is root, or else writes that fail when a file would grow."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

_FILLER = "filler"


class SmallDisk(Protocol):
    """A folder on a disk that can be full."""

    folder: Path

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the disk up, except for this many bytes, in whole pages."""
        ...

    def clear(self) -> None:
        """Free what `fill` took."""
        ...


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """An empty folder on a small disk. The disk is real if this machine lets us mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        try:
            yield _Tmpfs(folder)
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    else:
        disk = _Emulated(folder)
        with patch("os.pwritev", disk.pwritev):
            yield disk


class _Tmpfs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, leave_bytes: int = 0) -> None:
        room = os.statvfs(self.folder)
        with open(self.folder / _FILLER, "wb") as file:
            file.write(bytes(room.f_bavail * room.f_frsize - leave_bytes))

    def clear(self) -> None:
        (self.folder / _FILLER).unlink()


class _Emulated:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._room_bytes: int | None = None
        self._pwritev = os.pwritev

    def pwritev(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        size = sum(len(buffer) for buffer in buffers)
        growth = max(0, offset + size - os.fstat(fd).st_size)
        if self._room_bytes is None or not growth:
            return self._pwritev(fd, buffers, offset)
        if not self._room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # Like a real disk: what fits is written, and only the next write finds the disk full.
        growing = min(growth, self._room_bytes)
        self._room_bytes -= growing
        return self._pwritev(fd, [b"".join(buffers)[: size - growth + growing]], offset)

    def fill(self, leave_bytes: int = 0) -> None:
        self._room_bytes = leave_bytes

    def clear(self) -> None:
        self._room_bytes = None

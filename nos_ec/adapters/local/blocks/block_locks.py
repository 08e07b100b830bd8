"""Locks that let one writer at a time change a block, across threads and processes. A killed process loses its lock."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import google_crc32c

from nos_ec.adapters.file_system import open_new
from nos_ec.adapters.local.files.durable import sync_folder, translated
from nos_ec.core.errors import Transient
from nos_ec.core.ids import BlockId

LOCK_WAIT_S_MAX = 30.0
"""The longest wait for another writer of the same block. Appends take milliseconds; a longer wait means that a process
was stopped in the middle of one."""

FOLDER = "locks"
_COUNT = 256


class BlockLocks:
    """The lock files of a block store. Blocks share them: the block's id selects the file."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER

    def make(self) -> None:
        """Create the lock files, durably, in their folder, which must exist. Raises OSError."""
        for number in range(_COUNT):
            os.close(open_new(self._folder / f"{number:02x}", os.O_RDWR))
        sync_folder(self._folder)

    @contextmanager
    def held(self, block_id: BlockId) -> Iterator[None]:
        """Hold the block's lock. Raises Transient when another writer holds it for too long."""
        path = self._folder / f"{google_crc32c.value(block_id) % _COUNT:02x}"
        with translated(f"lock file {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + LOCK_WAIT_S_MAX
            while not _try_lock(fd):
                if time.monotonic() > deadline:
                    raise Transient(f"lock file {path} is held: look for a stopped process that writes to this store")
                time.sleep(0.001)
            yield
        finally:
            os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

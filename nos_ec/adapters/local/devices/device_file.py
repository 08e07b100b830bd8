"""Reads and writes pages of a raw device or a preallocated file, bypassing the page cache where that is possible.

A device is opened with O_DIRECT and O_DSYNC: each write is durable when it returns, and neither reads nor writes pass
through the page cache. A file system without O_DIRECT (tmpfs before Linux 6.6) refuses the flag; then only O_DSYNC is
used, with the page cache.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nos_ec.adapters.local.files.durable import write_at
from nos_ec.core.geometry import PAGE
from nos_ec.ports.segment_medium import Buffer

_POOLED_BYTES = 9 << 19
"""The size of pooled buffers: the largest object that is packed, with header and names, and the largest run of a read
both fit."""
_POOLED_COUNT = 8
_pool: list[memoryview] = []
"""Buffers of whole memory pages, as O_DIRECT needs them. They are reused because touching new pages costs more than
writing them."""


@contextmanager
def page_buffer(size: int) -> Iterator[memoryview]:
    """Yields memory that begins at a page boundary, for one operation. Its content is undefined."""
    try:
        memory = _pool.pop() if size <= _POOLED_BYTES else _new_pages(size)
    except IndexError:
        memory = _new_pages(_POOLED_BYTES)
    yield memory[:size]
    if len(memory) == _POOLED_BYTES and len(_pool) < _POOLED_COUNT:
        _pool.append(memory)


def _new_pages(size: int) -> memoryview:
    # The memory is private, because pages that could be shared with a child cost several times as much when they are
    # first touched.
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def open_direct(path: Path, flags: int) -> tuple[int, bool]:
    """Open with O_DIRECT if the file system supports it. Returns the descriptor, and whether it does. Raises
    OSError."""
    flags |= os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags, 0o600), False


class DeviceFile:
    """An open device. Safe to call from several threads. All methods raise OSError. A device on a read-only file system
    can only be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_only = False
        try:
            self._fd, self.direct = open_direct(path, os.O_RDWR | os.O_DSYNC)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            self._fd, self.direct = open_direct(path, os.O_RDONLY)
            self._read_only = True

    def size(self) -> int:
        """Return the size of the device in bytes."""
        return os.lseek(self._fd, 0, os.SEEK_END)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range, which need not be aligned, or fewer if the device ends earlier."""
        first = offset // PAGE * PAGE
        size = -(-(offset + length) // PAGE) * PAGE - first
        with page_buffer(size) as buffer:
            filled = 0
            while filled < size:
                got = os.preadv(self._fd, [buffer[filled:]], first + filled)
                if not got:
                    break
                filled += got
            return bytes(buffer[offset - first : min(filled, offset - first + length)])

    def write(self, offset: int, data: Buffer) -> None:
        """Write whole pages, durably. `data` must be memory of `page_buffer`."""
        if self._read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path))
        write_at(self._fd, [data], offset)

    def write_page(self, offset: int, page: bytes) -> None:
        """Write one page, durably."""
        with page_buffer(PAGE) as buffer:
            buffer[:] = page
            self.write(offset, buffer)

    def close(self) -> None:
        """Close the device."""
        os.close(self._fd)


def gather(buffer: memoryview, batch: Sequence[Buffer]) -> None:
    """Copy the parts of a batch, one after the other, to the front of a buffer that is large enough."""
    at = 0
    for part in batch:
        end = at + len(part)
        buffer[at:end] = part
        at = end

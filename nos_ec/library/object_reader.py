"""A binary file over one version of an object."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

from nos_ec.core.errors import Corrupt
from nos_ec.engine.figures.requests import Request, Requests
from nos_ec.engine.objects.store import Store
from nos_ec.library.object_info import ObjectInfo

WINDOW_BYTES_MIN = 256 << 10
WINDOW_BYTES_MAX = 4 << 20
"""After a seek, reads of a large object start small, and double while each continues where the last one ended."""


class ObjectReader(io.BufferedIOBase):
    """Reads one version, as a binary file opened for reading. A context manager. Not thread-safe.

    A small object is in memory from the start. Of a large object, one window of at most 4 MiB is in memory, plus the
    buffers for reading the next one. Reads raise Conflict when a large object was deleted or overwritten and its blocks
    are gone, Corrupt, Transient (the next read then tries again), and ValueError when the reader is closed.
    """

    def __init__(self, store: Store, requests: Requests, info: ObjectInfo, whole: bytes | None) -> None:
        """whole: the bytes of the object if they are in memory, otherwise None."""
        self.info = info
        """The version that this reads."""
        self._store = store
        self._requests = requests
        self._position = 0
        self._start = 0
        self._buffer = whole or b""
        self._segments: Iterator[bytes] | None = None
        self._window = 0
        self._from_start = True
        self._returned = 0
        self._first_bytes_counted = whole is not None
        """Whether the time to the first bytes has been counted."""

    @property
    def name(self) -> str:
        """The object as `bucket/name`."""
        return str(self.info.key)

    # --- reading ----------------------------------------------------------------------------------
    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes, fewer only at the end; all remaining bytes if `size` is negative or None."""
        left, before = self._left(size), (self._position, self._returned)
        parts = []
        try:
            while left:
                part = self._read_some(left)
                parts.append(part)
                left -= len(part)
        except BaseException:
            self._position, self._returned = before  # the caller gets none of the parts
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read1(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, with at most one access to the store."""
        left = self._left(size)
        return self._read_some(left) if left else b""

    def peek(self, size: int = 0, /) -> bytes:
        """Return bytes from the position on without moving it; none only at the end."""
        if not self._left(-1):
            return b""
        self._fill_buffer()
        at = self._position - self._start
        return self._buffer[at : at + max(size, io.DEFAULT_BUFFER_SIZE)]

    def readable(self) -> bool:
        """Return True."""
        return True

    # --- the position -----------------------------------------------------------------------------
    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a position, which may be after the end. Raises ValueError for one before the start."""
        self._require_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.info.size}.get(whence)
        if base is None:
            raise ValueError(f"whence {whence}; use 0, 1 or 2")
        if base + offset < 0:
            raise ValueError(f"position {base + offset} is before the start")
        self._position = base + offset
        return self._position

    def close(self) -> None:
        """Release the memory. Idempotent."""
        if not self.closed:
            self._buffer, self._segments = b"", None
            self._requests.gets.add(None, self._returned)
        super().close()

    # --- parts ------------------------------------------------------------------------------------
    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("the reader is closed")

    def _left(self, size: int | None) -> int:
        self._require_open()
        left = max(0, self.info.size - self._position)
        return left if size is None or size < 0 else min(size, left)

    def _read_some(self, size: int) -> bytes:
        """Return 1 to `size` bytes from the position, which must not be at the end."""
        self._fill_buffer()
        at = self._position - self._start
        part = self._buffer if at == 0 and len(self._buffer) <= size else self._buffer[at : at + size]
        self._position += len(part)
        self._returned += len(part)
        return part

    def _fill_buffer(self) -> None:
        """Read until the buffer has bytes at the position."""
        end = self._start + len(self._buffer)
        if self._start <= self._position < end:
            return
        continues = self._position == end
        self._buffer = b""
        self._start = self._position
        with Request(self._requests, self._requests.gets) as request:
            if self._first_bytes_counted:
                request.leave_untimed()
            self._buffer = self._next_segment() if continues and self._from_start else self._next_window(continues)
            if not self._buffer:
                raise Corrupt(f"{self.info.key} v{self.info.version}: no bytes at {self._position}", key=self.info.key)
        self._first_bytes_counted = True

    def _next_segment(self) -> bytes:
        try:
            if self._segments is None:
                self._segments = self._store.resume_version(self.info.row, self._position)
            return next(self._segments, b"")
        except BaseException:
            self._segments = None  # the iterator has ended; the next read starts another one at the position
            raise

    def _next_window(self, continues: bool) -> bytes:
        self._segments, self._from_start = None, False
        self._window = min(2 * self._window, WINDOW_BYTES_MAX) if continues and self._window else WINDOW_BYTES_MIN
        return b"".join(self._store.open_version(self.info.row, self._position, self._window))

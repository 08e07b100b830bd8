"""Reads the streams that clients provide."""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.errors import InvalidInput


class ByteStream(Protocol):
    """The source of a PUT: any binary file object that blocks until it has bytes.

    A read may return fewer bytes than requested although more follow. Use `read_up_to` where fewer bytes would be taken
    for the end."""

    def read(self, size: int, /) -> bytes | None:
        """Return 1 to `size` bytes, and b"" only at the end, on every further call as well. None, which a non-blocking
        file may return, is refused."""


class ReadAhead:
    """A stream whose first bytes, `head`, have been read already."""

    def __init__(self, head: bytes, rest: ByteStream) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none only at the end. Raises InvalidInput as `read_up_to` does."""
        found = self._head[:size]
        self._head = self._head[size:]
        return found or _read_some(self._rest, size)

    def at_end(self) -> bool:
        """Return whether the stream has ended. Reads one byte ahead to find out."""
        if not self._head:
            self._head = _read_some(self._rest, 1)
        return not self._head


def read_up_to(stream: ByteStream, size: int) -> bytes:
    """Return `size` bytes of the stream, fewer only at its end, even if single reads return fewer.

    Raises InvalidInput for a non-blocking stream: a lack of bytes would be taken for its end.
    """
    buffers = []
    left = size
    while left:
        buffer = _read_some(stream, left)
        if not buffer:
            break
        buffers.append(buffer)
        left -= len(buffer)
    return b"".join(buffers)


def _read_some(stream: ByteStream, size: int) -> bytes:
    found = stream.read(size)
    if found is None:
        raise InvalidInput("the stream has no bytes at present; it must be blocking, so that PUT sees its end")
    return found

"""The bytes of a PUT: a file or an iterable, of known or unknown size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from nos_ec.core.errors import InvalidInput

Buffer = bytes | bytearray | memoryview


class Readable(Protocol):
    """A binary file, or anything that is read like one."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none only at the end."""


class PutSource:
    """Reads and checks the bytes of a PUT from a file or an iterable. `seconds` is the time that reading took."""

    def __init__(self, source: Readable | Iterable[Buffer], size: int | None, timer: Callable[[], float]) -> None:
        """size: the number of bytes to read; None for all. A file is not read beyond them. Raises TypeError,
        InvalidInput."""
        if size is not None and size < 0:
            raise InvalidInput(f"a size of {size} bytes; give 0 or more")
        if isinstance(source, str):
            raise TypeError("the data of a PUT is a str; encode it")
        self._size = size
        self._timer = timer
        self._count = 0
        self.seconds = 0.0
        self._read: Callable[[int], object]
        if hasattr(source, "read"):
            self._read, self._pieces = source.read, None
        else:
            self._pieces = Pieces(source)
            self._read = self._pieces.read

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none only at the end. Raises InvalidInput when the source is non-blocking or does
        not have the given number of bytes, TypeError when it returns something other than bytes, and any error of the
        source."""
        wanted = size if self._size is None else min(size, self._size - self._count)
        if not wanted:
            if self._pieces is not None and self._pieces.read(1):
                raise InvalidInput(f"the source of a PUT has more than {self._size} bytes")
            return b""
        started_s = self._timer()
        try:
            found = self._read(wanted)
        finally:
            self.seconds += self._timer() - started_s
        if found is None:
            raise InvalidInput("the source of a PUT is non-blocking and has no bytes at present; use a blocking one")
        data = bytes(_binary(found))
        if len(data) > wanted:
            raise InvalidInput(f"the source of a PUT returned {len(data)} bytes, but {wanted} were requested")
        self._count += len(data)
        if not data and self._size is not None:
            raise InvalidInput(f"the source of a PUT ended after {self._count} bytes instead of {self._size}")
        return data


class Pieces:
    """Reads an iterable of pieces like a file."""

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces: Iterator[Buffer] = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none only at the end."""
        while not self._rest:
            try:
                piece = next(self._pieces)
            except StopIteration:
                return b""
            self._rest = memoryview(_binary(piece)).cast("B")
        found, self._rest = self._rest[:size], self._rest[size:]
        return bytes(found)


def _binary(found: object) -> Buffer:
    if isinstance(found, Buffer):
        return found
    raise TypeError(f"the source of a PUT returned {type(found).__name__} instead of bytes; open files as binary")

"""The bytes of one block of a large object. The engine holds them in memory once while they are written; on Ceph,
librados holds a second copy.

The bytes are read from the stream directly to their place in the block, after space for the header and the names, which
are filled in for each place that the block is written to.
"""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c

from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.core.tails import tail_length
from nos_ec.engine.objects.streams import ByteStream
from nos_ec.engine.packing.group_bytes import GroupItem, GroupPlace, header_and_names

WINDOW_BYTES = 4 << 20
"""A large object is read from its stream, and from its blocks, in windows of at most this many bytes."""


class LargeBlock:
    """A block with the bytes of a large object from `offset` on, after `front` bytes for header and names."""

    def __init__(self, geometry: Geometry, key: ObjectKey, offset: int, front: int) -> None:
        self.front = front
        self.length = 0
        """Bytes of data."""
        self.crc32c = 0
        """The CRC32C of the data."""
        self._geometry = geometry
        self._key = key
        self._offset = offset
        self._bytes = bytearray(front)

    @property
    def stripes(self) -> int:
        """The number of stripes of the block."""
        return self._geometry.stripes_for(self.front + self.length)

    def fill(self, stream: ByteStream) -> Iterator[bytes]:
        """Read data from the stream until the block is full or the stream ends. Yields the data in windows."""
        while left := self._geometry.block_size - len(self._bytes):
            window = stream.read(min(left, WINDOW_BYTES))
            if not window:
                break
            self._bytes += window
            self.length += len(window)
            self.crc32c = google_crc32c.extend(self.crc32c, window)
            yield window
        self._bytes += bytes(self.stripes * self._geometry.stripe_size - len(self._bytes))

    def cut_tail(self, size_max: int) -> bytes:
        """Remove the bytes after the last whole stripe from the filled block, and return them. Returns none if no tail
        is to be cut (core.tails), or if it would have more than `size_max` bytes."""
        count = tail_length(self.front, self.length, self._geometry.stripe_size)
        if not 0 < count <= size_max:
            return b""
        end = self.front + self.length - count
        tail = bytes(self._bytes[end : end + count])
        del self._bytes[end:]
        self.length -= count
        self.crc32c = 0
        for start in range(self.front, end, WINDOW_BYTES):
            window = bytes(self._bytes[start : min(end, start + WINDOW_BYTES)])
            self.crc32c = google_crc32c.extend(self.crc32c, window)
        return tail

    def group(self, place: GroupPlace, version: int, object_size: int, attributes: bytes) -> bytearray:
        """Return the filled block as the group to be written to `place`. version: the version of the object. The next
        call changes the returned bytes."""
        segment = self._offset, object_size
        item = GroupItem(self._key, version, self.front, self.length, self.crc32c, segment, attributes)
        front = header_and_names(self._geometry, place, [item])
        self._bytes[: len(front)] = front
        return self._bytes


def windows(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and length of each window of a range of a block. Windows end at multiples of WINDOW_BYTES, so
    that no page is read twice."""
    while start < end:
        stop = min(end, (start // WINDOW_BYTES + 1) * WINDOW_BYTES)
        yield start, stop - start
        start = stop

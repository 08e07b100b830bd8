"""The bytes of one block of a large object, which the engine has in memory once while they are written. On Ceph,
librados has them a second time.

They are read from the stream straight to where they are in the block, behind room for the header and the names. Those
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
    """A block with the bytes of a large object from `offset` on, behind `front` bytes for header and names."""

    def __init__(self, geometry: Geometry, key: ObjectKey, offset: int, front: int) -> None:
        self.front = front
        self.length = 0
        """Bytes of data."""
        self.crc32c = 0
        """Of the data."""
        self._geometry = geometry
        self._key = key
        self._offset = offset
        self._bytes = bytearray(front)

    @property
    def stripes(self) -> int:
        """Stripes that it takes."""
        return self._geometry.stripes_for(self.front + self.length)

    def fill(self, stream: ByteStream) -> Iterator[bytes]:
        """Take data from the stream until the block is full or the stream ends. Yields it, a window at a time."""
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
        """Take the bytes behind the last whole stripe out of the block, once it is filled, and return them; none where
        no tail is to be cut (core.tails), or where it would have more than `size_max` bytes."""
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
        """The whole block, once it is filled, as the group that is written to `place`. version: of the object. The next
        call changes it."""
        segment = self._offset, object_size
        item = GroupItem(self._key, version, self.front, self.length, self.crc32c, segment, attributes)
        front = header_and_names(self._geometry, place, [item])
        self._bytes[: len(front)] = front
        return self._bytes


def windows(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each window of a range of a block. They end at multiples of WINDOW_BYTES, so that no page is
    read twice."""
    while start < end:
        stop = min(end, (start // WINDOW_BYTES + 1) * WINDOW_BYTES)
        yield start, stop - start
        start = stop

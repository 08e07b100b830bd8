"""Reading from the streams that clients provide."""

from __future__ import annotations

from typing import Protocol


class ByteStream(Protocol):
    """What PUT reads from: any binary file object."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; empty only at the end."""
        ...


def read_up_to(stream: ByteStream, size: int) -> bytes:
    """`size` bytes of the stream, fewer only at its end, even if single reads return less."""
    buffers = []
    left = size
    while left and (buffer := stream.read(left)):
        buffers.append(buffer)
        left -= len(buffer)
    return b"".join(buffers)

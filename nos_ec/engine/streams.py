"""Reading from the streams that clients provide."""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.errors import InvalidInput


class ByteStream(Protocol):
    """What PUT reads from: any binary file object that waits for its bytes."""

    def read(self, size: int, /) -> bytes | None:
        """Up to `size` bytes; empty only at the end. None, as a file that does not wait has it, is refused."""
        ...


def read_up_to(stream: ByteStream, size: int) -> bytes:
    """`size` bytes of the stream, fewer only at its end, even if single reads return less.

    Raises InvalidInput for a stream that does not wait for its bytes: what it lacks at present is not its end.
    """
    buffers = []
    left = size
    while left:
        buffer = stream.read(left)
        if buffer is None:
            raise InvalidInput("the stream has no bytes at present; it must be blocking, so that PUT sees its end")
        if not buffer:
            break
        buffers.append(buffer)
        left -= len(buffer)
    return b"".join(buffers)

"""Sends the head of an answer together with its body.

uvicorn writes them separately, and uvloop passes each write to the kernel at once. So a small answer would need two
system calls and two TCP segments, and wake the client twice.
"""

from __future__ import annotations

from typing import Any


class JoinedWrites:
    """A transport that can hold back one write until the next one. Other calls go to the wrapped transport."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._keeps = False
        self._kept = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def keep_next(self) -> None:
        """Hold back the next write, and send it together with the write after it. Call this only if one follows."""
        self._keeps = True

    def write(self, data: bytes) -> None:
        """See asyncio.WriteTransport."""
        if self._keeps:
            self._keeps, self._kept = False, data
        elif self._kept:
            kept, self._kept = self._kept, b""
            self._transport.writelines((kept, data))
        else:
            self._transport.write(data)

"""Sends the head of an answer together with its body.

uvicorn writes them one after the other, and uvloop passes each write to the kernel at once. So a small answer took two
calls of the kernel and two segments of TCP, and woke the client twice.
"""

from __future__ import annotations

from typing import Any


class JoinedWrites:
    """A transport that can keep one write back for the next one. All else goes to the transport that it wraps."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._keeps = False
        self._kept = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def keep_next(self) -> None:
        """Send the next write together with the one that follows it. Only for a write that another one does follow."""
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

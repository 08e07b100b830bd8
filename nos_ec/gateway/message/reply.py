"""What a request is answered with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Reply:
    """headers: names in lower case. body: whole, or in pieces of `length` bytes together that are read while they are
    sent. A HEAD has a length and no body."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Iterator[bytes] = b""
    length: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the body, as `content-length` says."""
        if self.length is not None:
            return self.length
        return len(self.body) if isinstance(self.body, bytes) else 0


def xml(body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
    """A document."""
    return Reply(200, {"content-type": "application/xml", **(headers or {})}, body)


def empty(headers: Mapping[str, str] | None = None, status: int = 200) -> Reply:
    """No document."""
    return Reply(status, dict(headers or {}))

"""The answer to a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Reply:
    """An answer. The names of `headers` are in lower case. `body` is the whole body, or an iterator of pieces that are
    read while they are sent, of `length` bytes in total. The answer to a HEAD has a `length` but no body."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Iterator[bytes] = b""
    length: int | None = None

    @property
    def size(self) -> int:
        """The value of `content-length` in bytes."""
        if self.length is not None:
            return self.length
        return len(self.body) if isinstance(self.body, bytes) else 0


def xml(body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an answer with an XML document."""
    return Reply(200, {"content-type": "application/xml", **(headers or {})}, body)


def empty(headers: Mapping[str, str] | None = None, status: int = 200) -> Reply:
    """Return an answer without a body."""
    return Reply(status, dict(headers or {}))

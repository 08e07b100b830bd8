"""The head of an answer goes out with its body, and nothing else waits."""

from __future__ import annotations

from collections.abc import Iterable

from nos_ec.gateway.server.http_protocol import JoinedWrites


class Transport:
    """Notes the bytes of each call."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.sent.append(b"".join(pieces))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


def test_only_the_next_write_is_kept_back_and_only_for_one() -> None:
    transport = Transport()
    joined = JoinedWrites(transport)
    joined.write(b"100 Continue")
    joined.keep_next()
    joined.write(b"head")
    assert transport.sent == [b"100 Continue"]
    joined.write(b" and body")
    joined.write(b"more")
    joined.write(b"")
    joined.keep_next()
    joined.write(b"head")
    joined.write(b" and body")
    assert transport.sent == [b"100 Continue", b"head and body", b"more", b"", b"head and body"]


def test_all_else_is_the_transports() -> None:
    transport = Transport()
    joined = JoinedWrites(transport)
    assert not joined.is_closing()
    joined.close()
    assert joined.is_closing()
    assert transport.closing

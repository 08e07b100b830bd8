"""Where the blocks end that this process appends to, and at which version of their objects."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Self

from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import BlockId

END = "nos_ec.end"
BLOCKS_MAX = 1024
"""A process has a few blocks open for each of its lanes. One that was dropped costs its next append a look-up."""

_END_VALUE = re.compile(rb"(open|sealed) (0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Where a block ends, as its xattr `nos_ec.end` says it."""

    stripes: int
    sealed: bool

    def encode(self) -> bytes:
        """The value of the xattr."""
        return b"%s %d" % (b"sealed" if self.sealed else b"open", self.stripes)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises Corrupt for anything that `encode` does not give."""
        match = _END_VALUE.fullmatch(value)
        if match is None:
            raise Corrupt(f"xattr {END} is {value[:40]!r}: it was not written by this program")
        return cls(int(match[2]), match[1] == b"sealed")


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """An end, and the version that the block's object had when it was there."""

    end: BlockEnd
    version: int


class KnownEnds:
    """At most BLOCKS_MAX of them, the oldest dropped first. Safe to call from several threads.

    One is taken out for an append and put back when that is acknowledged, so that a failed one leaves nothing behind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[BlockId, KnownEnd] = {}

    def put(self, block_id: BlockId, known: KnownEnd) -> None:
        """Remember an open block's end."""
        with self._lock:
            self._known.pop(block_id, None)
            self._known[block_id] = known
            if len(self._known) > BLOCKS_MAX:
                del self._known[next(iter(self._known))]

    def take(self, block_id: BlockId) -> KnownEnd | None:
        """Forget a block's end, and return it if it was known."""
        with self._lock:
            return self._known.pop(block_id, None)

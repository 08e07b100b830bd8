"""The ends of the blocks that this process appends to, each with the version of its object."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Self

from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import BlockId

END_XATTR = "nos_ec.end"
BLOCKS_MAX = 1024
"""The number of ends that are remembered. A process has a few open blocks for each of its lanes. An end that was
dropped costs the next append a look-up."""

_END_VALUE = re.compile(rb"(open|sealed) (0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """The end of a block, as its xattr `nos_ec.end` records it."""

    stripes: int
    sealed: bool

    def encode(self) -> bytes:
        """Return the value of the xattr."""
        return b"%s %d" % (b"sealed" if self.sealed else b"open", self.stripes)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode a value of the xattr. Raises Corrupt for anything that `encode` does not produce."""
        match = _END_VALUE.fullmatch(value)
        if match is None:
            raise Corrupt(f"xattr {END_XATTR} is {value[:40]!r}: it was not written by this program")
        return cls(int(match[2]), match[1] == b"sealed")


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """The end of a block, and the version that its object had then."""

    end: BlockEnd
    version: int


class KnownEnds:
    """Remembers at most BLOCKS_MAX ends and drops the oldest first. Safe to call from several threads.

    An append takes the end out and puts it back once it is acknowledged, so that a failed append leaves no end in here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[BlockId, KnownEnd] = {}

    def remember_end(self, block_id: BlockId, known: KnownEnd) -> None:
        """Remember an open block's end."""
        with self._lock:
            self._known.pop(block_id, None)
            self._known[block_id] = known
            if len(self._known) > BLOCKS_MAX:
                del self._known[next(iter(self._known))]

    def take_end(self, block_id: BlockId) -> KnownEnd | None:
        """Forget a block's end, and return it if it was known."""
        with self._lock:
            return self._known.pop(block_id, None)

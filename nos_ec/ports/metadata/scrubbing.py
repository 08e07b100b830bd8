"""Where a scrub is, and how the last whole pass ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class ScrubPass:
    """One pass over all blocks, or what has been done of it. Times in Unix milliseconds.

    read_bytes: of shards and objects. found: damages. mended: those of them that were mended. unread: blocks that could
    not be looked at.
    """

    began_ms: int
    ended_ms: int = 0
    """When its last block was looked at; 0 while it goes on."""
    blocks: int = 0
    read_bytes: int = 0
    found: int = 0
    mended: int = 0
    unread: int = 0

    @property
    def left(self) -> int:
        """Damages that were not mended."""
        return self.found - self.mended


@dataclass(frozen=True, slots=True)
class ScrubState:
    """current: the pass that goes on, if one does. after: the last block of it that needs no look any more; None at its
    beginning. last: the last pass that was whole."""

    current: ScrubPass | None = None
    after: BlockId | None = None
    last: ScrubPass | None = None


class Scrubbing(Protocol):
    """One row. See the package docstring. Safe to call from several threads."""

    def scrub_state(self) -> ScrubState | None:
        """What `store_scrub_state` stored last; None if nothing is stored, or by another release."""
        ...

    def store_scrub_state(self, new: ScrubState, expected: ScrubState | None) -> bool:
        """Store `new` if `expected` is what is stored. Returns whether it was."""
        ...

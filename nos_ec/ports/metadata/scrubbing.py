"""The progress of a scrub, and the result of its last complete pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class ScrubPass:
    """A pass over all blocks, complete or not. Times are in Unix milliseconds.

    `read_bytes` counts bytes of shards and objects. `found` counts damages, `mended` those that were repaired, and
    `unread` the blocks that could not be examined.
    """

    began_ms: int
    ended_ms: int = 0
    """When its last block was examined; 0 while the pass is running."""
    blocks: int = 0
    read_bytes: int = 0
    found: int = 0
    mended: int = 0
    unread: int = 0

    @property
    def left(self) -> int:
        """Return the number of damages that were not repaired."""
        return self.found - self.mended


@dataclass(frozen=True, slots=True)
class ScrubState:
    """The state of scrubbing. `current` is the pass that is running, if any. `after` is the last block that it has
    finished; None at its beginning. `last` is the last complete pass."""

    current: ScrubPass | None = None
    after: BlockId | None = None
    last: ScrubPass | None = None


class Scrubbing(Protocol):
    """One row with the state of scrubbing. See the package docstring. Safe to call from several threads."""

    def scrub_state(self) -> ScrubState | None:
        """Return the last state that `store_scrub_state` stored; None if there is none, or another release stored
        it."""

    def store_scrub_state(self, new: ScrubState, expected: ScrubState | None) -> bool:
        """Store `new` if the stored state equals `expected`. Returns whether it was stored."""

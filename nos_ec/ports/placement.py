"""Where the next block goes."""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.ids import BlockId


class Placement(Protocol):
    """Gives out block ids by the places they stand for. Safe to call from several threads.

    It advises: what it knows may be some seconds old, and only the append tells. So neither method raises because
    something is not known, both return at once, and a wrong answer costs time and never data.
    """

    @property
    def alternatives(self) -> bool:
        """Whether another block may lie in another place, so that it may take what one block did not. Where all blocks
        lie in the same place, what failed once fails again."""
        ...

    def new_block_id(self) -> BlockId:
        """An id that was never used, in the best place known now. Nothing is created or reserved."""
        ...

    def healthy(self, block_id: BlockId) -> bool:
        """False when the block's place is known to have got worse since its id was given out: an OSD of it died, it
        became full or inactive. Leave the block then, and take a new one.

        True in doubt, and for a block whose place was no better from the start: leaving it would gain nothing.
        """
        ...

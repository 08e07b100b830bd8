"""The choice of where to put the next block."""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.ids import BlockId


class Placement(Protocol):
    """Chooses block ids by the places that they map to. Safe to call from several threads.

    Its answers are advice: its information may be some seconds old, and only an append shows whether it still holds.
    Therefore neither method raises when information is missing, both return at once, and a wrong answer costs time but
    never data.
    """

    @property
    def alternatives(self) -> bool:
        """Return whether another block may lie in another place, and so accept an append that failed on this one. Where
        all blocks share one place, an append that failed once fails again."""

    def new_block_id(self) -> BlockId:
        """Return an id that was never used, in the best place known now. Nothing is created or reserved."""

    def healthy(self, block_id: BlockId) -> bool:
        """Return False when the block's place is known to have become worse since its id was chosen: one of its OSDs
        died, or the place became full or inactive. The caller should then leave the block and take a new one.

        Returns True when in doubt, and for a block whose place was no better from the start: leaving it would gain
        nothing.
        """

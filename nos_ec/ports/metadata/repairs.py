"""Changes to rows that were found to be wrong, each only while the row is as it was found."""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.ports.metadata.blocks import BlockRow
from nos_ec.ports.metadata.objects import ObjectRow

QUARANTINE = "quarantine"
"""The writer of blocks in quarantine. No process has this name, and no lease."""
QUARANTINE_ENDED = "quarantine-ended"
"""The writer of blocks that were in quarantine, and that GC has begun to delete. As above."""


class Repairs(Protocol):
    """See the module docstring. Each method is one transaction, and returns whether it changed anything."""

    def recount_block(self, row: BlockRow, account: BlockAccount) -> bool:
        """Set the counters of a block to those of `account`, if its row is still `row`."""
        ...

    def wait_again(self, row: ObjectRow, now_ms: int) -> bool:
        """Enter an object in the landing store among what waits, due at `now_ms`, if its row is still `row` and nothing
        waits with its copy."""
        ...

    def stop_waiting(self, landing_id: LandingId, now_ms: int) -> bool:
        """Remove what waits with this copy, unless the row of its object says the same. If that row has the copy, but
        another state or size, it is entered again as it is."""
        ...

    def unqueue_copy(self, landing_id: LandingId) -> bool:
        """Remove the entry of a copy from the deletion queue if an object waits with the copy, and the entry is not
        doomed."""
        ...

    # --- quarantine -----------------------------------------------------------------------------------
    def quarantine_block(
        self, block_id: BlockId, stripes: int, account: BlockAccount, now_ms: int, delete_after_ms: int
    ) -> bool:
        """Enter a block without a row as CONDEMNED, with QUARANTINE as its writer, if nothing refers to it. GC deletes
        it after `delete_after_ms`, and not earlier if space is short."""
        ...

    def quarantine_copy(self, landing_id: LandingId, not_before_ms: int) -> bool:
        """Queue a copy that neither an object nor the queue refers to for deletion. Its entry has version 0 and no
        object, which tells it from the reservation of a PUT. A late PUT can still claim it."""
        ...

    def end_quarantine(self, block_id: BlockId, delete_after_ms: int) -> bool:
        """Give a block in quarantine the writer QUARANTINE_ENDED, if its row still has this time. GC calls this before
        it deletes the data, and leaves the block alone when the answer is False. `doom_landing` does it for copies."""
        ...

    def release_block(self, block_id: BlockId) -> bool:
        """Remove the row of a block in quarantine. Nothing is known of the block then. Raises Conflict when its
        quarantine has ended."""
        ...

    def release_copy(self, landing_id: LandingId) -> bool:
        """Remove the queue entry of a copy in quarantine. Raises Conflict when it is doomed."""
        ...

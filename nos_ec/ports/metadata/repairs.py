"""Corrections of rows that a check found to be wrong. Each is made only if the row has not changed since the check."""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.ports.metadata.blocks import BlockRow
from nos_ec.ports.metadata.objects import ObjectRow

QUARANTINE = "quarantine"
"""The writer of blocks in quarantine. No process and no lease has this name."""
QUARANTINE_ENDED = "quarantine-ended"
"""The writer of blocks whose quarantine has ended because GC has begun to delete them. No process and no lease has this
name."""


class Repairs(Protocol):
    """Corrects rows. See the module docstring. Each method is one transaction, and returns whether it changed
    anything."""

    def recount_block(self, row: BlockRow, account: BlockAccount) -> bool:
        """Set the counters of a block to the counters of `account`, if its row still equals `row`."""

    def wait_again(self, row: ObjectRow, now_ms: int) -> bool:
        """Add an object in the landing store to the objects that wait to be packed, due at `now_ms`, if its row still
        equals `row` and no object waits with its copy."""

    def stop_waiting(self, landing_id: LandingId, now_ms: int) -> bool:
        """Remove the waiting entry of this copy, unless the row of its object agrees with it. If that row has the copy,
        but another state or size, the entry is replaced by one that matches the row."""

    def unqueue_copy(self, landing_id: LandingId) -> bool:
        """Remove the entry of a copy from the deletion queue if an object waits with the copy, and the entry is not
        doomed."""

    # --- quarantine -----------------------------------------------------------------------------------
    def quarantine_block(
        self, block_id: BlockId, stripes: int, account: BlockAccount, now_ms: int, delete_after_ms: int
    ) -> bool:
        """Enter a block without a row as CONDEMNED, with QUARANTINE as its writer, if nothing refers to it. GC deletes
        it after `delete_after_ms`, and not earlier even if space is short."""

    def quarantine_copy(self, landing_id: LandingId, not_before_ms: int) -> bool:
        """Queue a copy for deletion that neither an object nor the queue refers to. Its entry has version 0 and no
        object, which distinguishes it from the reservation of a PUT. A late PUT can still claim it."""

    def end_quarantine(self, block_id: BlockId, delete_after_ms: int) -> bool:
        """Give a block in quarantine the writer QUARANTINE_ENDED, if its row still has this time. GC calls this before
        it deletes the data, and leaves the block alone if this returns False. `doom_landing` does the same for
        copies."""

    def release_block(self, block_id: BlockId) -> bool:
        """Remove the row of a block in quarantine, so that the metadata does not know the block any more. Raises
        Conflict when its quarantine has ended."""

    def release_copy(self, landing_id: LandingId) -> bool:
        """Remove the queue entry of a copy in quarantine. Raises Conflict when it is doomed."""

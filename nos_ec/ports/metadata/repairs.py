"""Changes to rows that were found to be wrong, each only while the row is as it was found."""

from __future__ import annotations

from typing import Protocol

from nos_ec.core.ids import LandingId
from nos_ec.core.reclaim import BlockAccount
from nos_ec.ports.metadata.blocks import BlockRow
from nos_ec.ports.metadata.objects import ObjectRow


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

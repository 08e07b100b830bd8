"""Counts the counters of blocks from the rows of the objects in them: the last step of a rebuild.

6  live, dead and overhead bytes of a block add up to the size of its stripes
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from nos_ec.core.gc.reclaim import BlockAccount
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockEvent, BlockKind, BlockState, advance_block
from nos_ec.engine.dump.rebuild_input import PAGE_ROWS
from nos_ec.ports.metadata import BlockRow, Metadata

UNREAD_MS = 30 * 86_400_000
"""How long a block that cannot be read completely stays in quarantine, in milliseconds."""

_CONDEMNED = advance_block(BlockState.SEALED, BlockEvent.CONDEMN)


def count_blocks(
    metadata: Metadata, unread: Collection[BlockId], stripe_size: int, now_ms: int, tick: Callable[[int], None]
) -> None:
    """Set the counters of each SEALED block. `unread` has the blocks that cannot be read completely. `tick` takes how
    many blocks are done. Raises Transient."""
    keep = frozenset(unread)
    after: BlockId | None = None
    done = 0
    while page := metadata.list_blocks(after, PAGE_ROWS):
        after = page[-1].block_id
        for row in page:
            if row.block_id in keep:
                _keep_unread(metadata, row, stripe_size, now_ms + UNREAD_MS)
            elif row.state is BlockState.SEALED:
                _count_block(metadata, row)
        done += len(page)
        tick(done)


def _count_block(metadata: Metadata, row: BlockRow) -> None:
    objects, live_bytes = metadata.live_bytes_in(row.block_id)
    if not objects:
        return
    live, dead = _live_and_dead(row, live_bytes)
    overhead = row.size_bytes - live - dead
    metadata.recount_block(row, BlockAccount(live, dead, overhead, objects, ()))


def _keep_unread(metadata: Metadata, row: BlockRow, stripe_size: int, until_ms: int) -> None:
    """Keep a block that cannot be read completely: its unread objects do not count as dead. If no row lies in it, it
    goes into quarantine. Otherwise it counts as a block of a large object, which GC does not rewrite, so that it stays
    until the last object in it is deleted."""
    placed = metadata.placed_in(row.block_id)
    if not placed:
        metadata.enter_blocks([replace(row, state=_CONDEMNED, delete_after_ms=until_ms)])
        return
    live, dead = _live_and_dead(row, sum(one.extent.length for one in placed))
    end = max(one.extent.offset + one.extent.length for one in placed)
    stripes = max(row.stripes, -(-(max(end, live + dead)) // stripe_size))
    kept = replace(
        row,
        kind=BlockKind.LARGE,
        stripes=stripes,
        live_bytes=live,
        dead_bytes=dead,
        overhead_bytes=stripes * stripe_size - live - dead,
        live_objects=len(placed),
    )
    metadata.enter_blocks([kept])


def _live_and_dead(row: BlockRow, live: int) -> tuple[int, int]:
    """Return the bytes of the objects in the block, and the other object bytes that were written to it."""
    return live, max(0, row.live_bytes + row.dead_bytes - live)

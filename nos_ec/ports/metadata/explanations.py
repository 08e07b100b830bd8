"""The rows about one object or one block, for explaining to an operator why it is where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.ports.metadata.blocks import BlockRow, WaitReason
from nos_ec.ports.metadata.inspection import QueueEntry
from nos_ec.ports.metadata.objects import ObjectRow


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """An object as of one point in time. `row` has its due time if it waits to be packed. `block` is the block of its
    extent."""

    row: ObjectRow
    block: BlockRow | None


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """A block as of one point in time. `waits` is the reason why GC leaves it alone now, and `until_ms` the time when
    that ends, if it depends on time. Both are None for an empty block, for a block of a large object, and for a
    candidate."""

    row: BlockRow
    sealed_ms: int | None
    gc_not_before_ms: int | None
    waits: WaitReason | None
    until_ms: int | None


class Explanations(Protocol):
    """Looks up rows for explanations. Each method takes a fixed number of statements, which find their rows by keys.
    Safe to call from several threads."""

    def object_facts(self, key: ObjectKey) -> ObjectFacts:
        """Return the current version of an object, found by one statement. Raises NotFound, which carries the key."""

    def find_queued_copy(self, row: ObjectRow, first: LandingId, last: LandingId) -> QueueEntry | None:
        """Return the queue entry that `LandingQueue.queued_copy` would find, or that of a copy that is doomed."""

    def block_facts(self, block_id: BlockId, waste_ratio_min: float, now_ms: int, cool_down_ms_max: int) -> BlockFacts:
        """Return one block, judged as `Blocks.waiting_blocks` does. Raises NotFound."""

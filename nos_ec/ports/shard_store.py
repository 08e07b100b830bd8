"""The shards of blocks, of a store that does not itself replace those that were on a lost disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class RebuiltBlock:
    """What rebuilding one block did. All is empty or 0 for a block that lacks no shard.

    missing: the shards that were missing and were made again. replaced: shards that were there but damaged, or ended
    early, and were made again. damaged: such shards that could not be written, and stay as they are.
    read_bytes includes what was read back to check it.
    """

    missing: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    read_bytes: int = 0
    written_bytes: int = 0


class ShardStore(Protocol):
    """Finds blocks that lack shards, and makes them whole from the other shards."""

    def alone(self) -> AbstractContextManager[None]:
        """Keep out other processes that rebuild. `rebuild` is called only within it. Raises Conflict when another
        process rebuilds now, Transient. A killed process loses its place."""
        ...

    def blocks_short(self) -> Mapping[int, int]:
        """As `BlockStore.blocks_short`."""
        ...

    def short_blocks(self) -> Iterator[BlockId]:
        """Yield the blocks that `rebuild` may have work with. Some of them may need none. Raises Transient."""
        ...

    def rebuild(self, block_id: BlockId, pace: Callable[[int], object]) -> RebuiltBlock:
        """Make again the shards that a block lacks, of those whose folders can be reached. Also those that are found
        damaged meanwhile. Changes nothing when the block lacks no shard.

        A block that lacks a shard accepts no more appends, so it is sealed first. Safe beside readers, writers and
        deletions: a shard counts from the moment when all of it is durable and was checked.
        pace: called with a number of bytes after each piece of reading and writing; whatever it raises ends the
        rebuild of the block, which can be repeated.
        Raises NotFound when the block is gone, Corrupt when it cannot be rebuilt (too few good shards, or shards that
        contradict each other), NoSpace, Transient.
        """
        ...

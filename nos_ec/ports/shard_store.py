"""The shards of blocks, in a store that does not replace the shards of a lost disk itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nos_ec.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class RebuiltBlock:
    """The result of rebuilding one block. Everything is empty or 0 for a block that lacks no shard.

    `missing` lists the shards that were missing and were rebuilt. `replaced` lists shards that were damaged or ended
    early and were rebuilt. `damaged` lists such shards that could not be written and stay as they are. `unreadable`
    lists the stripes of which more than m shards have lost a page; the rebuilt shards lack that page, too. A shard
    without any other fault does not count as damaged, and the damaged shards of such a block are not replaced.
    `read_bytes` includes the bytes that were read back to check the new shards.
    """

    missing: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    read_bytes: int = 0
    written_bytes: int = 0


class ShardPart(StrEnum):
    """A part of a shard's file."""

    HEAD = "head"
    MARK = "mark"
    PAGES = "pages"


@dataclass(frozen=True, slots=True)
class DamagedShard:
    """A shard that exists but has the wrong content.

    `parts` lists its wrong parts. `pages` counts the pages that do not match their checksums or do not exist. `stripes`
    lists the first few stripes of these pages. `unwritten_from` is the first stripe that was never written, if
    unwritten pages are the only fault, and None otherwise: the end of an append that was cut short looks like this.
    """

    shard: int
    parts: tuple[ShardPart, ...]
    pages: int = 0
    stripes: tuple[int, ...] = ()
    unwritten_from: int | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A stripe whose shards match their checksums but contradict each other by the coding. `suspect` is the shard
    without which all others fit, if there is exactly one such shard; otherwise it is None."""

    stripe: int
    suspect: int | None


@dataclass(frozen=True, slots=True)
class ScrubbedBlock:
    """The faults that a scrub found in the shards of a block. `missing` lists shards without a file, `unreachable` the
    shards whose folders cannot be reached."""

    missing: tuple[int, ...] = ()
    unreachable: tuple[int, ...] = ()
    damaged: tuple[DamagedShard, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    read_bytes: int = 0


class ShardStore(Protocol):
    """Finds blocks that lack shards or have damaged ones, and repairs them from the other shards."""

    def alone(self) -> AbstractContextManager[None]:
        """Keep out other processes that rebuild: `rebuild` and `mend` are called only within this context. Raises
        Conflict when another process is rebuilding now, Transient. A process that is killed gives up its claim."""

    def blocks_short(self) -> Mapping[int, int]:
        """Return the same as `BlockStore.blocks_short`."""

    def short_blocks(self) -> Iterator[BlockId]:
        """Yields the blocks that `rebuild` may have to repair. Some of them may need no repair. Raises Transient."""

    def rebuild(self, block_id: BlockId, rate_limit: Callable[[int], object]) -> RebuiltBlock:
        """Rebuild the shards that a block lacks, if their folders can be reached, and the shards that are found damaged
        meanwhile. Changes nothing when the block lacks no shard.

        A block that lacks a shard accepts no more appends, so it is sealed first. Readers, writers and deletions may
        run at the same time: a shard counts only from the moment when all of it is durable and has been checked.
        `rate_limit` is called with a number of bytes after each piece of reading and writing; any error that it raises
        ends the rebuild of the block, which can be repeated.

        Raises NotFound when the block is gone, Corrupt when it cannot be rebuilt (nothing can be read, or the missing
        data may still return with a folder or a disk; or shards contradict each other), NoSpace, Transient.
        """

    def scrub(self, block_id: BlockId, stripes: int, rate_limit: Callable[[int], object]) -> ScrubbedBlock:
        """Read all shards of a sealed block from their disks, and compare them with their checksums and, by the coding,
        with each other. Changes nothing, and does not need `alone`. Holds a few pages of each shard in memory.

        `stripes` is the number of stripes of the block, for the case that no shard records it. `rate_limit` is as for
        `rebuild`. Raises NotFound when the block is gone or is being deleted, Transient.
        """

    def mend(self, block_id: BlockId, shards: Collection[int], rate_limit: Callable[[int], object]) -> RebuiltBlock:
        """Rebuild these shards, and all others that are found damaged, as `rebuild` does, but also in a block that
        lacks no shard. Calling it again after a crash has the same result."""

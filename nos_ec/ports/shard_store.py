"""The shards of blocks, of a store that does not itself replace those that were on a lost disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nos_ec.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class RebuiltBlock:
    """What rebuilding one block did. All is empty or 0 for a block that lacks no shard.

    missing: the shards that were missing and were made again. replaced: shards that were there but damaged, or ended
    early, and were made again. damaged: such shards that could not be written, and stay as they are. unreadable: the
    stripes of which more than m shards have lost a page. The shards that were made lack it, too. A shard that lacks
    nothing else is not called damaged, and the damaged ones of such a block are not replaced.
    read_bytes includes what was read back to check it.
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
    """A shard that is there, but is not what it must be.

    parts: which parts of it are wrong. pages: how many pages do not match their checksums or are not there. stripes:
    the first few stripes that these lie in. unwritten_from: if nothing is wrong but pages that were never written, the
    first stripe of them; else None. The end of an append that was cut short looks like this.
    """

    shard: int
    parts: tuple[ShardPart, ...]
    pages: int = 0
    stripes: tuple[int, ...] = ()
    unwritten_from: int | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A stripe whose shards match their checksums, but not each other by the coding. suspect: the shard without which
    all others fit, if there is only one such; else None."""

    stripe: int
    suspect: int | None


@dataclass(frozen=True, slots=True)
class ScrubbedBlock:
    """What was found in the shards of a block. missing: shards without a file. unreachable: those whose folders cannot
    be reached."""

    missing: tuple[int, ...] = ()
    unreachable: tuple[int, ...] = ()
    damaged: tuple[DamagedShard, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    read_bytes: int = 0


class ShardStore(Protocol):
    """Finds blocks that lack shards or have damaged ones, and makes them whole from the other shards."""

    def alone(self) -> AbstractContextManager[None]:
        """Keep out other processes that rebuild. `rebuild` and `mend` are called only within it. Raises Conflict when
        another process rebuilds now, Transient. A killed process loses its place."""
        ...

    def blocks_short(self) -> Mapping[int, int]:
        """As `BlockStore.blocks_short`."""
        ...

    def short_blocks(self) -> Iterator[BlockId]:
        """Yield the blocks that `rebuild` may have work with. Some of them may need none. Raises Transient."""
        ...

    def rebuild(self, block_id: BlockId, rate_limit: Callable[[int], object]) -> RebuiltBlock:
        """Make again the shards that a block lacks, of those whose folders can be reached. Also those that are found
        damaged meanwhile. Changes nothing when the block lacks no shard.

        A block that lacks a shard accepts no more appends, so it is sealed first. Safe beside readers, writers and
        deletions: a shard counts from the moment when all of it is durable and was checked.
        pace: called with a number of bytes after each piece of reading and writing; whatever it raises ends the
        rebuild of the block, which can be repeated.
        Raises NotFound when the block is gone, Corrupt when it cannot be rebuilt (nothing can be read, or something
        that a folder or a disk may still return; or shards contradict each other), NoSpace, Transient.
        """
        ...

    def scrub(self, block_id: BlockId, stripes: int, rate_limit: Callable[[int], object]) -> ScrubbedBlock:
        """Read all shards of a sealed block from their disks, and compare them with their checksums and with each other
        by the coding. Changes nothing, and needs no `alone`. Holds a few pages of each shard in memory.

        stripes: how many the block has, in case no shard says so. pace: as for `rebuild`. Raises NotFound when the
        block is gone or is being deleted, Transient.
        """
        ...

    def mend(self, block_id: BlockId, shards: Collection[int], rate_limit: Callable[[int], object]) -> RebuiltBlock:
        """As `rebuild`, also for a block that lacks no shard: makes these shards again, and all others that are found
        damaged. Called again after a crash, it ends the same."""
        ...

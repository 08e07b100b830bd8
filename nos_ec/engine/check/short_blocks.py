"""Counts blocks that lack shards, and reports them as one finding: a lost disk takes a shard from every block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.ids import BlockId

NAMED_MAX = 5
"""The finding names at most this many blocks."""


class ShortBlocks:
    """Counts blocks by the shards that they lack."""

    def __init__(self) -> None:
        self._by_shards: Counter[tuple[int, ...]] = Counter()
        self._named: list[str] = []

    def add(self, block_id: BlockId, shards: Sequence[int]) -> None:
        """Count a block that lacks these shards."""
        self._by_shards[tuple(shards)] += 1
        if len(self._named) < NAMED_MAX:
            self._named.append(block_id.hex())

    def findings(self) -> Iterator[Finding]:
        """Yield one finding about all blocks that were counted; none if there were none."""
        if self._by_shards:
            lacking = [{"shards": list(shards), "blocks": count} for shards, count in sorted(self._by_shards.items())]
            seen = {"blocks": sum(self._by_shards.values()), "lack": lacking, "named": self._named}
            yield Finding(FindingKind.BLOCKS_SHORT, "block store", seen)

"""Reads all shards of one sealed block in parallel, a few pages of each at a time.

At most WINDOW_PAGES pages of each shard, and the data computed from them, are in memory (9 of docs/INVARIANTS.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nos_ec.adapters.local.blocks.erasure import StripeCoder
from nos_ec.adapters.local.blocks.shard_file import Pages, ShardFile, ShardLayout
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId

WINDOW_PAGES = 32
"""The maximum number of pages of each shard that are held in memory at a time."""

RateLimit = Callable[[int], object]


@dataclass
class BlockWindows:
    """Divides a block into windows, and reads and decodes one window at a time. `stripes` counts the stripes of the
    block, and `read_bytes` the bytes read so far."""

    _layout: ShardLayout
    _coder: StripeCoder
    block_id: BlockId
    _files: Mapping[int, ShardFile]
    stripes: int
    _rate_limit: RateLimit
    read_bytes: int = field(default=0, init=False)
    refused: bool = field(default=False, init=False)
    """True if a disk has failed to return pages. A later attempt may succeed."""

    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield the windows of a shard as (number of the first page, number of pages). A window lies in one stripe."""
        chunk = self._layout.chunk_pages
        for start in range(0, self.stripes * chunk, chunk):
            for first in range(start, start + chunk, WINDOW_PAGES):
                yield first, min(WINDOW_PAGES, start + chunk - first)

    def read_pages(self, file: ShardFile, first: int, count: int) -> Pages:
        """Return `count` pages of a shard. All of them are marked as bad if its disk does not return them."""
        try:
            pages = file.read_pages(first, count)
        except OSError:
            self.refused = True
            return Pages(first, bytes(count * PAGE), frozenset(range(first, first + count)), 0)
        self.read_bytes += pages.read_bytes
        return pages

    def decoded(self, pages: Mapping[int, Pages], first: int, count: int) -> list[bytes] | None:
        """Return these pages of the k data shards, decoded from k shards in which all of these pages are good. Returns
        None if fewer than k shards have them."""
        parts: dict[int, bytes] = {}
        for shard, one in pages.items():
            part = one.part(first, count)
            if part is not None:
                parts[shard] = part
            if len(parts) == self._layout.geometry.k:
                return self._coder.decode(count * PAGE, parts)
        return None

    def readable(self, pages: Mapping[int, Pages], first: int, count: int) -> bool:
        """Return whether `decoded` can return these pages."""
        wanted = range(first, first + count)
        return sum(one.bad.isdisjoint(wanted) for one in pages.values()) >= self._layout.geometry.k


def intact_head(file: ShardFile) -> bool:
    """Return whether the head of a shard file can be read and is correct."""
    try:
        return file.intact_head()
    except OSError:
        return False

"""Reads ranges of a block of the embedded block store: from the shards that hold the range, or else by decoding.

Each page is verified before its bytes are returned or used in decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Self

from nos_ec.adapters.local.blocks.erasure import StripeCoder
from nos_ec.adapters.local.blocks.shard_file import Pages, ShardFile, ShardLayout
from nos_ec.adapters.local.blocks.shard_folders import ShardFolders
from nos_ec.core.errors import Corrupt
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId


class BlockReader:
    """Reads one block during one call of the block store. Opens each shard when it is first needed. Counts the reads of
    shards, the bytes of these reads, and the ranges that had to be decoded (`degraded_reads`)."""

    def __init__(self, folders: ShardFolders, layout: ShardLayout, coder: StripeCoder, block_id: BlockId) -> None:
        self._folders = folders
        self._coder = coder
        self._block_id = block_id
        self._geometry = layout.geometry
        self._chunk_pages = layout.chunk_pages
        self._files: dict[int, ShardFile | None] = {}
        self._unreachable: dict[int, OSError] = {}
        self._pages: dict[int, list[Pages]] = {}
        self.shard_reads = 0
        self.shard_bytes = 0
        self.degraded_reads = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            if file:
                file.close()

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the block, from the byte `offset`. Reads whole pages. Shards without a part of the
        range are read only if pages are bad.

        Raises ValueError for a negative argument; Corrupt if the range is past the end or too many shards are lost or
        damaged; NotFound if the block does not exist; Transient if its shards cannot be reached now.
        """
        if offset < 0 or length < 0:
            raise ValueError(f"range of {length} bytes at {offset}")
        if offset + length > self._geometry.block_size:
            self._refuse_missing()
            raise Corrupt(
                f"block {self._block_id.hex()}: range of {length} bytes at {offset} is past the end",
                block_id=self._block_id,
            )
        if not length:
            self._refuse_missing()
            return b""
        self._pages = {}
        columns = {column: self._fetch(column, first, count) for column, first, count in self._columns(offset, length)}
        if any(pages.bad for pages in columns.values()):
            self.degraded_reads += 1
            columns = self._repaired(columns)
        return self._assemble(columns, offset, length)

    def _columns(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, number of the first page, number of pages) for each data shard that holds a part of a range. A
        range that is contiguous in the block is contiguous in each shard."""
        k, chunk = self._geometry.k, self._geometry.chunk_size
        first_chunk, last_chunk = offset // chunk, (offset + length - 1) // chunk
        for column in range(k):
            # The first and the last chunk of the range in this column; the range may start and end inside a chunk.
            first = first_chunk + (column - first_chunk) % k
            last = last_chunk - (last_chunk - column) % k
            if first > last:
                continue
            start = first // k * chunk + (offset % chunk if first == first_chunk else 0)
            end = last // k * chunk + ((offset + length - 1) % chunk + 1 if last == last_chunk else chunk)
            yield column, start // PAGE, -(-end // PAGE) - start // PAGE

    def _fetch(self, shard: int, first: int, count: int) -> Pages:
        """Read `count` pages of a shard. All of them are marked as bad if the shard is lost or unreachable."""
        if shard not in self._files:
            self._files[shard] = self._opened(shard)
        file = self._files[shard]
        pages = Pages(first, bytes(count * PAGE), frozenset(range(first, first + count)), 0)
        if file:
            self.shard_reads += 1
            try:
                pages = file.read_pages(first, count)
            except OSError as error:
                self._unreachable[shard] = error
        self.shard_bytes += pages.read_bytes
        self._pages.setdefault(shard, []).append(pages)
        return pages

    def _opened(self, shard: int) -> ShardFile | None:
        try:
            return self._folders.open_shard(self._block_id, shard, write=False)
        except OSError as error:
            self._unreachable[shard] = error
            return None

    def _assemble(self, columns: Mapping[int, Pages], offset: int, length: int) -> bytes:
        k, chunk, end = self._geometry.k, self._geometry.chunk_size, offset + length
        parts = []
        for number in range(offset // chunk, (end - 1) // chunk + 1):
            pages = columns[number % k]
            base = number // k * chunk - pages.first * PAGE - number * chunk
            parts.append(pages.data[base + max(offset, number * chunk) : base + min(end, (number + 1) * chunk)])
        return b"".join(parts)

    # --- degraded reads -------------------------------------------------------------------------------

    def _repaired(self, columns: Mapping[int, Pages]) -> dict[int, Pages]:
        """Return the same pages, with the bad ones replaced by decoded ones. Raises the errors of `_lost`."""
        data = {column: bytearray(pages.data) for column, pages in columns.items()}
        for window, decoded in self._decoded(columns):
            for column, pages in columns.items():
                for page in pages.bad.intersection(window):
                    start, at = (page - window[0]) * PAGE, (page - pages.first) * PAGE
                    data[column][at : at + PAGE] = decoded[column][start : start + PAGE]
        return {column: pages._replace(data=data[column], bad=frozenset()) for column, pages in columns.items()}

    def _decoded(self, columns: Mapping[int, Pages]) -> Iterator[tuple[range, list[bytes]]]:
        """Yield ranges of page numbers, each with the decoded bytes of these pages for all k data shards.

        The bad pages of a stripe are decoded together, from the first to the last, if k shards have that whole range,
        as when whole shards are lost. If damage is scattered, each bad page is decoded separately.
        """
        stripes: dict[int, set[int]] = {}
        for pages in columns.values():
            for page in pages.bad:
                stripes.setdefault(page // self._chunk_pages, set()).add(page)
        for bad in stripes.values():
            hull = range(min(bad), max(bad) + 1)
            decoded = self._decode(hull)
            if decoded is not None:
                yield hull, decoded
                continue
            for page in sorted(bad):
                decoded = self._decode(range(page, page + 1))
                if decoded is None:
                    raise self._lost(page)
                yield range(page, page + 1), decoded

    def _decode(self, window: range) -> list[bytes] | None:
        """Decode these pages, all of one stripe, for all k data shards. Returns None unless k shards have all of these
        pages intact."""
        parts: dict[int, bytes] = {}
        for shard in self._folders.shards:
            part = self._good_part(shard, window.start, len(window))
            if part is not None:
                parts[shard] = part
            if len(parts) == self._geometry.k:
                return self._coder.decode(len(window) * PAGE, parts)
        return None

    def _good_part(self, shard: int, first: int, count: int) -> bytes | None:
        for pages in self._pages.get(shard, []):
            if pages.first <= first and first + count <= pages.first + len(pages.data) // PAGE:
                return pages.part(first, count)
        return self._fetch(shard, first, count).part(first, count)

    def _lost(self, page: int) -> Corrupt:
        """Return the error to raise when fewer than k shards have a page. Raises NotFound when the block is gone,
        Transient if shards exist that this process may not read."""
        self._refuse_missing()
        refused = {shard: error for shard, error in self._unreachable.items() if isinstance(error, PermissionError)}
        others = [shard for shard in self._folders.shards if shard not in refused]
        if sum(self._good_part(shard, page, 1) is not None for shard in others) + len(refused) >= self._geometry.k:
            self._folders.refuse_unreachable(refused)
        stripe = page // self._chunk_pages
        named = ", ".join(str(self._folders.folder(shard)) for shard in sorted(self._unreachable))
        return Corrupt(
            f"block {self._block_id.hex()}: stripe {stripe} cannot be read: it is past the end, or more than"
            f" {self._geometry.m} shards are lost or damaged" + (f" (unreachable: {named})" if named else ""),
            block_id=self._block_id,
        )

    def _refuse_missing(self) -> None:
        """Raise NotFound if the block does not exist, Transient if that cannot be known now."""
        with ExitStack() as stack:
            found, unreachable = self._folders.open(stack, self._block_id, write=False)
            if found or len(unreachable) <= self._geometry.m:
                self._folders.require(self._block_id, list(found.values()), unreachable)

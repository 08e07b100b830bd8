"""What the engine packs, and reading its bytes before they are packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import google_crc32c

from nos_ec.core.errors import Corrupt, NosError
from nos_ec.core.header import name_record_size
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.plan import Candidate
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore

_EXTENTS_PER_READ_MAX = 32
"""Extents of one block that are read by one `read_many`; bounds what a single failure makes us read again."""


@dataclass(frozen=True, slots=True)
class Packable:
    """One version of an object that is to move into a stripe, from its landing copy or from another block.

    tickets: (partition, offset) of the messages that asked for it; empty for GC.
    """

    object_id: int
    key: ObjectKey
    version: int
    size: int
    crc32c: int
    source: LandingId | Extent
    tickets: tuple[tuple[int, int], ...] = ()

    @property
    def from_block(self) -> BlockId | None:
        """The block it is in now; None while it is in the landing store."""
        return self.source.block_id if isinstance(self.source, Extent) else None

    def candidate(self, now_ms: int) -> Candidate:
        """The merge-list candidate that stands for it."""
        return Candidate(self.size, name_record_size(self.key.bucket, self.key.name), self, now_ms)


def crc_checked(data: bytes, size: int, crc32c: int, what: str) -> bytes:
    """`data`, when it is `size` bytes with that CRC32C. Raises Corrupt naming `what`."""
    if len(data) != size:
        raise Corrupt(f"{what}: {len(data)} bytes instead of {size}")
    found = google_crc32c.value(data)
    if found != crc32c:
        raise Corrupt(f"{what}: CRC32C is {found:08x} instead of {crc32c:08x}")
    return data


class SourceReader:
    """Reads the bytes of packables concurrently and checks size and CRC of each."""

    def __init__(self, landing: LandingStore, blocks: BlockStore, pool: ThreadPoolExecutor, threads: int) -> None:
        self._landing = landing
        self._blocks = blocks
        self._pool = pool
        self._threads = threads

    def read(self, packables: Sequence[Packable]) -> list[bytes | NosError]:
        """For each packable its bytes, or the error that kept them away. Never raises a NosError itself."""
        results: list[bytes | NosError | None] = [None] * len(packables)
        for batch in self._pool.map(lambda indexes: self._read_batch(packables, indexes), self._batches(packables)):
            for index, outcome in batch:
                results[index] = outcome
        return [outcome for outcome in results if outcome is not None]

    def _batches(self, packables: Sequence[Packable]) -> list[list[int]]:
        """Index lists that are read one after the other by one thread each; extents of one block stay together."""
        by_block: dict[BlockId | None, list[int]] = {}
        for index, packable in enumerate(packables):
            by_block.setdefault(packable.from_block, []).append(index)
        landed = by_block.pop(None, [])
        share = max(1, -(-len(landed) // self._threads))
        batches = list(_sliced(landed, share))
        for indexes in by_block.values():
            batches.extend(_sliced(indexes, _EXTENTS_PER_READ_MAX))
        return batches

    def _read_batch(self, packables: Sequence[Packable], indexes: list[int]) -> list[tuple[int, bytes | NosError]]:
        block_id = packables[indexes[0]].from_block
        if block_id is not None and len(indexes) > 1:
            extents = [p.source for p in (packables[i] for i in indexes) if isinstance(p.source, Extent)]
            try:
                found = self._blocks.read_many(block_id, [(extent.offset, extent.length) for extent in extents])
                return [(i, _checked(packables[i], data)) for i, data in zip(indexes, found, strict=True)]
            except NosError:
                pass  # one bad extent fails them all: find out which, by reading each on its own
        return [(i, self._read_one(packables[i])) for i in indexes]

    def _read_one(self, packable: Packable) -> bytes | NosError:
        source = packable.source
        try:
            if isinstance(source, Extent):
                data = self._blocks.read(source.block_id, source.offset, source.length)
            else:
                # Its size is known: one operation, where a store that must ask for it needs more for a long copy.
                data = self._landing.read_range(source, 0, packable.size)
        except NosError as error:
            return error
        return _checked(packable, data)


def _checked(packable: Packable, data: bytes) -> bytes | NosError:
    try:
        return crc_checked(data, packable.size, packable.crc32c, f"source of {packable.key} v{packable.version}")
    except Corrupt as error:
        return error


def _sliced(indexes: Iterable[int], count: int) -> Iterable[list[int]]:
    iterator = iter(indexes)
    while piece := list(islice(iterator, count)):
        yield piece

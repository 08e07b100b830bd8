"""The erasure-coded block store.

A block is an append-only sequence of whole stripes. The unit of an append is one stripe group; every
offset and length below is in bytes of user-visible (data) space, coding chunks excluded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """What reading has cost since the store was opened.

    shard_reads: reads issued to shards (OSDs), one per shard and per call that had to touch it.
    shard_bytes: bytes of data those reads returned (checksums and framing excluded).
    degraded_reads: reads that had to decode because a shard was lost or corrupted.
    """

    shard_reads: int
    shard_bytes: int
    degraded_reads: int


class BlockStore(Protocol):
    """k+m erasure-coded, append-only blocks. Safe to call from several threads."""

    @property
    def geometry(self) -> Geometry:
        """Geometry the store was created with."""
        ...

    def create(self, block_id: BlockId, data: bytes | bytearray | memoryview = b"") -> None:
        """Create a block, exclusively, with its first stripes: `data` as of `append`, or none for an empty block.

        One step where the store can do it in one: a block costs no more writes than its appends do. Durable on
        return. Raises Conflict when the block exists (or existed and is sealed), NoSpace, Transient. After NoSpace
        nothing of the block exists, now or later. After any other Transient it may or may not exist, and as after a
        failed append nobody knows where it ends.
        """
        ...

    def append(self, block_id: BlockId, at_stripe: int, data: bytes | bytearray | memoryview) -> None:
        """Append whole stripes; `at_stripe` is the number of stripes the block holds by the caller's books.

        Durable on all shards on return. `len(data)` must be a positive multiple of the stripe size and the
        block must not grow over stripes_per_block (ValueError: a bug of the caller). What fills the block up to
        stripes_per_block seals it as well. Raises NotFound, Conflict when the block is sealed or its end is not at
        `at_stripe`, NoSpace, Transient.
        After any error the state of the block's end is unknown: the caller must not append to it again,
        but seal it. Bytes acknowledged earlier are never damaged by a failed append.
        """
        ...

    def read(self, block_id: BlockId, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes. Touches only the shards the range lies in, unless one of them is lost.

        Every byte returned has been verified by the store, also of a range within an object: the embedded store checks
        a CRC32C of each page, Ceph's OSDs the checksums of BlueStore. What fails counts as lost; up to m lost or
        corrupted shards are made up for by decoding. Raises NotFound (no such block), Corrupt (range past the end of
        the block, or more than m shards of a stripe lost or damaged). Retrying is safe.
        """
        ...

    def read_many(self, block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several (offset, length) ranges of one block, in order; as `read` for each.

        Exists so that an adapter can send them as one vectored or pipelined operation.
        """
        ...

    def seal(self, block_id: BlockId) -> int:
        """Make every later append fail with Conflict, also one that is in flight in another process.

        Durable on return and idempotent. Returns the number of stripes the block holds (stripes of a torn
        append are counted when they can be read). Raises NotFound, Transient.
        """
        ...

    def stripes(self, block_id: BlockId) -> int:
        """Number of readable stripes the block holds. Raises NotFound."""
        ...

    def delete(self, block_id: BlockId) -> None:
        """Delete a block and its data. Idempotent: a block that does not exist is no error.

        Crash-safe: after a crash a second call completes it. Raises Transient.
        """
        ...

    def list_blocks(self) -> Iterator[BlockId]:
        """Every block that exists in whole or in part, in no particular order."""
        ...

    def free_bytes(self) -> int:
        """User bytes (after coding overhead) that can still be appended, a lower-bound estimate.

        Raises Transient when that cannot be told because a shard needed for writing is not there.
        """
        ...

    def probe(self) -> None:
        """A small piece of real work, so that a store is not taken for well because it answers questions. Changes
        nothing, and is bounded as any read is; a store that is full passes.

        Raises Transient while blocks cannot be read or written, Blocklisted, ConfigError.
        """
        ...

    def raw_bytes(self) -> int:
        """Bytes allocated on all shards together, coding chunks and framing included."""
        ...

    def blocks_short(self) -> int | None:
        """Blocks that lack one of their shards, so that they survive fewer losses. Costs a listing of the store.

        None where the store finds and mends them itself.
        """
        ...

    def counters(self) -> ReadCounters:
        """Cost of reading so far."""
        ...

    def close(self) -> None:
        """Release what is held open. The store must not be used afterwards."""
        ...

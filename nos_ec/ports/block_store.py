"""The erasure-coded block store.

A block is an append-only sequence of whole stripes. An append adds one stripe group, or one window of a group. All
offsets and lengths below are in bytes of user-visible (data) space, without coding chunks.

NotFound, Conflict and Corrupt carry the `block_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """The cost of all reads since the store was opened.

    `shard_reads` counts reads issued to shards (OSDs): each call counts one for every shard that it touches.
    `shard_bytes` counts the bytes of data that those reads returned, without checksums and framing. `degraded_reads`
    counts reads that had to decode because a shard was lost or corrupted; it is 0 where the storage system does not
    report this to clients. `timed_out_reads` counts calls that got no answer in time; it is 0 where reads have no time
    limit.
    """

    shard_reads: int
    shard_bytes: int
    degraded_reads: int
    timed_out_reads: int = 0


class BlockStore(Protocol):
    """k+m erasure-coded, append-only blocks. Safe to call from several threads."""

    @property
    def geometry(self) -> Geometry:
        """Return the geometry that the store was created with."""

    def create(self, block_id: BlockId, data: bytes | bytearray | memoryview = b"") -> None:
        """Create a block exclusively and write its first stripes. `data` is as for `append`; empty data creates an
        empty block.

        A store that can create and write in one step does so; creating the block then costs no write of its own.
        Durable on return. Raises Conflict when the block exists (or existed and is sealed), NoSpace, Transient. After
        NoSpace the block does not exist and will not appear later. After any other Transient it may or may not exist,
        and its end is unknown, as after a failed append.
        """

    def append(self, block_id: BlockId, at_stripe: int, data: bytes | bytearray | memoryview) -> None:
        """Append whole stripes. `at_stripe` is the number of stripes in the block by the caller's count.

        Durable on all shards on return. `len(data)` must be a positive multiple of the stripe size, and the block must
        not grow beyond stripes_per_block; otherwise raises ValueError (a bug in the caller). An append that fills the
        block up to stripes_per_block also seals it. Raises NotFound, Conflict when the block is sealed or does not end
        at `at_stripe`, NoSpace, Transient. After any error the end of the block is unknown: the caller must not append
        to the block again and must seal it. A failed append never damages bytes that were acknowledged earlier.
        """

    def read(self, block_id: BlockId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Reads only the shards that hold the range, unless one of them is lost.

        The store has verified every byte that it returns, even when the range covers only part of an object: the
        embedded store checks a CRC32C for each page, and Ceph's OSDs check BlueStore's checksums. Data that fails its
        check counts as lost. Decoding makes up for up to m lost or corrupted shards. Raises NotFound (no such block),
        Corrupt (the range extends past the end of the block, or more than m shards of a stripe are lost or damaged).
        Retrying is safe.
        """

    def read_many(self, block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several (offset, length) ranges of one block, in order. Each is read as by `read`.

        This method exists so that an adapter can send the reads as one vectored or pipelined operation.
        """

    def seal(self, block_id: BlockId) -> int:
        """Make every later append fail with Conflict, even one that is in flight in another process.

        Durable on return and idempotent. Returns the number of stripes in the block. Stripes of a torn append count
        when they can be read. Raises NotFound, Transient.
        """

    def stripes(self, block_id: BlockId) -> int:
        """Return the number of readable stripes in the block. Raises NotFound."""

    def delete(self, block_id: BlockId) -> None:
        """Delete a block and its data. Idempotent: deleting a block that does not exist is not an error.

        Crash-safe: after a crash, a second call completes the deletion. Raises Transient.
        """

    def list_blocks(self) -> Iterator[BlockId]:
        """Yields every block that exists in whole or in part, in no particular order."""

    def free_bytes(self) -> int:
        """Return a lower-bound estimate of the user bytes (after coding overhead) that can still be appended.

        Raises Transient when no estimate is possible because a shard needed for writing is missing.
        """

    def probe(self) -> None:
        """Do a small piece of real work, because a store that answers status queries may still be unable to do any.
        Changes nothing, and has the same time limit as any read. A full store passes.

        Raises Transient while blocks cannot be read or written, Blocklisted, ConfigError.
        """

    def raw_bytes(self) -> int:
        """Return the bytes allocated on all shards together, including coding chunks and framing."""

    def blocks_short(self) -> Mapping[int, int] | None:
        """Return {n: number of blocks that lack n shards}, without complete blocks. A block that lacks shards survives
        fewer losses. The call lists the whole store.

        Returns None if the storage system finds and repairs such blocks itself.
        """

    def missing_shards(self, block_id: BlockId) -> Sequence[int]:
        """Return the shards that have no data of this block, including lost shards. Returns an empty sequence if the
        storage system finds and repairs incomplete blocks itself. The block must not be created or deleted during the
        call. Raises Transient."""

    def counters(self) -> ReadCounters:
        """Return the cost of all reads so far."""

    def close(self) -> None:
        """Release all open resources. The store must not be used afterwards."""

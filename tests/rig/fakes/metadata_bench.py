"""A metadata store with a clock, shorthands and a check of its counters. Every metadata suite uses it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, TypeVar

from nos_ec.core.conditions import Condition
from nos_ec.core.formats.messages import PackRequest
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.publishing.slots import ALL_SLOTS
from nos_ec.core.states import BlockKind
from nos_ec.ports.metadata import (
    GroupCommit,
    LandingDeletion,
    Lease,
    Metadata,
    Move,
    NewLargeObject,
    NewObject,
    ObjectRow,
    PutRequest,
    Segment,
)
from tests.rig.fakes.audit import all_objects

GEOMETRY = Geometry(k=2, m=1, chunk_size=16384, stripes_per_block=8, stripes_per_group_max=4)
"""Small on purpose: a stripe of 32 KiB."""
HEADER = 4096
TTL_MS = 30_000
RESERVED_MS = 60_000

NewT = TypeVar("NewT", NewObject, NewLargeObject)


def asking(new: NewT, **asked: Any) -> NewT:
    """Return the object with these fields of its request."""
    return replace(new, request=replace(new.request, **asked))


def new_landing_id() -> LandingId:
    """The id of a copy in the landing store that was never used."""
    random = secrets.token_bytes(16)
    return LandingId(bytes([random[0] & 0x7F]) + random[1:])


def pack_request(row: ObjectRow) -> PackRequest:
    """The event of a row whose bytes are in the landing store."""
    assert row.landing_id is not None
    return PackRequest(row.object_id, row.key, row.version, row.size, row.crc32c, row.landing_id)


def new_block_id() -> BlockId:
    """An id that was never used."""
    return BlockId(secrets.token_bytes(16))


class MetadataBench:
    """`metadata` bound to GEOMETRY, at `now_ms`."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.now_ms = 1_700_000_000_000
        self._writers = count(1)
        metadata.bind_geometry(GEOMETRY)

    def new(self, name: str, size: int = 1000, *, bucket: str = "bucket", due_ms: int = 0) -> NewObject:
        """An object with a reserved landing copy (none when empty)."""
        landing_id = new_landing_id() if size else None
        if landing_id is not None:
            self.metadata.reserve_landing([landing_id], self.now_ms + RESERVED_MS)
        md5 = hashlib.md5(name.encode(), usedforsecurity=False).digest()
        request = PutRequest(ObjectKey(bucket, name))
        return NewObject(request, size, size * 7 + 1, md5, landing_id, due_ms or self.now_ms)

    def put(self, name: str, size: int = 1000, *, bucket: str = "bucket", due_ms: int = 0) -> ObjectRow:
        """PUT one object."""
        return self.record([self.new(name, size, bucket=bucket, due_ms=due_ms)])[0]

    def put_all(self, names: Sequence[str], size: int = 1000) -> list[ObjectRow]:
        """PUT several objects at once."""
        ids = [new_landing_id() for _ in names]
        self.metadata.reserve_landing(ids, self.now_ms + RESERVED_MS)
        new = [
            NewObject(PutRequest(ObjectKey("bucket", name)), size, size * 7 + 1, bytes(16), landing_id, self.now_ms)
            for name, landing_id in zip(names, ids, strict=True)
        ]
        return self.record(new)

    def record(self, new: Sequence[NewObject], later_ms: int = 0) -> list[ObjectRow]:
        """Record PUTs, `later_ms` from now; all of them must succeed."""
        answers = self.metadata.record_puts(new, self.now_ms + later_ms)
        rows = [answer for answer in answers if isinstance(answer, ObjectRow)]
        assert len(rows) == len(answers), answers
        return rows

    def lease(self, name: str = "") -> Lease:
        """Acquire the lease of a writer with this name, or of a new writer."""
        return self.metadata.acquire_lease(name or f"writer-{next(self._writers)}", self.now_ms, TTL_MS)

    def block(self, lease: Lease, kind: BlockKind = BlockKind.FRESH) -> BlockId:
        """Allocate an open, empty block of this writer."""
        block_id = new_block_id()
        self.metadata.allocate_block(lease, block_id, kind, self.now_ms)
        return block_id

    def group(
        self, lease: Lease, block_id: BlockId, rows: Sequence[ObjectRow], *, at: int = 0, stripes: int = 1
    ) -> GroupCommit:
        """Return a group with these objects one after another, each moved from where its row places it."""
        offset = at * GEOMETRY.stripe_size + HEADER
        moves = []
        for row in rows:
            from_block = row.extent.block_id if row.extent else None
            moves.append(Move(row.object_id, row.version, from_block, offset, row.size))
            offset += row.size
        return GroupCommit(lease, block_id, at, stripes, moves, self.now_ms + 5, self.now_ms)

    def pack(self, rows: Sequence[ObjectRow], *, seal: bool = True) -> BlockId:
        """Pack the objects into a new block, with a new writer."""
        lease = self.lease()
        block_id = self.block(lease)
        won = self.metadata.commit_group(self.group(lease, block_id, rows))
        assert won == {row.object_id for row in rows}
        if seal:
            self.metadata.seal_block(lease, block_id, self.now_ms)
        return block_id

    def packed(self, name: str, size: int = 1000) -> ObjectRow:
        """PUT and pack one object. Returns its row."""
        self.pack([self.put(name, size)])
        return self.get(name)

    def large(
        self, name: str, lease: Lease, *, version: int = 0, parts: int = 2, condition: Condition | None = None
    ) -> NewLargeObject:
        """A large object with freshly allocated blocks, one stripe each."""
        length = 20_000
        key = ObjectKey("bucket", name)
        segments = [
            Segment(Extent(self.block(lease, BlockKind.LARGE), HEADER, length), part + 1) for part in range(parts)
        ]
        version = version or self.metadata.next_version(key, self.now_ms, conditional=condition is not None)
        md5 = bytes(range(16))
        request = PutRequest(key, condition=condition)
        return NewLargeObject(request, version, parts * length, 99, md5, segments, [1] * parts)

    def get(self, name: str, bucket: str = "bucket") -> ObjectRow:
        """The row of an object."""
        return self.metadata.get(ObjectKey(bucket, name))

    def delete(self, name: str) -> ObjectRow:
        """Delete an object."""
        return self.metadata.delete(ObjectKey("bucket", name), self.now_ms)

    def delete_into_trash(self, name: str, keep_ms: int) -> ObjectRow:
        """Delete an object; the trash keeps it for so long."""
        return self.metadata.delete(ObjectKey("bucket", name), self.now_ms, self.now_ms + keep_ms)

    def deletions(self) -> dict[LandingId, LandingDeletion]:
        """The whole deletion queue."""
        return {entry.landing_id: entry for entry in self.metadata.due_deletions(2**60, 100_000)}

    def check_counters(self) -> None:
        """Check invariants 3 and 6: the counters of each block match its rows and sum to its size. Also that what is in
        the landing store waits to be packed (invariant 5), and nothing else does."""
        landed = sorted((row.object_id, row) for row in all_objects(self.metadata) if row.state.in_landing)
        waiting = self.metadata.due_objects(2**60, 100_000, ALL_SLOTS)
        assert sorted((row.object_id, row) for row in waiting) == landed
        for block in self.metadata.list_blocks(None, 100_000):
            placed = self.metadata.placed_in(block.block_id)
            size = block.stripes * GEOMETRY.stripe_size
            assert block.live_bytes + block.dead_bytes + block.overhead_bytes == size, block
            assert block.live_bytes == sum(one.extent.length for one in placed), block
            assert block.live_objects == len(placed), block
            ends = [(one.extent.offset, one.extent.offset + one.extent.length) for one in placed]
            assert all(end <= start for (_, end), (start, _) in pairwise(ends)), block

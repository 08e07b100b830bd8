"""Objects too large for a stripe group: written directly to blocks of their own, one segment and one group per block.

The group of such a block spans all of its stripes: one 4 KiB header for up to 32 MiB, and the block describes
itself like any other (invariant 7). One block is in memory at a time. If the store does not accept it, its bytes
are written to another block, a limited number of times (engine/stripe_writer.py says why).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import google_crc32c
import structlog

from nos_ec.core.errors import Conflict, LeaseLost, NosError, NoSpace, NotFound
from nos_ec.core.header import header_length, name_record_size, names_size_max
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.lifecycle import BlockKind
from nos_ec.engine.group_bytes import GroupItem, GroupPlace, assemble
from nos_ec.engine.late_blocks import remove_late_block
from nos_ec.engine.leases import HeldLease, HeldLeases
from nos_ec.engine.packable import crc_checked
from nos_ec.engine.refused_blocks import forget_refused_block
from nos_ec.engine.room import require_room
from nos_ec.engine.streams import ByteStream, read_up_to
from nos_ec.engine.stripe_writer import APPEND_TRIES, another_place_may_do
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Lease, Metadata, NewLargeObject, ObjectRow, Segment
from nos_ec.ports.placement import Placement

_log = structlog.get_logger(__name__)


class LargeObjects:
    """Writes and reads large objects. Safe to call from several threads; each PUT takes its own lease."""

    def __init__(
        self,
        metadata: Metadata,
        blocks: BlockStore,
        clock: Clock,
        placement: Placement,
        lease_ttl_ms: int,
        reserve_bytes: int,
        held: HeldLeases,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._placement = placement
        self._lease_ttl_ms = lease_ttl_ms
        self._reserve_bytes = reserve_bytes
        self._held = held
        self._trail = trail

    def put(self, key: ObjectKey, head: bytes, rest: ByteStream, attributes: bytes = b"") -> ObjectRow:
        """Store `head` followed by all of `rest`. Durable on return.

        Raises NoSpace, Transient, LeaseLost. The blocks written so far are then left to recovery, which deletes
        them, and the old version stays current.
        """
        name = f"put-{self._placement.new_block_id().hex()}"
        with HeldLease(self._metadata, self._clock, name, self._lease_ttl_ms, among=self._held) as held:
            version = self._metadata.next_version(key, self._clock.now_ms())
            made: list[BlockId] = []
            try:
                new = self._write(key, version, head, rest, attributes, held.lease, made)
                kill_point("large.written")
                self._metadata.record_large(new, held.lease, self._clock.now_ms())
            except NosError as error:
                for block_id in made:
                    remove_late_block(self._metadata, self._blocks, block_id, self._clock.now_ms(), self._trail)
                if isinstance(error, NotFound | Conflict) and not held.renew():
                    # Other processes have since recovered the blocks, or even collected them.
                    raise LeaseLost(
                        f"{key}: its writer stalled for longer than its lease; PUT it again", key=key
                    ) from error
                raise
        kill_point("large.recorded")
        return self._recorded(new)

    def _recorded(self, new: NewLargeObject) -> ObjectRow:
        """The row just recorded. If a concurrent PUT or DELETE came after it, the later outcome stands."""
        try:
            return self._metadata.get(new.key)
        except NotFound:
            raise Conflict(f"{new.key}: deleted by another client while it was being stored", key=new.key) from None

    def _write(
        self,
        key: ObjectKey,
        version: int,
        head: bytes,
        rest: ByteStream,
        attributes: bytes,
        lease: Lease,
        made: list[BlockId],
    ) -> NewLargeObject:
        """Write all segments. Adds the id of each block to `made` when it is allocated, so that `made` is right after a
        failure too."""
        md5 = hashlib.md5(usedforsecurity=False)
        crc32c = 0
        size = 0
        segments: list[Segment] = []
        block_stripes: list[int] = []
        front = self._front(key, attributes)
        for data, last in self._cut(front, head, rest):
            md5.update(data)
            crc32c = google_crc32c.extend(crc32c, data)
            # The size of a stream is known only at its end, so the last segment carries it and the others have 0.
            item = GroupItem(
                key,
                version,
                front,
                data,
                google_crc32c.value(data),
                segment=(size, size + len(data) if last else 0),
                attributes=attributes if last else b"",
            )
            segment, stripes = self._write_block(item, lease, made)
            size += len(data)
            segments.append(segment)
            block_stripes.append(stripes)
        return NewLargeObject(key, version, size, crc32c, md5.digest(), segments, block_stripes, attributes)

    def _front(self, key: ObjectKey, attributes: bytes) -> int:
        """Bytes of header and name. Those of the last segment, which nobody knows to be the last when it is cut."""
        record_size = name_record_size(key.bucket, key.name, (0, 0), attributes)
        return header_length(1) + names_size_max(record_size)

    def _cut(self, front: int, head: bytes, rest: ByteStream) -> Iterator[tuple[bytes, bool]]:
        """Cut the stream into pieces that fit into a block behind header and name, `front` bytes. Yields (piece,
        whether it is the last).

        One byte is read ahead, to learn whether anything follows a piece that fills its block.
        """
        capacity = self._blocks.geometry.block_size - front
        while True:
            head += read_up_to(rest, max(0, capacity + 1 - len(head)))
            if len(head) <= capacity:
                yield head, True
                return
            yield head[:capacity], False
            head = head[capacity:]

    def _write_block(self, item: GroupItem, lease: Lease, made: list[BlockId]) -> tuple[Segment, int]:
        geometry = self._blocks.geometry
        stripes = geometry.stripes_for(item.offset + len(item.data))
        require_room(self._blocks, stripes * geometry.stripe_size, self._reserve_bytes)
        for tries_left in reversed(range(APPEND_TRIES)):
            block_id = self._placement.new_block_id()
            self._metadata.allocate_block(lease, block_id, BlockKind.LARGE, self._clock.now_ms())
            made.append(block_id)
            kill_point("large.allocated")
            try:
                self._fill(block_id, stripes, item, lease)
                return Segment(Extent(block_id, item.offset, len(item.data)), item.crc32c), stripes
            except NosError as error:
                # The block stays with this lease; releasing the lease at the end of the PUT leaves it to recovery.
                if not tries_left or not another_place_may_do(self._placement, error):
                    raise
                _log.warning("segment not written; trying another block", error=str(error), tries_left=tries_left)
        raise AssertionError("unreachable")

    def _fill(self, block_id: BlockId, stripes: int, item: GroupItem, lease: Lease) -> None:
        """Create the block with its only group, and seal it."""
        place = GroupPlace(block_id, 0, stripes, lease.epoch, self._clock.now_ms())
        data = assemble(self._blocks.geometry, place, [item])
        try:
            self._blocks.create(block_id, data)
        except NoSpace:
            forget_refused_block(self._metadata, lease, block_id)
            raise
        kill_point("large.appended")
        self._blocks.seal(block_id)

    def read(self, row: ObjectRow, offset: int, length: int) -> Iterator[bytes]:
        """Bytes [offset, offset + length) of a large object, one segment at a time; whole segments are CRC-checked.

        Raises NotFound when that version is gone before the first byte is read, Corrupt, Transient.
        """
        segments = self._metadata.segments(row.object_id, row.version)
        if not segments:
            raise NotFound(f"{row.key} v{row.version} was deleted or overwritten; read it again", key=row.key)
        return self._read_segments(row, segments, offset, offset + length)

    def _read_segments(self, row: ObjectRow, segments: list[Segment], first: int, end: int) -> Iterator[bytes]:
        at = 0
        for segment in segments:
            extent = segment.extent
            begin, stop = max(first, at), min(end, at + extent.length)
            if begin < stop:
                data = self._blocks.read(extent.block_id, extent.offset + begin - at, stop - begin)
                if len(data) == extent.length:
                    crc_checked(data, extent.length, segment.crc32c, row.key, f"{row.key} v{row.version} at {at}")
                yield data
            at += extent.length

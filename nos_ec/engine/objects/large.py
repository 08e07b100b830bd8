"""Writes and reads objects that are too large for a stripe group. They get blocks of their own, with one segment and
one group per block.

The group of such a block spans all its stripes: one 4 KiB header for up to 32 MiB, so that the block describes itself
like any other (invariant 7). If the store refuses a block, its bytes are written to another block, a limited number of
times (engine/packing/stripe_writer.py explains why). The bytes after the last whole stripe are the tail, an object of
its own (core.tails), which is stored after the blocks and before the row of the object.

9  one block is in memory while an object is written (engine/objects/large_block.py), and one window while it is read
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

import google_crc32c
import structlog

from nos_ec.core.errors import (
    Conflict,
    Corrupt,
    LeaseLost,
    NosError,
    NoSpace,
    NoSuchUpload,
    NotFound,
    Transient,
)
from nos_ec.core.formats.header import header_length, name_record_size, names_size_max
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import bucket_of_parts
from nos_ec.core.states import BlockKind, ObjectEvent, advance_object
from nos_ec.core.tails import tail_key, tail_place
from nos_ec.core.versions import Versioning
from nos_ec.engine.audit_entries import late_block
from nos_ec.engine.landing.lander import not_voided
from nos_ec.engine.objects.large_block import LargeBlock, windows
from nos_ec.engine.objects.large_lease import LargeLease, Loan
from nos_ec.engine.objects.streams import ByteStream, ReadAhead
from nos_ec.engine.packable import combine_crc32c
from nos_ec.engine.packing.group_bytes import GroupPlace
from nos_ec.engine.packing.late_blocks import remove_late_block
from nos_ec.engine.packing.refused_blocks import forget_refused_block
from nos_ec.engine.packing.stripe_writer import APPEND_TRIES, another_place_may_do
from nos_ec.engine.space_reserve import require_space
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import (
    Lease,
    Metadata,
    NewLargeObject,
    ObjectRow,
    PartOf,
    PutRequest,
    Segment,
    TailOf,
    UploadState,
)
from nos_ec.ports.placement import Placement

_NUMBERS = 500
"""The number of version numbers of one parity (`core.versions.numbered`) in a millisecond."""
_TURN = 389
"""Has no common factor with _NUMBERS, so that every number is used before one repeats."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TailPuts:
    """How tails are stored. `put` stores a tail durably; it raises NoSpace, Transient, and Conflict when the block is
    not OPEN any more. `size_max` is the size of the largest tail in bytes."""

    put: Callable[[PutRequest, bytes], object]
    size_max: int


Record = Callable[[NewLargeObject, Lease, int], T]
"""Records a large object whose blocks are written under this lease, at this time (Unix milliseconds)."""


@dataclass(frozen=True, slots=True)
class _Stored(Generic[T]):
    """A large object that was written, its blocks, and what recording it at `now_ms` has returned."""

    new: NewLargeObject
    made: Sequence[BlockId]
    recorded: T
    now_ms: int


class LargeObjects:
    """Writes and reads large objects. Safe to call from several threads."""

    def __init__(
        self,
        metadata: Metadata,
        blocks: BlockStore,
        clock: Clock,
        placement: Placement,
        lease: LargeLease,
        reserve_bytes: int,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._placement = placement
        self._lease = lease
        self._reserve_bytes = reserve_bytes
        self._trail = trail
        self._turns = count()

    def put(self, request: PutRequest, head: bytes, rest: ByteStream, tails: TailPuts | None = None) -> ObjectRow:
        """Store `head` followed by all of `rest`. Durable on return. tails: how the tail is stored; None cuts no tail.

        Raises NoSpace, Transient, LeaseLost. Then recovery takes over the blocks written so far, GC deletes them and
        the tail, and the old version stays current.

        Also raises PreconditionFailed or NotFound when the condition does not hold, either before anything is written,
        or at the end, when a version was stored or deleted meanwhile. Raises NoSuchUpload when the upload of a part was
        completed or aborted. The last block is then deleted first, so that a rebuild of the metadata does not find a
        whole object, and GC deletes the others. If the deletion fails, Transient is raised instead.
        """
        # 1. Judge the condition early, so that nothing is written in vain.
        if (refusal := self._refusal(request)) is not None:
            raise refusal
        # 2. Write the blocks, then the tail, then the row.
        stored = self._store(request, ReadAhead(head, rest), tails, self._metadata.record_large)
        # 3. Answer with the row of this PUT, or with the refusal of the transaction.
        if isinstance(stored.recorded, NosError):
            raise self._refused(stored.new, stored.recorded, stored.made)
        kill_point("large.recorded")
        if isinstance(request.step, PartOf) and not stored.recorded:
            self._require_current_part(stored.new, request.step)
        return self._row_of(stored.new, stored.now_ms)

    def copy(
        self, row: ObjectRow, head: bytes, rest: ByteStream, tails: TailPuts | None, record: Record[object]
    ) -> None:
        """Store the bytes of a version of another cell, with its number and attributes, and `record` the copy. Durable
        on return. Raises what `put` raises without a condition, and what `record` raises."""
        request = PutRequest(row.key, row.attributes)
        self._store(request, ReadAhead(head, rest), tails, record, version=row.version)

    def _store(
        self,
        request: PutRequest,
        stream: ReadAhead,
        tails: TailPuts | None,
        record: Record[T],
        version: int | None = None,
    ) -> _Stored[T]:
        """Write the blocks, the tail, and the row with `record`."""
        with self._lease.lent() as loan:
            made: list[BlockId] = []
            try:
                size_max = 0 if tails is None else tails.size_max
                new, tail = self._write(request, stream, loan, made, size_max, version)
                kill_point("large.written")
                if tails is not None and tail:
                    last = new.segments[-1].extent.block_id
                    tails.put(PutRequest(tail_key(last), step=TailOf(last)), tail)
                    del tail
                    kill_point("large.tail_landed")
                now_ms = self._clock.now_ms()
                recorded = record(new, loan.lease, now_ms)
            except NosError as error:
                # After a failure, delete blocks that were created after GC had already collected them.
                for block_id in made:
                    remove_late_block(self._metadata, self._blocks, block_id, self._clock.now_ms(), self._trail)
                if isinstance(error, NotFound | Conflict) and not loan.renew():
                    # Other processes have since recovered the blocks, or even deleted them.
                    raise LeaseLost(
                        f"{request.key}: its writer stalled for longer than its lease; PUT it again", key=request.key
                    ) from error
                raise
        if len(made) > len(new.segments):
            loan.retire()  # the store refused the other blocks, which stay OPEN
        return _Stored(new, made, recorded, now_ms)

    def _refused(self, new: NewLargeObject, refusal: NosError, made: Sequence[BlockId]) -> NosError:
        """Delete the last block, the only one that marks the object as whole, and return the answer to the PUT."""
        kill_point("large.refused")
        last = new.segments[-1].extent.block_id
        self._trail.record([late_block(last, "its PUT was refused")])
        try:
            self._blocks.delete(last)
        except NosError as error:
            _log.warning("last block of a refused PUT not deleted", block=last.hex(), error=str(error))
        else:
            kill_point("large.voided")
            if len(made) == len(new.segments):  # otherwise a refused block may contain the last segment as well
                return refusal
        return not_voided(refusal)

    def _require_current_part(self, new: NewLargeObject, step: PartOf) -> None:
        """Raise NoSuchUpload if the upload is not OPEN any more, or Transient if another request has stored the part:
        the MD5 of this one would then name another part when the upload is completed."""
        upload = self._metadata.upload(step.upload_id, bucket_of_parts(new.key.bucket))
        if upload is None or upload.state is not UploadState.OPEN:
            raise NoSuchUpload(f"upload {step.upload_id.hex()} was completed or aborted meanwhile", key=new.key)
        current = self._current(new.key)
        if current is not None and current.md5 != new.md5:
            raise Transient(f"{new.key}: another request stored this part meanwhile; send it again", key=new.key)

    def _refusal(self, request: PutRequest) -> NosError | None:
        """Return why the condition of the request does not hold at present, or None."""
        if request.condition is None:
            return None
        current = self._current(request.key)
        return request.condition.refusal(request.key, None if current is None else current.tag)

    def _current(self, key: ObjectKey) -> ObjectRow | None:
        try:
            return self._metadata.get(key)
        except NotFound:
            return None

    def _row_of(self, new: NewLargeObject, now_ms: int) -> ObjectRow:
        """Return the row of this PUT, never the row of another one. If the object was overwritten or deleted meanwhile,
        return the row as it was, with the object id 0: the PUT did take effect before."""
        row = self._current(new.key)
        if (row is None or row.version != new.version) and new.versioning is Versioning.ENABLED:
            with suppress(NotFound):
                row = self._metadata.version(new.key, new.version).row
        if row is not None and (row.version, row.md5) == (new.version, new.md5):
            return row
        return ObjectRow(
            object_id=0,
            key=new.key,
            version=new.version,
            state=advance_object(None, ObjectEvent.STORE),
            size=new.size,
            crc32c=new.crc32c,
            md5=new.md5,
            landing_id=None,
            extent=None,
            created_ms=now_ms,
            attributes=new.attributes,
        )

    def _write(
        self,
        request: PutRequest,
        stream: ReadAhead,
        loan: Loan,
        made: list[BlockId],
        tail_max: int,
        given_version: int | None,
    ) -> tuple[NewLargeObject, bytes]:
        """Write all segments. Returns the object to record, and the bytes of its tail, at most `tail_max`. Adds the id
        of each block to `made` when it is allocated, so that `made` is correct after a failure, too.

        Unless it is given, the version is assigned when the first block is full or the stream has ended. So of two PUTs
        that fit into a block, the one whose bytes are complete last wins, however early it began."""
        version = 0
        md5 = hashlib.md5(usedforsecurity=False)
        crc32c = 0
        size = 0
        segments: list[Segment] = []
        block_stripes: list[int] = []
        front = self._front(request.key, request.attributes)
        tail = b""
        last = False
        while not last:
            block = LargeBlock(self._blocks.geometry, request.key, size, front)
            for window in block.fill(stream):
                md5.update(window)
            crc32c = combine_crc32c(crc32c, block.crc32c, block.length)
            size += block.length
            last = stream.at_end()
            if last:
                tail = block.cut_tail(tail_max)
                request = request.with_envelope()  # of the same length, so `front` is still right
            if not segments:
                version = self._next_version(request) if given_version is None else given_version
            # The size of a stream is known only at its end, so the last segment carries it and the others have 0.
            about = (version, size, request.attributes) if last else (version, 0, b"")
            segments.append(self._write_block(block, about, loan, made))
            block_stripes.append(block.stripes)
        new = NewLargeObject(
            request, version, size, crc32c, md5.digest(), segments, block_stripes, tail_bytes=len(tail)
        )
        return new, tail

    def _next_version(self, request: PutRequest) -> int:
        version = self._metadata.next_version(
            request.key,
            self._clock.now_ms(),
            of_all=request.versioning is not None,
            conditional=request.condition is not None,
        )
        # Each PUT of a process within a millisecond gets another number with the same parity.
        return version + next(self._turns) * _TURN % _NUMBERS * 2

    def _front(self, key: ObjectKey, attributes: bytes) -> int:
        """Return the space for header and name in bytes, as the last segment needs it: a segment is known to be the
        last one only after it was read."""
        record_size = name_record_size(key.bucket, key.name, (0, 0), attributes)
        return header_length(1) + names_size_max(record_size)

    def _write_block(
        self, block: LargeBlock, about: tuple[int, int, bytes], loan: Loan, made: list[BlockId]
    ) -> Segment:
        """Write a segment to a new block. about: version, size and attributes for the name record of this segment."""
        require_space(self._blocks, block.stripes * self._blocks.geometry.stripe_size, self._reserve_bytes)
        for tries_left in reversed(range(APPEND_TRIES)):
            block_id = self._placement.new_block_id()
            self._allocate(block_id, loan, made)
            made.append(block_id)
            kill_point("large.allocated")
            try:
                place = GroupPlace(block_id, 0, block.stripes, loan.lease.epoch, self._clock.now_ms())
                self._create(loan.lease, block_id, block.group(place, *about))
                return Segment(Extent(block_id, block.front, block.length), block.crc32c)
            except NosError as error:
                # The block stays under this lease. Recovery takes it over when the lease is released.
                if not tries_left or not another_place_may_do(self._placement, error):
                    raise
                _log.warning("segment not written; trying another block", error=str(error), tries_left=tries_left)
        raise AssertionError("unreachable")

    def _allocate(self, block_id: BlockId, loan: Loan, made: Sequence[BlockId]) -> None:
        """Allocate a block. If the lease was lost while unused, the first block of a PUT takes another lease."""
        try:
            self._metadata.allocate_block(loan.lease, block_id, BlockKind.LARGE, self._clock.now_ms())
        except LeaseLost:
            if made:
                raise
            loan.exchange()
            self._metadata.allocate_block(loan.lease, block_id, BlockKind.LARGE, self._clock.now_ms())

    def _create(self, lease: Lease, block_id: BlockId, data: bytearray) -> None:
        """Write the block with its only group, and seal it."""
        try:
            self._blocks.create(block_id, data)
        except NoSpace:
            forget_refused_block(self._metadata, lease, block_id)
            raise
        kill_point("large.appended")
        self._blocks.seal(block_id)

    def read(
        self, row: ObjectRow, offset: int, length: int, read_tail: Callable[[ObjectKey, int, int, int], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Yield the bytes [offset, offset + length) of a large object in windows of at most WINDOW_BYTES. The last
        window of a segment that is read as a whole is returned only if the CRC of the segment is right.
        read_tail(key, size, offset, length): reads bytes of the tail, which must have `size` bytes.

        Raises NotFound when that version is gone before the first byte is read, Corrupt, Transient.
        """
        segments, end = self._segments(row), offset + length
        yield from self._read_segments(row, segments, offset, end)
        place = _tail_place(row, segments)
        if place is None:
            return
        key, size = place
        first = max(offset, row.size - size)
        if first < end:
            yield from read_tail(key, size, first - (row.size - size), end - first)

    def segment_start(self, row: ObjectRow, offset: int) -> int:
        """Return where the segment or tail with the byte at `offset` begins. Raises NotFound when the version is
        gone."""
        start = end = 0
        for segment in self._segments(row):
            start, end = end, end + segment.extent.length
            if offset < end:
                return start
        return end if offset < row.size else start

    def _segments(self, row: ObjectRow) -> list[Segment]:
        segments = self._metadata.segments(row.object_id, row.version)
        if not segments:
            raise NotFound(f"{row.key} v{row.version} was deleted or overwritten; read it again", key=row.key)
        return segments

    def _read_segments(self, row: ObjectRow, segments: list[Segment], first: int, end: int) -> Iterator[bytes]:
        at = 0
        for segment in segments:
            begin, stop = max(first - at, 0), min(end - at, segment.extent.length)
            if begin < stop:
                yield from self._read_segment(segment, begin, stop, row.key, f"{row.key} v{row.version} at {at}")
            at += segment.extent.length

    def _read_segment(self, segment: Segment, begin: int, stop: int, key: ObjectKey, what: str) -> Iterator[bytes]:
        """Yield the bytes [begin, stop) of a segment."""
        extent = segment.extent
        whole = (begin, stop) == (0, extent.length)
        crc32c = 0
        for start, length in windows(extent.offset + begin, extent.offset + stop):
            data = self._blocks.read(extent.block_id, start, length)
            if whole:
                crc32c = google_crc32c.extend(crc32c, data)
                if start + length == extent.offset + stop and crc32c != segment.crc32c:
                    raise Corrupt(f"{what}: CRC32C is {crc32c:08x} instead of {segment.crc32c:08x}", key=key)
            yield data
            del data  # not held while the next window is read


def _tail_place(row: ObjectRow, segments: Sequence[Segment]) -> tuple[ObjectKey, int] | None:
    """Return the key of the tail and its size in bytes, or None without a tail."""
    return tail_place(row.size, [(segment.extent.block_id, segment.extent.length) for segment in segments])

"""A medium of the landing log in memory, which can lose power."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from nos_ec.core.errors import Conflict, NoSpace, NotFound, Transient
from nos_ec.core.ids import SegmentId
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.segment_medium import Buffer, DeviceStates, MediumLimits, Seal, UnreadableSlot

SMALL = MediumLimits(
    segment_bytes=16 << 10, start=512, align=512, batch_bytes_max=4 << 10, batch_records_max=16, writes_max=2
)
"""Segments that are soon full."""
JOINED = replace(SMALL, writes_max=1, appends_create_and_seal=True)
"""Such segments, created by their first append and sealed by their last."""


class _Kept:
    """What a segment keeps: batches whose append was done, and where it was sealed."""

    def __init__(self, limits: MediumLimits) -> None:
        self.content = bytearray(limits.start)
        self.end = limits.start
        self.sealed: int | None = None
        self.records = 0
        self.tried = False
        """Whether anything was ever appended, perhaps in vain."""

    def seal(self, limits: MediumLimits, footer: Sequence[Buffer], records: int) -> None:
        """End the segment after its last batch."""
        self.sealed, self.records = -(-self.end // limits.align) * limits.align, records
        self.content.extend(bytes(self.sealed - len(self.content)))
        self.content.extend(b"".join(footer))


class MemoryMedium:
    """A `SegmentMedium`. Processes that share `disk` share the segments.

    A batch counts from the moment its append is done. `tear` decides how many bytes of a batch are kept when its append
    fails: the outcome of a failed append is unknown. Where the limits say `appends_create_and_seal`, all of it is kept
    or nothing, as on Ceph.
    """

    def __init__(
        self, disk: dict[SegmentId, _Kept] | None = None, limits: MediumLimits = SMALL, segments_max: int = 1000
    ) -> None:
        self._disk: dict[SegmentId, _Kept] = {} if disk is None else disk
        self._own: dict[SegmentId, _Kept] = {}
        """Segments of its writers, where they are created by their first append."""
        self._limits = limits
        self._segments_max = segments_max
        self._lock = threading.Lock()
        self.on_append: Callable[[SegmentId], None] = lambda segment: None
        """Called before an append; what it raises is the append's failure."""
        self.on_overwrite: Callable[[SegmentId], None] = lambda segment: None
        """The same fault for an overwrite."""
        self.tear: Callable[[int], int] = lambda size: 0
        """The bytes that a failed append of this many bytes leaves."""
        self.appends = 0
        self.refused = 0
        """Appends that were done, and those that came after one that had failed, which a log must not make."""

    def reopened(self) -> MemoryMedium:
        """The same medium, as another process sees it."""
        again = MemoryMedium(self._disk, self._limits, self._segments_max)
        again._lock = self._lock
        return again

    @property
    def limits(self) -> MediumLimits:
        """See the port."""
        return self._limits

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> MemoryWriter:
        """See the port."""
        with self._lock:
            if segment in self._disk:
                raise Conflict(f"segment {segment.hex()} exists")
            if len(self._disk) >= self._segments_max:
                raise NoSpace(f"{self._segments_max} segments")
            kept = _Kept(self._limits)
            if self._limits.appends_create_and_seal:
                self._own[segment] = kept
            else:
                self._disk[segment] = kept
        return MemoryWriter(self, segment, kept)

    def append(
        self, segment: SegmentId, kept: _Kept, offset: int, batch: Sequence[Buffer], seal: Seal | None = None
    ) -> None:
        """One append of a writer."""
        data = b"".join(batch)
        limits = self._limits
        assert offset % limits.align == len(data) % limits.align == 0 < len(data)
        assert offset + len(data) <= limits.segment_bytes
        kept.tried = True
        try:
            self.on_append(segment)
        except BaseException:
            torn = self.tear(len(data))
            if not self._limits.appends_create_and_seal:
                self._put(segment, kept, offset, data[:torn])
            elif torn >= len(data):
                self._put(segment, kept, offset, data, seal)
            raise
        if not self._put(segment, kept, offset, data, seal):
            raise Conflict(f"segment {segment.hex()} was sealed or released")
        self.appends += 1

    def _put(self, segment: SegmentId, kept: _Kept, offset: int, data: bytes, seal: Seal | None = None) -> bool:
        with self._lock:
            if self._limits.appends_create_and_seal and offset == self._limits.start and kept.sealed is None:
                self._disk.setdefault(segment, kept)
            if kept.sealed is not None or self._disk.get(segment) is not kept:
                return False
            kept.content.extend(bytes(max(0, offset + len(data) - len(kept.content))))
            kept.content[offset : offset + len(data)] = data
            if data:
                kept.end = max(kept.end, offset + len(data))
            if seal is not None:
                kept.seal(self._limits, seal.footer, seal.records)
            return True

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:
        """See the port."""
        with self._lock:
            kept = self._kept(segment)
            return [bytes(kept.content[offset : offset + length]) for offset, length in ranges]

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """See the port."""
        with self._lock:
            if self._limits.appends_create_and_seal and segment not in self._disk:
                own = self._own.get(segment)
                if own is not None and (own.sealed == 0 or not own.tried):
                    own.sealed = 0
                    return 0
                if own is None or own.end == self._limits.start:
                    self._disk[segment] = _Kept(replace(self._limits, start=0))
            kept = self._kept(segment)
            if kept.sealed is None:
                kept.seal(self._limits, footer or (), records)
            self._own.pop(segment, None)
            assert kept.sealed is not None
            return kept.sealed

    def overwrite(self, segment: SegmentId, offset: int, expected: bytes, new: bytes) -> None:
        """See the port."""
        with self._lock:
            content = self._kept(segment).content
            self.on_overwrite(segment)
            if content[offset : offset + len(new)] == expected:
                content[offset : offset + len(new)] = new

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """See the port."""
        with self._lock:
            for segment in segments:
                beat(0)
                self._disk.pop(segment, None)
        return {}

    def segments(self, *, known_only: bool = False) -> Iterator[SegmentId]:
        """See the port."""
        return iter(list(self._disk))

    def free_bytes(self) -> int:
        """See the port."""
        return (self._segments_max - len(self._disk)) * self._limits.segment_bytes

    def raw_bytes(self) -> int:
        """See the port."""
        return sum(len(kept.content) for kept in list(self._disk.values()))

    def devices(self) -> DeviceStates | None:
        """See the port."""
        return None

    def settle_slot(self, found: UnreadableSlot, epoch: int | None) -> bool:
        """See the port."""
        return False

    def probe(self) -> None:
        """See the port."""

    def close(self) -> None:
        """See the port."""

    def _kept(self, segment: SegmentId) -> _Kept:
        try:
            return self._disk[segment]
        except KeyError:
            raise NotFound(f"segment {segment.hex()} is not there") from None


class MemoryWriter:
    """A `SegmentWriter` of it."""

    def __init__(self, medium: MemoryMedium, segment: SegmentId, kept: _Kept) -> None:
        self._medium = medium
        self._segment = segment
        self._kept = kept
        self._lock = threading.Lock()
        self._under_way = 0
        self._next = medium.limits.start
        self._failed = False
        self.closed = False

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        """See the port."""
        with self._lock:
            assert not self.closed
            if self._failed:
                self._medium.refused += 1
                raise Conflict(f"segment {self._segment.hex()}: an append has failed")
            self._under_way += 1
            assert self._under_way <= self._medium.limits.writes_max
        try:
            self._medium.append(self._segment, self._kept, offset, batch, seal)
        except BaseException:
            self._failed = True
            raise
        finally:
            with self._lock:
                self._under_way -= 1

    def close(self) -> None:
        """See the port."""
        assert not self._under_way
        self.closed = True

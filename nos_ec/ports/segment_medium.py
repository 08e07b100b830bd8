"""The medium of the landing log: RADOS objects of the landing pool, or slots of raw devices and preallocated files.

It stores segments: byte ranges that one writer fills from the front, in batches, and that are released as a whole. Only
`nos_ec.engine.landing.landing_log` and `nos_ec.core.formats.landing_format` know the content of a segment; a medium
adds no more than it needs to find the segment again. NotFound carries no landing id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.errors import Transient
from nos_ec.core.ids import SegmentId
from nos_ec.ports.clock import Beat, unwatched

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class MediumLimits:
    """The fixed sizes and limits of a medium.

    `segment_bytes` is the size of a segment, in which the log leaves room for a footer. `start` is the offset of its
    first batch; the medium keeps its own header before it. Batches begin at multiples of `align` bytes, and their sizes
    are multiples of it (the caller pads). `batch_bytes_max` and `batch_records_max` limit what one write should hold.
    `writes_max` is the number of appends to one segment that may be in flight at once. `copies` is the number of copies
    of a segment that `read` can choose from. With `appends_create_and_seal`, the first append creates a segment and the
    last one can seal it, without writes of their own; then `writes_max` is 1.
    """

    segment_bytes: int
    start: int
    align: int
    batch_bytes_max: int
    batch_records_max: int
    writes_max: int
    copies: int = 1
    appends_create_and_seal: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableSlot:
    """A slot whose header cannot be read, so that its owner is uncertain. It is not used for new segments.

    `device` and `slot` are numbers. `segment` comes from the first record in the slot, which is read as if the header
    named that segment; it is None when no record can be read.
    """

    device: int
    slot: int
    segment: SegmentId | None

    def __str__(self) -> str:
        return f"slot {self.slot} of device {self.device} of the landing log"


@dataclass(frozen=True, slots=True)
class DeviceStates:
    """The state of a medium's devices: how many work, a readable text about each of the others (which one, and why),
    and the slots whose headers cannot be read."""

    working: int
    lost: tuple[str, ...]
    unreadable: tuple[UnreadableSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class Seal:
    """The end of a segment: the footer after its last batch, and the number of its records."""

    footer: Sequence[Buffer]
    records: int


class SegmentWriter(Protocol):
    """The writer of one segment."""

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        """Append a batch at `offset`. Durable on return.

        The batches of a segment follow each other without gaps: `offset` is the end of the previous batch. At most
        `writes_max` - 1 earlier batches may still be in flight in other threads. With `seal`, the batch is the last one
        and the segment is sealed on return; no other append may be in flight then.

        Raises Conflict when another process has sealed the segment, even before the first append; NoSpace, Transient.
        After any error the end of the segment is unknown: the caller must not append to it again, and the batch may or
        may not exist, sealed or not.
        """

    def close(self) -> None:
        """Release the writer's resources without sealing the segment. Idempotent."""


class SegmentMedium(Protocol):
    """All segments of one store, no matter which process writes them. Safe to call from several threads."""

    @property
    def limits(self) -> MediumLimits:
        """Return the sizes that are fixed while the medium is open."""

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> SegmentWriter:
        """Begin an empty segment. Durable on return, unless the medium `appends_create_and_seal`: then the first append
        creates the segment and raises these errors. `epoch` belongs to the lease of the log. No record of the segment
        has a number below `first_lsn`. Raises Conflict when the segment exists, NoSpace when there is no room for
        another one, Transient."""

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:
        """Return the bytes of (offset, length) ranges, cut off at the segment's end. Raises NotFound when the segment
        does not exist (any longer), Transient.

        The caller verifies the bytes: a segment may be released, and its place used again, during the read, and there
        may be anything, or nothing, after the last batch. When the check fails, the caller reads again with the next
        `copy`, below `limits.copies`. If a copy cannot be read, another one is read instead.
        """

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """End a segment: no writer, of any process, can append to it again before it is released. Idempotent. Returns
        the end of its last batch, before the footer.

        The segment's own writer passes the `footer` that it appends with the seal, so that a scan need not read the
        records; `footer` is None when that writer is gone. Raises NotFound when the segment does not exist, Transient.

        Where the medium `appends_create_and_seal`, a missing segment may be one that its writer is about to begin. Then
        this method returns 0. Unless only the segment's own writer could begin it, a sealed, empty segment has been
        created in its place, which the caller releases if it has no row any more (nos_ec.engine.landing.segment_seal).
        """

    def overwrite(self, segment: SegmentId, offset: int, expected: bytes, new: bytes) -> None:
        """Replace a few bytes of an appended batch on every copy, while the segment is open or sealed. The range must
        not cross a multiple of RECORD_ALIGN. Durable on return, and idempotent.

        Afterwards each copy has `new`, except copies that had neither `new` nor `expected` before: those are left
        unchanged. Raises NotFound when the segment does not exist, and Transient when a copy could not be changed; the
        other copies are changed as far as possible.
        """

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """Give back the space of segments. Returns the segments that may still exist, each with the reason. Idempotent:
        an absent segment is not an error. `beat` is called as the work progresses."""

    def segments(self, *, known_only: bool = False) -> Iterator[SegmentId]:
        """Yields every segment that exists, in no particular order. Raises Transient rather than end early. With
        `known_only`, it leaves out segments that may exist only in slots whose owners are unknown (see
        `UnreadableSlot`), instead of raising Transient because of such slots."""

    def free_bytes(self) -> int:
        """Return an estimate of the bytes of further segments that fit. The call is cheap, because every PUT makes
        it."""

    def raw_bytes(self) -> int:
        """Return the bytes allocated for all segments, with all copies."""

    def devices(self) -> DeviceStates | None:
        """Try each of the medium's own devices, and return which of them work. Returns None for a medium without
        devices of its own."""

    def settle_slot(self, found: UnreadableSlot, epoch: int | None) -> bool:
        """Write the header of a slot again, durably. With an epoch, it becomes the header of `found.segment` for a log
        whose lease has that epoch; without one, zeros, which free the slot. The caller has determined from the metadata
        which of the two is right. Returns False, and changes nothing, when the slot is not as it was found any more.
        Raises Transient."""

    def probe(self) -> None:
        """Do a small piece of real work, like `BlockStore.probe`. Raises Transient, ConfigError."""

    def close(self) -> None:
        """Release all open resources. The medium must not be used afterwards."""

"""The medium of the landing log: RADOS objects of the landing pool, or slots of raw devices and preallocated files.

It stores segments: byte ranges that are written from the front, in batches, by one writer, and given back as a whole.
What lies in a segment is the business of `nos_ec.engine.landing.landing_log` and `nos_ec.core.formats.landing_format`;
a medium only adds what it needs to find a segment again. NotFound carries no landing id.
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
    """segment_bytes: size of a segment; its log leaves room in it for a footer. start: offset of its first batch; a
    medium keeps what it needs before it. align: batches begin at multiples of this many bytes, and their sizes are
    multiples of it (the caller pads). batch_bytes_max, batch_records_max: what one write should hold at most.
    writes_max: how many appends to one segment may be under way at once. copies: how many copies of a segment `read`
    can choose from. ends_in_appends: a segment comes into being with its first append, and its last append can seal it:
    neither is a write of its own; `writes_max` is 1."""

    segment_bytes: int
    start: int
    align: int
    batch_bytes_max: int
    batch_records_max: int
    writes_max: int
    copies: int = 1
    ends_in_appends: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableSlot:
    """A slot whose header cannot be read, so that its owner is not certain. It is not used for new segments.
    device, slot: their numbers. segment: that of the first record in the slot, which is read as if the header named it;
    None when no record can be read."""

    device: int
    slot: int
    segment: SegmentId | None

    def __str__(self) -> str:
        return f"slot {self.slot} of device {self.device} of the landing log"


@dataclass(frozen=True, slots=True)
class DeviceStates:
    """The number of working devices of a medium, a readable text about each of the others (which one, and why), and the
    slots whose headers cannot be read."""

    working: int
    lost: tuple[str, ...]
    unreadable: tuple[UnreadableSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class Seal:
    """How a writer ends its segment: the footer behind its last batch, and the number of its records."""

    footer: Sequence[Buffer]
    records: int


class SegmentWriter(Protocol):
    """Appends to one segment."""

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        """Write a batch at `offset`. Durable on return.

        The batches of a segment follow each other without gaps: `offset` is where the batch before this one ends, of
        which at most `writes_max` - 1 may still be under way in other threads. With `seal` the batch is the last one,
        and the segment is sealed on return; no other append may be under way then. Raises Conflict when another process
        has sealed the segment, or had it before the first append; NoSpace, Transient. After any error the end of the
        segment is unknown: it must not be appended to again, and the batch may or may not be there, sealed or not.
        """
        ...

    def close(self) -> None:
        """Release the writer's resources. Does not seal. Idempotent."""
        ...


class SegmentMedium(Protocol):
    """All segments of one store, whichever process writes them. Safe to call from several threads."""

    @property
    def limits(self) -> MediumLimits:
        """Sizes that are fixed while the medium is open."""
        ...

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> SegmentWriter:
        """Begin an empty segment: durably, or with its first append where the medium `ends_in_appends`, which then
        raises the errors. Raises Conflict when it exists, NoSpace when no room for a segment is left, Transient. epoch:
        that of the lease of the log; first_lsn: none of its records has a smaller number."""
        ...

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:
        """Return the bytes of (offset, length) ranges, cut off at the segment's end. Raises NotFound when the segment
        is not there (or no longer), Transient.

        The caller checks what it gets: a segment may be released, and its place used again, while it is read, and
        behind the last batch there may be anything, or nothing. When the check fails, it reads again with the next
        `copy`, below `limits.copies`. A copy that cannot be read is replaced by another one.
        """
        ...

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """End a segment. After that no writer, of any process, can append to it, until it is released. Idempotent;
        returns the end of its last batch, before the footer.

        `footer` is what its own writer appends with the seal, so that a scan need not read the records; None for a
        segment whose writer is gone. Raises NotFound when it is not there, Transient. Where the medium
        `ends_in_appends`, a segment that is not there may be one that its writer is about to begin: then this returns
        0, and has put a sealed, empty one in its place unless nobody but its own writer could begin it. If that has no
        row any more, the caller releases it (nos_ec.engine.landing.segment_seal).
        """
        ...

    def overwrite(self, segment: SegmentId, offset: int, expected: bytes, new: bytes) -> None:
        """Replace a few bytes of a batch that was appended, on every copy, while the segment is open or sealed. They
        must not cross a multiple of RECORD_ALIGN. Durable on return, and idempotent.

        Each copy then has `new`, or had neither `new` nor `expected` before, and was left alone. Raises NotFound when
        the segment does not exist, and Transient when a copy could not be changed: the others were, as far as possible.
        """
        ...

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """Give back the space of segments. Returns those that may still exist, each with the reason. Idempotent: an
        absent segment is no error. `beat` is called as the work progresses."""
        ...

    def segments(self, *, known_only: bool = False) -> Iterator[SegmentId]:
        """Yield every segment that exists, in no particular order. Raises Transient rather than end early. known_only:
        leave out segments that may lie only in slots whose owners are not known (see `UnreadableSlot`), instead of
        raising Transient because of such slots."""
        ...

    def free_bytes(self) -> int:
        """An estimate of the bytes of further segments that fit. Cheap, because every PUT asks."""
        ...

    def raw_bytes(self) -> int:
        """The bytes allocated for all segments, with all copies."""
        ...

    def devices(self) -> DeviceStates | None:
        """Try each of the medium's own devices, and return which work. None for a medium without devices of its own."""
        ...

    def settle_slot(self, found: UnreadableSlot, epoch: int | None) -> bool:
        """Write the header of a slot again, durably: the header of its segment, for a log with this epoch of its lease;
        without an epoch, zeros, which free the slot. The caller has determined from the metadata which of them is
        right. Returns False, and changes nothing, when the slot is no longer as it was found. Raises Transient."""
        ...

    def probe(self) -> None:
        """Do a small piece of real work, like `BlockStore.probe`. Raises Transient, ConfigError."""
        ...

    def close(self) -> None:
        """Release all open resources. The medium must not be used afterwards."""
        ...

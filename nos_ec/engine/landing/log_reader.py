"""Reads records of the landing log, whichever process has written them.

1  a read returns the bytes of the record that the id names, or raises an error: header and data are checked, because
   another record may have taken its place
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import google_crc32c

from nos_ec.core.errors import Corrupt, NosError, NotFound
from nos_ec.core.formats.landing_format import RECORD_HEADER_SIZE, RecordHeader, decode_record_header, segment_found
from nos_ec.core.ids import LandingId, SegmentId, record_offset, segment_of
from nos_ec.core.range_coalescing import cut_ranges, merged_ranges
from nos_ec.ports.segment_medium import SegmentMedium

T = TypeVar("T")

GAP_BYTES_MAX = 64 << 10
"""Up to this many bytes between two records are read along, because another operation would cost more."""
FIRST_READ = 64 << 10
"""Bytes of a record of unknown size that are read at first."""


class LogReader:
    """Reads records. Safe to call from several threads. NotFound, Corrupt and Transient carry the `landing_id`."""

    def __init__(self, medium: SegmentMedium) -> None:
        self._medium = medium

    def read(self, landing_id: LandingId) -> bytes:
        """Return the data of a record of unknown size. A large one takes two operations: use `read_range` if the size
        is known. Raise NotFound if its segment was released, Corrupt, Transient."""

        def first(parts: list[bytes]) -> tuple[int, bytes | None]:
            header = _header_of(parts[0], landing_id)
            is_whole = len(parts[0]) >= RECORD_HEADER_SIZE + header.data_length
            return header.data_length, _data_of(parts[0], landing_id, header.data_length) if is_whole else None

        size, data = self._checked(landing_id, [(0, RECORD_HEADER_SIZE + FIRST_READ)], first)
        return self.read_range(landing_id, 0, size) if data is None else data

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`, with one operation. Raise NotFound if the segment was released,
        Corrupt if the record is shorter or damaged, Transient.

        The CRC is checked if the range is the whole record. The caller must check partial reads.
        """
        if offset < 0 or length < 0:
            raise ValueError(f"range of {length} bytes at {offset}")
        if offset == 0:
            ranges = [(0, RECORD_HEADER_SIZE + length)]
            return self._checked(landing_id, ranges, lambda parts: _data_of(parts[0], landing_id, length))
        ranges = [(0, RECORD_HEADER_SIZE), (RECORD_HEADER_SIZE + offset, length)]
        return self._checked(landing_id, ranges, lambda parts: _part_of(parts, landing_id, offset, length))

    def read_records(self, wanted: Sequence[tuple[LandingId, int]]) -> list[bytes | NosError]:
        """Return, for each (id, size of its data), the data or the error of reading it: NotFound, Corrupt, Transient.

        Records that are close together are read with one operation.
        """
        outcomes: list[bytes | NosError] = [b""] * len(wanted)
        by_segment: dict[SegmentId, list[int]] = {}
        for index, (landing_id, _) in enumerate(wanted):
            by_segment.setdefault(segment_of(landing_id), []).append(index)
        for segment, indexes in by_segment.items():
            for index, outcome in zip(indexes, self._of_segment(segment, [wanted[i] for i in indexes]), strict=True):
                outcomes[index] = outcome
        return outcomes

    def _of_segment(self, segment: SegmentId, wanted: Sequence[tuple[LandingId, int]]) -> list[bytes | NosError]:
        ranges = [(record_offset(landing_id), RECORD_HEADER_SIZE + size) for landing_id, size in wanted]
        runs = merged_ranges(ranges, GAP_BYTES_MAX)
        try:
            found = self._medium.read(segment, [(run.offset, run.length) for run in runs])
        except NosError as error:
            return [_of_record(error, landing_id) for landing_id, _ in wanted]
        # Views, so that a record is copied only once, out of its run.
        pieces = cut_ranges(ranges, runs, [memoryview(run) for run in found])
        return [self._outcome(landing_id, size, data) for (landing_id, size), data in zip(wanted, pieces, strict=True)]

    def _outcome(self, landing_id: LandingId, size: int, data: memoryview) -> bytes | NosError:
        """Return the data found in `data`, the bytes of the first copy, or in another copy."""
        try:
            return _data_of(data, landing_id, size)
        except (Corrupt, NotFound) as error:
            try:
                ranges = [(0, RECORD_HEADER_SIZE + size)]
                return self._checked(landing_id, ranges, lambda parts: _data_of(parts[0], landing_id, size), error)
            except NosError as failure:
                return failure

    def _checked(
        self,
        landing_id: LandingId,
        ranges: Sequence[tuple[int, int]],
        check: Callable[[list[bytes]], T],
        failure: NosError | None = None,
    ) -> T:
        """Return the result of `check` for ranges of the record, counted from its header, in the first copy that it
        accepts: a copy may be damaged, or have missed a write. `failure` is the reason why the first copy was already
        refused. If it accepts no copy, raise the first Corrupt, or NotFound if each copy has another segment in its
        place."""
        at = record_offset(landing_id)
        for copy in range(0 if failure is None else 1, self._medium.limits.copies):
            try:
                places = [(at + offset, length) for offset, length in ranges]
                parts = self._medium.read(segment_of(landing_id), places, copy)
            except NosError as error:
                raise _of_record(error, landing_id) from error
            try:
                return check(parts)
            except (Corrupt, NotFound) as error:
                failure = error if failure is None or isinstance(failure, NotFound) else failure
        assert failure is not None
        raise failure


def _data_of(data: bytes | memoryview, landing_id: LandingId, size: int) -> bytes:
    """Return the first `size` bytes of the data of a record. The CRC is checked if these are all."""
    header = _header_of(bytes(data[:RECORD_HEADER_SIZE]), landing_id)
    found = bytes(data[RECORD_HEADER_SIZE : RECORD_HEADER_SIZE + size])
    _require(header, size, whole=len(found) == size)
    if size == header.data_length and google_crc32c.value(found) != header.data_crc32c:
        raise Corrupt(f"landing record {landing_id.hex()}: checksum of its data does not match", landing_id=landing_id)
    return found


def _part_of(parts: Sequence[bytes], landing_id: LandingId, offset: int, length: int) -> bytes:
    head, part = parts
    _require(_header_of(head, landing_id), offset + length, whole=len(part) == length)
    return part


def _header_of(data: bytes, landing_id: LandingId) -> RecordHeader:
    """Return the header of the record at the start of `data`. Raise Corrupt if the header is not that of this record,
    NotFound if it belongs to another segment."""
    try:
        return decode_record_header(data, landing_id)
    except Corrupt as error:
        other = segment_found(data)
        if other is not None and other != segment_of(landing_id):
            raise NotFound(
                f"landing record {landing_id.hex()}: segment {other.hex()} has taken its place", landing_id=landing_id
            ) from None
        raise Corrupt(str(error), landing_id=landing_id) from None


def _require(header: RecordHeader, size: int, *, whole: bool) -> None:
    """Raise Corrupt unless the record has that many bytes of data, and all requested bytes were read."""
    if header.data_length < size:
        problem = f"it has {header.data_length} bytes, not {size}"
    elif not whole:
        problem = "its segment ends within it"
    else:
        return
    landing_id = header.landing_id
    raise Corrupt(f"landing record {landing_id.hex()}: {problem}", landing_id=landing_id)


def _of_record(error: NosError, landing_id: LandingId) -> NosError:
    """Return the same error with the id of the record, because a medium knows only segments."""
    return type(error)(str(error), landing_id=landing_id, settings=error.settings)

"""A segment of the landing log that this process writes or seals."""

from __future__ import annotations

from collections.abc import Sequence

from nos_ec.core.formats.landing_format import NONCE_SIZE, Buffer, LaidBatch, footer_size, lay_out_footer
from nos_ec.core.ids import SegmentId
from nos_ec.ports.segment_medium import MediumLimits, Seal, SegmentWriter

RETRY_WAIT_MS = 1_000
RETRY_WAIT_MS_MAX = 60_000


def fresh_room(limits: MediumLimits, records: int) -> int:
    """Return the most bytes that a batch of this many records can have in an empty segment, besides its footer."""
    return limits.segment_bytes - limits.start - footer_size(records, limits.align)


class LogSegment:
    """Where the next batch goes, and why the segment cannot be sealed yet. The lock of the log guards it.

    `writer` is None for a segment that another process left, or whose creation failed. `epoch` is that of the lease
    under which it was opened. `under_way` counts appends that have not ended, `unsettled` batches whose PUTs may still
    be recorded. `end` is where the next batch goes; once the medium has sealed the segment, it is the end of its
    batches.
    """

    def __init__(
        self, segment: SegmentId, writer: SegmentWriter | None, limits: MediumLimits, epoch: int | None = None
    ) -> None:
        self.id = segment
        self.epoch = epoch
        self.writer = writer
        self.end = limits.start
        self.records = 0
        self.under_way = 0
        self.unsettled = 0
        self.healthy = writer is not None
        """Whether every append so far has succeeded or is under way."""
        self.has_unrecorded = writer is None
        """Whether it may have records whose PUTs were not recorded, and that are not void."""
        self.acknowledged = False
        """Whether a PUT in it may have been acknowledged."""
        self.first_put_ms: int | None = None
        self.is_sealed = False
        """Whether it is sealed in the medium; the metadata may not know yet."""
        self.retry_ms = 0
        self.retry_wait_ms = 0
        """`retry_ms` is when to try again to seal it, `retry_wait_ms` the wait that ends then; 0 before the first
        failure."""
        self._limits = limits
        self._entries: list[tuple[int, bytes]] = []
        self._closes = False

    def fits(self, size: int, records: int) -> bool:
        """Return whether a batch fits, with the footer of all records."""
        footer = footer_size(self.records + records, self._limits.align)
        return self.healthy and self.end + size + footer <= self._limits.segment_bytes

    @property
    def half_full(self) -> bool:
        """Return whether it is time to make the next segment."""
        return 2 * self.end >= self._limits.segment_bytes

    def reserve(self, size: int, records: int, now_ms: int) -> int:
        """Reserve the place of a batch, and return its offset. Either `landed` or `failed` must follow."""
        offset = self.end
        self.end += size
        self.records += records
        self.under_way += 1
        self.unsettled += 1
        if self.first_put_ms is None:
            self.first_put_ms = now_ms
        return offset

    def landed(self, offset: int, batch: LaidBatch) -> None:
        """Note that a batch is durable. It keeps the segment from being sealed until `settled`."""
        self.under_way -= 1
        self._entries.append((offset, batch.entries))
        self._close_when_idle()

    def failed(self, records: int) -> None:
        """Note that the append of a batch failed. No more appends to this segment are allowed."""
        self.under_way -= 1
        self.unsettled -= 1
        self.records -= records
        self.healthy = False
        self.has_unrecorded = True
        self._close_when_idle()

    def settled(self, *, acknowledged: bool, unrecorded: bool) -> None:
        """Note that no more PUTs of one batch will be recorded, and whether any of them was acknowledged. `unrecorded`:
        the batch has records that were not recorded and are not void."""
        self.unsettled -= 1
        self.acknowledged |= acknowledged
        self.has_unrecorded |= unrecorded

    @property
    def is_last(self) -> bool:
        """Return whether the batch reserved last must seal the segment: another batch of the usual size would not fit,
        so a later seal would need a write of its own."""
        limits = self._limits
        footer = footer_size(self.records + limits.batch_records_max, limits.align)
        full = self.end + limits.batch_bytes_max + footer > limits.segment_bytes
        return limits.appends_create_and_seal and self.healthy and full

    def seal_of(self, offset: int, batch: LaidBatch, lsn: int, now_ms: int, nonce: bytes) -> Seal:
        """Return the seal that follows the segment's last batch, the one at `offset`. No other append may be under
        way."""
        return Seal(self._footer([*self._entries, (offset, batch.entries)], lsn, now_ms, nonce), self.records)

    def footer(self, lsn: int, now_ms: int, nonce: bytes) -> list[Buffer] | None:
        """Return the footer, or None if the segment is empty or its end is not certain."""
        if not self.healthy or not self._entries:
            return None
        return self._footer(self._entries, lsn, now_ms, nonce)

    def _footer(self, entries: Sequence[tuple[int, bytes]], lsn: int, now_ms: int, nonce: bytes) -> list[Buffer]:
        assert len(nonce) == NONCE_SIZE
        joined = b"".join([each for _, each in sorted(entries)])
        return lay_out_footer(self.id, self.end, lsn, now_ms, joined, nonce, self._limits.align)

    def sealed(self, end: int) -> None:
        """Note that the medium has sealed the segment."""
        self.is_sealed = True
        self.end = end
        self._entries = []
        self.close()

    def seal_failed(self, now_ms: int) -> None:
        """Note that sealing failed. The next try has no footer, because this one may have written it."""
        self.healthy = False
        self._entries = []
        self.retry_wait_ms = min(2 * self.retry_wait_ms or RETRY_WAIT_MS, RETRY_WAIT_MS_MAX)
        self.retry_ms = now_ms + self.retry_wait_ms

    def close(self) -> None:
        """Close the writer, once no append is under way."""
        self._closes = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._closes and not self.under_way and self.writer is not None:
            self.writer.close()
            self.writer = None

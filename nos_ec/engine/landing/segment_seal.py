"""Seals a landing segment in its medium, whichever process wrote it.

Sealing a segment that does not exist may create a sealed, empty one in its place, so that a writer that is about to
create it cannot do so any more. The trimmer releases it, through its row. If other processes have sealed, released and
forgotten the segment meanwhile, there is no row, and no other process would release it.

8  after the seal, no writer appends to the segment, not even one that had not begun to
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.formats.landing_format import FoundRecord, is_void, voiding
from nos_ec.core.ids import LandingId, SegmentId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import SegmentState
from nos_ec.engine.audit_entries import segments_released
from nos_ec.engine.landing.landing_labels import puts_in_segment
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata.landing_segments import LandingSegments
from nos_ec.ports.segment_medium import Buffer, SegmentMedium

RECORDS_AT_A_TIME = 100
"""Records of a segment in memory, each up to the largest object that the landing log takes."""
FAILING_MS_MAX = 10_000
"""How long tries to make records of a segment void may fail until the others are left to a later run. It is a time, not
a number: while a device is away, each try fails at once, and the copies on the other devices should still be changed.
But each try in a store that does not answer takes the time limit of its operations."""


class SealMetadata(LandingSegments, Protocol):
    """The parts of the metadata that a seal uses."""

    def landing_known(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """See `LandingQueue`."""


class SegmentSeal:
    """Seals segments of one medium. Safe to call from several threads."""

    def __init__(self, metadata: SealMetadata, medium: SegmentMedium, trail: AuditTrail = NO_TRAIL) -> None:
        self._metadata = metadata
        self._medium = medium
        self._trail = trail

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None = None, records: int = 0) -> int:
        """Seal a segment. Return the end of its last batch; 0 if it has none. Raise Transient, ConfigError, Corrupt;
        the call can then be repeated."""
        try:
            end = self._medium.seal(segment, footer, records)
        except NotFound:
            return 0
        if not end:
            kill_point("segment_seal.empty_sealed")
            self.release_unless_known(segment)
        return end

    def void_unrecorded(
        self, segment: SegmentId, end: int, records: int, clock: Clock, go_on: Callable[[], bool]
    ) -> None:
        """Make the records void that no row and no entry of the deletion queue refers to, so that no rebuild of the
        metadata adopts them: their PUTs were not acknowledged. Then note in the row that this is done, even if the
        segment is gone. `end` and `records` are as in the row. `go_on` is called before each page of records. If it
        returns False, the work ends, and the row still shows that it is to be done.

        The row of the segment must be SEALED, so that no more PUTs in it can be recorded. Raise Transient, ConfigError;
        any process can then repeat the call. If records cannot be changed, raise the first such Transient after trying
        the others, unless the failing tries take FAILING_MS_MAX.
        """
        found = puts_in_segment(self._medium, segment, end)
        failure: Transient | None = None
        failing_ms = 0
        with suppress(NotFound):
            while True:
                if not go_on():
                    return
                some = list(islice(found, RECORDS_AT_A_TIME))
                if not some:
                    break
                known = self._metadata.landing_known([one.header.landing_id for one in some])
                for one in some:
                    if one.header.landing_id in known or is_void(one.names):
                        continue
                    began_ms = clock.now_ms()
                    error = self._make_void(segment, one)
                    if error is not None:
                        failure = failure or error
                        failing_ms += max(0, clock.now_ms() - began_ms)
                        if failing_ms >= FAILING_MS_MAX:
                            raise failure
        if failure is not None:
            raise failure
        self._metadata.seal_segments([(segment, end, records)], clock.now_ms())
        kill_point("segment_seal.voided")

    def _make_void(self, segment: SegmentId, record: FoundRecord) -> Transient | None:
        """Make a record void. Return the error if a copy of it could not be changed. Raise NotFound, ConfigError."""
        try:
            change = voiding(record.header.landing_id, record.header.data_length, record.names)
            self._medium.overwrite(segment, *change)
        except Transient as error:
            return error
        kill_point("segment_seal.record_voided")
        return None

    def release_unless_known(self, segment: SegmentId) -> bool:
        """Release a segment that was created after the trimmer had released it, or that may be. The trimmer takes care
        of segments with a row that is not DOOMED. The caller knows that none of its PUTs was acknowledged. Return
        whether it was released. Raise Transient, ConfigError."""
        row = self._metadata.landing_segment(segment)
        if row is not None and row.state is not SegmentState.DOOMED:
            return False
        why = "others have released it before, and no PUT in it was acknowledged"
        self._trail.record(segments_released([segment], {}, why))
        for error in self._medium.release([segment]).values():
            raise error
        kill_point("segment_seal.released")
        return True

"""The landing log of one process: batches of PUTs, appended to segments that nobody else writes.

The log holds a lease `landing-log-NUMBER` from the first PUT until it is closed. It has a few lanes, each with an open
segment; a batch goes to a lane that is free. A segment is left when it is full or old, after any error of an append,
and at the end. What is left is sealed, and the next segment is made ahead of need: that is the upkeep of the log. So a
PUT costs one append and no SQL. The log has no thread for it: it tells its owner when there is upkeep (`LogKeeper`).
Where the medium can do that, the first append creates its segment and the one that fills it seals it.

1  a landing id is returned only after the append of its batch; ids are made anew for each try, so none is used twice
8  one writer a segment: after an error, or when the lease is lost, it is never appended to again. A lease that has
   expired is renewed before a batch is begun. So only a process that is stopped just then makes a first append to a
   segment that others have given back meanwhile; it gives that back as well (`SegmentSealer.give_back`)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from nos_ec.core.errors import Conflict, InvalidInput, LeaseLost, NosError, NoSpace, Transient
from nos_ec.core.formats.landing_format import NONCE_SIZE, LaidBatch, NewRecord, batch_size, lay_out, new_record
from nos_ec.core.ids import LandingId
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.landing.landed_in_log import LandedInLog, as_transient
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.landing.log_lease import take_log_lease
from nos_ec.engine.landing.log_segment import LogSegment, fresh_room
from nos_ec.engine.landing.segment_maker import SegmentMaker
from nos_ec.engine.landing.segment_seal import SealMetadata
from nos_ec.engine.landing.segment_sealer import SegmentSealer
from nos_ec.engine.leases import HeldLease, HeldLeases
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata.leases import Lease, Leases
from nos_ec.ports.segment_medium import Seal, SegmentMedium

_log = structlog.get_logger(__name__)

APPEND_TRIES = 3
"""Segments that a batch is appended to, at most."""
CLOSE_MS = 20_000
"""Closing begins no further operation after so long, so that it ends before a service manager loses patience."""


class LogMetadata(SealMetadata, Leases, Protocol):
    """The parts of the metadata that the log uses."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """lanes: segments that are open at a time. segment_age_ms: a segment is left so long after its first PUT.
    lease_ttl_ms: of the log's lease. wait_ms: how long a batch waits for a lane. reserve_bytes: free space of the
    medium that the log leaves to packing and GC."""

    lanes: int
    segment_age_ms: int
    lease_ttl_ms: int
    wait_ms: int
    reserve_bytes: int = 0


@dataclass(slots=True)
class LogCounters:
    """What the log has done so far. bytes: of batches, with headers and padding. failed: appends that failed."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    failed: int = 0
    opened: int = 0
    sealed: int = 0


class LandingLog:
    """A `Lander` over a medium of segments. Safe to call from several threads.

    randomness: returns that many random bytes. among: lists the lease while it is held. upkeep: is told, with the log,
    that `tend` has something to do; it may call `tend` at once, which is the default, and then a PUT waits for it.
    """

    def __init__(
        self,
        metadata: LogMetadata,
        medium: SegmentMedium,
        clock: Clock,
        randomness: Callable[[int], bytes],
        options: LogOptions,
        among: HeldLeases | None = None,
        upkeep: Callable[[LandingLog], None] | None = None,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._metadata = metadata
        self._medium = medium
        self._limits = medium.limits
        self._clock = clock
        self._randomness = randomness
        self._options = options
        self._among = among
        self._upkeep = upkeep or LandingLog.tend
        self._upkeep_told = False
        """Whether upkeep was ever told: whoever does it may begin to look by itself then."""
        self.counters = LogCounters()
        self._changed = threading.Condition()
        """Guards what follows, and tells of every change that a batch may wait for."""
        self._held: HeldLease | None = None
        self._number = 0
        self._lanes: list[LogSegment | None] = [None] * options.lanes
        self._spares: list[LogSegment] = []
        """Segments that were made ahead of need."""
        self._sealer = SegmentSealer(metadata, medium, clock, randomness, self._take_lsns, self._changed, trail)
        self._maker = SegmentMaker(metadata, medium, clock, options.reserve_bytes, self._sealer)
        self._lsn = 0
        self._making = False
        """Whether a thread is making a segment. Only that thread takes the lease."""
        self._refusals = 0
        self._refusal: NosError = Transient("")
        """How often no segment could be made for a batch, and why the last time."""
        self._in_doubt = False
        """Whether PUTs were refused in a segment in which none was acknowledged: perhaps the lease was lost before."""
        self._closed = False
        self._tending = threading.Lock()

    # --- Lander -----------------------------------------------------------------------------------
    @property
    def batches_max(self) -> int:
        """As many as there may be appends under way."""
        return self._options.lanes * self._limits.writes_max

    @property
    def batch_bytes_max(self) -> int:
        """That of the medium."""
        return self._limits.batch_bytes_max

    @property
    def batch_objects_max(self) -> int:
        """That of the medium."""
        return self._limits.batch_records_max

    def land(self, batch: Sequence[NewCopy]) -> LandedInLog:
        """Append a batch; several, one after the other, when it is too large for one segment. Raises NoSpace or
        Transient when nothing of it landed."""
        records = [new_record(copy.key, copy.data, copy.crc32c, copy.attributes, copy.put_ms) for copy in batch]
        landed = LandedInLog(self.settle, records, self._medium)
        try:
            for indexes in self._pieces(records):
                try:
                    segment, ids, again = self._append([records[index] for index in indexes])
                except NosError as error:
                    landed.refused(indexes, as_transient(error))
                else:
                    landed.add(indexes, segment, ids, again=again)
        except BaseException:
            landed.settle([one for one in landed.outcomes if not isinstance(one, NosError)])  # they are never recorded
            raise
        if batch and not landed.segments:
            self._tell_upkeep()
            raise landed.first_error()
        return landed

    def settle(self, segments: Sequence[LogSegment], acknowledged: bool, unrecorded: bool) -> None:
        """Note that the batches in these segments are settled, one batch each time a segment is listed. acknowledged:
        whether any of their PUTs was. unrecorded: whether some of their records were not recorded and are not void."""
        with self._changed:
            for segment in segments:
                segment.settled(acknowledged=acknowledged, unrecorded=unrecorded)
                self._in_doubt |= not segment.acknowledged
        self._tell_upkeep()

    # --- upkeep -----------------------------------------------------------------------------------
    def tend(self) -> None:
        """Leave segments that are old, make the next one if it is needed soon, and seal those that are left.

        Cheap when there is nothing to do, and when another thread does it. Never raises a NosError.
        """
        if not self._tending.acquire(blocking=False):
            return
        try:
            self._part_if_fenced()
            self._leave_old()
            self.counters.sealed += self._sealer.seal(self._go_on_sealing)
            self._make_ahead()
        finally:
            self._tending.release()

    def _tell_upkeep(self) -> None:
        """Say that there is upkeep, if there is any. Costs no operation."""
        with self._changed:
            if self._closed or (self._upkeep_told and not self._has_upkeep()):
                return
            self._upkeep_told = True
        self._upkeep(self)

    def _has_upkeep(self) -> bool:
        """The caller holds the lock."""
        return (
            self._lost_lease() is not None
            or self._in_doubt
            or self._sealer.is_due()
            or self._needs_spare()
            or any(map(self._is_old, self._lanes))
        )

    def _go_on_sealing(self) -> bool:
        """Before each segment that is sealed, which may take as long as an operation may: PUTs need the next segment
        more. Closing seals the rest itself."""
        self._make_ahead()
        return not self._closed

    def seal(self) -> None:
        """Leave every segment that holds a PUT, however young it is, and seal what is left. Never raises a NosError."""
        with self._changed:
            for segment in list(self._lanes):
                if segment is not None and segment.first_put_ms is not None:
                    self._leave(segment)
        with self._tending:
            self.counters.sealed += self._sealer.seal(self._go_on_sealing)

    def close(self) -> None:
        """Seal all segments and release the lease. Idempotent. No PUT may be under way.

        What cannot be sealed is left to recovery, together with the lease, which then expires. So is what is not
        sealed after CLOSE_MS. It takes no longer than that and one operation of the medium and of the metadata.
        """
        began_ms = self._clock.now_ms()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._making and not self._appending(), CLOSE_MS / 1000)
            self._sealer.left += [segment for segment in (*self._lanes, *self._spares) if segment is not None]
            self._lanes = [None] * self._options.lanes
            self._spares = []
            for segment in self._sealer.left:
                segment.retry_ms = 0
        with self._tending:
            self._part_if_fenced()
            self.counters.sealed += self._sealer.seal(
                lambda: waits(began_ms + CLOSE_MS, self._clock.now_ms(), CLOSE_MS)
            )
        held, self._held = self._held, None
        if held is None:
            return
        if self._sealer.left or self._making:
            _log.warning("landing segments are left to recovery", segments=len(self._sealer.left))
            held.abandon()
        else:
            held.__exit__(None, None, None)

    # --- appending --------------------------------------------------------------------------------
    def _pieces(self, records: Sequence[NewRecord]) -> Iterator[list[int]]:
        """Cut a batch into batches of which each fits an empty segment; a record too large for one is alone."""
        if records and batch_size(records, self._limits.align) <= fresh_room(self._limits, len(records)):
            yield list(range(len(records)))
            return
        piece: list[int] = []
        size = 0
        for index, record in enumerate(records):
            room = fresh_room(self._limits, len(piece) + 1)
            if piece and batch_size([record], self._limits.align) + size > room:
                yield piece
                piece, size = [], 0
            piece.append(index)
            size += record.size
        if piece:
            yield piece

    def _append(self, records: Sequence[NewRecord]) -> tuple[LogSegment, list[LandingId], bool]:
        """Returns the segment, the ids, and whether an earlier append of these records may have succeeded as well."""
        size = batch_size(records, self._limits.align)
        if size > (room := fresh_room(self._limits, len(records))):
            raise InvalidInput(f"landing log: a record of {size} bytes does not fit a segment, which takes {room}")
        failure: NosError | None = None
        again = False
        for _ in range(APPEND_TRIES):
            try:
                segment, offset, lsn = self._reserve(size, len(records))
            except LeaseLost as error:
                failure = error  # the next try takes a new lease
                continue
            except NoSpace as error:
                raise _unknown(error) if again else error from None
            try:
                ids = self._write(segment, offset, lsn, records)
            except NoSpace as error:
                raise _unknown(error) if again else error from None
            except NosError as error:
                failure = error
                _log.warning("batch not appended to its landing segment", segment=segment.id.hex(), error=str(error))
                if isinstance(error, Conflict):
                    self._renew_or_give_up()
                else:
                    again = True
                continue
            return segment, ids, again
        assert failure is not None
        raise failure

    def _write(self, segment: LogSegment, offset: int, lsn: int, records: Sequence[NewRecord]) -> list[LandingId]:
        """Append a batch where it has its place. After any error the segment is left."""
        try:
            nonces = self._randomness(NONCE_SIZE * len(records))
            now_ms = self._clock.now_ms()
            batch = lay_out(segment.id, offset, lsn, now_ms, records, nonces, self._limits.align)
            writer = segment.writer
            assert writer is not None
            seal = self._last_seal(segment, offset, batch, now_ms)
            writer.append(offset, batch.buffers, seal)
        except BaseException:
            with self._changed:
                segment.failed(len(records))
                self._leave(segment)
                self.counters.failed += 1
                self._changed.notify_all()
            raise
        kill_point("landing_log.appended")
        if seal is not None:
            kill_point("landing_log.sealed_by_append")
        with self._changed:
            segment.landed(offset, batch)
            if seal is not None:
                segment.sealed(segment.end)
                self._leave(segment)
            self.counters.batches += 1
            self.counters.records += len(records)
            self.counters.bytes += batch.size
            self._changed.notify_all()
        return batch.ids

    def _last_seal(self, segment: LogSegment, offset: int, batch: LaidBatch, now_ms: int) -> Seal | None:
        """What a batch seals its segment with; None if it is not the last one."""
        with self._changed:
            if not segment.is_last:
                return None
            return segment.seal_of(offset, batch, self._take_lsns(1), now_ms, self._randomness(NONCE_SIZE))

    def _reserve(self, size: int, records: int) -> tuple[LogSegment, int, int]:
        """A place for a batch: segment, offset, number of its first record. Waits for a free lane, and makes a segment
        if there is none. Raises LeaseLost, NoSpace, Transient."""
        until_ms = self._clock.now_ms() + self._options.wait_ms
        while True:
            held = self._held
            if held is not None and not held.left_ms():
                self._renew_or_give_up()
            with self._changed:
                while True:
                    if self._closed:
                        raise Transient("the landing log is closed")
                    segment = self._choose(size, records)
                    if segment is not None:
                        return segment, segment.reserve(size, records, self._clock.now_ms()), self._take_lsns(records)
                    if not self._making and None in self._lanes:
                        self._making = True
                        break
                    self._wait(until_ms)
            self._make_spare(needed=True)

    def _wait(self, until_ms: int) -> None:
        """Wait for a change. Raises Transient when it is too late, or what kept another batch that needs a segment,
        too, from getting one."""
        refusals = self._refusals
        left_ms = min(until_ms - self._clock.now_ms(), self._options.wait_ms)
        if left_ms <= 0 or not self._changed.wait(left_ms / 1000):
            raise Transient(f"landing log: no lane became free within {self._options.wait_ms} ms")
        if self._refusals != refusals and None in self._lanes:
            raise type(self._refusal)(str(self._refusal)) from self._refusal

    def _choose(self, size: int, records: int) -> LogSegment | None:
        """An idle segment, else a fresh one, else the least busy one. Leaves segments in which there is no room."""
        best: LogSegment | None = None
        for segment in self._lanes:
            if segment is None:
                continue
            if not segment.fits(size, records):
                self._leave(segment)
            elif segment.under_way < self._limits.writes_max and (best is None or segment.under_way < best.under_way):
                best = segment
        if (best is None or best.under_way) and self._spares and None in self._lanes:
            best = self._spares.pop(0)
            self._lanes[self._lanes.index(None)] = best
        return best

    def _take_lsns(self, count: int) -> int:
        """The first of so many numbers. The caller holds the lock."""
        lsn, self._lsn = self._lsn, self._lsn + count
        return lsn

    def _appending(self) -> bool:
        return any(segment is not None and segment.under_way for segment in (*self._lanes, *self._sealer.left))

    def _leave(self, segment: LogSegment) -> None:
        """Put no further batch into a segment. The caller holds the lock."""
        if segment in self._lanes:
            self._lanes[self._lanes.index(segment)] = None
            self._sealer.left.append(segment)

    def _leave_old(self) -> None:
        with self._changed:
            for segment in list(self._lanes):
                if segment is not None and self._is_old(segment):
                    self._leave(segment)

    def _is_old(self, segment: LogSegment | None) -> bool:
        if segment is None or segment.first_put_ms is None:
            return False
        age_ms = self._options.segment_age_ms
        return not waits(segment.first_put_ms + age_ms, self._clock.now_ms(), age_ms)

    # --- making segments --------------------------------------------------------------------------
    def _make_ahead(self) -> None:
        """Make a spare segment when a lane is going to need one soon."""
        with self._changed:
            if not self._needs_spare():
                return
            self._making = True
        with suppress(NosError):  # it is logged, and a batch that needs a segment tries again
            self._make_spare(needed=False)

    def _needs_spare(self) -> bool:
        """Whether to make one now. The caller holds the lock."""
        if self._held is None or self._closed or self._making or not self._maker.may_try():
            return False
        soon = sum(segment is not None and segment.half_full for segment in self._lanes)
        return len(self._spares) < (soon or self._lanes.count(None) == len(self._lanes))

    def _make_spare(self, *, needed: bool) -> None:
        """Make a segment and put it among the spare ones. The caller has set `_making`. Raises LeaseLost, NoSpace,
        Transient."""
        segment: LogSegment | None = None
        refusal: NosError | None = None
        try:
            segment = self._make()
        except NosError as error:
            refusal = error
            raise
        finally:
            with self._changed:
                self._making = False
                if segment is not None:
                    self._add_spare(segment)
                if refusal is not None and needed:
                    self._refusals += 1
                    self._refusal = as_transient(refusal)
                self._changed.notify_all()

    def _add_spare(self, segment: LogSegment) -> None:
        """The caller holds the lock."""
        self.counters.opened += 1
        if self._closed:
            self._sealer.left.append(segment)
        elif self._held is not None and self._held.lease.epoch == segment.epoch:
            self._spares.append(segment)
        else:
            segment.close()  # the lease was lost meanwhile: whoever fenced it seals the segment

    def _make(self) -> LogSegment:
        try:
            return self._maker.make(self._take_lease, self._lsn)
        except LeaseLost:
            held = self._held
            if held is not None:
                self._give_up(held)
            raise

    # --- the lease --------------------------------------------------------------------------------
    def _take_lease(self) -> tuple[Lease, int]:
        """Take the first free number. What an earlier holder of it left OPEN is sealed with the rest."""
        held = self._held
        if held is not None:
            return held.lease, self._number
        options = self._options
        held, number = take_log_lease(self._metadata, self._clock, options.lease_ttl_ms, self._among)
        try:
            orphans = self._metadata.segments_of_log(number, held.lease.epoch - 1)
        except BaseException:
            held.__exit__(None, None, None)
            raise
        with self._changed:
            self._held, self._number = held, number
            self._sealer.add(LogSegment(row.segment, None, self._limits) for row in orphans)
        return held.lease, number

    def _lost_lease(self) -> HeldLease | None:
        held = self._held
        return held if held is not None and held.lost else None

    def _renew_or_give_up(self) -> None:
        """When another process has sealed a segment, or the lease has expired: learn whether it was fenced."""
        held = self._held
        if held is not None and not held.renew():
            self._give_up(held)

    def _part_if_fenced(self) -> None:
        """Part with the segments of a lost lease, and give back those of them that came into being too late."""
        lost = self._lost_lease()
        if lost is not None:
            self._give_up(lost)
        elif self._in_doubt:
            self._in_doubt = False
            self._renew_or_give_up()
        self._sealer.give_back()

    def _give_up(self, held: HeldLease) -> None:
        """Part with all segments: whoever fenced the lease seals them. The next batch takes a new lease."""
        with self._changed:
            if self._held is not held:
                return
            self._held = None
            self._sealer.part(one for one in (*self._lanes, *self._spares, *self._sealer.left) if one is not None)
            self._lanes = [None] * self._options.lanes
            self._spares, self._sealer.left = [], []
            self._changed.notify_all()
        _log.error("the lease of the landing log was lost; taking another", log=self._number)
        held.__exit__(None, None, None)


def _unknown(error: NoSpace) -> Transient:
    """An earlier append of the records may be done. So nobody else may land them: a refusal could not be answered."""
    return Transient(f"landing log: an append may be done or not, and there is no room for another one ({error})")

"""The landing log of one process: batches of PUTs, appended to segments that no other process writes.

The log holds a lease `landing-log-NUMBER` from the first PUT until it is closed. It keeps a few segments open, and a
batch goes to one that is free. A segment is closed for batches when it is full or old, after any failed append, and
when the log is closed. Upkeep seals these segments and makes the next one ahead of need, so a PUT costs one append and
no SQL. The log has no thread for upkeep; it calls its owner when there is some to do (`LogKeeper`). If the medium
supports it, the first append creates its segment and the append that fills the segment seals it.

1  a landing id is returned only after the append of its batch; each try makes new ids, so none is used twice
8  one writer a segment: after an error, or when the lease is lost, it is never appended to again. An expired lease is
   renewed before a batch is begun. So only a process that is stopped at just that moment can make a first append to a
   segment that others have released meanwhile; it then releases that segment, too (`SegmentSealer.release_late`)
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
"""`close` begins no further operation after this time, so that it ends before a service manager kills the process."""


class LogMetadata(SealMetadata, Leases, Protocol):
    """The parts of the metadata that the log uses."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a log works. `open_segments` is the number of segments that are open at a time. A segment takes no more
    batches `segment_age_ms` after its first PUT. `lease_ttl_ms` is the lifetime of the log's lease. A batch waits at
    most `wait_ms` for an open segment. The log leaves `reserve_bytes` of the medium's free space to packing and GC."""

    open_segments: int
    segment_age_ms: int
    lease_ttl_ms: int
    wait_ms: int
    reserve_bytes: int = 0


@dataclass(slots=True)
class LogCounters:
    """Counts the work of the log. `bytes` includes the headers and padding of batches; `failed` counts failed
    appends."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    failed: int = 0
    opened: int = 0
    sealed: int = 0


class LandingLog:
    """A `Lander` over a medium of segments. Safe to call from several threads.

    `randomness` returns the requested number of random bytes. `among` lists the lease while it is held. The log calls
    `upkeep` with itself when `tend` has work to do; the default calls `tend` at once, so that the PUT waits for it.
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
        self._upkeep_called = False
        """Whether `upkeep` was ever called: its owner may check the log on its own from then on."""
        self.counters = LogCounters()
        self._changed = threading.Condition()
        """Guards the attributes below, and notifies waiting batches of every change."""
        self._held: HeldLease | None = None
        self._number = 0
        self._open_segments: list[LogSegment | None] = [None] * options.open_segments
        self._spares: list[LogSegment] = []
        """Segments that were made ahead of need."""
        self._sealer = SegmentSealer(metadata, medium, clock, randomness, self._take_lsns, self._changed, trail)
        self._maker = SegmentMaker(metadata, medium, clock, options.reserve_bytes, self._sealer)
        self._lsn = 0
        self._making = False
        """Whether a thread is making a segment. Only that thread takes the lease."""
        self._refusals = 0
        self._refusal: NosError = Transient("")
        """`_refusals` counts how often no segment could be made for a batch; `_refusal` is the last reason."""
        self._in_doubt = False
        """Whether a segment had only refused PUTs: perhaps the lease was lost before them."""
        self._closed = False
        self._tending = threading.Lock()

    # --- Lander -----------------------------------------------------------------------------------
    @property
    def batches_max(self) -> int:
        """Return the maximum number of appends at a time."""
        return self._options.open_segments * self._limits.writes_max

    @property
    def batch_bytes_max(self) -> int:
        """Return the limit of the medium, in bytes."""
        return self._limits.batch_bytes_max

    @property
    def batch_objects_max(self) -> int:
        """Return the limit of the medium."""
        return self._limits.batch_records_max

    def land(self, batch: Sequence[NewCopy]) -> LandedInLog:
        """Append a batch, or several in a row if it is too large for one segment. Raise NoSpace or Transient if no copy
        landed."""
        records = [new_record(copy.key, copy.data, copy.crc32c, copy.attributes, copy.put_ms) for copy in batch]
        landed = LandedInLog(self.settle, records, self._medium)
        # 1. Append each piece. Pieces are independent: one may land and another one fail.
        try:
            for indexes in self._pieces(records):
                try:
                    segment, ids, again = self._append([records[index] for index in indexes])
                except NosError as error:
                    landed.add_refused(indexes, as_transient(error))
                else:
                    landed.add_landed(indexes, segment, ids, again=again)
        except BaseException:
            landed.settle([one for one in landed.outcomes if not isinstance(one, NosError)])  # they get no rows
            raise
        # 2. If nothing landed, raise the first error, as the caller then has nothing to settle.
        if batch and not landed.segments:
            self._call_upkeep()
            raise landed.first_error()
        return landed

    def settle(self, segments: Sequence[LogSegment], acknowledged: bool, unrecorded: bool) -> None:
        """Note that the batches in these segments are settled: one batch for each time a segment is listed.
        `acknowledged`: at least one of their PUTs was. `unrecorded`: some of their records have no row and are not
        void."""
        with self._changed:
            for segment in segments:
                segment.settled(acknowledged=acknowledged, unrecorded=unrecorded)
                self._in_doubt |= not segment.acknowledged
        self._call_upkeep()

    # --- upkeep -----------------------------------------------------------------------------------
    def tend(self) -> None:
        """Close old segments for batches, make the next segment if it is needed soon, and seal the closed ones.

        Cheap if there is nothing to do, or if another thread is already doing it. Never raises a NosError.
        """
        if not self._tending.acquire(blocking=False):
            return
        try:
            self._give_up_if_fenced()
            self._leave_old()
            self.counters.sealed += self._sealer.seal(self._may_seal_next)
            self._make_ahead()
        finally:
            self._tending.release()

    def _call_upkeep(self) -> None:
        """Call `upkeep` if there is something to do. This costs no operation."""
        with self._changed:
            if self._closed or (self._upkeep_called and not self._has_upkeep()):
                return
            self._upkeep_called = True
        self._upkeep(self)

    def _has_upkeep(self) -> bool:
        """Return whether `tend` has work to do. The caller holds the lock."""
        return (
            self._lost_lease() is not None
            or self._in_doubt
            or self._sealer.is_due()
            or self._needs_spare()
            or any(map(self._is_old, self._open_segments))
        )

    def _may_seal_next(self) -> bool:
        """Return whether to seal another segment. Each seal may take as long as an operation may, and PUTs need the
        next segment more, so make that first. When the log is closing, `close` seals the rest."""
        self._make_ahead()
        return not self._closed

    def seal(self) -> None:
        """Close every segment that holds a PUT, however young it is, and seal the closed ones. Never raises a
        NosError."""
        with self._changed:
            for segment in list(self._open_segments):
                if segment is not None and segment.first_put_ms is not None:
                    self._leave(segment)
        with self._tending:
            self.counters.sealed += self._sealer.seal(self._may_seal_next)

    def close(self) -> None:
        """Seal all segments and release the lease. Idempotent. No PUT may be under way.

        Segments that cannot be sealed within CLOSE_MS are left to recovery, together with the lease, which then
        expires. The call takes at most CLOSE_MS and one operation of the medium and of the metadata.
        """
        began_ms = self._clock.now_ms()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._making and not self._appending(), CLOSE_MS / 1000)
            self._sealer.left += [segment for segment in (*self._open_segments, *self._spares) if segment is not None]
            self._open_segments = [None] * self._options.open_segments
            self._spares = []
            for segment in self._sealer.left:
                segment.retry_ms = 0
        with self._tending:
            self._give_up_if_fenced()
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
        """Split a batch into batches that each fit an empty segment. A record that is too large for a segment gets its
        own batch."""
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
        """Return the segment, the ids, and whether an earlier append of these records may have succeeded as well."""
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
        """Append a batch at its reserved place. After any error, close the segment for batches."""
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
        """Return the seal that the batch ends its segment with, or None if it is not the last batch."""
        with self._changed:
            if not segment.is_last:
                return None
            return segment.seal_of(offset, batch, self._take_lsns(1), now_ms, self._randomness(NONCE_SIZE))

    def _reserve(self, size: int, records: int) -> tuple[LogSegment, int, int]:
        """Return a place for a batch: the segment, the offset, and the number of its first record. Wait for an open
        segment, or make one if fewer are open than allowed. Raise LeaseLost, NoSpace, Transient."""
        until_ms = self._clock.now_ms() + self._options.wait_ms
        while True:
            # 1. Renew an expired lease before the append: another process may have fenced it (invariant 8).
            held = self._held
            if held is not None and not held.left_ms():
                self._renew_or_give_up()
            # 2. Take a place in an open segment, or wait until one is free or may be made.
            with self._changed:
                while True:
                    if self._closed:
                        raise Transient("the landing log is closed")
                    segment = self._choose(size, records)
                    if segment is not None:
                        return segment, segment.reserve(size, records, self._clock.now_ms()), self._take_lsns(records)
                    if not self._making and None in self._open_segments:
                        self._making = True
                        break
                    self._wait(until_ms)
            # 3. Make a segment without the lock, then look for a place again.
            self._make_spare(needed=True)

    def _wait(self, until_ms: int) -> None:
        """Wait for a change. Raise Transient after `until_ms`, or the error that stopped another batch from opening a
        segment."""
        refusals = self._refusals
        left_ms = min(until_ms - self._clock.now_ms(), self._options.wait_ms)
        if left_ms <= 0 or not self._changed.wait(left_ms / 1000):
            raise Transient(f"landing log: no open segment became free within {self._options.wait_ms} ms")
        if self._refusals != refusals and None in self._open_segments:
            raise type(self._refusal)(str(self._refusal)) from self._refusal

    def _choose(self, size: int, records: int) -> LogSegment | None:
        """Return an idle segment, else a spare one, else the least busy one. Close full segments for batches on the
        way."""
        best: LogSegment | None = None
        for segment in self._open_segments:
            if segment is None:
                continue
            if not segment.fits(size, records):
                self._leave(segment)
            elif segment.under_way < self._limits.writes_max and (best is None or segment.under_way < best.under_way):
                best = segment
        if (best is None or best.under_way) and self._spares and None in self._open_segments:
            best = self._spares.pop(0)
            self._open_segments[self._open_segments.index(None)] = best
        return best

    def _take_lsns(self, count: int) -> int:
        """Return the first of `count` numbers. The caller holds the lock."""
        lsn, self._lsn = self._lsn, self._lsn + count
        return lsn

    def _appending(self) -> bool:
        return any(segment is not None and segment.under_way for segment in (*self._open_segments, *self._sealer.left))

    def _leave(self, segment: LogSegment) -> None:
        """Close a segment for batches: it waits for its seal from now on. The caller holds the lock."""
        if segment in self._open_segments:
            self._open_segments[self._open_segments.index(segment)] = None
            self._sealer.left.append(segment)

    def _leave_old(self) -> None:
        with self._changed:
            for segment in list(self._open_segments):
                if segment is not None and self._is_old(segment):
                    self._leave(segment)

    def _is_old(self, segment: LogSegment | None) -> bool:
        if segment is None or segment.first_put_ms is None:
            return False
        age_ms = self._options.segment_age_ms
        return not waits(segment.first_put_ms + age_ms, self._clock.now_ms(), age_ms)

    # --- making segments --------------------------------------------------------------------------
    def _make_ahead(self) -> None:
        """Make a spare segment if an open one will soon be full."""
        with self._changed:
            if not self._needs_spare():
                return
            self._making = True
        with suppress(NosError):  # the maker logs it, and a batch that needs a segment tries again
            self._make_spare(needed=False)

    def _needs_spare(self) -> bool:
        """Return whether to make a spare segment now. The caller holds the lock."""
        if self._held is None or self._closed or self._making or not self._maker.may_try():
            return False
        soon = sum(segment is not None and segment.half_full for segment in self._open_segments)
        return len(self._spares) < (soon or self._open_segments.count(None) == len(self._open_segments))

    def _make_spare(self, *, needed: bool) -> None:
        """Make a segment and add it to the spare ones. The caller has set `_making`. Raise LeaseLost, NoSpace,
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
        """Add a segment to the spare ones. The caller holds the lock."""
        self.counters.opened += 1
        if self._closed:
            self._sealer.left.append(segment)
        elif self._held is not None and self._held.lease.epoch == segment.epoch:
            self._spares.append(segment)
        else:
            segment.close()  # the lease was lost meanwhile: the process that fenced it seals the segment

    def _make(self) -> LogSegment:
        try:
            return self._maker.make_segment(self._take_lease, self._lsn)
        except LeaseLost:
            held = self._held
            if held is not None:
                self._give_up(held)
            raise

    # --- the lease --------------------------------------------------------------------------------
    def _take_lease(self) -> tuple[Lease, int]:
        """Take the lease of the first free number. Segments that its earlier holder left OPEN are sealed with the
        others."""
        held = self._held
        if held is not None:
            return held.lease, self._number
        options = self._options
        held, number = take_log_lease(self._metadata, self._clock, options.lease_ttl_ms, self._among)
        try:
            orphans = self._metadata.open_segments_of_log(number, held.lease.epoch - 1)
        except BaseException:
            held.__exit__(None, None, None)
            raise
        with self._changed:
            self._held, self._number = held, number
            self._sealer.add_left(LogSegment(row.segment, None, self._limits) for row in orphans)
        return held.lease, number

    def _lost_lease(self) -> HeldLease | None:
        held = self._held
        return held if held is not None and held.lost else None

    def _renew_or_give_up(self) -> None:
        """Check whether the lease was fenced, after another process has sealed a segment or the lease has expired."""
        held = self._held
        if held is not None and not held.renew():
            self._give_up(held)

    def _give_up_if_fenced(self) -> None:
        """Give up the segments of a lost lease, and release those created after the lease was lost."""
        lost = self._lost_lease()
        if lost is not None:
            self._give_up(lost)
        elif self._in_doubt:
            self._in_doubt = False
            self._renew_or_give_up()
        self._sealer.release_late()

    def _give_up(self, held: HeldLease) -> None:
        """Give up all segments: the process that fenced the lease seals them. The next batch takes a new lease."""
        with self._changed:
            if self._held is not held:
                return
            self._held = None
            segments = (*self._open_segments, *self._spares, *self._sealer.left)
            self._sealer.give_up(segment for segment in segments if segment is not None)
            self._open_segments = [None] * self._options.open_segments
            self._spares, self._sealer.left = [], []
            self._changed.notify_all()
        _log.error("the lease of the landing log was lost; taking another", log=self._number)
        held.__exit__(None, None, None)


def _unknown(error: NoSpace) -> Transient:
    """Return the answer if an earlier append of the records may have succeeded. Then no other lander may land them,
    because a refusal could no longer be answered."""
    return Transient(f"landing log: the outcome of an append is unknown; no room to repeat it ({error})")

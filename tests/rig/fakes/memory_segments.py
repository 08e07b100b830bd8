"""Rows of leases and of segments in memory, with what PUTs record, for tests of the landing log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from nos_ec.core.errors import Conflict, LeaseLost, Transient
from nos_ec.core.ids import LandingId, SegmentId, ids_in_segment, log_of, segment_of
from nos_ec.core.states import SegmentEvent, SegmentState, advance_segment
from nos_ec.ports.metadata.landing_segments import LandedMove, SegmentRow
from nos_ec.ports.metadata.leases import Lease
from nos_ec.ports.metadata.objects import ObjectRow


class MemorySegments:
    """The parts of the metadata that a landing log uses, and `record`, in place of `record_puts`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._epoch = 0
        self.leases: dict[str, Lease] = {}
        self.rows: dict[SegmentId, SegmentRow] = {}
        self.recorded: dict[LandingId, bytes] = {}
        """What refers to records: the bytes that each should have."""
        self.on_seal: Callable[[SegmentId], None] = lambda segment: None
        """Called when a row becomes SEALED."""

    # --- PUT ----------------------------------------------------------------------------------------
    def record(self, new: Sequence[tuple[LandingId, bytes]]) -> None:
        """Record PUTs, in one transaction. Raises Transient unless all of their segments are OPEN."""
        with self._lock:
            for landing_id, _ in new:
                row = self.rows.get(segment_of(landing_id))
                if row is None or row.state is not SegmentState.OPEN:
                    raise Transient(f"segment of {landing_id.hex()} is not open")
                assert landing_id not in self.recorded, "an id was used twice"
            self.recorded.update(new)

    def landing_known(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """See `LandingQueue`."""
        with self._lock:
            return frozenset(landing_ids).intersection(self.recorded)

    # --- leases -------------------------------------------------------------------------------------
    def acquire_lease(self, name: str, now_ms: int, ttl_ms: int, holder: str = "") -> Lease:
        """See the port."""
        with self._lock:
            if name in self.leases:
                raise Conflict(f"lease {name} is held")
            self._epoch += 1
            lease = self.leases[name] = Lease(name, self._epoch, now_ms + ttl_ms)
            return lease

    def renew_lease(self, lease: Lease, now_ms: int, ttl_ms: int) -> Lease:
        """See the port."""
        with self._lock:
            self._require(lease)
            renewed = self.leases[lease.name] = replace(lease, expires_ms=now_ms + ttl_ms)
            return renewed

    def release_lease(self, lease: Lease) -> None:
        """See the port."""
        with self._lock:
            if self._holds(lease):
                del self.leases[lease.name]

    def list_leases(self, prefix: str) -> list[Lease]:
        """See the port."""
        with self._lock:
            return [lease for name, lease in sorted(self.leases.items()) if name.startswith(prefix)]

    def acquire_leases(self, names: Sequence[str], now_ms: int, ttl_ms: int) -> list[Lease]:
        """See the port."""
        with self._lock:
            return [self.acquire_lease(name, now_ms, ttl_ms) for name in names if name not in self.leases]

    def renew_leases(self, held: Sequence[Lease], now_ms: int, ttl_ms: int) -> list[Lease]:
        """See the port."""
        with self._lock:
            return [self.renew_lease(lease, now_ms, ttl_ms) for lease in held if self._holds(lease)]

    def release_leases(self, held: Sequence[Lease]) -> None:
        """See the port."""
        for lease in held:
            self.release_lease(lease)

    def expired_leases(self, now_ms: int) -> list[Lease]:
        """See the port."""
        with self._lock:
            return [lease for lease in self.leases.values() if lease.expires_ms <= now_ms]

    def fence_lease(self, lease: Lease, now_ms: int) -> bool:
        """See the port."""
        with self._lock:
            if not self._holds(lease) or self.leases[lease.name].expires_ms > now_ms:
                return False
            del self.leases[lease.name]
            return True

    def _holds(self, lease: Lease) -> bool:
        found = self.leases.get(lease.name)
        return found is not None and found.epoch == lease.epoch

    def _require(self, lease: Lease) -> None:
        if not self._holds(lease):
            raise LeaseLost(f"lease {lease.name} was fenced")

    # --- segments -----------------------------------------------------------------------------------
    def open_segment(self, segment: SegmentId, lease: Lease, now_ms: int) -> None:
        """See the port."""
        with self._lock:
            self._require(lease)
            row = self.rows.get(segment)
            if row is None:
                state = advance_segment(None, SegmentEvent.OPEN)
                self.rows[segment] = SegmentRow(segment, state, lease.epoch, now_ms, None, 0, 0)
            elif row.epoch != lease.epoch:
                raise Conflict(f"segment {segment.hex()} exists")

    def seal_segments(self, ends: Sequence[tuple[SegmentId, int, int]], now_ms: int | None) -> None:
        """See the port."""
        with self._lock:
            for segment, end, records in ends:
                row = self.rows.get(segment)
                if row is None or row.state is SegmentState.DOOMED or row.sealed_ms is not None:
                    continue
                sealed = SegmentState.SEALED
                if row.state is SegmentState.OPEN:
                    self.on_seal(segment)
                    sealed = advance_segment(row.state, SegmentEvent.SEAL)
                self.rows[segment] = replace(row, state=sealed, sealed_ms=now_ms, end=end, records=records)

    def open_segments_of_log(self, log: int, epoch_max: int) -> list[SegmentRow]:
        """See the port."""
        with self._lock:
            return [
                row
                for row in self.rows.values()
                if log_of(row.segment) == log and row.epoch <= epoch_max and row.state is SegmentState.OPEN
            ]

    def landing_segment(self, segment: SegmentId) -> SegmentRow | None:
        """See the port."""
        return self.rows.get(segment)

    def list_segments(self, after: SegmentId | None, limit: int) -> list[SegmentRow]:
        """See the port."""
        with self._lock:
            return [self.rows[segment] for segment in sorted(self.rows) if after is None or segment > after][:limit]

    def releasable_segments(self, segments: Sequence[SegmentId]) -> frozenset[SegmentId]:
        """See the port."""
        with self._lock:
            return frozenset(
                segment
                for segment in segments
                if (row := self.rows.get(segment)) is not None
                and (row.state is SegmentState.DOOMED or (row.state is SegmentState.SEALED and not self._live(segment)))
            )

    def doom_segment(self, segment: SegmentId) -> bool:
        """See the port."""
        with self._lock:
            row = self.rows.get(segment)
            if row is None or row.state is SegmentState.OPEN or self._live(segment):
                return False
            if row.state is SegmentState.SEALED:
                self.rows[segment] = replace(row, state=advance_segment(row.state, SegmentEvent.DOOM))
            return True

    def forget_segments(self, segments: Sequence[SegmentId]) -> None:
        """See the port."""
        with self._lock:
            for segment in segments:
                row = self.rows.get(segment)
                if row is not None and row.state is SegmentState.DOOMED:
                    del self.rows[segment]

    def segment_totals(self) -> dict[SegmentState, tuple[int, int]]:
        """See the port."""
        with self._lock:
            totals: dict[SegmentState, tuple[int, int]] = {}
            for row in self.rows.values():
                count, end = totals.get(row.state, (0, 0))
                totals[row.state] = (count + 1, end + row.end)
            return totals

    def objects_in_segment(self, segment: SegmentId, after: LandingId | None, limit: int) -> list[ObjectRow]:
        """Not kept here: there are no objects."""
        raise NotImplementedError

    def make_due(self, rows: Sequence[ObjectRow], now_ms: int) -> int:
        """Not kept here: there are no objects."""
        raise NotImplementedError

    def move_landed(self, moves: Sequence[LandedMove]) -> frozenset[LandingId]:
        """Not kept here: there are no objects."""
        raise NotImplementedError

    def _live(self, segment: SegmentId) -> bool:
        first, last = ids_in_segment(segment)
        return any(first <= landing_id <= last for landing_id in self.recorded)

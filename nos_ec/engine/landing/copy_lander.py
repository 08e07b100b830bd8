"""Lands PUTs in the landing store, one copy each.

1  ids are durably in the deletion queue before their copies are written; a copy that no row claims is deleted
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from nos_ec.core.errors import NosError, NoSpace
from nos_ec.core.formats.copy_label import CopyLabel, encode_label
from nos_ec.core.ids import LandingId
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.audit_entries import abandoned_copies
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.space_reserve import require_landing_space
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Clock
from nos_ec.ports.landing_store import LandingPut, LandingStore
from nos_ec.ports.metadata import LandingQueue

BATCHES_MAX = 2
"""How many batches are under way at a time: one is written while another is recorded. More batches would be smaller."""
BATCH_OBJECTS_MAX = 64
BATCH_BYTES_MAX = 8 << 20
"""A batch saves transactions whatever the size of its copies, but all of it waits for its last copy."""

_log = structlog.get_logger(__name__)


class CopyLander:
    """A `Lander` (nos_ec.engine.landing.lander) over a landing store. Safe to call from several threads.

    A PUT may take `reservation_ms` before its copy counts as abandoned. PUTs leave `reserve_bytes` of the landing
    store's free space to packing and GC, so that these can still free space in a full store.
    """

    def __init__(
        self,
        metadata: LandingQueue,
        landing: LandingStore,
        clock: Clock,
        new_landing_id: Callable[[], LandingId],
        reservation_ms: int,
        reserve_bytes: int,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._metadata = metadata
        self._landing = landing
        self._clock = clock
        self._new_landing_id = new_landing_id
        self._reservation_ms = reservation_ms
        self._reserve_bytes = reserve_bytes
        self._trail = trail

    @property
    def batches_max(self) -> int:
        """Return how many batches should be under way at once."""
        return BATCHES_MAX

    @property
    def batch_bytes_max(self) -> int:
        """Return the bytes of a batch."""
        return BATCH_BYTES_MAX

    @property
    def batch_objects_max(self) -> int:
        """Return the most objects of a batch."""
        return BATCH_OBJECTS_MAX

    def land(self, batch: Sequence[NewCopy]) -> _Landed:
        """Reserve the ids in one transaction, then write the copies. A copy that does not fit does not stop the others.
        Raise Transient."""
        outcomes = self._fitting(batch)
        now_ms = self._clock.now_ms()
        copies = [
            _labelled(one, copy, now_ms)
            for one, copy in zip(outcomes, batch, strict=True)
            if not isinstance(one, NosError)
        ]
        if not copies:
            return _Landed(self, outcomes, ())
        landing_ids = [copy.landing_id for copy in copies]
        self._metadata.reserve_landing(landing_ids, now_ms + self._reservation_ms)
        kill_point("put.reserved")
        try:
            failed = self._landing.put_many(copies) if len(copies) > 1 else self._put_alone(copies[0])
        except NosError:
            self.remove_late(landing_ids)
            raise
        outcomes = [one if isinstance(one, NosError) else failed.get(one, one) for one in outcomes]
        return _Landed(self, outcomes, tuple(failed))

    def _fitting(self, batch: Sequence[NewCopy]) -> list[LandingId | NosError]:
        """Return a new id for each copy, or the reason why it does not fit."""
        free = self._landing.free_bytes()
        outcomes: list[LandingId | NosError] = []
        for copy in batch:
            size = len(copy.data)
            try:
                require_landing_space(free, size, self._reserve_bytes)
            except NoSpace as error:
                outcomes.append(error)
            else:
                free -= size
                outcomes.append(self._new_landing_id())
        return outcomes

    def _put_alone(self, copy: LandingPut) -> dict[LandingId, NosError]:
        try:
            self._landing.put(*copy)
        except NosError as error:
            return {copy.landing_id: error}
        return {}

    def remove_late(self, landing_ids: Sequence[LandingId]) -> None:
        """Delete copies that were written after their reservation had expired and been reaped. Nothing else refers to
        them, or nothing will soon.

        An id whose reservation is gone or doomed can never be recorded, so this is safe even if the outcome of
        recording is unknown. Never raises a NosError, so that the original failure is reported.
        """
        try:
            needed = self._metadata.landing_needed(landing_ids)
            late = [landing_id for landing_id in landing_ids if landing_id not in needed]
            self._trail.record(abandoned_copies(late))
            for landing_id in late:
                self._landing.delete(landing_id)
        except NosError as error:
            _log.warning("landing copies of a failed PUT not deleted", error=str(error))

    def delete_refused(self, landing_ids: Sequence[LandingId]) -> list[LandingId]:
        """Delete the copies of PUTs that are refused and that no process can record any more. Their reservations are
        due, and the reaper removes them. Return the copies that may still be there. Never raises a NosError."""
        self._trail.record(abandoned_copies(landing_ids))
        kept: list[LandingId] = []
        for landing_id in landing_ids:
            try:
                self._landing.delete(landing_id)
            except NosError as error:
                _log.warning("landing copy of a refused PUT not deleted", copy=landing_id.hex(), error=str(error))
                kept.append(landing_id)
        return kept


def _labelled(landing_id: LandingId, copy: NewCopy, now_ms: int) -> LandingPut:
    put_ms = now_ms if copy.put_ms is None else copy.put_ms
    label = CopyLabel(copy.key.bucket, copy.key.name, put_ms, len(copy.data), copy.crc32c, copy.attributes)
    return LandingPut(landing_id, copy.data, encode_label(landing_id, label))


@dataclass(frozen=True, slots=True)
class _Landed:
    """The outcome of a batch. `failed` are ids that were reserved, but whose copies were not written."""

    lander: CopyLander
    outcomes: Sequence[LandingId | NosError]
    failed: tuple[LandingId, ...]

    def void(self, refused: Collection[LandingId]) -> list[LandingId]:
        """Delete the copies of these PUTs."""
        return self.lander.delete_refused(
            [one for one in self.outcomes if not isinstance(one, NosError) and one in refused]
        )

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """Remove copies that were written too late."""
        if late := [*self.failed, *not_recorded]:
            self.lander.remove_late(late)

"""Deletes landing copies that are no longer needed, and reverts objects whose packed bytes are not intact.

    2  a landing copy is deleted only after the extent is committed, the packed bytes have been read back and matched
       their CRC, and the grace period is over (the queue does not return an entry sooner)

One deletion has these steps: verify -> doom (compare-and-set, so a row that changed in the meantime keeps its copy) ->
record it in the audit trail -> delete the copy -> forget the entry. After a crash between them, the next run completes
the deletion.

A record of the landing log is not deleted individually: its entry is forgotten, and the trimmer deletes whole segments
that have no entries left. An entry in a segment that is still OPEN stays doomed until the segment is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nos_ec.core.errors import Corrupt, NosError, NotFound, Transient
from nos_ec.core.ids import BlockId, LandingId, in_log
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import ObjectState
from nos_ec.core.sums import Summed
from nos_ec.engine.audit_entries import copies_deleted, object_reverted
from nos_ec.engine.log_throttle import ThrottledLog
from nos_ec.engine.packable import crc_checked
from nos_ec.engine.read_threads import ReadThreads
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.engine.upkeep.verifier import PackedObject, Verifier
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import Inspection, LandingDeletion, LandingQueue, ObjectRow

BACK_OFF = BackOff(first_ms=60_000, max_ms=600_000)
"""Waits of an entry that could not be settled. An entry whose row merely changed in the meantime always waits
`first_ms`."""
PARKED_MAX = 10_000
BATCH_OBJECTS = 5000
"""How many landing copies a daemon settles in a batch. The embedded landing store has 256 folders and syncs each of
them once per batch, so a batch has many copies for each folder."""


@dataclass(frozen=True, slots=True)
class _Copy:
    landing_id: LandingId
    object: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class ReapResult(Summed):
    """Counts of one run."""

    deleted: int = 0
    verified_bytes: int = 0
    """Bytes that were read back from packed stripes and are intact."""
    reverted: int = 0
    """Objects whose packed bytes were not intact. They will be packed again from their landing copies."""
    postponed: int = 0
    """Entries that could not be settled now."""
    held: int = 0
    """Doomed entries that stay because their segments of the landing log are still open."""


class ReaperMetadata(LandingQueue, Inspection, Protocol):
    """The parts of the metadata that the reaper uses."""


class Reaper:
    """Settles due entries of the landing-copy deletion queue. Several reapers may run at once: they may repeat work,
    but the result is correct."""

    def __init__(
        self,
        metadata: ReaperMetadata,
        landing: LandingStore,
        blocks: BlockStore,
        clock: Clock,
        batch_objects: int,
        threads: ReadThreads,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        """threads: they read packed objects back."""
        self._metadata = metadata
        self._landing = landing
        self._verifier = Verifier(blocks, threads, clock)
        self._clock = clock
        self._batch_objects = batch_objects
        self._trail = trail
        self._held: frozenset[LandingId] = frozenset()
        """Doomed entries that stay until their segments are sealed. They are already in the audit trail."""
        self._errors = ThrottledLog(__name__, clock)
        self._check_ms = 0
        """When to check again for parked entries that another reaper has settled."""
        self.parked: RetryQueue[_Copy] = RetryQueue("landing copy", _name, clock, BACK_OFF, PARKED_MAX)
        """Entries that could not be settled because of an error; any thread may read its figures."""

    def run_once(self, beat: Beat = unwatched) -> ReapResult:
        """Settle at most one batch. An empty result means that no entry is due. Raises Transient.

        `beat` is called for every read and deletion, because each may take as long as a store's time limit.
        """
        # 1. Read the due entries, and find those that need no check and those of packed objects.
        now_ms = self._clock.now_ms()
        due = self._metadata.due_deletions(now_ms, self._batch_objects)
        self._errors.report()
        if len(due) < self._batch_objects:
            self._release_settled_elsewhere(due, now_ms)
        if not due:
            return ReapResult()
        unneeded = [
            deletion
            for deletion in due
            if deletion.doomed or deletion.row is None or deletion.row.state is ObjectState.EMPTY
        ]
        packed = [
            (deletion, PackedObject(row, row.extent))
            for deletion in due
            if not deletion.doomed
            and (row := deletion.row) is not None
            and row.state is ObjectState.PACKED
            and row.extent
        ]
        # 2. Read the packed objects back. Revert those that are not intact to their landing copies.
        verified: dict[LandingId, BlockId | None] = {deletion.landing_id: None for deletion in unneeded}
        reverted: set[LandingId] = set()
        failures: dict[LandingId, NosError] = {}
        verified_bytes = 0
        outcomes = self._verifier.verify([one for _, one in packed], beat)
        for (deletion, (row, extent)), outcome in zip(packed, outcomes, strict=True):
            if outcome is None:
                verified[deletion.landing_id] = extent.block_id
                verified_bytes += row.size
            elif isinstance(outcome, Corrupt | NotFound):
                failure = self._copy_failure(deletion, row, outcome)
                if failure is not None:
                    failures[deletion.landing_id] = failure
                elif self._revert(deletion, row, outcome, now_ms):
                    reverted.add(deletion.landing_id)
            else:
                failures[deletion.landing_id] = outcome
        # 3. Doom the copies that are no longer needed, record them, and delete them.
        doomed = self._metadata.doom_landing(verified)
        new = [one for one in due if one.landing_id in doomed and one.landing_id not in self._held]
        self._trail.record(copies_deleted(new, verified))
        not_deleted, held = self._delete(sorted(doomed), beat)
        self._held = (self._held - doomed if len(self._held) < PARKED_MAX else frozenset()) | held
        # 4. Postpone the other entries, and release the settled ones.
        failures |= not_deleted
        settled = (doomed - failures.keys() - held) | reverted
        self._postpone([deletion for deletion in due if deletion.landing_id not in settled], failures, now_ms)
        if self.parked:
            for deletion in due:
                if deletion.landing_id in settled:
                    self.parked.release(_copy(deletion))
        postponed = len(due) - len(settled) - len(held)
        return ReapResult(len(settled) - len(reverted), verified_bytes, len(reverted), postponed, len(held))

    def drain(self, watch: Callable[[ReapResult], object] = lambda _: None, beat: Beat = unwatched) -> ReapResult:
        """Run until no entry is due. `watch` is called with the counts so far after every batch, `beat` as in
        `run_once`."""
        total = ReapResult()
        while (result := self.run_once(beat)) != ReapResult():
            total += result
            watch(total)
        return total

    def close(self) -> None:
        """Log how many errors were suppressed."""
        self._errors.report(closing=True)

    def _postpone(
        self, deletions: Sequence[LandingDeletion], failures: Mapping[LandingId, NosError], now_ms: int
    ) -> None:
        """Postpone entries. A failed entry waits longer each time; an entry whose row changed does not count as
        failed."""
        by_wait_ms: dict[int, list[LandingId]] = {}
        for deletion in deletions:
            failure, wait_ms = failures.get(deletion.landing_id), BACK_OFF.first_ms
            if failure is not None and self.parked.park(copy := _copy(deletion), failure):
                wait_ms = BACK_OFF.wait_ms(self.parked.failures(copy))
            by_wait_ms.setdefault(wait_ms, []).append(deletion.landing_id)
        for wait_ms, landing_ids in by_wait_ms.items():
            self._metadata.postpone_deletion(landing_ids, now_ms + wait_ms)

    def _release_settled_elsewhere(self, due: Sequence[LandingDeletion], now_ms: int) -> None:
        """Release parked entries whose copies are no longer known, because another reaper has settled them.

        `due` holds all entries that are due. If a parked entry should be among them and is not, another reaper has
        postponed or settled it.
        """
        if not self.parked or waits(self._check_ms, now_ms, BACK_OFF.first_ms):
            return
        self._check_ms = now_ms + BACK_OFF.first_ms
        found = {_copy(deletion) for deletion in due}
        missing = [copy for copy, _ in self.parked if copy not in found and not self.parked.waits(copy)]
        for first in range(0, len(missing), self._batch_objects):
            some = missing[first : first + self._batch_objects]
            known = self._metadata.landing_known([copy.landing_id for copy in some])
            for copy in some:
                if copy.landing_id not in known:
                    self.parked.release(copy)

    def _delete(
        self, doomed: Sequence[LandingId], beat: Beat
    ) -> tuple[Mapping[LandingId, NosError], frozenset[LandingId]]:
        """Delete doomed copies and forget their entries. A record of the landing log has no copy to delete.

        Returns the errors of the copies that could not be deleted, and the entries that cannot be forgotten yet.
        """
        kill_point("reaper.doomed")
        failed = self._landing.delete_many([landing_id for landing_id in doomed if not in_log(landing_id)], beat)
        kill_point("reaper.deleted")
        deleted = [landing_id for landing_id in doomed if landing_id not in failed]
        return failed, self._metadata.forget_landing(deleted) if deleted else frozenset()

    def _copy_failure(self, deletion: LandingDeletion, row: ObjectRow, damage: NosError) -> NosError | None:
        """Return the error that keeps the landing copy from replacing lost or damaged packed bytes. None if the copy
        can replace them, or if another process has settled this entry in the meantime."""
        try:
            data = self._landing.read(deletion.landing_id)
            crc_checked(data, row.size, row.crc32c, row.key, f"landing copy of {row.key} v{row.version}")
        except Transient as error:
            return error
        except NosError as error:
            if not self._is_current(deletion, row):
                return None
            if _copy(deletion) not in self.parked:
                self._errors.error(
                    "packed bytes and landing copy are lost or damaged",
                    object=f"{row.key} v{row.version}",
                    packed=str(damage),
                    landed=str(error),
                )
            return Corrupt(f"packed bytes and landing copy are lost or damaged: {damage}; {error}")
        return None

    def _is_current(self, deletion: LandingDeletion, row: ObjectRow) -> bool:
        """Return whether the entry is still queued and the extent of the object unchanged. If not, nothing is damaged:
        other processes may have deleted the copy, moved the object and deleted its block while this process paused."""
        now = self._metadata.objects_with([row.object_id]).get(row.object_id)
        if now is None or (now.version, now.extent) != (row.version, row.extent):
            return False
        return self._metadata.queued_copy(row, deletion.landing_id, deletion.landing_id) is not None

    def _revert(self, deletion: LandingDeletion, row: ObjectRow, damage: NosError, now_ms: int) -> bool:
        """Revert an object to its landing copy because its packed bytes are lost or damaged. Returns False when the row
        changed: a block that was deleted after its objects moved is not damaged."""
        reverted = self._metadata.revert_to_landing(deletion, now_ms)
        kill_point("reaper.reverted")
        if reverted:
            self._trail.record([object_reverted(deletion, row, damage)])
            self._errors.error(
                "packed bytes are lost or damaged; reverted to the landing copy",
                object=f"{row.key} v{row.version}",
                error=str(damage),
            )
        return reverted


def _copy(deletion: LandingDeletion) -> _Copy:
    row = deletion.row
    return _Copy(deletion.landing_id, "no object" if row is None else f"{row.key} v{row.version}")


def _name(copy: _Copy) -> str:
    return f"{copy.landing_id.hex()} of {copy.object}"

"""Deleting landing copies that are not needed any more, and healing what did not pack well.

    2  a landing copy goes only after the extent is committed, the packed bytes have been read back and matched
       their CRC, and the grace is over (the queue hands out an entry no sooner)

Order of one deletion: verify -> doom (compare-and-set, so a row that moved meanwhile keeps its copy) -> delete the
copy -> forget the entry. A crash anywhere in between is completed by the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from nos_ec.core.errors import Corrupt, NosError, NotFound, Transient
from nos_ec.core.ids import BlockId, Extent, LandingId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.lifecycle import ObjectState
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import LandingDeletion, Metadata, ObjectRow

_log = structlog.get_logger(__name__)

RETRY_WAIT_MS = 60_000
"""How long an entry rests that could not be settled: its row moved, or a store did not answer."""

_EXTENTS_PER_READ_MAX = 64


@dataclass(frozen=True, slots=True)
class ReapResult:
    """Counts of one run. verified_bytes were read back from packed stripes; reverted objects failed it and are to be
    packed again from their landing copy; postponed entries could not be settled now."""

    deleted: int = 0
    verified_bytes: int = 0
    reverted: int = 0
    postponed: int = 0

    def __add__(self, other: ReapResult) -> ReapResult:
        return ReapResult(
            self.deleted + other.deleted,
            self.verified_bytes + other.verified_bytes,
            self.reverted + other.reverted,
            self.postponed + other.postponed,
        )


class Reaper:
    """Settles due entries of the landing-copy deletion queue. Several may run at once; they share the work badly
    but do no harm."""

    def __init__(
        self, metadata: Metadata, landing: LandingStore, blocks: BlockStore, clock: Clock, batch_objects: int
    ) -> None:
        self._metadata = metadata
        self._landing = landing
        self._blocks = blocks
        self._clock = clock
        self._batch_objects = batch_objects

    def run_once(self, beat: Beat = unwatched) -> ReapResult:
        """Settle at most one batch. An empty result means that nothing is due. Raises Transient.

        `beat` hears of every read and deletion: each may take as long as a store's time limit.
        """
        now_ms = self._clock.now_ms()
        due = self._metadata.due_deletions(now_ms, self._batch_objects)
        if not due:
            return ReapResult()
        unneeded = [deletion for deletion in due if deletion.doomed or deletion.row is None]
        packed = [d for d in due if not d.doomed and d.row is not None and d.row.state is ObjectState.PACKED]
        verified: dict[LandingId, BlockId | None] = {deletion.landing_id: None for deletion in unneeded}
        reverted = 0
        verified_bytes = 0
        for deletion, row, outcome in self._verify(packed, beat):
            if outcome is None and row.extent is not None:
                verified[deletion.landing_id] = row.extent.block_id
                verified_bytes += row.size
            elif isinstance(outcome, Corrupt | NotFound):
                reverted += self._revert(deletion, row, outcome, now_ms)
        doomed = self._metadata.doom_landing(verified)
        deleted = self._delete(sorted(doomed), beat)
        settled = len(deleted) + reverted
        if settled < len(due):
            left = [d.landing_id for d in due if d.landing_id not in deleted]
            self._metadata.postpone_deletion(left, now_ms + RETRY_WAIT_MS)
        return ReapResult(len(deleted), verified_bytes, reverted, len(due) - settled)

    def drain(self, watch: Callable[[ReapResult], object] = lambda _: None, beat: Beat = unwatched) -> ReapResult:
        """Run until nothing is due. `watch` sees the counts so far after every batch; `beat` as in `run_once`."""
        total = ReapResult()
        while (result := self.run_once(beat)) != ReapResult():
            total += result
            watch(total)
        return total

    def _delete(self, doomed: Sequence[LandingId], beat: Beat) -> frozenset[LandingId]:
        kill_point("reaper.doomed")
        failed = self._landing.delete_many(doomed, beat)
        kill_point("reaper.deleted")
        if failed:
            landing_id, error = next(iter(failed.items()))
            _log.warning("landing copies not deleted", count=len(failed), first=landing_id.hex(), error=str(error))
        deleted = [landing_id for landing_id in doomed if landing_id not in failed]
        if deleted:
            self._metadata.forget_landing(deleted)
        return frozenset(deleted)

    def _revert(self, deletion: LandingDeletion, row: ObjectRow, damage: NosError, now_ms: int) -> bool:
        """Go back to the landing copy of packed bytes that are lost or damaged, if the copy is good.

        False when it is not, or when the row moved on: a block that is gone because its objects moved is no damage.
        """
        try:
            data = self._landing.read(deletion.landing_id)
            crc_checked(data, row.size, row.crc32c, f"landing copy of {row.key} v{row.version}")
        except NosError as error:
            _log.error(
                "packed bytes and landing copy are lost or damaged",
                object=f"{row.key} v{row.version}",
                packed=str(damage),
                landed=str(error),
            )
            return False
        reverted = self._metadata.revert_to_landing(deletion, now_ms)
        kill_point("reaper.reverted")
        if reverted:
            _log.error(
                "packed bytes are lost or damaged, going back to the landing copy",
                object=f"{row.key} v{row.version}",
                error=str(damage),
            )
        return reverted

    def _verify(
        self, deletions: Sequence[LandingDeletion], beat: Beat
    ) -> list[tuple[LandingDeletion, ObjectRow, NosError | None]]:
        """Read the packed bytes back. For each deletion None (they match), Corrupt (they do not), NotFound (their
        block is gone), or another error."""
        by_block: dict[BlockId, list[tuple[LandingDeletion, ObjectRow, Extent]]] = {}
        for deletion in deletions:
            row = deletion.row
            if row is not None and row.extent is not None:
                by_block.setdefault(row.extent.block_id, []).append((deletion, row, row.extent))
        outcomes = []
        for block_id, items in by_block.items():
            items.sort(key=lambda item: item[2].offset)
            for first in range(0, len(items), _EXTENTS_PER_READ_MAX):
                batch = items[first : first + _EXTENTS_PER_READ_MAX]
                errors = self._verify_batch(block_id, [(row, extent) for _, row, extent in batch], beat)
                outcomes += [(d, row, error) for (d, row, _), error in zip(batch, errors, strict=True)]
        return outcomes

    def _verify_batch(
        self, block_id: BlockId, items: Sequence[tuple[ObjectRow, Extent]], beat: Beat
    ) -> list[NosError | None]:
        beat(0)
        try:
            found = self._blocks.read_many(block_id, [(extent.offset, extent.length) for _, extent in items])
        except (NotFound, Transient) as error:
            return [error] * len(items)
        except Corrupt as error:
            if len(items) == 1:
                return [error]
            return [self._verify_batch(block_id, [item], beat)[0] for item in items]
        return [_mismatch(row, data) for (row, _), data in zip(items, found, strict=True)]


def _mismatch(row: ObjectRow, data: bytes) -> Corrupt | None:
    try:
        crc_checked(data, row.size, row.crc32c, f"packed bytes of {row.key} v{row.version}")
    except Corrupt as error:
        return error
    return None

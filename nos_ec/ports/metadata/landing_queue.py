"""The deletion queue of landing copies: PUTs reserve entries, commits add entries, and the reaper removes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.ids import BlockId, LandingId
from nos_ec.ports.metadata.objects import ObjectRow


@dataclass(frozen=True, slots=True)
class LandingDeletion:
    """A queued landing copy that is due for deletion.

    `object_id` is None for a copy that no object claims yet (a PUT in flight, or an abandoned one). `row` is the
    object's row if it still has that `version`, else None.
    """

    landing_id: LandingId
    object_id: int | None
    version: int | None
    doomed: bool
    row: ObjectRow | None


class LandingQueue(Protocol):
    """The queue's entries, by landing id. See the package docstring. Safe to call from several threads."""

    # --- PUT --------------------------------------------------------------------------------------
    def reserve_landing(self, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        """Queue landing ids for deletion *before* their bytes are written, so that a PUT that dies leaves no copy
        behind. Raises ValueError for records of the landing log, which need none."""

    # --- reaper -----------------------------------------------------------------------------------
    def due_deletions(self, now_ms: int, limit: int) -> list[LandingDeletion]:
        """Return queue entries that are due, each with its object's row, longest due first. After them come entries
        whose time is later than WAIT_MS_MAX from now (as for `Objects.due_objects`)."""

    def first_deletion_ms(self) -> int | None:
        """Return the time at which the first entry becomes due, or became due if it is overdue. None when the queue is
        empty.

        Reads one entry of an index, however long the queue is.
        """

    def doom_landing(self, verified: Mapping[LandingId, BlockId | None]) -> frozenset[LandingId]:
        """Mark copies as about to be deleted. Returns the copies that are doomed now, by this call or an earlier one.

        The value is the block in which the packed bytes were verified, or None when the caller saw no row. An entry is
        doomed only if no row of its version exists, or the row is PACKED in exactly that block (invariant 2). After
        this a PUT that reserved the id can no longer record it.
        """

    def revert_to_landing(self, deletion: LandingDeletion, now_ms: int) -> bool:
        """Move an object whose packed bytes failed verification from PACKED back to LANDED with its landing copy, due
        now. The extent becomes dead bytes, and the queue entry is removed. Returns False when the row has changed since
        or the copy is doomed."""

    def postpone_deletion(self, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        """Make these entries due again at `not_before_ms`."""

    def forget_landing(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """Remove queue entries after their copies were deleted. Idempotent.

        Returns the entries that stay, because they are records of OPEN segments of the landing log: a retry of
        `record_puts` finds there that they were recorded. The caller postpones them and forgets them later.
        """

    # --- look-ups ---------------------------------------------------------------------------------
    def queued_copy(self, row: ObjectRow, first: LandingId, last: LandingId) -> LandingId | None:
        """Return the landing copy of that version that is queued for deletion, if its id is from `first` to `last`.

        Returns None when there is none, or it is doomed. The cost grows with the number of queue entries between the
        two ids; for records of the landing log, only with the entries in segments that were OPEN when the version was
        recorded.
        """

    def landing_known(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """Return the ids that a row or the deletion queue refers to. Used by the reaper, and by checks for leaked
        copies."""

    def landing_needed(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """Return the known ids that are not doomed. Copies of the others may be deleted, because none of them can be
        recorded any more.

        A process that wrote a doomed copy too late must delete it itself, because the reaper may already have deleted
        the copy and be about to forget it.
        """

"""Groups victims into batches whose survivors fit into the free space.

10  a batch is rewritten only if its survivors fit into the free space
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nos_ec.core.errors import FREE_SPACE, NoSpace
from nos_ec.core.gc.reclaim import stripes_rewritten
from nos_ec.engine.gc.condemned import CondemnedBlocks
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.space import share_now
from nos_ec.engine.gc.victims import ChosenBlock


@dataclass(frozen=True, slots=True)
class Batch:
    """Victims to rewrite together, and the most groups to write at a time. Each group that is being written needs the
    space of one group in addition to the space of the survivors."""

    victims: Sequence[ChosenBlock]
    lanes: int


class BatchPlanner:
    """Forms the batches of one run."""

    def __init__(self, run: RunContext, condemned: CondemnedBlocks) -> None:
        self._run = run
        self._blocks = run.blocks
        self._condemned = condemned

    def next_batch(self, victims: Sequence[ChosenBlock], refusal: NoSpace | None) -> Batch:
        """Return the victims to rewrite next: those that fit into this worker's equal share of the space above the
        floor. The batch is empty when the run has been stopped.

        When no victim fits, the grace period of the condemned blocks is cut short. When no condemned block is left, one
        victim may take half of the free space. Only worker 0 does so; the run of another worker is stopped.

        refusal: the failure that ended the last batch for lack of space, or None. When no victim fits into half of the
        free space, raises `refusal`, or a new NoSpace if it is None. Raises Transient when the free space is unknown.
        """
        batch = self._above_floor(victims)
        while not batch.victims and self._condemned.cut_grace_short():
            batch = self._above_floor(victims)
        if not batch.victims and self._run.share.worker:
            self._run.stop.end(Stopped.SPACE)
        if batch.victims or self._run.stop.is_set():
            return batch
        return Batch([self._in_half_of_free_space(victims, refusal)], 1)

    def still_owned(self, victims: Sequence[ChosenBlock]) -> list[ChosenBlock]:
        """Return the victims that this worker may still collect. When a run of worker 0 began with the blocks of all
        workers, because space was tight, and no longer is, the others collect theirs again."""
        run = self._run
        if run.options.workers == 1 or not run.share.is_whole:
            return list(victims)
        share = share_now(self._blocks, run.options, run.share.worker)
        return [victim for victim in victims if share.owns(victim.block.block_id)]

    def _above_floor(self, victims: Sequence[ChosenBlock]) -> Batch:
        workers = share_now(self._blocks, self._run.options, self._run.share.worker).workers
        room_bytes = (self._blocks.free_bytes() - self._run.options.floor_bytes) // workers
        fitting = self._fitting(victims, room_bytes)
        left_bytes = room_bytes - self._bytes_to_write(sum(victim.needs for victim in fitting))
        more = max(0, left_bytes // self._blocks.geometry.group_size_max)
        return Batch(fitting, min(self._run.options.lanes, 1 + more))

    def _in_half_of_free_space(self, victims: Sequence[ChosenBlock], refusal: NoSpace | None) -> ChosenBlock:
        free_bytes = self._blocks.free_bytes()
        fitting = self._fitting(victims, free_bytes // 2)
        if fitting:
            return fitting[0]
        least = min(self._bytes_to_write(victim.needs) for victim in victims)
        raise refusal or NoSpace(
            f"block store: {free_bytes} bytes free, GC needs twice {least} bytes to rewrite a block; {FREE_SPACE}, or"
            " add space"
        )

    def _fitting(self, victims: Sequence[ChosenBlock], room_bytes: int) -> list[ChosenBlock]:
        """Return the victims that can be rewritten together in `room_bytes`, earlier ones first."""
        taken: list[ChosenBlock] = []
        needs = 0.0
        for victim in victims:
            if self._bytes_to_write(needs + victim.needs) <= room_bytes:
                taken.append(victim)
                needs += victim.needs
        return taken

    def _bytes_to_write(self, needs: float) -> int:
        """Return the space for survivors that need this many stripes, plus one group that each new block requires."""
        geometry = self._blocks.geometry
        return stripes_rewritten(needs) * geometry.stripe_size + geometry.group_size_max

"""Which victims are rewritten together: those whose survivors fit into the free space.

10  a batch is rewritten only if its survivors fit into the free space
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nos_ec.core.errors import FREE_SPACE, NoSpace
from nos_ec.core.gc.reclaim import stripes_rewritten
from nos_ec.engine.gc.condemned import CondemnedBlocks
from nos_ec.engine.gc.run_context import RunContext
from nos_ec.engine.gc.victims import ChosenBlock


@dataclass(frozen=True, slots=True)
class Batch:
    """Victims to rewrite together, and how many groups may be written at a time: each of them needs the space of a
    group beside what the survivors take."""

    victims: Sequence[ChosenBlock]
    lanes: int


class BatchPlanner:
    """Forms the batches of one run."""

    def __init__(self, run: RunContext, condemned: CondemnedBlocks) -> None:
        self._blocks = run.blocks
        self._options = run.options
        self._stop = run.stop
        self._condemned = condemned

    def next_batch(self, victims: Sequence[ChosenBlock], refusal: NoSpace | None) -> Batch:
        """The victims to rewrite next: those that fit into the space above the floor. None of them when the run is to
        stop.

        When none fits, the grace period of the condemned blocks is cut short. When no condemned block is left, one
        victim may take half of the free space.

        refusal: the failure that ended the last batch for lack of space, if one did. When no victim fits into half of
        the free space, raises `refusal`, or a new NoSpace if it is None. Raises Transient when the free space is
        unknown.
        """
        batch = self._above_floor(victims)
        while not batch.victims and self._condemned.cut_grace_short():
            batch = self._above_floor(victims)
        if batch.victims or self._stop.is_set():
            return batch
        return Batch([self._in_half_of_free_space(victims, refusal)], 1)

    def _above_floor(self, victims: Sequence[ChosenBlock]) -> Batch:
        room_bytes = self._blocks.free_bytes() - self._options.floor_bytes
        fitting = self._fitting(victims, room_bytes)
        left_bytes = room_bytes - self._bytes_to_write(sum(victim.needs for victim in fitting))
        more = max(0, left_bytes // self._blocks.geometry.group_size_max)
        return Batch(fitting, min(self._options.lanes, 1 + more))

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
        """The victims that can be rewritten together in that much space, chosen in their order."""
        taken: list[ChosenBlock] = []
        needs = 0.0
        for victim in victims:
            if self._bytes_to_write(needs + victim.needs) <= room_bytes:
                taken.append(victim)
                needs += victim.needs
        return taken

    def _bytes_to_write(self, needs: float) -> int:
        """Space for survivors that need this many stripes, and for one more group, which every new block must have."""
        geometry = self._blocks.geometry
        return stripes_rewritten(needs) * geometry.stripe_size + geometry.group_size_max

"""The result of a GC run, counted while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from nos_ec.core.errors import NosError
from nos_ec.core.gc.gc_policy import Behind, StoredBytes
from nos_ec.core.ids import BlockId
from nos_ec.core.ratios import ratio, rounded
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.victims import BlockDecision
from nos_ec.engine.packing.stripe_writer import Failure, WriteResult

NAMED_MAX = 20
"""The most unreadable objects, and the most parked blocks, that a result names. The others are only counted."""


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """Totals of one run; bytes are in data space.

    `unreadable` and `parked` name the first few of `unreadable_objects` and `blocks_parked`, each with the reason.
    The `empty_*_bytes` count the bytes of the written stripes that hold no object (core/packing/empty_bytes.py).
    """

    blocks_examined: int = 0
    block_bytes_examined: int = 0
    header_bytes_read: int = 0
    blocks_condemned: int = 0
    blocks_deleted: int = 0
    bytes_reclaimed: int = 0
    objects_moved: int = 0
    bytes_moved: int = 0
    stripes_written: int = 0
    objects_split: int = 0
    empty_front_bytes: int = 0
    empty_gap_bytes: int = 0
    empty_end_bytes: int = 0
    unreadable_objects: int = 0
    blocks_parked: int = 0
    expired_objects: int = 0
    """Removed from the trash before the blocks were chosen."""
    expired_bytes: int = 0
    blocks_chosen: int = 0
    """Victims that hold live objects."""
    bytes_chosen: int = 0
    """Their live bytes."""
    blocks_finished: int = 0
    """Victims that are collected or set aside."""
    unreadable: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()
    space_amplification: float | None = None
    """Stored bytes divided by live bytes at the end, without condemned blocks. None while no object is live."""
    target_space_amplification: float | None = None
    """None if the policy has no target."""
    behind: Behind | None = None
    """Why the run did not reach the target, or did not collect all that a policy without a target chooses."""
    stopped: Stopped | None = None
    """Why the run was stopped early, or None."""

    def __add__(self, later: CollectionResult) -> CollectionResult:
        """Return the totals of two runs, with the state of the store after the later one."""
        return replace(
            later,
            **_summed(self, later),
            unreadable=(*self.unreadable, *later.unreadable)[:NAMED_MAX],
            parked=(*self.parked, *later.parked)[:NAMED_MAX],
            **{name: getattr(self, name) for name in _OF_THE_STORE if getattr(later, name) is None},
            behind=later.behind or self.behind,
            stopped=later.stopped or self.stopped,
        )


_OF_THE_STORE = ("space_amplification", "target_space_amplification")
"""Figures that a run lacks which ended before it had made a plan."""


def _summed(first: CollectionResult, second: CollectionResult) -> dict[str, Any]:
    counts = (one.name for one in fields(CollectionResult) if isinstance(one.default, int))
    return {name: getattr(first, name) + getattr(second, name) for name in counts}


@dataclass(frozen=True, slots=True)
class GcCounters:
    """The work of GC since the process started."""

    runs: int = 0
    failures: int = 0
    last_run_ms: int = 0
    """When the last successful run ended; 0 if there was none."""
    collected: CollectionResult = field(default_factory=CollectionResult)
    """Totals of all runs, including the current one, without names of objects and blocks, and without figures that
    exist only for a single run."""

    def with_run(self, result: CollectionResult) -> GcCounters:
        """Return these counters plus the result of a run so far."""
        return replace(self, collected=CollectionResult(**_summed(self.collected, result)))


Watch = Callable[[CollectionResult], object]
"""Receives the result of a run after every step."""


class Progress:
    """Counts the work of one run. Each part of the run reports to it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.result = CollectionResult()

    def show(self) -> None:
        """Pass the current result to the watcher."""
        self._watch(self.result)

    def chosen(self, blocks: int, live_bytes: int) -> None:
        """Count the victims of the run."""
        self.result = replace(self.result, blocks_chosen=blocks, bytes_chosen=live_bytes)

    def finished(self) -> None:
        """Count a victim that is collected or set aside."""
        self.result = replace(self.result, blocks_finished=self.result.blocks_finished + 1)

    def stopped(self, why: Stopped | None) -> None:
        """Record why the run was stopped early; None if it was not."""
        self.result = replace(self.result, stopped=why)

    def examined(self, decision: BlockDecision) -> None:
        """Count a block whose headers and rows were read."""
        before = self.result
        self.result = replace(
            before,
            blocks_examined=before.blocks_examined + 1,
            block_bytes_examined=before.block_bytes_examined + decision.size_bytes,
            header_bytes_read=before.header_bytes_read + decision.header_bytes_read,
        )

    def written(self, written: WriteResult) -> None:
        """Count the outcome of writing a group."""
        before = self.result
        self.result = replace(
            before,
            objects_moved=before.objects_moved + len(written.packed),
            bytes_moved=before.bytes_moved + sum(packable.size for packable in written.packed),
            stripes_written=before.stripes_written + written.stripe_count,
            objects_split=before.objects_split + written.split_objects,
            empty_front_bytes=before.empty_front_bytes + written.empty.front,
            empty_gap_bytes=before.empty_gap_bytes + written.empty.gap,
            empty_end_bytes=before.empty_end_bytes + written.empty.end,
        )

    def ended(self, store: StoredBytes, target: float | None, behind: Behind | None) -> None:
        """Record how much the store holds at the end of the run."""
        self.result = replace(
            self.result,
            space_amplification=rounded(ratio(store.stored_bytes, store.live_bytes)),
            target_space_amplification=target,
            behind=behind,
        )

    def condemned(self) -> None:
        """Count a condemned block."""
        self.result = replace(self.result, blocks_condemned=self.result.blocks_condemned + 1)

    def deleted(self, size_bytes: int) -> None:
        """Count a deleted block of this size."""
        before = self.result
        self.result = replace(
            before, blocks_deleted=before.blocks_deleted + 1, bytes_reclaimed=before.bytes_reclaimed + size_bytes
        )

    def unreadable(self, failure: Failure) -> bool:
        """Count a live object that cannot be read. Returns whether the result names it."""
        before = self.result
        named = len(before.unreadable) < NAMED_MAX
        names = (*before.unreadable, f"{failure.packable.key}: {failure.error}") if named else before.unreadable
        self.result = replace(before, unreadable_objects=before.unreadable_objects + 1, unreadable=names)
        return named

    def parked(self, block_id: BlockId, error: NosError) -> None:
        """Count a parked block."""
        before = self.result
        named = len(before.parked) < NAMED_MAX
        names = (*before.parked, f"block {block_id.hex()}: {error}") if named else before.parked
        self.result = replace(before, blocks_parked=before.blocks_parked + 1, parked=names)

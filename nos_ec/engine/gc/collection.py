"""One run of GC and the order of its steps.

Empty blocks are condemned first, which writes no data. Then the survivors of the other victims are rewritten, in
batches that fit into the free space. A block is condemned as soon as it is empty, and deleted after its grace period. A
block that fails is set aside, and the run continues with the others.

10  a run resumes where the last one was stopped: every step leaves the store in a state that the next run can start
    from
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import structlog

from nos_ec.core.errors import Corrupt, NosError, NoSpace, Transient
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.gc.batches import Batch, BatchPlanner
from nos_ec.engine.gc.condemned import CondemnedBlocks
from nos_ec.engine.gc.draining import Drained, Draining, RunParts
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.set_aside import SetAside
from nos_ec.engine.gc.space import Outlook, is_above, is_space_short
from nos_ec.engine.gc.survivor_writer import SurvivorWriter
from nos_ec.engine.gc.throttling import Throttle
from nos_ec.engine.gc.victims import ChosenBlock, choose
from nos_ec.engine.packing.stripe_writer import StripeWriter
from nos_ec.engine.space_reserve import require_space
from nos_ec.engine.texts import count_text
from nos_ec.ports.metadata import BlockRow

_log = structlog.get_logger(__name__)


class Collection:
    """One run. Used once, by one thread."""

    def __init__(self, run: RunContext, throttle: Throttle, new_writer: Callable[[], StripeWriter]) -> None:
        self._run = run
        self._throttle = throttle
        self._writer = SurvivorWriter(run, new_writer)
        self._set_aside = SetAside(run)
        self._condemned = CondemnedBlocks(run, throttle.after_step)
        self._parts = RunParts(run, throttle, self._writer, self._condemned, self._set_aside)
        self._batches = BatchPlanner(run, self._condemned)
        self._outlook: Outlook | None = None

    def run(self) -> CollectionResult:
        """Delete the blocks that earlier runs condemned, then collect once.

        Blocks that fail are parked and named in the result. Raises LeaseLost, Transient, and NoSpace when the free
        space is too small to rewrite any block. A failed run undoes nothing.
        """
        self._throttle.after_step()
        try:
            return self._collect()
        except KeyboardInterrupt:
            self._run.stop.end(Stopped.SIGNAL)
            raise
        finally:
            self._run.progress.stopped(self._run.stop.why)
            self._throttle.end()

    def _collect(self) -> CollectionResult:
        stop = self._run.stop
        with closing(self._writer):
            self._condemned.delete_due()
            self._condemned.condemn_empty()
            failure = None if stop.is_set() else self._rewrite(self._choose())
        self._condemned.delete_due()
        if is_space_short(self._run.blocks, self._run.options):
            self._condemned.cut_grace_short()
        self._report_space(failure)
        failure = failure or self._condemned.delete_failure
        if failure is not None:
            raise failure
        self._run.progress.stopped(stop.why)
        return self._run.progress.result

    def rewrite(self, block: BlockRow) -> CollectionResult:
        """Move the live objects out of this block, even if little of it is dead, and condemn it.

        Raises Corrupt when objects cannot be read; they and their block stay. Raises LeaseLost, NoSpace, and Transient,
        also when the block cannot be read now.
        """
        run = self._run
        needed = block.size_bytes + run.blocks.geometry.group_size_max
        require_space(run.blocks, needed, run.options.floor_bytes)
        with closing(self._writer):
            drained = self._drain(Batch([ChosenBlock(block, block.stripes)], 1))
        if drained.ended_by is not None:
            raise drained.ended_by
        result = run.progress.result
        if result.blocks_parked:
            raise Transient(result.parked[0])
        if result.unreadable_objects:
            raise Corrupt(
                f"{count_text(result.objects_moved, 'object was', 'objects were')} moved, and"
                f" {result.unreadable_objects} cannot be read, so the block stays: {'; '.join(result.unreadable)}"
            )
        return result

    def _choose(self) -> Sequence[ChosenBlock]:
        run = self._run
        choice = choose(run.metadata, run.blocks, run.options, run.clock.now_ms(), run.share)
        self._outlook = choice.outlook
        for block in choice.dense:
            self._set_aside.keep_dense(block)
        run.progress.chosen(len(choice.victims), sum(victim.block.live_bytes for victim in choice.victims))
        return choice.victims

    def _rewrite(self, victims: Sequence[ChosenBlock]) -> NosError | None:
        """Rewrite the victims batch by batch. Returns the failure that ended the rewriting early, or None.

        The run raises that failure later, after deleting the blocks whose grace period is over.
        """
        refusal: NoSpace | None = None
        self._writer.expect(sum(victim.needs for victim in victims))
        while victims and not self._run.stop.is_set():
            try:
                batch = self._batches.next_batch(victims, refusal)
            except Transient as error:
                return error
            if not batch.victims:
                return None
            drained = self._drain(batch)
            kill_point("gc.batch_drained")
            freed = self._condemned.delete_due()
            refusal = drained.ended_by if isinstance(drained.ended_by, NoSpace) else None
            if drained.ended_by is not None and refusal is None:
                return drained.ended_by
            if refusal is not None and not freed and not self._condemned.cut_grace_short():
                if not self._run.share.worker:
                    return refusal
                self._run.stop.end(Stopped.SPACE)
            left = [victim for victim in victims if victim.block.block_id not in drained.finished]
            victims = self._batches.still_owned(left)
        return None

    def _drain(self, batch: Batch) -> Drained:
        return Draining(self._parts, batch.lanes).drain([victim.block for victim in batch.victims])

    def _report_space(self, failure: NosError | None) -> None:
        """Add to the result how much the store holds now, and why that is above the target, if it is. Adding up all
        blocks again would give the same sums after a run without victims, as most runs of a daemon are."""
        run, outlook = self._run, self._outlook
        if outlook is None or not (failure is None or isinstance(failure, NoSpace)):
            return
        use = run.metadata.space_use() if run.progress.result.blocks_chosen else outlook.use
        behind = outlook.behind
        if outlook.target is not None:
            behind = self._hindrance(failure, behind) if is_above(use.without_empty, outlook.target) else None
        run.progress.ended(use.with_empty, outlook.target, behind)
        run.progress.show()
        if behind is Behind.SPACE:  # such a run fails, so nothing else logs its result
            _log.warning("no space to write survivors; the store stays above its target", behind=behind.value)

    def _hindrance(self, failure: NosError | None, behind: Behind | None) -> Behind | None:
        """Return why the run missed its target. None if it did all that it chose: clients deleted more meanwhile."""
        if failure is not None:
            return Behind.SPACE
        result = self._run.progress.result
        if self._run.stop.is_set():
            return Behind.STOPPED
        if behind is None and (result.blocks_parked or result.unreadable_objects):
            return Behind.SET_ASIDE
        return behind

"""Plans and runs collections. The module `victims` chooses the blocks; a `Collection` is one run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event

import structlog

from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.gc.gc_policy import SpaceTarget
from nos_ec.core.gc.share import WHOLE, Share
from nos_ec.core.gc.target_costs import PriceCurve, TargetCost
from nos_ec.core.ids import BlockId
from nos_ec.core.packing.plan import MergeList
from nos_ec.core.states import BlockKind
from nos_ec.engine.gc.collection import Collection
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.gc.run.context import RunContext
from nos_ec.engine.gc.run.events import end_run, recorded_run
from nos_ec.engine.gc.run.progress import CollectionResult, Progress, Watch
from nos_ec.engine.gc.run.stop import RunStop
from nos_ec.engine.gc.space import ANY_WASTE, PolicyChoice, price_days, share_now
from nos_ec.engine.gc.throttling import Throttle
from nos_ec.engine.gc.victims import BlockDecision, ChosenBlock, CollectionPlan, choose, decide, is_sealed
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.stripe_writer import StripeWriter
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import BlockRow, Metadata

_log = structlog.get_logger(__name__)

BLOCKS_PARKED_MAX = 1000
"""The most blocks that GC remembers as parked."""


class Collector:
    """Plans and runs collections, one at a time. The GC service holds the lease of the worker during each run."""

    def __init__(
        self,
        metadata: Metadata,
        blocks: BlockStore,
        clock: Clock,
        new_merge_list: Callable[[], MergeList[Packable]],
        options: CollectorOptions,
        timer: Callable[[], float],
        rng: random.Random,
        process: str = "",
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        """timer: returns monotonic seconds with an arbitrary origin. rng: chooses which reads to time. process: the
        name of this process, for operators."""
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._new_merge_list = new_merge_list
        self._options = options
        self._timer = timer
        self._rng = rng
        self._process = process
        self._trail = trail
        self.parked: RetryQueue[BlockId] = RetryQueue(
            "block to collect", bytes.hex, clock, options.cool_down, BLOCKS_PARKED_MAX
        )
        """Blocks that could not be read. Their rows record for all processes when they are tried again."""

    def plan(self) -> CollectionPlan:
        """Choose blocks by their waste, and read the headers of those that hold live objects. Changes nothing.

        A block whose headers cannot be read now is described by its row alone. Raises Transient.
        """
        options, now_ms = self._options, self._clock.now_ms()
        empty = self._metadata.empty_blocks(options.blocks_max)
        choice = choose(self._metadata, self._blocks, options, now_ms)
        decisions = [BlockDecision(block, 0, 0, 0) for block in empty]
        chosen = {victim.block.block_id: victim for victim in choice.victims}
        decisions += [self._decide(block, now_ms, chosen.get(block.block_id)) for block in choice.candidates]
        too_full = options.waste_ratio_min if options.policy is None else ANY_WASTE
        waiting = self._metadata.waiting_blocks(too_full, now_ms, options.cool_down_ms_max)
        victims = [*(ChosenBlock(block, 0.0) for block in empty), *choice.victims]
        return CollectionPlan(decisions, victims, waiting, choice.outlook)

    def target_costs(self, targets: Sequence[float]) -> list[TargetCost]:
        """Return what GC would copy and free to bring the store to each target space amplification, regardless of the
        policy. Reads the rows of all blocks with holes, in pages. Raises Transient."""
        curve = self.price_curve()
        return [curve.cost(target) for target in targets]

    def price_curve(self) -> PriceCurve:
        """Return the blocks with holes by their price, from which the cost of any target follows. Reads their rows, in
        pages. Raises Transient."""
        options, now_ms = self._options, self._clock.now_ms()
        policy = SpaceTarget(floor_days=options.price_days_min)
        choice = PolicyChoice(self._metadata, options, policy, now_ms)
        return choice.prices(self._metadata.space_use().without_empty)

    def _decide(self, block: BlockRow, now_ms: int, victim: ChosenBlock | None) -> BlockDecision:
        if victim is not None and victim.padding_freed_bytes:
            price_days: float | None = victim.padding_days(now_ms)
        else:
            price_days = self._price_days(block, now_ms)
        try:
            decision = decide(self._metadata, self._blocks, block)[0]
        except Transient as error:
            _log.warning("headers not read", block=block.block_id.hex(), error=str(error))
            decision = BlockDecision(block, block.live_objects, 0, 0)
        return replace(decision, price_days=price_days)

    def _price_days(self, block: BlockRow, now_ms: int) -> float | None:
        try:
            facts = self._metadata.block_facts(block.block_id, ANY_WASTE, now_ms, self._options.cool_down_ms_max)
        except NotFound:
            return None
        return price_days(facts, now_ms)

    def run(
        self,
        new_writer: Callable[[], StripeWriter],
        watch: Watch = lambda _: None,
        stop: Event | None = None,
        max_ms: int | None = None,
        worker: int = 0,
    ) -> CollectionResult:
        """Delete the blocks that earlier runs condemned, then collect once, as this worker. Raises what
        `Collection.run` raises.

        new_writer: makes a SURVIVOR writer; called once per lane, when the first group is written. watch: receives the
        result so far after every step. stop, max_ms: end the run early.
        """
        self._release_collected()
        run = self._run_context(watch, stop, share_now(self._blocks, self._options, worker))
        throttle = Throttle(run, self._rng, self._process, max_ms)
        with recorded_run(self._metadata, self._clock, self._process, worker) as work:
            result = Collection(run, throttle, new_writer).run()
            end_run(work, result)
        return result

    def rewrite(self, block_id: BlockId, new_writer: Callable[[], StripeWriter]) -> CollectionResult:
        """Move the live objects out of one block, and condemn it. Does nothing unless it is a sealed block of groups.
        Raises what `Collection.rewrite` raises."""
        if not is_sealed(self._metadata, block_id):
            return CollectionResult()
        block = self._metadata.block(block_id)
        if block.kind is BlockKind.LARGE:
            return CollectionResult()
        run = self._run_context(lambda _: None, None, WHOLE)
        throttle = Throttle(run, self._rng, self._process, None, alone=True)
        return Collection(run, throttle, new_writer).rewrite(block)

    def _run_context(self, watch: Watch, stop: Event | None, share: Share) -> RunContext:
        return RunContext(
            metadata=self._metadata,
            blocks=self._blocks,
            trail=self._trail,
            clock=self._clock,
            timer=self._timer,
            options=self._options,
            share=share,
            new_merge_list=self._new_merge_list,
            retry_queue=self.parked,
            progress=Progress(watch),
            stop=RunStop(stop),
        )

    def _release_collected(self) -> None:
        """Release the parked blocks that are not sealed any more: collected by another process, or deleted empty."""
        for block_id, _ in self.parked:
            if not is_sealed(self._metadata, block_id):
                self.parked.release(block_id)

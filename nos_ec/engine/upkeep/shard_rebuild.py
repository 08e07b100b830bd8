"""Rebuilds the shards of a lost disk, block by block.

A run finds the blocks that lack a shard by comparing the shard folders, so it needs no state of its own: after a run
was stopped or killed, the next run continues its work. A note in the metadata shows other processes how many blocks
still lack shards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Event

import structlog

from nos_ec.core.errors import Conflict, Corrupt, NosError, NoSpace, NotFound, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.states import BlockState
from nos_ec.engine.audit_entries import shards_written
from nos_ec.engine.log_throttle import ThrottledLog
from nos_ec.engine.rate_limit import RateLimit
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.metadata import Metadata, Notes
from nos_ec.ports.shard_store import RebuiltBlock, ShardStore

_log = structlog.get_logger(__name__)

NAMED_MAX = 20
"""The most failures, and the most damaged shards, that a result names."""

SHORTAGE_NOTE = "shard shortage"
"""The name of the note in the metadata."""

_UNFINISHED = frozenset({BlockState.OPEN, BlockState.FENCED, BlockState.CONDEMNED})
"""A writer, recovery or GC has yet to seal or delete blocks in these states."""


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """Counts of one run. `failures` and `damages` name the first NAMED_MAX failures and damaged shards."""

    to_do: int = 0
    """Blocks that lacked a shard when the run began."""
    looked_at: int = 0
    """Blocks that the run has processed. A few of them may not have lacked a shard."""
    blocks: int = 0
    """Blocks that were rebuilt."""
    missing: int = 0
    """Missing shards that were written."""
    replaced: int = 0
    """Damaged shards that were replaced."""
    unwritten: int = 0
    """Damaged shards that were not replaced."""
    left: int = 0
    """Blocks that cannot be rebuilt before recovery or GC seals or deletes them."""
    unreadable: int = 0
    """Blocks with live objects that cannot be rebuilt, or only without some stripes that hold objects."""
    failed: int = 0
    """Blocks whose shards could not be written or reached."""
    read_bytes: int = 0
    written_bytes: int = 0
    failures: tuple[str, ...] = ()
    damages: tuple[str, ...] = ()
    short: Mapping[int, int] = field(default_factory=dict)
    """As `BlockStore.blocks_short`, after the run."""
    stopped: bool = False
    """Whether the run ended before it had processed all blocks."""


@dataclass(slots=True)
class RebuildCounters:
    """Totals since the process started. Any thread may read them."""

    missing: int = 0
    replaced: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    failures: int = 0
    """Runs that failed."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """The work that the last run of any process left. `short` is the result of `BlockStore.blocks_short`; `failed` is
    the number of blocks that the run could not rebuild completely."""

    short: Mapping[int, int]
    failed: int


def read_shortage(notes: Notes) -> Shortage | None:
    """Return what the last run left to do, or None if no run has ended yet or the note of another release cannot be
    read. Raises Transient."""
    try:
        data = json.loads(notes.note(SHORTAGE_NOTE) or "{}")
        return Shortage({int(shards): int(blocks) for shards, blocks in data["short"].items()}, int(data["failed"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _write_shortage(notes: Notes, result: RebuildResult) -> None:
    """Store what the run left to do, in place of the note of an earlier run. An error is only logged, because the
    rebuild itself is complete."""
    text = json.dumps({"short": dict(result.short), "failed": result.unreadable + result.failed}, sort_keys=True)
    try:
        stored = notes.note(SHORTAGE_NOTE)
        if text != stored:
            notes.store_note(SHORTAGE_NOTE, text, stored)
    except NosError as error:
        _log.warning("result of the rebuild of shards not stored", error=str(error))


class _Stopped(Exception):
    """Ends the rebuild of the current block because the run must stop."""


class ShardRebuild:
    """Rebuilds shards in one thread. Only one process rebuilds at a time; the others get Conflict."""

    def __init__(
        self,
        shards: ShardStore,
        metadata: Metadata,
        clock: Clock,
        stripe_size: int,
        bytes_per_s: int,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        """bytes_per_s: the most bytes read and written per second on all shards together; 0 for no limit."""
        self._shards = shards
        self._stripe_size = stripe_size
        self._metadata = metadata
        self._clock = clock
        self._trail = trail
        self._rate_limit = RateLimit(clock, bytes_per_s)
        self._errors = ThrottledLog(__name__, clock)
        self.counters = RebuildCounters()

    def run_once(
        self,
        stop: Event,
        ms_max: int | None = None,
        watch: Callable[[RebuildResult], object] = lambda _: None,
        beat: Beat = unwatched,
    ) -> RebuildResult:
        """Rebuild all blocks that lack a shard. A block that cannot be rebuilt does not stop the others.

        stop, ms_max: end the run early; the work on the current block is discarded. watch: receives the result so far
        after every block. Raises Conflict while another process rebuilds, NoSpace, and Transient.
        """
        with self._shards.alone():
            result = self._run(stop, None if ms_max is None else self._clock.now_ms() + ms_max, watch, beat)
            _write_shortage(self._metadata, result)
        self._errors.report(closing=True)
        return result

    def _run(
        self, stop: Event, end_ms: int | None, watch: Callable[[RebuildResult], object], beat: Beat
    ) -> RebuildResult:
        def over() -> bool:
            return stop.is_set() or (end_ms is not None and self._clock.now_ms() >= end_ms)

        def rate_limit(count_bytes: int) -> None:
            beat(0)
            self._rate_limit.spend(count_bytes, stop, beat)
            if over():
                raise _Stopped

        result = RebuildResult(to_do=sum(self._shards.blocks_short().values()))
        watch(result)
        for block_id in self._shards.short_blocks():
            beat(0)
            if over():
                result = replace(result, stopped=True)
                break
            try:
                result = self._rebuild(block_id, rate_limit, result)
            except _Stopped:
                result = replace(result, stopped=True)
                break
            watch(result)
        return replace(result, short=self._shards.blocks_short())

    def _rebuild(self, block_id: BlockId, rate_limit: Callable[[int], None], result: RebuildResult) -> RebuildResult:
        result = replace(result, looked_at=result.looked_at + 1)
        try:
            done = self._shards.rebuild(block_id, rate_limit)
        except NotFound:
            return result
        except NoSpace:
            raise
        except (Corrupt, Transient) as error:
            return self._failed(block_id, error, result)
        self._record(block_id, done)
        return self._done(block_id, done, result)

    def _record(self, block_id: BlockId, done: RebuiltBlock) -> None:
        """Record the shards after the rebuild, because only then is it known which of them were damaged."""
        self._trail.record(shards_written(block_id, done))

    def _done(self, block_id: BlockId, done: RebuiltBlock, result: RebuildResult) -> RebuildResult:
        counters = self.counters
        counters.missing += len(done.missing)
        counters.replaced += len(done.replaced)
        counters.read_bytes += done.read_bytes
        counters.written_bytes += done.written_bytes
        damages = [f"block {block_id.hex()}: shard {shard} was damaged; it was replaced" for shard in done.replaced]
        damages += [f"block {block_id.hex()}: shard {shard} is damaged, not replaced" for shard in done.damaged]
        for damage in damages:
            self._errors.error("shard damaged", damage=damage)
        lost = self._lost(block_id, done)
        if lost:
            stripes = ", ".join(map(str, lost))
            failure = f"block {block_id.hex()}: stripes {stripes}: too many of their shards are lost or damaged"
            self._errors.error("block not rebuilt whole", block=block_id.hex(), error=failure)
            result = replace(result, unreadable=result.unreadable + 1, failures=(*result.failures, failure)[:NAMED_MAX])
        return replace(
            result,
            blocks=result.blocks + bool(done.missing),
            missing=result.missing + len(done.missing),
            replaced=result.replaced + len(done.replaced),
            unwritten=result.unwritten + len(done.damaged),
            read_bytes=result.read_bytes + done.read_bytes,
            written_bytes=result.written_bytes + done.written_bytes,
            damages=(*result.damages, *damages)[:NAMED_MAX],
        )

    def _lost(self, block_id: BlockId, done: RebuiltBlock) -> list[int]:
        """Return the unreadable stripes that hold objects. An interrupted append leaves stripes without objects."""
        if not done.unreadable:
            return []
        used: set[int] = set()
        for one in self._metadata.placed_in(block_id):
            first, end = one.extent.offset, one.extent.offset + one.extent.length
            used.update(range(first // self._stripe_size, -(-end // self._stripe_size)))
        return [stripe for stripe in done.unreadable if stripe in used]

    def _failed(self, block_id: BlockId, error: NosError, result: RebuildResult) -> RebuildResult:
        if isinstance(error, Corrupt) and self._left_to_others(block_id):
            return replace(result, left=result.left + 1)
        self._errors.error("block not rebuilt", block=block_id.hex(), error=str(error))
        failures = (*result.failures, str(error))[:NAMED_MAX]
        if isinstance(error, Corrupt):
            return replace(result, unreadable=result.unreadable + 1, failures=failures)
        return replace(result, failed=result.failed + 1, failures=failures)

    def _left_to_others(self, block_id: BlockId) -> bool:
        """Return whether the block holds no known object, or its writer, recovery or GC has yet to finish with it."""
        try:
            row = self._metadata.block(block_id)
        except NotFound:
            return True
        return row.state in _UNFINISHED or not row.live_objects

    def run(self, stop: Event, wait_ms: int, beat: Beat = unwatched) -> None:
        """Find and rebuild the blocks that lack a shard every `wait_ms`, until `stop` is set."""
        while not stop.is_set():
            beat(0)
            try:
                result = self.run_once(stop, beat=beat)
                if result.missing:
                    _log.info("shards rebuilt", shards=result.missing, blocks=result.blocks, short=dict(result.short))
            except Conflict:
                _log.info("another process rebuilds shards")
            except NosError as error:
                self.counters.failures += 1
                _log.error("rebuild of shards failed; trying again", error=str(error))
            except Exception:
                self.counters.failures += 1
                # A bug here must not end GC.
                _log.exception("rebuild of shards failed")
            beat(wait_ms)
            self._clock.wait(stop, wait_ms)

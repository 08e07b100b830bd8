"""One run of GC.

What is empty goes first, without any writing. What lives in the other victims is rewritten in batches that fit the free
space; a block is condemned as soon as nothing of it is left, and deleted after its grace. A block that fails is set
aside, and the run goes on with the others.

 4  a block goes only when no row points into it, and not before its grace is over
 9  in memory are the merge list and the rows of one block
10  it resumes where it was stopped: every step leaves the store in a state the next run starts from; what is written
    fits what is free; an entry that cannot be read keeps its block
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Event

import structlog

from nos_ec.core.errors import NosError, NoSpace, NotFound, Transient
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.packing.plan import MergeList
from nos_ec.core.reclaim import stripes_rewritten
from nos_ec.engine.gc.victims import choose, decide
from nos_ec.engine.packable import Packable
from nos_ec.engine.parking import BackOff, Parking
from nos_ec.engine.stripe_writer import StripeWriter, WriteResult
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import BlockRow, Metadata, Placed

_log = structlog.get_logger(__name__)

NAMED_MAX = 20
"""Unreadable objects and parked blocks that a result, and the log of a run, name; the others are counted."""

WRITE_TRIES = 3
"""Groups in a row that cannot be written before a run gives up. The writer has tried each on several blocks."""
WRITE_RETRY_WAIT_MS = 1000
DELETE_FAILURES_MAX = 20
"""Condemned blocks of one run that cannot be deleted before the others are left to the next run."""
REST_SLICE_MS = 1000
"""A run that waits says so to whoever watches it this often."""

COOL_DOWN_FIRST_MS = 600_000
"""How long a block that could not be collected is left alone; twice as long after each failure in a row."""

_FAR_MS = 1 << 61


@dataclass(slots=True)
class CollectionResult:
    """Totals of one run; bytes in data space.

    unreadable and parked name the first few of unreadable_objects and blocks_parked, with the reason.
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
    unreadable_objects: int = 0
    blocks_parked: int = 0
    unreadable: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)


Watch = Callable[[CollectionResult], object]
"""Sees the result of a run while it grows."""


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """waste_ratio_min: trigger. block_grace_ms: between condemning and deleting, longer than the longest read;
    block_grace_ms_min: the same when space is short. blocks_max: at most so many blocks are rewritten in a run.
    floor_bytes: free space GC leaves alone while it can. short_bytes: with less free space PUTs are refused, and a run
    does not leave condemned blocks to their whole grace. cool_down_ms_max: longest time a block that could not be
    collected is left alone. density: what the packing policy makes of stripes, of the best that is possible."""

    waste_ratio_min: float
    block_grace_ms: int
    block_grace_ms_min: int
    blocks_max: int
    floor_bytes: int
    short_bytes: int
    cool_down_ms_max: int
    density: float

    @property
    def cool_down(self) -> BackOff:
        """How long a block is left alone after so many failures."""
        return BackOff(min(COOL_DOWN_FIRST_MS, self.cool_down_ms_max), self.cool_down_ms_max)


class Collection:
    """One run. Used once, by one thread."""

    def __init__(
        self,
        metadata: Metadata,
        blocks: BlockStore,
        clock: Clock,
        options: CollectorOptions,
        new_merge_list: Callable[[], MergeList],
        new_writer: Callable[[], StripeWriter],
        parking: Parking[BlockId],
        watch: Watch,
        stop: Event,
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._options = options
        self._new_merge_list = new_merge_list
        self._new_writer = new_writer
        self._parking = parking
        self._watch = watch
        self._stop = stop
        self._result = CollectionResult()
        self._merge_list = new_merge_list()
        self._left: dict[BlockId, dict[tuple[int, int], Packable]] = {}
        """Of each block that is being emptied, what is still to be moved; all of it is in the merge list."""
        self._rows: dict[BlockId, BlockRow] = {}
        """The rows of these blocks."""
        self._bad: set[BlockId] = set()
        """Those of them that hold an object that cannot be read."""
        self._finished: set[BlockId] = set()
        """Victims that are collected, or set aside."""
        self._undeletable: set[BlockId] = set()
        self._delete_failure: NosError | None = None
        self._failure: NosError | None = None
        """Ends the run, once what is done already is condemned and deleted."""
        self._no_space: NosError | None = None
        """Ends the batch."""
        self._write_failures = 0
        self._writer: StripeWriter | None = None

    def run(self) -> CollectionResult:
        """Delete what earlier runs condemned, then collect once.

        Blocks that fail are parked, and told in the result. Raises LeaseLost, Transient, NoSpace when there is no room
        to rewrite anything; whatever had been done is kept.
        """
        try:
            self._delete_condemned()
            self._condemn_empty()
            self._rewrite(self._choose())
        finally:
            if self._writer is not None:
                self._writer.close()
        self._delete_condemned()
        if self._is_space_short():
            self._cut_grace_short()
        failure = self._failure or self._delete_failure
        if failure is not None:
            raise failure
        return self._result

    def _is_space_short(self) -> bool:
        """False when nobody can tell, because a part of the store is away."""
        try:
            return self._blocks.free_bytes() < self._options.short_bytes
        except Transient as error:
            _log.warning("free space is not known, so condemned blocks keep their grace", error=str(error))
            return False

    # --- what is empty ----------------------------------------------------------------------------
    def _condemn_empty(self) -> None:
        refused: set[BlockId] = set()
        while len(refused) <= self._options.blocks_max:
            found = self._metadata.empty_blocks(self._options.blocks_max + len(refused))
            found = [block for block in found if block.block_id not in refused]
            if not found:
                break
            for block in found:
                if self._condemn(block):
                    kill_point("gc.empty_condemned")
                else:
                    refused.add(block.block_id)
            self._delete_condemned()

    # --- choosing ---------------------------------------------------------------------------------
    def _choose(self) -> list[tuple[BlockRow, float]]:
        options, now_ms = self._options, self._clock.now_ms()
        found = self._metadata.gc_candidates(
            options.waste_ratio_min, now_ms, options.cool_down_ms_max, options.blocks_max
        )
        choice = choose(self._metadata, self._blocks, found, options.waste_ratio_min, options.density)
        for block in choice.dense:
            # It would be found, and its rows read, in every run, for nothing.
            self._cool_down(block, options.cool_down_ms_max)
        return list(choice.victims)

    def _fitting(self, victims: Sequence[tuple[BlockRow, float]], room_bytes: int) -> list[tuple[BlockRow, float]]:
        """As many of the victims, most wasteful first, as can be rewritten in so much space."""
        taken: list[tuple[BlockRow, float]] = []
        needs = 0.0
        for block, its_needs in victims:
            if self._bytes_to_write(needs + its_needs) <= room_bytes:
                taken.append((block, its_needs))
                needs += its_needs
        return taken

    def _bytes_to_write(self, needs: float) -> int:
        """A new block is begun only where a whole group has room."""
        geometry = self._blocks.geometry
        return stripes_rewritten(needs) * geometry.stripe_size + geometry.group_size_max

    def _batch(self, victims: Sequence[tuple[BlockRow, float]]) -> list[tuple[BlockRow, float]]:
        """What is rewritten next: what fits above the floor. When nothing does, the grace of what is condemned already
        is cut short; when there is nothing more of it, one victim may take half of all that is free."""
        batch = self._fitting(victims, self._blocks.free_bytes() - self._options.floor_bytes)
        while not batch and self._cut_grace_short():
            batch = self._fitting(victims, self._blocks.free_bytes() - self._options.floor_bytes)
        if batch or self._stop.is_set():
            return batch
        free_bytes = self._blocks.free_bytes()
        batch = self._fitting(victims, free_bytes // 2)[:1]
        if not batch:
            least = min(self._bytes_to_write(needs) for _, needs in victims)
            self._failure = self._no_space or NoSpace(
                f"block store: {free_bytes} bytes free, GC needs twice {least} to rewrite a block; delete objects, or"
                " add space"
            )
        return batch

    # --- rewriting --------------------------------------------------------------------------------
    def _rewrite(self, victims: list[tuple[BlockRow, float]]) -> None:
        while victims and self._failure is None and not self._stop.is_set():
            try:
                batch = self._batch(victims)
            except Transient as error:
                self._failure = error  # nobody can tell what is free
                return
            if not batch:
                return
            self._drain([block for block, _ in batch])
            kill_point("gc.batch_drained")
            deleted_before = self._result.blocks_deleted
            self._delete_condemned()
            freed = self._result.blocks_deleted > deleted_before
            if self._no_space is not None and not freed and not self._cut_grace_short():
                self._failure = self._no_space
            victims = [victim for victim in victims if victim[0].block_id not in self._finished]

    def _drain(self, blocks: Sequence[BlockRow]) -> None:
        """Move what lives out of the blocks, and condemn each as soon as it is empty."""
        self._no_space = None
        for block in blocks:
            if not self._may_write():
                break
            self._begin(block)
            self._write_ready(flush=False)
        self._write_ready(flush=True)
        self._left.clear()
        self._rows.clear()
        self._bad.clear()
        self._merge_list = self._new_merge_list()

    def _may_write(self) -> bool:
        return self._failure is None and self._no_space is None and not self._stop.is_set()

    def _begin(self, block: BlockRow) -> None:
        try:
            decision, live = decide(self._metadata, self._blocks, block)
        except Transient as error:
            self._park(block, error)
            return
        self._result.blocks_examined += 1
        self._result.block_bytes_examined += decision.size_bytes
        self._result.header_bytes_read += decision.header_bytes_read
        self._watch(self._result)
        if not live:
            self._finished.add(block.block_id)
            self._condemn(block)
            return
        self._rows[block.block_id] = block
        self._left[block.block_id] = {_identity(one): one for one in map(_survivor, live)}
        self._add(self._left[block.block_id].values())

    def _add(self, packables: Iterable[Packable]) -> None:
        now_ms = self._clock.now_ms()
        for packable in packables:
            self._merge_list.add(packable.candidate(now_ms))

    def _write_ready(self, *, flush: bool) -> None:
        while self._may_write() and (plan := self._merge_list.plan(self._clock.now_ms(), flush=flush)) is not None:
            if self._writer is None:
                self._writer = self._new_writer()
            self._settle(self._writer.write(plan))
            self._watch(self._result)
            kill_point("gc.rewritten")

    def _settle(self, written: WriteResult) -> None:
        result = self._result
        result.objects_moved += len(written.packed)
        result.bytes_moved += sum(packable.size for packable in written.packed)
        result.stripes_written += written.stripe_count
        for packable in (*written.packed, *written.superseded):
            self._done(packable)
        for failure in written.failed:
            if self._is_where_it_was(failure.packable):
                self._unreadable(failure.packable, failure.error)
            self._done(failure.packable)
        stuck = {block_id: failure.error for failure in written.unread if (block_id := failure.packable.from_block)}
        if stuck:
            self._leave(stuck)
        else:
            self._add(written.retry)
            self._note_write(written)

    def _done(self, packable: Packable) -> None:
        """Nothing is left to do for it. Its block is condemned with the last of its objects."""
        block_id = packable.from_block
        left = self._left.get(block_id) if block_id is not None else None
        if block_id is None or left is None:
            return
        left.pop(_identity(packable), None)
        if left:
            return
        del self._left[block_id]
        self._finished.add(block_id)
        block = self._rows.pop(block_id)
        if block_id in self._bad:
            self._bad.discard(block_id)
            self._cool_down_failed(block)
        else:
            self._condemn(block)

    def _leave(self, stuck: dict[BlockId, NosError]) -> None:
        """Set aside blocks whose objects cannot be read now; the merge list goes on with what is left of the others."""
        for block_id, error in stuck.items():
            if self._left.pop(block_id, None) is not None:
                self._park(self._rows.pop(block_id), error)
        self._merge_list = self._new_merge_list()
        for left in self._left.values():
            self._add(left.values())

    def _note_write(self, written: WriteResult) -> None:
        if written.cause is None:
            self._write_failures = 0
            return
        self._write_failures += 1
        if isinstance(written.cause, NoSpace):
            self._no_space = written.cause
        elif self._write_failures >= WRITE_TRIES:
            self._failure = written.cause
        else:
            self._clock.wait(self._stop, WRITE_RETRY_WAIT_MS)

    # --- what cannot be collected -----------------------------------------------------------------
    def _is_where_it_was(self, packable: Packable) -> bool:
        """Whether its row still points to what could not be read: it may have been deleted, or moved by others."""
        try:
            row = self._metadata.get(packable.key)
        except NotFound:
            return False
        return (row.object_id, row.version, row.extent) == (packable.object_id, packable.version, packable.source)

    def _unreadable(self, packable: Packable, error: NosError) -> None:
        result = self._result
        result.unreadable_objects += 1
        if packable.from_block is not None:
            self._bad.add(packable.from_block)
        if len(result.unreadable) < NAMED_MAX:
            result.unreadable.append(f"{packable.key}: {error}")
            _log.error("live object cannot be read; its block stays", error=str(error))

    def _park(self, block: BlockRow, error: NosError) -> None:
        self._finished.add(block.block_id)
        self._parking.park(block.block_id, error)
        self._result.blocks_parked += 1
        if len(self._result.parked) < NAMED_MAX:
            self._result.parked.append(f"block {block.block_id.hex()}: {error}")
        self._cool_down_failed(block)
        self._watch(self._result)

    def _cool_down_failed(self, block: BlockRow) -> None:
        self._cool_down(block, self._options.cool_down.wait_ms(block.gc_failures + 1))

    def _cool_down(self, block: BlockRow, wait_ms: int) -> None:
        """Leave a block alone, in later runs as well, so that those behind it have their turn."""
        try:
            self._metadata.cool_down_block(block.block_id, self._clock.now_ms() + wait_ms)
        except Transient as error:
            _log.warning("block not left alone, it will be tried again", block=block.block_id.hex(), error=str(error))
            return
        kill_point("gc.cooled_down")

    # --- condemned blocks -------------------------------------------------------------------------
    def _condemn(self, block: BlockRow) -> bool:
        delete_after_ms = self._clock.now_ms() + self._options.block_grace_ms
        if not self._metadata.condemn_block(block.block_id, delete_after_ms):
            return False
        self._result.blocks_condemned += 1
        self._parking.release(block.block_id)
        kill_point("gc.condemned")
        self._watch(self._result)
        return True

    def _delete_condemned(self) -> None:
        """Delete condemned blocks whose grace is over."""
        while len(self._undeletable) < DELETE_FAILURES_MAX:
            found = self._condemned(self._clock.now_ms())
            if not found:
                return
            for block in found:
                self._delete(block)

    def _cut_grace_short(self) -> bool:
        """Space is short: delete what is condemned after the shortest grace. True when that freed something.

        The time is measured here, from when the blocks were found to be condemned: no clock of another machine, and no
        change of settings, makes it shorter. No row points into them, so only reads that began before go there.
        """
        found = self._condemned(_FAR_MS)
        if not found:
            return False
        _log.warning("space is short, so condemned blocks go sooner", blocks=len(found))
        self._rest(min(self._options.block_grace_ms, self._options.block_grace_ms_min))
        if self._stop.is_set():
            return False
        kill_point("gc.grace_cut")
        return sum([self._delete(block) for block in found]) > 0

    def _condemned(self, until_ms: int) -> list[BlockRow]:
        limit = self._options.blocks_max + len(self._undeletable)
        found = self._metadata.condemned_blocks(until_ms, limit)
        return [block for block in found if block.block_id not in self._undeletable]

    def _delete(self, block: BlockRow) -> bool:
        """The data first, then the row, so that nothing is orphaned. A block that cannot be deleted keeps no other."""
        try:
            self._blocks.delete(block.block_id)
        except Transient as error:
            _log.warning("condemned block not deleted", block=block.block_id.hex(), error=str(error))
            self._undeletable.add(block.block_id)
            self._delete_failure = error
            return False
        kill_point("gc.block_deleted")
        self._metadata.forget_block(block.block_id)
        kill_point("gc.block_forgotten")
        self._result.blocks_deleted += 1
        self._result.bytes_reclaimed += block.stripes * self._blocks.geometry.stripe_size
        self._watch(self._result)
        return True

    def _rest(self, wait_ms: int) -> None:
        while wait_ms > 0 and not self._clock.wait(self._stop, min(REST_SLICE_MS, wait_ms)):
            wait_ms -= REST_SLICE_MS
            self._watch(self._result)


def _identity(packable: Packable) -> tuple[int, int]:
    return packable.object_id, packable.version


def _survivor(placed: Placed) -> Packable:
    return Packable(
        object_id=placed.object_id,
        key=placed.key,
        version=placed.version,
        size=placed.extent.length,
        crc32c=placed.crc32c,
        source=placed.extent,
    )

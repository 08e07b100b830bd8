"""The side of a store for the daemons that pack objects and reclaim space: producers, consumers and GC."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from time import perf_counter

from nos_ec.composition.adapters import Adapters
from nos_ec.composition.developer_values import HOUSEKEEPING_MS
from nos_ec.composition.landing import open_segments_of
from nos_ec.composition.ownership import open_other_cell
from nos_ec.core.errors import Moved, NosError, Transient
from nos_ec.core.expiry import DAY_MS
from nos_ec.core.states import BlockKind
from nos_ec.engine.expiry.known_expiry import KnownExpiry
from nos_ec.engine.expiry.lifecycle_rules import OtherCells
from nos_ec.engine.expiry.lifecycle_walk import LifecycleWalk
from nos_ec.engine.expiry.survival import Survey
from nos_ec.engine.figures.header_survey import HeaderSurvey
from nos_ec.engine.landing.copy_forward import CopyForward, ForwardOptions
from nos_ec.engine.landing.layered_landing import LayeredLanding
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.engine.landing.log_recovery import LogRecovery
from nos_ec.engine.landing.trimmer import Trimmer
from nos_ec.engine.landing.unknown_segments import UnknownSegments
from nos_ec.engine.packing.source_reader import SourceReader
from nos_ec.engine.packing.stripe_writer import StripeWriter, WriterOptions
from nos_ec.engine.read_threads import ReadThreads
from nos_ec.engine.space_reserve import PACKING_RESERVES
from nos_ec.engine.upkeep.housekeeping import Housekeeping
from nos_ec.engine.upkeep.lock_clock import LockClock
from nos_ec.engine.upkeep.move_recovery import MoveCells, MoveRecovery
from nos_ec.engine.upkeep.reaper import BATCH_OBJECTS, Reaper
from nos_ec.engine.upkeep.recovery import Recovery
from nos_ec.engine.upkeep.verifier import LATE_S, LATE_S_AFTER_FAILURE, READS_MAX
from nos_ec.ports.clock import waits
from nos_ec.ports.message_log import GroupProgress, MessageConsumer, MessagePublisher, NotificationPublisher
from nos_ec.ports.metadata import Lease, Metadata
from nos_ec.ports.segment_medium import SegmentMedium

OTHER_CELL_WAIT_MS = 60_000
"""How long a cell that could not be opened or read counts as away."""


class WorkerSide:
    """Makes what packs objects and reclaims space: writers, housekeeping, clients of the message log."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    def writer(self, lease: Lease, kind: BlockKind) -> StripeWriter:
        """Return a writer for one lane. Writers of fresh objects leave GC's reserve free. Writers of GC read back what
        they write, because they move the only copies of objects."""
        adapters, settings = self._adapters, self._adapters.settings
        fresh = kind is BlockKind.FRESH
        reserve_bytes = PACKING_RESERVES * settings.gc.reserve_bytes if fresh else 0
        options = WriterOptions(kind, reserve_bytes, settings.reaper.landing_grace_ms, read_back=not fresh)
        return StripeWriter(
            adapters.metadata,
            adapters.blocks,
            self.source_reader(),
            adapters.clock,
            lease,
            adapters.placement,
            options,
            adapters.trail,
        )

    def source_reader(self) -> SourceReader:
        """Return a reader of the objects to pack."""
        adapters, landing = self._adapters, self._adapters.landing
        records = landing.records if isinstance(landing, LayeredLanding) else None
        return SourceReader(landing, adapters.blocks, adapters.read_threads, records)

    def housekeeping(self) -> Housekeeping:
        """Return the housekeeping: recovery, the reaper, the trimmer and surveys. When the store is closed, the reaper
        logs what it has not logged yet."""
        adapters, settings = self._adapters, self._adapters.settings
        metadata, blocks, medium = adapters.metadata, adapters.blocks, adapters.medium
        clock, trail = adapters.clock, adapters.trail
        late_reads = ReadThreads(READS_MAX, perf_counter, LATE_S, LATE_S_AFTER_FAILURE)
        threads = adapters.stack.enter_context(closing(late_reads))
        reaper = Reaper(metadata, adapters.landing, blocks, clock, BATCH_OBJECTS, threads, trail)
        adapters.stack.callback(reaper.close)
        wait_ms = min(HOUSEKEEPING_MS, settings.store.lease_ttl_ms // 6)
        rng = random.Random(adapters.randomness(16))
        survey = Survey(metadata, clock, rng) if settings.gc.streams > 1 else None
        headers = HeaderSurvey(metadata, blocks, clock, rng)
        lock_clock = LockClock(metadata, clock, perf_counter)
        moves = None if settings.cell is None else self.move_recovery()
        others = survey, headers, lock_clock, moves
        fenced = adapters.events().record_lost
        if medium is None:
            recovery = Recovery(metadata, blocks, clock, adapters.held, trail=trail, on_fenced=fenced)
            return Housekeeping(recovery, reaper, clock, wait_ms, None, None, *others)
        # On Ceph, listing the pool would cost more than the batch that is rarely left over.
        unknown = UnknownSegments(metadata, medium, clock, trail) if settings.store.backend == "local" else None
        logs = LogRecovery(metadata, medium, clock, unknown, trail)
        recovery = Recovery(metadata, blocks, clock, adapters.held, logs, trail, fenced)
        trimmer = Trimmer(metadata, medium, clock, trail)
        forward = self._copy_forward(medium) if settings.landing.mode == "log" else None
        return Housekeeping(recovery, reaper, clock, wait_ms, trimmer, forward, *others)

    def move_recovery(self) -> MoveRecovery:
        """Return what makes this cell serve buckets whose movers have died."""
        adapters, cell = self._adapters, self._adapters.settings.cell
        assert cell is not None, "a store without cells has no moves"
        others = self._other_cells()
        return MoveRecovery(adapters.metadata, adapters.clock, MoveCells(cell, others.reading, others.directory))

    def _other_cells(self) -> _OtherCells:
        opened = _OtherCells(self._adapters)
        self._adapters.stack.callback(opened.close)
        return opened

    def _rules_elsewhere(self) -> OtherCells | None:
        """Return the cells that have the lifecycle rules of some wide buckets; None for a store without cells."""
        cell = self._adapters.settings.cell
        if cell is None:
            return None
        opened = self._other_cells()
        return OtherCells(cell, opened.reading, opened.directory)

    def _copy_forward(self, medium: SegmentMedium) -> CopyForward:
        """Return the copy-forward, which writes old records again, into a separate log with one open segment."""
        adapters = self._adapters
        segment_bytes = (open_segments_of(medium) + 1) * medium.limits.segment_bytes
        options = ForwardOptions(adapters.settings.landing.segment_age_ms, segment_bytes)
        log = adapters.landing_log(medium, open_segments=1)
        return CopyForward(adapters.metadata, LogReader(medium), log, adapters.clock, options, adapters.trail)

    def lifecycle_walk(self) -> LifecycleWalk:
        """Return the walk that applies the lifecycle rules of buckets. Expired objects go into the trash if the store
        has one."""
        adapters, trash_ms = self._adapters, self._adapters.settings.trash.keep_ms
        return LifecycleWalk(adapters.metadata, adapters.clock, DAY_MS, trash_ms, self._rules_elsewhere())

    def known_expiry(self) -> KnownExpiry:
        """Return the lifecycle rules that tell a packer when objects will expire."""
        adapters = self._adapters
        known = KnownExpiry(adapters.metadata, DAY_MS, self._rules_elsewhere())
        adapters.stack.callback(known.close)
        return known

    def publisher(self) -> MessagePublisher:
        """Return a publisher to the message log."""
        return self._adapters.messages.get().publisher()

    def notifications(self) -> NotificationPublisher:
        """Return a publisher of the notifications of buckets."""
        return self._adapters.messages.get().notifications()

    def log_consumer(self, member: str) -> MessageConsumer:
        """Return a member of the configured consumer group."""
        return self._adapters.messages.get().consumer(member, self._adapters.settings.kafka.instance or "")

    def group_progress(self, name: str) -> GroupProgress:
        """Return a reader of the progress of the configured group. `name` is for operators."""
        return self._adapters.messages.get().progress(f"{name}-progress")


class _OtherCells:
    """The metadata of the other cells of the store. Opens that of a cell when it is first needed. One thread
    uses it at a time."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._opened: dict[str, Metadata] = {}
        self._failed: dict[str, tuple[str, int]] = {}
        """Why a cell could not be opened or read, and when that is tried again."""

    @contextmanager
    def reading(self, cell: str) -> Iterator[Metadata]:
        """Yield the metadata of a cell. If it cannot be opened, or the block finds that it does not answer, raises
        Transient, and again at once for OTHER_CELL_WAIT_MS, because each attempt may take seconds, during which the
        loop of the caller stands still."""
        adapters = self._adapters
        failed = self._failed.get(cell)
        if failed is not None and waits(failed[1], adapters.clock.now_ms(), OTHER_CELL_WAIT_MS):
            raise Transient(failed[0])
        try:
            opened = self._opened.get(cell)
            if opened is None:
                opened = open_other_cell(adapters.settings.whole.of_cell(cell), adapters.metadata)
                self._opened[cell] = opened
        except NosError as error:
            raise self._away(cell, error) from error
        try:
            yield opened
        except Moved:
            raise
        except Transient as error:
            raise self._away(cell, error) from error

    def _away(self, cell: str, error: NosError) -> Transient:
        why = f"cell {cell} cannot be read: {error}"
        self._failed[cell] = why, self._adapters.clock.now_ms() + OTHER_CELL_WAIT_MS
        return Transient(why)

    def directory(self) -> AbstractContextManager[Metadata]:
        """Yield the metadata of the cell with the directory, as `reading` does."""
        adapters, home = self._adapters, self._adapters.settings.whole.store.directory
        assert home is not None
        return nullcontext(adapters.metadata) if home == adapters.settings.cell else self.reading(home)

    def close(self) -> None:
        """Close what was opened."""
        for opened in list(self._opened.values()):
            opened.close()

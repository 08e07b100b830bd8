"""Samples of GC, of the lifecycle rules that it applies, of shard rebuilds and of scrubs.

Their counts are added to the store's counts (`stored_counts.py`), because cron or a timer may start them.
"""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.engine.expiry.lifecycle_bucket import WalkCounts
from nos_ec.engine.expiry.lifecycle_walk import read_walk
from nos_ec.engine.gc.run.progress import GcCounters
from nos_ec.engine.gc.workers import WorkersMetadata, read_workers
from nos_ec.engine.scrub.scrubber import ScrubCounters
from nos_ec.engine.upkeep.move_recovery import stalled_moves
from nos_ec.engine.upkeep.shard_rebuild import RebuildCounters, read_shortage
from nos_ec.monitoring.declarations import lifecycle_metrics as of_lifecycle
from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.declarations import scrub_metrics as of_scrub
from nos_ec.monitoring.declarations import shard_metrics as of_shards
from nos_ec.monitoring.declarations import space_metrics as of_space
from nos_ec.monitoring.declarations import trash_metrics as of_trash
from nos_ec.monitoring.exposition import Sample
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Metadata


def nothing_counted() -> Iterator[Sample]:
    """Yields all counts as zeros, for a store in which nothing has run yet."""
    yield from gc_counts(GcCounters())
    yield from lifecycle_counts(WalkCounts())
    yield from rebuild_counts(RebuildCounters())
    yield from scrub_counts(ScrubCounters())


def gc_counts(counters: GcCounters) -> Iterator[Sample]:
    """Yields counts of collections, and the time of the last successful one."""
    collected = counters.collected
    yield Sample(m.GC_RUNS, counters.runs)
    yield Sample(m.GC_FAILURES, counters.failures)
    yield Sample(m.GC_LAST_RUN, counters.last_run_ms / 1000)
    yield Sample(m.GC_BLOCKS_EXAMINED, collected.blocks_examined)
    yield Sample(m.GC_EXAMINED_BYTES, collected.block_bytes_examined)
    yield Sample(m.GC_HEADER_BYTES, collected.header_bytes_read)
    yield Sample(m.GC_BLOCKS_CONDEMNED, collected.blocks_condemned)
    yield Sample(m.GC_BLOCKS_DELETED, collected.blocks_deleted)
    yield Sample(m.GC_RECLAIMED_BYTES, collected.bytes_reclaimed)
    yield Sample(m.GC_MOVED_OBJECTS, collected.objects_moved)
    yield Sample(m.GC_MOVED_BYTES, collected.bytes_moved)
    yield Sample(m.GC_STRIPES_WRITTEN, collected.stripes_written)
    yield Sample(of_space.GC_SPLIT_OBJECTS, collected.objects_split)
    yield Sample(of_space.GC_EMPTY_BYTES, collected.empty_front_bytes, ("front",))
    yield Sample(of_space.GC_EMPTY_BYTES, collected.empty_gap_bytes, ("gap",))
    yield Sample(of_space.GC_EMPTY_BYTES, collected.empty_end_bytes, ("end",))
    yield Sample(m.GC_BLOCKS_PARKED, collected.blocks_parked)
    yield Sample(m.GC_UNREADABLE, collected.unreadable_objects)
    yield Sample(of_trash.GC_EXPIRED_OBJECTS, collected.expired_objects)
    yield Sample(of_trash.GC_EXPIRED_BYTES, collected.expired_bytes)


def worker_samples(metadata: WorkersMetadata, workers: int, clock: Clock) -> Iterator[Sample]:
    """Yields the state of each GC worker, in whichever process it runs. Raises Transient."""
    for one in read_workers(metadata, workers, clock.now_ms())[:workers]:
        yield Sample(m.GC_WORKER_RUNNING, int(one.running), (str(one.worker),))
        if one.run is not None:
            yield Sample(m.GC_WORKER_SEEN, one.run.seen_ms / 1000, (str(one.worker),))


def lifecycle_counts(total: WalkCounts) -> Iterator[Sample]:
    """Yields counts of lifecycle rules."""
    yield Sample(of_lifecycle.LIFECYCLE_EXAMINED, total.examined)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_OBJECTS, total.objects)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_BYTES, total.bytes)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_VERSIONS, total.versions)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_MARKERS, total.markers)
    yield Sample(of_lifecycle.LIFECYCLE_ABORTED_UPLOADS, total.uploads)
    yield Sample(of_lifecycle.LIFECYCLE_FAILED_BUCKETS, total.failed)


def rebuild_counts(counters: RebuildCounters) -> Iterator[Sample]:
    """Yields counts of shard rebuilds."""
    yield Sample(of_shards.REBUILT_SHARDS, counters.missing, ("missing",))
    yield Sample(of_shards.REBUILT_SHARDS, counters.replaced, ("damaged",))
    yield Sample(of_shards.REBUILD_BYTES, counters.read_bytes, ("read",))
    yield Sample(of_shards.REBUILD_BYTES, counters.written_bytes, ("written",))
    yield Sample(of_shards.REBUILD_FAILURES, counters.failures)


def scrub_counts(counters: ScrubCounters) -> Iterator[Sample]:
    """Yields counts of scrubs."""
    yield Sample(of_scrub.SCRUB_BLOCKS, counters.blocks)
    yield Sample(of_scrub.SCRUB_BYTES, counters.read_bytes, ("read",))
    yield Sample(of_scrub.SCRUB_BYTES, counters.written_bytes, ("written",))
    yield Sample(of_scrub.SCRUB_DAMAGES, counters.mended, ("mended",))
    yield Sample(of_scrub.SCRUB_DAMAGES, counters.left, ("left",))
    yield Sample(of_scrub.SCRUB_UNREAD_BLOCKS, counters.unread)
    yield Sample(of_scrub.SCRUB_FAILURES, counters.failures)


def pass_samples(metadata: Metadata, lifecycle_day_ms: int) -> Iterator[Sample]:
    """Yields the progress of scrubs and of the walk of lifecycle rules, and the remaining missing shards after the last
    search, in whichever process they run. Raises Transient."""
    state, walk = metadata.scrub_state(), read_walk(metadata)
    current, last = (None, None) if state is None else (state.current, state.last)
    yield Sample(of_scrub.SCRUB_PASS_BLOCKS, 0 if current is None else current.blocks)
    yield Sample(of_scrub.SCRUB_LAST_PASS, 0 if last is None else last.ended_ms / 1000)
    yield Sample(of_scrub.SCRUB_LEFT, max((one.left for one in (current, last) if one is not None), default=0))
    yield Sample(of_lifecycle.LIFECYCLE_WALK_DAY, 0 if walk is None else walk.day * lifecycle_day_ms / 1000)
    shortage = read_shortage(metadata)
    if shortage is not None:
        for shards in range(1, max(shortage.short, default=1) + 1):
            yield Sample(of_shards.BLOCKS_SHORT, shortage.short.get(shards, 0), (str(shards),))
        yield Sample(of_shards.REBUILD_FAILED_BLOCKS, shortage.failed)


def move_samples(metadata: Metadata) -> Iterator[Sample]:
    """Yields how many moves of buckets wait for somebody to continue. Raises Transient."""
    yield Sample(m.STORE_STALLED_MOVES, len(stalled_moves(metadata)))


def interval_samples(gc_wait_ms: int, scrub_pass_ms: int) -> Iterator[Sample]:
    """Yields how often GC and scrubs should run according to the configuration of this process."""
    yield Sample(m.GC_WAIT_SECONDS, gc_wait_ms / 1000)
    yield Sample(of_scrub.SCRUB_INTERVAL_SECONDS, scrub_pass_ms / 1000)

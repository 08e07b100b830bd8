"""The metrics of GC."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.engine.lifecycle_walk import LifecycleWalk
from nos_ec.engine.scrub.scrubber import ScrubCounters
from nos_ec.engine.shard_rebuild import RebuildCounters
from nos_ec.monitoring import lifecycle_metrics as of_lifecycle
from nos_ec.monitoring import metrics as m
from nos_ec.monitoring import scrub_metrics as of_scrub
from nos_ec.monitoring import shard_metrics as of_shards
from nos_ec.monitoring import trash_metrics as of_trash
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.sources import lease_samples
from nos_gc.service import GcService


def gc_samples(service: GcService, wait_ms: int) -> Iterator[Sample]:
    """Samples of GC's counters, of its time between runs, and of its lease during a run."""
    counters, collected = service.counters, service.counters.collected
    yield Sample(m.GC_RUNS, counters.runs)
    yield Sample(m.GC_FAILURES, counters.failures)
    yield Sample(m.GC_LAST_RUN, counters.last_run_ms / 1000)
    yield Sample(m.GC_WAIT_SECONDS, wait_ms / 1000)
    yield Sample(m.GC_BLOCKS_EXAMINED, collected.blocks_examined)
    yield Sample(m.GC_EXAMINED_BYTES, collected.block_bytes_examined)
    yield Sample(m.GC_HEADER_BYTES, collected.header_bytes_read)
    yield Sample(m.GC_BLOCKS_CONDEMNED, collected.blocks_condemned)
    yield Sample(m.GC_BLOCKS_DELETED, collected.blocks_deleted)
    yield Sample(m.GC_RECLAIMED_BYTES, collected.bytes_reclaimed)
    yield Sample(m.GC_MOVED_OBJECTS, collected.objects_moved)
    yield Sample(m.GC_MOVED_BYTES, collected.bytes_moved)
    yield Sample(m.GC_STRIPES_WRITTEN, collected.stripes_written)
    yield Sample(m.GC_BLOCKS_PARKED, collected.blocks_parked)
    yield Sample(m.GC_UNREADABLE, collected.unreadable_objects)
    yield Sample(of_trash.GC_EXPIRED_OBJECTS, collected.expired_objects)
    yield Sample(of_trash.GC_EXPIRED_BYTES, collected.expired_bytes)
    held = service.held
    if held is not None:
        yield from lease_samples(held, "gc")


def lifecycle_samples(lifecycle: LifecycleWalk, day_ms: int) -> Iterator[Sample]:
    """Samples of lifecycle rules. The day of the walk is missing until this process has looked."""
    total, state = lifecycle.total, lifecycle.state
    yield Sample(of_lifecycle.LIFECYCLE_EXAMINED, total.examined)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_OBJECTS, total.objects)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_BYTES, total.bytes)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_VERSIONS, total.versions)
    yield Sample(of_lifecycle.LIFECYCLE_EXPIRED_MARKERS, total.markers)
    yield Sample(of_lifecycle.LIFECYCLE_ABORTED_UPLOADS, total.uploads)
    yield Sample(of_lifecycle.LIFECYCLE_FAILED_BUCKETS, total.failed)
    if state is not None:
        yield Sample(of_lifecycle.LIFECYCLE_WALK_DAY, state.day * day_ms / 1000)


def rebuild_samples(counters: RebuildCounters) -> Iterator[Sample]:
    """Samples of the rebuild of shards. Those of the last look are missing until one has ended."""
    yield Sample(of_shards.REBUILT_SHARDS, counters.missing, ("missing",))
    yield Sample(of_shards.REBUILT_SHARDS, counters.replaced, ("damaged",))
    yield Sample(of_shards.REBUILD_BYTES, counters.read_bytes, ("read",))
    yield Sample(of_shards.REBUILD_BYTES, counters.written_bytes, ("written",))
    yield Sample(of_shards.REBUILD_FAILURES, counters.failures)
    last = counters.last
    if last is not None:
        for shards in range(1, max(last.short, default=1) + 1):
            yield Sample(of_shards.BLOCKS_SHORT, last.short.get(shards, 0), (str(shards),))
        yield Sample(of_shards.REBUILD_FAILED_BLOCKS, last.unreadable + last.failed)


def scrub_samples(counters: ScrubCounters, pass_ms: int) -> Iterator[Sample]:
    """Samples of scrubs. Those of the store's passes are missing until this process has read where they are."""
    yield Sample(of_scrub.SCRUB_BLOCKS, counters.blocks)
    yield Sample(of_scrub.SCRUB_BYTES, counters.read_bytes, ("read",))
    yield Sample(of_scrub.SCRUB_BYTES, counters.written_bytes, ("written",))
    yield Sample(of_scrub.SCRUB_DAMAGES, counters.mended, ("mended",))
    yield Sample(of_scrub.SCRUB_DAMAGES, counters.left, ("left",))
    yield Sample(of_scrub.SCRUB_UNREAD_BLOCKS, counters.unread)
    yield Sample(of_scrub.SCRUB_FAILURES, counters.failures)
    yield Sample(of_scrub.SCRUB_INTERVAL_SECONDS, pass_ms / 1000)
    state = counters.state
    if state is not None:
        current, last = state.current, state.last
        yield Sample(of_scrub.SCRUB_PASS_BLOCKS, 0 if current is None else current.blocks)
        yield Sample(of_scrub.SCRUB_LAST_PASS, 0 if last is None else last.ended_ms / 1000)
        yield Sample(of_scrub.SCRUB_LEFT, max((one.left for one in (current, last) if one is not None), default=0))

"""The metrics of GC."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.monitoring import metrics as m
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
    held = service.held
    if held is not None:
        yield from lease_samples(held, "gc")

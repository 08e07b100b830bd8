"""Builds the GC service from an open system."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter

from nos_ec.composition.packing import collector_options, gc_packing
from nos_ec.composition.processes import background_loop, process_name
from nos_ec.composition.wiring import System
from nos_ec.core.states import BlockKind
from nos_ec.engine.gc.collector import Collector
from nos_ec.engine.gc.control import GcControl
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.upkeep.upload_reaper import UploadReaper
from nos_ec.monitoring.gc_samples import gc_counts, lifecycle_counts
from nos_ec.monitoring.monitor import Monitor
from nos_ec.monitoring.sources import housekeeping_samples, lease_samples, parking_samples
from nos_ec.ports.clock import unwatched
from nos_ec.settings.section import DAY
from nos_gc.service import GcService

REBUILD_WAIT_MS = 600_000
"""The time between two searches for blocks that lack a shard. A search lists all shard folders."""


def gc_collector(system: System, options: CollectorOptions | None = None) -> Collector:
    """Return a collector, which plans and runs collections with the same packer as the consumer. options: replace those
    from the settings."""
    settings = system.settings
    known = system.worker.known_expiry()
    packing = gc_packing(settings, system.geometry, system.metadata, known, random.Random(0))
    return Collector(
        system.metadata,
        system.blocks,
        system.clock,
        packing.new_list,
        collector_options(settings) if options is None else options,
        perf_counter,
        random.Random(0),
        process_name(),
        system.trail,
    )


def gc_service(system: System, monitor: Monitor | None = None, *, retry: bool = False) -> GcService:
    """Return a GC service with the same packer as the consumer, which writes to survivor blocks. The monitor, if any,
    shows its figures. retry: whether it also collects blocks that GC has set aside."""
    settings = system.settings

    housekeeping = system.worker.housekeeping()
    control = GcControl(system.metadata)
    reaper = UploadReaper(system.metadata, system.clock, settings.s3.abort_uploads_ms)
    service = GcService(
        gc_collector(system, collector_options(settings, retry=retry)),
        control,
        housekeeping,
        system.client.trash(),
        system.worker.lifecycle_walk(),
        reaper,
        system.contended_lease,
        system.metadata,
        settings.gc.workers,
        partial(system.worker.writer, kind=BlockKind.SURVIVOR),
        system.clock,
    )
    system.operator.counts.add(lambda: gc_counts(service.counters))
    system.operator.counts.add(lambda: lifecycle_counts(service.lifecycle.total))
    if monitor is not None:
        monitor.metrics.add("gc lease", lambda: () if (held := service.held) is None else lease_samples(held, "gc"))
        monitor.metrics.add("gc parked", lambda: parking_samples(service.retry_queues, system.clock.now_ms()))
        monitor.parked += [lambda: service.retry_queues, lambda: housekeeping.retry_queues]
        monitor.metrics.add("housekeeping", lambda: housekeeping_samples(housekeeping, system.clock.now_ms()))
    return service


@contextmanager
def rebuild_thread(system: System, monitor: Monitor | None = None) -> Iterator[None]:
    """Rebuilds shards on a separate thread within the `with` block, unless the store rebuilds them itself. The monitor,
    if any, watches its loop."""
    rebuild = system.operator.shard_rebuild()
    if rebuild is None:
        yield
        return
    beat = unwatched if monitor is None else monitor.health.heart("rebuilding")
    with background_loop("shard-rebuild", lambda stop: rebuild.run(stop, REBUILD_WAIT_MS, beat)):
        yield


@contextmanager
def journal_thread(system: System, monitor: Monitor | None = None) -> Iterator[None]:
    """Writes the journal of deletes into the store on a separate thread within the `with` block, and once more at its
    end. The monitor, if any, watches its loop."""
    shipper = system.client.journal()
    beat = unwatched if monitor is None else monitor.health.heart("shipping the journal")
    with background_loop("journal", lambda stop: shipper.run(stop, beat)):
        yield


@contextmanager
def scrub_thread(system: System, monitor: Monitor | None = None) -> Iterator[None]:
    """Scrubs on a separate thread within the `with` block, if the settings enable it. The monitor, if any, watches its
    loop."""
    settings = system.settings.scrub
    if not settings.pass_days:
        yield
        return
    scrubber, pass_ms = system.operator.scrubber(), settings.pass_days * DAY
    beat = unwatched if monitor is None else monitor.health.heart("scrubbing")
    with background_loop("scrub", lambda stop: scrubber.run(stop, pass_ms, beat)):
        yield

"""Builds the GC service from an open system."""

from __future__ import annotations

import random

from nos_ec.core.lifecycle import BlockKind
from nos_ec.core.merge_list import merge_list
from nos_ec.core.plan import MergeList
from nos_ec.engine.collector import Collector, CollectorOptions
from nos_ec.engine.leases import HeldLease
from nos_ec.engine.stripe_writer import StripeWriter
from nos_ec.monitoring.monitor import Monitor
from nos_ec.monitoring.sources import housekeeping_samples
from nos_ec.ports.metadata import Lease
from nos_ec.wiring import System
from nos_gc.figures import gc_samples
from nos_gc.service import GcService


def gc_collector(system: System) -> Collector:
    """What plans and runs collections, with the same packer as the consumer."""
    settings = system.settings
    rng = random.Random(0)

    def new_merge_list() -> MergeList:
        consumer = settings.consumer
        return merge_list(consumer.policy, system.geometry, consumer.window_objects, consumer.linger_ms, rng)

    gc = settings.gc
    options = CollectorOptions(gc.hole_ratio_min, gc.block_grace_ms, gc.blocks_max_per_run)
    return Collector(system.metadata, system.blocks, system.clock, new_merge_list, options)


def gc_service(system: System, monitor: Monitor | None = None) -> GcService:
    """GC with the same packer as the consumer, writing to survivor blocks. A monitor is shown its figures."""
    settings = system.settings

    def new_lease(name: str) -> HeldLease:
        return system.contended_lease(name, settings.consumer.lease_ttl_ms)

    def new_writer(lease: Lease) -> StripeWriter:
        return system.writer(lease, BlockKind.SURVIVOR)

    housekeeping = system.housekeeping()
    service = GcService(gc_collector(system), housekeeping, new_lease, new_writer, system.clock)
    if monitor is not None:
        monitor.metrics.add("gc", lambda: gc_samples(service))
        monitor.metrics.add("housekeeping", lambda: housekeeping_samples(housekeeping, system.clock.now_ms()))
    return service

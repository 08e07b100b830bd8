"""Builds the GC service from an open system."""

from __future__ import annotations

import random

from nos_ec.composition.packing import collector_options, new_merge_list
from nos_ec.composition.wiring import System
from nos_ec.core.lifecycle import BlockKind
from nos_ec.engine.gc.collector import Collector
from nos_ec.engine.leases import HeldLease
from nos_ec.engine.stripe_writer import StripeWriter
from nos_ec.monitoring.monitor import Monitor
from nos_ec.monitoring.sources import housekeeping_samples, parking_samples
from nos_ec.ports.metadata import Lease
from nos_gc.samples import gc_samples
from nos_gc.service import GcService

NO_DEADLINE_MS = 365 * 86_400_000
"""Survivors wait for others without a deadline. At its end, a run writes those that are left."""


def gc_collector(system: System) -> Collector:
    """The collector, which plans and runs collections with the same packer as the consumer."""
    settings = system.settings
    rng = random.Random(0)
    return Collector(
        system.metadata,
        system.blocks,
        system.clock,
        lambda: new_merge_list(settings.consumer, system.geometry, NO_DEADLINE_MS, rng),
        collector_options(settings),
    )


def gc_service(system: System, monitor: Monitor | None = None) -> GcService:
    """GC with the same packer as the consumer, writing to survivor blocks. The monitor, if any, shows its figures."""
    settings = system.settings

    def new_lease(name: str) -> HeldLease:
        return system.contended_lease(name, settings.consumer.lease_ttl_ms)

    def new_writer(lease: Lease) -> StripeWriter:
        return system.writer(lease, BlockKind.SURVIVOR)

    housekeeping = system.housekeeping()
    service = GcService(gc_collector(system), housekeeping, new_lease, new_writer, system.clock)
    if monitor is not None:
        monitor.metrics.add("gc", lambda: gc_samples(service, settings.gc.wait_ms))
        monitor.metrics.add("gc parked", lambda: parking_samples(service.parkings, system.clock.now_ms()))
        monitor.metrics.add("housekeeping", lambda: housekeeping_samples(housekeeping, system.clock.now_ms()))
    return service

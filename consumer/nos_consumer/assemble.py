"""Builds a consumer from an open system."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from nos_consumer.counters import ConsumerCounters
from nos_consumer.samples import consumer_samples, stream_samples
from nos_consumer.service import ConsumerOptions, ConsumerService
from nos_consumer.unread import UnreadObjects
from nos_ec.composition.packing import consumer_packing
from nos_ec.composition.processes import background_loop
from nos_ec.composition.wiring import System
from nos_ec.core.states import BlockKind
from nos_ec.engine.packing.lanes import Lanes
from nos_ec.monitoring.monitor import Monitor
from nos_ec.monitoring.sources import housekeeping_samples, lease_samples
from nos_ec.ports.clock import unwatched

IDLE_WAIT_MS = 500
"""The longest wait for a message. It only limits how often an idle consumer looks at its lease and its lanes."""


@contextmanager
def consumer_service(
    system: System, monitor: Monitor | None = None, *, idle_wait_ms: int | None = None
) -> Iterator[ConsumerService]:
    """Yields a consumer that holds a writer lease and is a member of the consumer group.

    On exit, it finishes the stripe groups in flight, seals their blocks, commits their offsets, and then gives up the
    lease and the membership. The monitor, if any, shows the consumer's figures and lease.

    idle_wait_ms: the longest wait for a message, in milliseconds; by default IDLE_WAIT_MS.
    """
    settings = system.settings.consumer
    member = system.member_name("consumer")
    known, rng = system.worker.known_expiry(), random.Random(member)
    packing = consumer_packing(system.settings, system.geometry, system.metadata, known, rng)
    options = ConsumerOptions(
        waiting_objects_max=packing.backlog_objects_max,
        waiting_bytes_max=settings.merge_list_bytes_max,
        idle_wait_ms=IDLE_WAIT_MS if idle_wait_ms is None else idle_wait_ms,
        drain_idle_ms=2 * system.settings.log.session_ms,
        store_id=system.store_id,
    )
    with system.lease(member, system.settings.store.lease_ttl_ms) as held:
        writers = [system.worker.writer(held.lease, BlockKind.FRESH) for _ in range(settings.lanes)]
        lanes = Lanes(writers, perf_counter, system.geometry)
        log = system.worker.log_consumer(member)
        unread = UnreadObjects(system.worker.source_reader().read_one, system.clock)
        service = ConsumerService(
            log,
            system.metadata,
            lanes,
            packing.new_list,
            system.clock,
            options,
            held.require_not_lost,
            unread,
        )
        if monitor is not None:
            monitor.metrics.add("consumer", lambda: consumer_samples(service, system.geometry, system.clock.now_ms()))
            monitor.parked.append(lambda: [service.unread.retry_queue])
            monitor.metrics.add("streams", lambda: stream_samples(packing.newest))
            monitor.metrics.add("lease", lambda: lease_samples(held, "consumer"))
            monitor.health.require("lease", held.require)
        try:
            yield service
        finally:
            service.close()


def drain(system: System, watch: Callable[[ConsumerCounters], object] = lambda _: None) -> ConsumerCounters:
    """Pack all waiting objects. Housekeeping runs before and after, and also in between when space runs out.

    `watch` is called with the counters after every turn. Raises what `ConsumerService.drain` raises.
    """
    housekeeping = system.worker.housekeeping()
    housekeeping.run_once()
    with consumer_service(system) as service:
        service.drain(lambda: housekeeping.run_once().reaper.deleted > 0, watch)
    housekeeping.run_once()
    return service.counters


@contextmanager
def housekeeping_thread(system: System, monitor: Monitor | None = None) -> Iterator[None]:
    """Runs housekeeping on a separate thread within the `with` block. The monitor, if any, shows its figures and
    watches its loop."""
    housekeeping = system.worker.housekeeping()
    beat = unwatched if monitor is None else monitor.health.heart("housekeeping")
    if monitor is not None:
        monitor.parked.append(lambda: housekeeping.retry_queues)
        monitor.metrics.add("housekeeping", lambda: housekeeping_samples(housekeeping, system.clock.now_ms()))
    with background_loop("housekeeping", lambda stop: housekeeping.run(stop, beat)):
        yield

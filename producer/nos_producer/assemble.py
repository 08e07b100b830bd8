"""Builds a producer from an open system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from nos_ec.composition.developer_values import PUBLISHED_OBJECTS
from nos_ec.composition.packing import BACKLOG_WINDOWS
from nos_ec.composition.wiring import System
from nos_ec.engine.upkeep.usage_keeper import UsageKeeper
from nos_ec.monitoring.monitor import Monitor
from nos_producer.notifications import NotificationSender
from nos_producer.samples import producer_samples
from nos_producer.service import ProducerOptions, ProducerService
from nos_producer.slots import HeldSlots
from nos_producer.spreading import SpreadOptions


@contextmanager
def producer_service(
    system: System, monitor: Monitor | None = None, *, shares: bool = False
) -> Iterator[ProducerService]:
    """Yields a producer with its clients of the message log. On exit, it releases its leases and closes the clients.

    With `shares`, it divides the slots with the other producers that share. Otherwise it takes all free slots. The
    monitor, if any, shows its figures.
    """
    log = system.settings.log
    spread = SpreadOptions(
        backlog_min=BACKLOG_WINDOWS * system.settings.consumer.window_objects,
        default=_fixed(log.spread),
        buckets={bucket: _fixed(number) for bucket, number in log.spread_buckets.items()},
    )
    republish_ms = system.settings.producer.republish_ms
    options = ProducerOptions(republish_ms, log.partitions, system.store_id, PUBLISHED_OBJECTS, spread)
    member = system.member_name("producer") if shares else None
    held = HeldSlots(
        system.metadata, system.clock, system.settings.store.lease_ttl_ms, member, system.events().record_lost
    )
    with ExitStack() as stack:
        publisher = stack.enter_context(closing(system.worker.publisher()))
        progress = stack.enter_context(closing(system.worker.group_progress("producer")))
        notifications = None
        # Events that were taken for a topic which is no longer allowed are still sent.
        if system.settings.s3.topics or system.metadata.outbox_size(1):
            to_topics = stack.enter_context(closing(system.worker.notifications()))
            events_max = system.settings.s3.notification_events_max
            notifications = NotificationSender(system.metadata, to_topics, system.clock, held, events_max)
        usage = None
        if system.settings.store.count_usage:
            usage = UsageKeeper(system.metadata, system.clock, system.settings.producer.shown)
        service = ProducerService(
            system.metadata, publisher, progress, system.clock, held, options, notifications, usage
        )
        if monitor is not None:
            monitor.parked.append(lambda: service.retry_queues)
            monitor.metrics.add("producer", lambda: producer_samples(service, held, system.clock.now_ms()))
        try:
            yield service
        finally:
            held.release()


def _fixed(spread: int | str) -> int | None:
    """Return the spread as a number, or None for "auto"."""
    return spread if isinstance(spread, int) else None

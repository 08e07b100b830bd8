"""The metrics of a producer."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.sources import parking_samples
from nos_producer.notifications import NotificationCounters
from nos_producer.service import ProducerService
from nos_producer.slots import HeldSlots


def producer_samples(service: ProducerService, held: HeldSlots, now_ms: int) -> Iterator[Sample]:
    """Yield samples of a producer's counters, of its retry queues, and of its share of the work."""
    counters = service.counters
    yield Sample(m.PRODUCER_SLOTS, len(held.slots()))
    yield Sample(m.SPREAD_BUCKETS, service.spreading.spread_buckets)
    yield Sample(m.PUBLISHED_OBJECTS, counters.objects)
    yield Sample(m.PUBLISHED_BYTES, counters.bytes)
    yield Sample(m.PUBLISH_FAILURES, counters.failures)
    yield Sample(m.POSTPONED_OBJECTS, counters.postponed)
    yield Sample(m.REFUSED_EVENTS, counters.refused)
    sender = service.notifications
    sent = NotificationCounters() if sender is None else sender.counters
    yield Sample(m.NOTIFICATIONS_SENT, sent.sent)
    yield Sample(m.NOTIFICATION_FAILURES, sent.failures)
    yield Sample(m.OUTBOX_EVENTS, sent.waiting)
    yield Sample(m.OUTBOX_EVENTS_MAX, 0 if sender is None else sender.events_max)
    yield Sample(m.OUTBOX_AGE_SECONDS, 0 if sent.oldest_ms is None else max(0, now_ms - sent.oldest_ms) / 1000)
    shown = service.usage_shown
    yield Sample(m.METERED_BUCKETS, shown.metered)
    for one in shown.buckets:
        yield Sample(m.BUCKET_BYTES, one.held.bytes, (one.bucket,))
        yield Sample(m.BUCKET_OBJECTS, one.held.objects, (one.bucket,))
    for use in shown.nearest:
        yield Sample(m.QUOTA_USED_RATIO, use.share or 0.0, ("account" if use.is_account else "bucket", use.name))
    yield from parking_samples(service.retry_queues, now_ms)

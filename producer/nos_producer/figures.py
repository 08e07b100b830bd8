"""What a producer shows to whoever watches it."""

from __future__ import annotations

from collections.abc import Iterator

from nos_ec.monitoring import metrics as m
from nos_ec.monitoring.exposition import Sample
from nos_producer.service import ProducerCounters
from nos_producer.slots import HeldSlots


def producer_samples(counters: ProducerCounters, held: HeldSlots) -> Iterator[Sample]:
    """Samples of a producer's counters, and its share of the work."""
    yield Sample(m.PRODUCER_SLOTS, len(held.slots()))
    yield Sample(m.PUBLISHED_OBJECTS, counters.objects)
    yield Sample(m.PUBLISHED_BYTES, counters.bytes)
    yield Sample(m.PUBLISH_FAILURES, counters.failures)

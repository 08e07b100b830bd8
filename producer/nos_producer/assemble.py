"""Builds a producer from an open system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nos_ec.monitoring.monitor import Monitor
from nos_ec.wiring import System
from nos_producer.figures import producer_samples
from nos_producer.service import ProducerOptions, ProducerService


@contextmanager
def producer_service(system: System, monitor: Monitor | None = None) -> Iterator[ProducerService]:
    """A producer and its end of the message log, which is closed at the end. A monitor is shown its figures."""
    settings = system.settings.producer
    options = ProducerOptions(settings.batch_objects, settings.republish_ms, settings.idle_wait_ms)
    publisher = system.publisher()
    service = ProducerService(system.metadata, publisher, system.clock, options)
    if monitor is not None:
        monitor.metrics.add("producer", lambda: producer_samples(service.counters))
    try:
        yield service
    finally:
        publisher.close()

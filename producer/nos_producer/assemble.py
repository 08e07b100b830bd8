"""Builds a producer from an open system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nos_ec.wiring import System
from nos_producer.service import ProducerOptions, ProducerService


@contextmanager
def producer_service(system: System) -> Iterator[ProducerService]:
    """A producer and its end of the message log, which is closed at the end."""
    settings = system.settings.producer
    options = ProducerOptions(settings.batch_objects, settings.republish_ms, settings.idle_wait_ms)
    publisher = system.publisher()
    try:
        yield ProducerService(system.metadata, publisher, system.clock, options)
    finally:
        publisher.close()

"""Counts the requests of one gateway process."""

from __future__ import annotations

from collections import Counter

from nos_ec.core.histogram import Histogram
from nos_ec.engine.figures.requests import SECONDS_BOUNDS
from nos_ec.gateway.server.record import Record


class OperationCounters:
    """Counters of the requests of one operation: time to the first byte of the answer, total time, and bytes of
    bodies."""

    __slots__ = ("first_byte_s", "received", "sent", "whole_s")

    def __init__(self) -> None:
        self.first_byte_s = Histogram(SECONDS_BOUNDS)
        self.whole_s = Histogram(SECONDS_BOUNDS)
        self.received = 0
        self.sent = 0


class RequestCounters:
    """Counters of one process. Only the event loop writes them; any thread may read them."""

    def __init__(self) -> None:
        self.operations: dict[str, OperationCounters] = {}
        self.errors: Counter[tuple[str, str, str]] = Counter()
        """Number of failed requests by (operation, code, status)."""
        self.under_way = 0

    def add(self, record: Record) -> None:
        """Count a finished request."""
        counters = self.operations.get(record.operation)
        if counters is None:
            counters = self.operations[record.operation] = OperationCounters()
        counters.first_byte_s.add(record.first_byte_s)
        counters.whole_s.add(record.whole_s)
        counters.received += record.received
        counters.sent += record.sent
        if record.code:
            self.errors[record.operation, record.code, str(record.status)] += 1

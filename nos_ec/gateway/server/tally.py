"""Counts the requests of one gateway process."""

from __future__ import annotations

from collections import Counter

from nos_ec.core.histogram import Histogram
from nos_ec.engine.figures.requests import SECONDS_BOUNDS
from nos_ec.gateway.server.record import Record


class OperationTally:
    """The requests of one operation: how long until the first byte of the answer, how long in all, and the bytes of
    bodies."""

    __slots__ = ("first_byte_s", "received", "sent", "whole_s")

    def __init__(self) -> None:
        self.first_byte_s = Histogram(SECONDS_BOUNDS)
        self.whole_s = Histogram(SECONDS_BOUNDS)
        self.received = 0
        self.sent = 0


class Tally:
    """The event loop counts; others may read at any time."""

    def __init__(self) -> None:
        self.operations: dict[str, OperationTally] = {}
        self.errors: Counter[tuple[str, str, str]] = Counter()
        """(operation, code, status): requests"""
        self.under_way = 0

    def add(self, record: Record) -> None:
        """Count a request that has ended."""
        tally = self.operations.get(record.operation)
        if tally is None:
            tally = self.operations[record.operation] = OperationTally()
        tally.first_byte_s.add(record.first_byte_s)
        tally.whole_s.add(record.whole_s)
        tally.received += record.received
        tally.sent += record.sent
        if record.code:
            self.errors[record.operation, record.code, str(record.status)] += 1

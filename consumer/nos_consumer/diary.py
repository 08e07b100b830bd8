"""What a consumer tells its log while all goes well."""

from __future__ import annotations

from dataclasses import asdict

import structlog

from nos_consumer.counters import ConsumerCounters

_log = structlog.get_logger(__name__)

REPORT_WAIT_MS = 10_000
"""Between two lines on what was packed; the metrics have the details."""
_REPORTED = ("packed", "packed_bytes", "stripes", "superseded", "failed", "retried", "given_up")


class Diary:
    """A line when the partitions change, and one now and then on what was packed since the last."""

    def __init__(self, now_ms: int) -> None:
        self._due_ms = now_ms + REPORT_WAIT_MS
        self._partitions: frozenset[int] = frozenset()
        self._reported = ConsumerCounters()

    def turn(self, now_ms: int, partitions: frozenset[int], counters: ConsumerCounters, waiting: int) -> None:
        """After each turn. waiting: objects on the merge list."""
        if partitions != self._partitions:
            self._partitions = partitions
            _log.info("partitions held", partitions=sorted(partitions))
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + REPORT_WAIT_MS
            self.report(counters, waiting)

    def report(self, counters: ConsumerCounters, waiting: int) -> None:
        """What changed since the last report; nothing when nothing did."""
        before, now = asdict(self._reported), asdict(counters)
        changes = {name: now[name] - before[name] for name in _REPORTED if now[name] != before[name]}
        if changes:
            self._reported = ConsumerCounters(**now)
            _log.info("progress", **changes, waiting=waiting)

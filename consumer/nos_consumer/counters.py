"""The counters of a consumer, and the progress lines in its log."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import structlog

from nos_ec.core.sums import Summed
from nos_ec.ports.clock import waits

_log = structlog.get_logger(__name__)

REPORT_WAIT_MS = 10_000
"""The shortest time between two progress lines. The metrics have the details."""
_REPORTED = ("packed", "packed_bytes", "stripes", "superseded", "failed", "retried", "given_up")


@dataclass(slots=True)
class ConsumerCounters(Summed):
    """Counts the work of this consumer since it started. split: objects in one chunk more than the fewest possible. The
    `empty_*_bytes` count the bytes of the written stripes that hold no object (core/packing/empty_bytes.py)."""

    messages: int = 0
    stale: int = 0
    poison: int = 0
    packed: int = 0
    packed_bytes: int = 0
    superseded: int = 0
    failed: int = 0
    retried: int = 0
    given_up: int = 0
    groups: int = 0
    stripes: int = 0
    split: int = 0
    empty_front_bytes: int = 0
    empty_gap_bytes: int = 0
    empty_end_bytes: int = 0
    offsets_committed: int = 0


class ProgressLog:
    """Logs a line when the partitions change, and from time to time a line with the work since the last one."""

    def __init__(self, now_ms: int) -> None:
        self._due_ms = now_ms + REPORT_WAIT_MS
        self._partitions: frozenset[int] = frozenset()
        self._reported = ConsumerCounters()

    def turn(self, now_ms: int, partitions: frozenset[int], counters: ConsumerCounters, waiting: int) -> None:
        """Log the lines that are due. Call it after each turn. waiting: the number of objects on the merge list."""
        if partitions != self._partitions:
            self._partitions = partitions
            _log.info("partitions held", partitions=sorted(partitions))
        if not waits(self._due_ms, now_ms, REPORT_WAIT_MS):
            self._due_ms = now_ms + REPORT_WAIT_MS
            self.report(counters, waiting)

    def report(self, counters: ConsumerCounters, waiting: int) -> None:
        """Log the changes since the last report. Without changes, log no line."""
        before, now = asdict(self._reported), asdict(counters)
        changes = {name: now[name] - before[name] for name in _REPORTED if now[name] != before[name]}
        if changes:
            self._reported = ConsumerCounters(**now)
            _log.info("progress", **changes, waiting=waiting)

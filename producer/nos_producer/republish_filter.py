"""Decides which of the rows that come due again are published again.

A row that was published comes due again every `republish_ms`, in case its event was lost. While its event still waits
in the log, publishing it again would only make the log longer, so the row is postponed. It is published again when the
consumer group has passed the event without packing it, or when the log no longer has the event
(`core.publishing.republish`).

The progress of the group is read from the log at most every few seconds, and only while rows come due again. While it
is unknown, published rows are postponed, and new rows are published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.publishing.republish import Republishing, passed_ms
from nos_ec.core.states import ObjectState
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.message_log import GroupProgress
from nos_ec.ports.metadata import ObjectRow
from nos_producer.spreading import home_partition

_log = structlog.get_logger(__name__)

ASK_WAIT_MS_MAX = 10_000
"""The longest time for which the progress is used before it is read again."""
_ASKS_PER_STEP = 16


@dataclass(slots=True)
class DueRows:
    """Due rows, divided by what to do with them."""

    publish: list[ObjectRow] = field(default_factory=list)
    """Rows to publish now."""
    postponed: dict[int, list[ObjectRow]] = field(default_factory=lambda: defaultdict(list))
    """{new due time: rows whose event still waits}."""


class RepublishFilter:
    """Separates the rows to publish from the rows whose event still waits. Not thread-safe."""

    def __init__(self, progress: GroupProgress, clock: Clock, rule: Republishing, partitions: int) -> None:
        self._progress = progress
        self._clock = clock
        self._rule = rule
        self._partitions = partitions
        self._ask_wait_ms = min(ASK_WAIT_MS_MAX, max(1, rule.step_ms // _ASKS_PER_STEP))
        self._ask_ms = 0
        self._passed: Mapping[int, int] = {}
        self._failing = False

    def divide(self, rows: Sequence[ObjectRow], now_ms: int) -> DueRows:
        """Divide due rows, as `due_objects` returned them at `now_ms`."""
        found = DueRows()
        for row in rows:
            later_ms = self._later_ms(row, now_ms)
            if later_ms is None:
                found.publish.append(row)
            else:
                found.postponed[later_ms].append(row)
        return found

    def read_progress(self) -> Mapping[int, int]:
        """Read the progress of the group now, and return it as GroupProgress.passed_until. Raises Transient."""
        self._ask_ms = self._clock.now_ms() + self._ask_wait_ms
        self._passed = {}
        self._passed = self._progress.passed_until()
        return self._passed

    def _later_ms(self, row: ObjectRow, now_ms: int) -> int | None:
        """Return when the row is due again, or None if it must be published now. Reads the progress if it is too
        old."""
        if row.state is not ObjectState.QUEUED or row.due_ms is None:
            return None
        until_ms = self._rule.published_until_ms(row.due_ms, now_ms)
        if until_ms is None:
            return None
        spread = self._rule.was_spread(row.due_ms)
        home = home_partition(row.key.bucket, self._partitions)
        passed = passed_ms(self._passed_until(), home, self._partitions, spread=spread)
        return None if self._rule.is_passed(until_ms, passed) else self._rule.later_due_ms(row.due_ms, now_ms)

    def _passed_until(self) -> Mapping[int, int]:
        """Return the progress, which may be a few seconds old. That is safe, because groups do not move back."""
        if waits(self._ask_ms, self._clock.now_ms(), self._ask_wait_ms):
            return self._passed
        try:
            found = self.read_progress()
        except Transient as error:
            if not self._failing:
                _log.warning("progress of the consumers unknown; publishing only new objects", error=str(error))
            self._failing = True
            return {}
        self._failing = False
        return found

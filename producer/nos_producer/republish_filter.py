"""Decides which of the rows that come due again are published again.

A row that was published comes due again every `republish_ms`, in case its event was lost. While its event still waits
in the log, publishing it again would only make the log longer, so the row is postponed. It is published again when the
consumer group has passed the event without packing it, or when the log no longer has the event
(`core.publishing.republish`).

The progress of the group is read from the log at most every few seconds, and only while rows come due again. While it
is unknown, published rows are postponed, and new rows are published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from nos_ec.core.errors import Transient
from nos_ec.core.publishing.republish import event_waits, passed_ms
from nos_ec.core.states import ObjectState
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.message_log import GroupProgress
from nos_ec.ports.metadata import ObjectRow
from nos_producer.spreading import home_partition

_log = structlog.get_logger(__name__)

ASK_WAIT_MS_MAX = 10_000
"""The longest time for which the progress is used before it is read again."""
_ASKS_PER_PERIOD = 16


class RepublishFilter:
    """Separates the rows to publish from the rows whose event still waits. Not thread-safe."""

    def __init__(self, progress: GroupProgress, clock: Clock, republish_ms: int, partitions: int) -> None:
        self._progress = progress
        self._clock = clock
        self._republish_ms = republish_ms
        self._partitions = partitions
        self._ask_wait_ms = min(ASK_WAIT_MS_MAX, max(1, republish_ms // _ASKS_PER_PERIOD))
        self._ask_ms = 0
        self._passed: Mapping[int, int] = {}
        self._failing = False

    def divide(self, rows: Sequence[ObjectRow], now_ms: int) -> tuple[list[ObjectRow], list[ObjectRow]]:
        """Divide due rows, as `due_objects` returned them at `now_ms`, into those to publish now and those whose event
        still waits."""
        due: list[ObjectRow] = []
        waiting: list[ObjectRow] = []
        for row in rows:
            (waiting if self._waits(row, now_ms) else due).append(row)
        return due, waiting

    def read_progress(self) -> Mapping[int, int]:
        """Read the progress of the group now, and return it as GroupProgress.passed_until. Raises Transient."""
        self._ask_ms = self._clock.now_ms() + self._ask_wait_ms
        self._passed = {}
        self._passed = self._progress.passed_until()
        return self._passed

    def _waits(self, row: ObjectRow, now_ms: int) -> bool:
        """Return whether the event of the row still waits. Reads the progress if it is too old."""
        if row.state is not ObjectState.QUEUED or row.publication is None:
            return False
        home = home_partition(row.key.bucket, self._partitions)
        passed = passed_ms(self._passed_until(), home, self._partitions, is_spread=row.publication.is_spread)
        return event_waits(row.publication, passed, now_ms, self._republish_ms)

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

"""Whether the event of a published object still waits in the message log.

A row that was published but is not packed yet comes due every `republish_ms`, in case its event was lost. It is
published again only if the consumer group has passed the event, or the log no longer has it. Otherwise an outage of all
consumers would put the whole backlog into the log once per `republish_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CLOCK_MARGIN_MS = 60_000
"""How much the clocks of producers and brokers may differ. If they differ by more, an event that still waits may count
as passed. It is then in the log twice, which does no harm."""
PERIODS_MAX = 1000
"""After this many times `republish_ms` (a week with the default), a row is published again even if its event still
seems to wait: what the log reports about the progress of the group may be wrong."""


class Publication(NamedTuple):
    """When the event of a row was put into the message log, and where it may wait there."""

    published_ms: int
    is_spread: bool
    """Whether the event may wait in any partition, and not only in that of its bucket (`core.publishing.spread`)."""


def event_waits(publication: Publication, passed_ms: int | None, now_ms: int, republish_ms: int) -> bool:
    """Return whether the event of a row still waits, so that the row need not be published again now. `passed_ms` is
    the result of the function of this name."""
    age_ms = now_ms - publication.published_ms
    if not 0 <= age_ms < PERIODS_MAX * republish_ms:  # a negative age: the clock was set back
        return False
    return not is_passed(publication.published_ms, passed_ms, republish_ms)


def is_passed(published_ms: int, passed_ms: int | None, republish_ms: int) -> bool:
    """Return whether the consumer group has passed the event of a row that was published at this time. `passed_ms` is
    the result of the function of this name."""
    return passed_ms is not None and published_ms + min(CLOCK_MARGIN_MS, republish_ms // 2) < passed_ms


def passed_ms(passed: Mapping[int, int], home: int, partitions: int, *, is_spread: bool) -> int | None:
    """Return the time before which no event waits in the partitions that may have that of a row; None if the log does
    not know it. An event that was spread can be in any partition, because the spread may have changed since.

    `home` is the partition of the row's bucket. `passed` has, by partition, the time before which no event waits in it;
    partitions that do not know it are missing.
    """
    if is_spread:
        return passed_everywhere_ms(passed, partitions)
    return passed.get(home)


def passed_everywhere_ms(passed: Mapping[int, int], partitions: int) -> int | None:
    """Return the time before which no event waits in any partition; None if a partition does not know it."""
    return min(passed.values()) if len(passed) == partitions else None

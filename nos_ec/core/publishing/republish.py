"""When a published object is due again, and when it was published. The one due time of its row encodes both.

A row that was published but is not packed yet comes due every `republish_ms`, in case its event was lost. It is
published again only if the consumer group has passed the event, or the log no longer has it. Otherwise an outage of all
consumers would put the whole backlog into the log once per `republish_ms`. To decide that, the producer must know when
the row was published. Rows have no column for this, so the due time holds both:

    due_ms = published_ms + n x step_ms + r        with r = n, or r = n + spread_after, and 1 <= r < grain_ms

published_ms and step_ms are multiples of grain_ms (a power of two, about a 200th of republish_ms), so the remainder of
due_ms by grain_ms is r. It gives n: how often the row has come due since it was published. The last quarter of the
remainders, those above spread_after, also mean that the event was spread (`core.publishing.spread`): it may wait in any
partition, and not only in that of its bucket. Remainder 0 means that the row has no event in the log. n has a maximum;
once it is reached, the row is published again in any case (with the default of 10 minutes after 21 days, and after 7
days if it was spread).

A due time that was written under another republish_ms, or by a program that did not know this rule, yields a wrong time
of publishing. It is never later than the due time, so at worst the row is published once too often or `republish_ms`
too late.
"""

from __future__ import annotations

from collections.abc import Mapping

CLOCK_MARGIN_MS = 60_000
"""How much the clocks of producers and brokers may differ. If they differ by more, an event that still waits may count
as passed. It is then in the log twice, which does no harm."""
_GRAINS_PER_WAIT = 128
_GRAIN_MS_MIN = 8
"""A smaller grain has too few remainders to distinguish a spread event from others."""


class Republishing:
    """The rule for one `republish_ms`. Due times are at most republish_ms after the time when they are set."""

    def __init__(self, republish_ms: int) -> None:
        """Raise ValueError for less than 2 x 128 ms."""
        if republish_ms < 2 * _GRAINS_PER_WAIT:
            raise ValueError(f"republish_ms {republish_ms}; at least {2 * _GRAINS_PER_WAIT}")
        self.grain_ms = 1 << ((republish_ms // _GRAINS_PER_WAIT).bit_length() - 1)
        self.step_ms = self._floor(republish_ms) - 2 * self.grain_ms
        self._margin_ms = min(CLOCK_MARGIN_MS, self.step_ms // 2)
        spread_count = self.grain_ms // 4 if self.grain_ms >= _GRAIN_MS_MIN else 0
        self._spread_after = self.grain_ms - spread_count - 1
        """The largest remainder which does not mean that the event was spread."""

    def first_due_ms(self, published_ms: int, *, spread: bool = False) -> int:
        """Return when a row that is published now is due again. `spread`: its event may be in another partition than
        the bucket's own."""
        offset = self._spread_after if spread and self._spread_after < self.grain_ms - 1 else 0
        return self._floor(published_ms) + self.step_ms + offset + 1

    def later_due_ms(self, due_ms: int, now_ms: int) -> int | None:
        """Return the next due time, after `now_ms`, of a row whose event still waits in the log. Return None if the row
        has come due so often that it is published again in any case."""
        published_ms, count, offset = self._decoded(due_ms)
        count = max(count + 1, (now_ms - published_ms) // (self.step_ms + 1) + 1)
        end = self.grain_ms if offset else self._spread_after + 1
        return published_ms + count * (self.step_ms + 1) + offset if count + offset < end else None

    def was_spread(self, due_ms: int) -> bool:
        """Return whether the event of the row with this due time may wait in any partition."""
        return due_ms % self.grain_ms > self._spread_after

    def without_event_ms(self, retry_ms: int) -> int:
        """Return the due time of a row that could not be published and is to be tried again at `retry_ms` or soon
        after."""
        return self._floor(retry_ms + self.grain_ms - 1)

    def published_until_ms(self, due_ms: int, now_ms: int) -> int | None:
        """Return the latest time at which the row with this due time can have been published. None if it has no event
        in the log, or if the clock was set back since."""
        if due_ms % self.grain_ms == 0:
            return None
        until_ms = self._decoded(due_ms)[0] + self.grain_ms
        return until_ms if until_ms <= now_ms + self.grain_ms else None

    def is_passed(self, published_until_ms: int, passed_ms: int | None) -> bool:
        """Return whether the consumer group has passed the event of a row. The arguments are the results of the
        functions of the same names; `passed_ms` is None if the log does not know it."""
        return passed_ms is not None and published_until_ms + self._margin_ms < passed_ms

    def _decoded(self, due_ms: int) -> tuple[int, int, int]:
        """Return (time of publishing, how often it has come due, the additional offset of the remainder)."""
        remainder = due_ms % self.grain_ms
        offset = self._spread_after if remainder > self._spread_after else 0
        count = remainder - offset
        return due_ms - remainder - count * self.step_ms, count, offset

    def _floor(self, time_ms: int) -> int:
        return time_ms - time_ms % self.grain_ms


def passed_ms(passed: Mapping[int, int], home: int, partitions: int, *, spread: bool) -> int | None:
    """Return the time before which no event waits in the partitions that may have that of a row; None if the log does
    not know it. An event that was spread can be in any partition, because the spread may have changed since.

    `home` is the partition of the row's bucket. `passed` has, by partition, the time before which no event waits in it;
    partitions that do not know it are missing.
    """
    if spread:
        return passed_everywhere_ms(passed, partitions)
    return passed.get(home)


def passed_everywhere_ms(passed: Mapping[int, int], partitions: int) -> int | None:
    """Return the time before which no event waits in any partition; None if a partition does not know it."""
    return min(passed.values()) if len(passed) == partitions else None

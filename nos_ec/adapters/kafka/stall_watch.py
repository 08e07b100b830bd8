"""Detects that a member's librdkafka client has stopped working without reporting it.

Three causes are known in librdkafka 2.16. Their numbers continue the list in consumer.py and commits.py:

3  A broker that was suspended may answer with an empty list of brokers. Then the client forgets every broker and may
   wait forever.
5  The client rejects a leader epoch lower than one it has seen, and never fetches a message again. A recreated topic
   has such epochs. So a member that receives nothing looks up the ends of the topic.
6  When a broker answers that it is no longer the group's coordinator, the client does not request the starting offsets
   again. It keeps its partitions and fetches nothing. It may also fail to join after it has waited for metadata.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set

from confluent_kafka import Consumer, KafkaException

from nos_ec.adapters.kafka.cluster import KafkaTopic

_STUCK_TIMEOUTS = 3
"""The number of request time-outs after which a client that waits for brokers or for an answer counts as stuck."""
_PROBE_S = 1.0


class StallWatch:
    """Tracks the messages that one member has taken, and for how long none has come. Not thread-safe."""

    def __init__(self, topic: KafkaTopic, poll_interval_s_max: float) -> None:
        self._topic = topic
        self._poll_interval_s_max = poll_interval_s_max
        self.patience_s = _STUCK_TIMEOUTS * topic.timeout_s
        """How long a client may wait for brokers or for an answer."""
        self._join_patience_s = topic.timeout_s
        """How long a client may take to join its group before it is checked, and the time between checks after that.
        Joining waits for no fetch, so this is shorter."""
        self._down_s: float | None = None
        """The time since which the driver has had no broker, as far as its reports show."""
        self._looked_s = time.monotonic()
        """The time when a message was last taken, partitions were assigned, or the ends were looked up."""
        self._next: dict[int, int] = {}
        """For each owned partition, the offset after the last message taken, or the end if that was reached."""
        self._ends: dict[int, int] = {}
        """The topic's end offsets at the last look-up; empty when a message was taken, or partitions resumed or
        assigned, since then."""
        self._left_out_s: float | None = None
        """The time since which the group has not admitted this member, as far as the checks show."""

    # --- events -------------------------------------------------------------------------------------
    def took(self, partition: int, offset: int) -> bool:
        """Note a message. Returns False when its offset was already taken, which means that the topic has changed."""
        if offset < self._next.get(partition, 0):
            return False
        self._next[partition] = offset + 1
        self._looked_s, self._ends = time.monotonic(), {}
        return True

    def reached_end(self, partition: int, offset: int) -> int | None:
        """Note that the member has taken every message of the partition below this offset. Returns the offset known
        before; None if none was known."""
        before = self._next.get(partition)
        self._next[partition] = max(offset, before or 0)
        return before

    def assigned(self) -> None:
        """Note that partitions were assigned."""
        self._looked_s, self._ends, self._left_out_s = time.monotonic(), {}, None

    def resumed(self) -> None:
        """Note that paused partitions were resumed."""
        self._ends = {}

    def forget(self, partitions: Iterable[int]) -> None:
        """Forget partitions that are no longer owned."""
        for partition in partitions:
            self._next.pop(partition, None)

    def lost_brokers(self) -> None:
        """Note that the driver has no broker now. It does not report when it has one again."""
        if self._down_s is None:
            self._down_s = time.monotonic()

    def reset(self) -> None:
        """Start over with a new client, which has no broker yet."""
        self._down_s = time.monotonic()
        self._next.clear()
        self._ends = {}
        self._left_out_s = None

    # --- conclusions --------------------------------------------------------------------------------
    def is_cut_off(self, driver: Consumer) -> bool:
        """Return whether the driver has had no broker for too long, and still has none (3). May take a second."""
        if self._down_s is None or time.monotonic() - self._down_s <= self.patience_s:
            return False
        self._down_s = None
        try:
            return not driver.list_topics(self._topic.name, timeout=_PROBE_S).brokers
        except KafkaException:
            return True

    def check_is_due(self, *, owns: bool) -> bool:
        """Return whether no message has arrived for so long that the cause must be checked. True at most once per
        `patience_s`, or once per request time-out for a member that owns no partition, because it may not have joined
        yet."""
        now_s = time.monotonic()
        if self._down_s is not None or now_s - self._looked_s < (self.patience_s if owns else self._join_patience_s):
            return False
        self._looked_s = now_s
        return True

    def is_left_out(self, *, owns: bool, member_id: str | None, known_id: str | None) -> bool:
        """Return whether the group does not admit the member (6). Either of two signs shows this: the member has had no
        id at two checks in a row, so the group does not know it; or, for longer than a rebalance may take, it has owned
        no partition and received no assignment under its present id."""
        if owns or (member_id and member_id == known_id):
            self._left_out_s = None
            return False
        now_s = time.monotonic()
        if self._left_out_s is None:
            self._left_out_s = now_s
            return False
        return not member_id or now_s - self._left_out_s > self._poll_interval_s_max

    def misses_messages(
        self,
        wanted: Set[int],
        beginnings: Callable[[Set[int]], Mapping[int, int]],
        ends: Callable[[], Mapping[int, int]],
    ) -> bool:
        """Return whether a message of the `wanted` partitions has not come, although it existed at the last check (5).

        `beginnings` looks up the start of the partitions from which no message was taken, and `ends` the ends of the
        topic. Their errors pass through; the next call then has no earlier result to compare with.
        """
        earlier, self._ends = self._ends, {}
        if not wanted:
            return False
        places = {p: offset for p, offset in self._next.items() if p in wanted}
        if unknown := wanted - places.keys():
            places |= beginnings(unknown)
        self._ends = dict(ends())
        return any(place not in (earlier.get(p, place), self._ends.get(p, place)) for p, place in places.items())

"""Commits a member's offsets. Every call has a time limit, and no older commit is applied after a newer one.

1  A commit is sent without waiting for its answer, which the driver delivers in a later poll. Requesting the group's
   offsets shows whether it was applied, and that request has a time limit. The driver's synchronous commit has none,
   and cannot run on another thread either, because no other thread may use the client while a callback runs.
2  While the outcome of a commit is unknown, no further commit is sent. Otherwise the older one could be applied last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import count

from confluent_kafka import Consumer, KafkaError, TopicPartition

from nos_ec.adapters.kafka.cluster import KafkaTopic, bare_error, translate, translated_errors
from nos_ec.adapters.kafka.offset_look_up import commit_places, fetch_committed
from nos_ec.core.errors import ConfigError, Transient

_REBALANCE_S_MAX = 2.0
_RETRY_S = 0.1
"""The wait between attempts. A rebalancing group accepts no commits until its leader has assigned the partitions."""


class GroupCommits:
    """The commits of one member. Not thread-safe.

    `topic_id` is the id of the topic whose offsets are committed; "" while it is not known.
    """

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic
        self.topic_id = ""
        self._known: dict[int, int] = {}
        """{owned partition: the offset known to be committed}. Offsets never move backwards."""
        self._unanswered_count = 0
        """The number of commits whose outcome the driver has not reported yet."""
        self._doubtful_s: float | None = None
        """The time since which an unanswered commit may still move the group's offsets (2)."""

    def reset(self) -> None:
        """Start over with a new client, which has sent nothing and owns nothing."""
        self.topic_id = ""
        self._known.clear()
        self._unanswered_count = 0
        self._doubtful_s = None

    def forget(self, partitions: Iterable[int]) -> None:
        """Forget partitions that are no longer owned."""
        for partition in partitions:
            self._known.pop(partition, None)

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Note the offsets that the group has committed for partitions that were just assigned (-1: none)."""
        self._known |= offsets

    def reached(self, partition: int, offset: int) -> bool:
        """Return whether the group is known to have committed this offset of an owned partition, or a later one."""
        return self._known.get(partition, -1) >= offset

    def doubtful_for_s(self) -> float:
        """Return for how many seconds a commit has had no answer; 0 when every commit has its answer."""
        return 0.0 if self._doubtful_s is None else time.monotonic() - self._doubtful_s

    def committed(self, driver: Consumer, partitions: Iterable[int], topic_id: str) -> dict[int, int]:
        """Return {partition: committed offset}, or -1 for a partition where the group has no offset of the topic with
        this id."""
        found = fetch_committed(driver, self._topic, partitions)
        return {partition: committed.of(topic_id) for partition, committed in found.items()}

    def commit(
        self,
        driver: Consumer,
        offsets: Mapping[int, int],
        owned: Set[int],
        require_ownership: Callable[[Iterable[int]], None],
    ) -> None:
        """See KafkaConsumer.commit. `owned` may change during the call; `require_ownership` raises Conflict."""
        if self._doubtful_s is not None:
            raise Transient(
                f"message log: commit: an earlier commit has no answer; check the brokers {self._topic.servers}"
            )
        if unknown := offsets.keys() - self._known.keys():
            self._known |= self.committed(driver, unknown, self.topic_id)
        ahead = {partition: offset for partition, offset in offsets.items() if offset > self._known[partition]}
        if not ahead:
            return
        self._send(driver, ahead, require_ownership)
        # A rebalance may have taken a partition away meanwhile. Its offset is not remembered.
        self._known.update((p, offset) for p, offset in ahead.items() if p in owned)

    def answered(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> ConfigError | None:
        """Handle the driver's report of a commit's outcome. `_send` has already checked whether the offsets moved.

        Returns the error if it lasts until the settings are corrected, otherwise None.
        """
        self._unanswered_count -= 1
        if self._unanswered_count <= 0:
            self._doubtful_s = None
        for refused in (error, *(place.error for place in places)):
            if refused is not None:
                translated = translate(bare_error(refused), self._topic, "commit")
                if isinstance(translated, ConfigError):
                    return translated
        return None

    def _send(
        self, driver: Consumer, offsets: Mapping[int, int], require_ownership: Callable[[Iterable[int]], None]
    ) -> None:
        """Send a commit until the group's offsets show that it was applied (1). A rebalancing group accepts none."""
        places = commit_places(self._topic, offsets, self.topic_id)
        deadline = time.monotonic() + _REBALANCE_S_MAX
        for sent_count in count(1):
            with translated_errors(self._topic, "commit"):
                driver.commit(offsets=places, asynchronous=True)
            self._unanswered_count += 1
            if self._doubtful_s is None:
                self._doubtful_s = time.monotonic()
            committed = fetch_committed(driver, self._topic, offsets)
            if all(found.topic_id == self.topic_id and found.offset >= offsets[p] for p, found in committed.items()):
                if sent_count == 1:
                    self._doubtful_s = None
                return
            require_ownership(offsets)
            if time.monotonic() >= deadline:
                raise Transient(
                    f"message log: commit: the group accepted no commit for {_REBALANCE_S_MAX:.0f} s; it is rebalancing"
                )
            time.sleep(_RETRY_S)


class EmptyEnds:
    """The ends of partitions that one member has reached but not committed yet. Not thread-safe.

    A program that publishes in transactions leaves a marker after each of them, which has an offset but is not a
    message. The offset after the last message is then not the end of the partition, and a group that commits only that
    offset never reaches the end: its lag never becomes 0. So when all messages of a partition are processed, its end is
    committed instead.
    """

    def __init__(self, commits: GroupCommits) -> None:
        self._commits = commits
        self._ends: dict[int, tuple[int | None, int]] = {}
        """{partition: (the offset after the last message taken, None if none was; the end)}."""

    def found(self, partition: int, position: int | None, end: int) -> None:
        """Note that a partition of this member has no message from `position` (None: from the group's offset) up to its
        end."""
        if not self._commits.reached(partition, end) and end > (position or 0):
            position, _ = self._ends.get(partition, (position, 0))
            self._ends[partition] = (position, end)

    def taken(self, partition: int) -> None:
        """Note that a message was taken after the end: committing that message moves the group past the end."""
        self._ends.pop(partition, None)

    def included(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return the offsets to commit in place of `offsets`. If all messages of a partition are processed, this is its
        end."""
        done = {
            partition: end
            for partition, (position, end) in self._ends.items()
            if position is None or offsets.get(partition, -1) >= position or self._commits.reached(partition, position)
        }
        return dict(offsets) | done

    def committed(self, offsets: Iterable[int]) -> None:
        """Note that the group has committed the offsets that `included` returned for these partitions."""
        for partition in offsets:
            if partition in self._ends and self._commits.reached(partition, self._ends[partition][1]):
                del self._ends[partition]

    def forget(self, partitions: Iterable[int]) -> None:
        """Forget partitions that are no longer owned."""
        for partition in partitions:
            self._ends.pop(partition, None)

"""Ends of partitions that lie after the last message, with nothing left to read before them.

A program that publishes in transactions leaves a marker after each of them, which has an offset but is not a message.
The offset after the last message is then not the end of the partition, and a group that commits only that offset never
reaches the end: its lag never becomes 0. So when all messages of a partition are processed, its end is committed
instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nos_ec.adapters.kafka.commits import GroupCommits


class EmptyEnds:
    """The ends that one member has reached and has not committed. Not thread-safe."""

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
        """Return the offsets to commit instead of these: for each partition in which all messages are processed, the
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

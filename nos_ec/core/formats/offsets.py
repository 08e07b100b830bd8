"""Which offsets a group member may commit.

Objects do not leave the merge list in the order of their arrival, so messages are finished out of order. The offset to
commit is the first one in the partition that is not done. After a crash all messages from there are delivered again,
which moves nothing twice (invariant 5). All messages before it are done, so nothing is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping


class OffsetTracker:
    """Offsets taken and done, per partition. Amortised O(1) per message. Not thread-safe.

    A log delivers a partition in offset order (gaps are allowed), so an offset that is not above the highest one taken
    is already known: in flight or done. The tracker stores the offsets from the first one in flight upwards.
    """

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def taken(self, partition: int, offset: int) -> bool:
        """Note that a message was taken from the log. Return False if it is already known and can be skipped."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = _Partition(offset)
        if offset < state.next_offset:
            return False
        state.take(offset)
        return True

    def done(self, partition: int, offset: int) -> None:
        """Note that a message needs no more work.

        Ignored if the message is not in flight, because it was done before or its partition was dropped in the
        meantime. If the partition came back and the message was taken again, the first `done` counts, since the work is
        done.
        """
        state = self._partitions.get(partition)
        if state is not None:
            state.finish(offset)

    def committable(self) -> dict[int, int]:
        """Return {partition: first offset not done}, for the partitions where it advanced since `committed`."""
        return {
            partition: state.first_not_done
            for partition, state in self._partitions.items()
            if state.first_not_done > state.committed_offset
        }

    def committed(self, offsets: Mapping[int, int]) -> int:
        """Note the offsets that the log acknowledged. Partitions dropped in the meantime are ignored. Return the number
        of offsets by which the others advanced in all."""
        moved = 0
        for partition, offset in offsets.items():
            state = self._partitions.get(partition)
            if state is not None and offset > state.committed_offset:
                moved += offset - state.committed_offset
                state.committed_offset = offset
        return moved

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget partitions that this member gave up. A partition that comes back starts from scratch."""
        for partition in partitions:
            self._partitions.pop(partition, None)


class _Partition:
    """The offsets of one partition.

    `taken_offsets` is in order, from the first offset in flight. `open_offsets` holds the taken offsets that are not
    done.
    """

    __slots__ = ("committed_offset", "next_offset", "open_offsets", "taken_offsets")

    def __init__(self, first_offset: int) -> None:
        self.committed_offset = first_offset
        self.next_offset = first_offset
        self.taken_offsets: deque[int] = deque()
        self.open_offsets: set[int] = set()

    @property
    def first_not_done(self) -> int:
        return self.taken_offsets[0] if self.taken_offsets else self.next_offset

    def take(self, offset: int) -> None:
        self.taken_offsets.append(offset)
        self.open_offsets.add(offset)
        self.next_offset = offset + 1

    def finish(self, offset: int) -> None:
        self.open_offsets.discard(offset)
        while self.taken_offsets and self.taken_offsets[0] not in self.open_offsets:
            self.taken_offsets.popleft()

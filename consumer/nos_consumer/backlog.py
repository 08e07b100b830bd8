"""The backlog of a consumer: objects that were taken from the log and are not packed yet.

An object is looked up first, as its event may be old. Then it waits on the merge list, is in a plan, or is parked as
its landing copy cannot be read.

9  the merge list has a limit in objects and in bytes; beyond them nothing more is polled
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nos_consumer.unread import UnreadObjects
from nos_ec.core.ids import Extent
from nos_ec.core.messages import PackRequest
from nos_ec.core.packing.plan import GroupPlan, MergeList
from nos_ec.engine.packable import Packable
from nos_ec.ports.clock import Clock
from nos_ec.ports.message_log import Message
from nos_ec.ports.metadata import Objects


class Backlog:
    """Owned by the consumer's thread; `waiting_objects` and `waiting_bytes` may be read by any thread."""

    def __init__(
        self,
        metadata: Objects,
        new_merge_list: Callable[[], MergeList],
        unread: UnreadObjects,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._new_merge_list = new_merge_list
        self._merge_list = new_merge_list()
        self._clock = clock
        self._known: dict[tuple[int, int], Packable] = {}
        """(object id, version) of what waits on the merge list, is in flight, or is parked."""
        self._unchecked: list[tuple[Message, PackRequest]] = []
        """Taken from the log, but not looked up yet: the metadata store did not answer. One poll's worth at most."""
        self.unread = unread

    def __len__(self) -> int:
        """Objects known: on the merge list, in flight, or parked."""
        return len(self._known)

    @property
    def waiting_objects(self) -> int:
        """Objects on the merge list."""
        return len(self._merge_list)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the objects on the merge list."""
        return self._merge_list.waiting_bytes

    @property
    def size_max(self) -> int:
        """Size in bytes of the largest object that can be packed."""
        return self._merge_list.size_max

    @property
    def idle(self) -> bool:
        """Whether nothing is left to work on."""
        return not (self._known or self._unchecked)

    @property
    def only_unread_left(self) -> bool:
        """Whether all objects known are parked."""
        return len(self._known) == len(self.unread)

    def next_deadline_ms(self) -> int | None:
        """When the next object on the merge list must be planned; None when none waits."""
        return self._merge_list.next_deadline_ms()

    def take(self, message: Message, request: PackRequest) -> None:
        """Add an object that is still to be looked up."""
        self._unchecked.append((message, request))

    def look_up(self) -> list[Message]:
        """Put what was taken on the merge list. Returns the messages that ask for nothing.

        Their objects were deleted, overwritten or packed already, or were never so; or they are copies of an event that
        is being worked on, whose own offset is lower in the same partition and holds the commit back. Raises Transient:
        then all are still to be looked up, before anything more is polled.
        """
        if not self._unchecked:
            return []
        landed = self._metadata.still_landed([request for _, request in self._unchecked])
        taken, self._unchecked = self._unchecked, []
        stale = []
        for message, request in taken:
            if request not in landed or (request.object_id, request.version) in self._known:
                stale.append(message)
            else:
                self.wait(_packable(message, request))
        return stale

    def still_landed(self, packables: Sequence[Packable]) -> set[Packable]:
        """Those whose rows still say that they are to be packed from this landing copy. Raises Transient."""
        requests = {packable: _request(packable) for packable in packables}
        landed = self._metadata.still_landed(list(requests.values()))
        return {packable for packable, request in requests.items() if request in landed}

    def wait(self, packable: Packable) -> None:
        """Put an object on the merge list."""
        self.unread.leave(packable)
        self._known[packable.object_id, packable.version] = packable
        self._merge_list.add(packable.candidate(self._clock.now_ms()))

    def plan(self, *, flush: bool) -> GroupPlan | None:
        """The next group, if there is one to write now. `flush`: also one that is not full."""
        return self._merge_list.plan(self._clock.now_ms(), flush=flush)

    def release(self, packable: Packable) -> None:
        """Nothing is left to do for an object."""
        self._known.pop((packable.object_id, packable.version), None)
        self.unread.release(packable)

    def forget(self, partitions: frozenset[int]) -> None:
        """Drop what came from revoked partitions: their new owner gets it. Nothing may be in flight."""
        self._unchecked = [taken for taken in self._unchecked if taken[0].partition not in partitions]
        self.unread.forget(partitions)
        kept = [p for p in self._known.values() if not any(partition in partitions for partition, _ in p.tickets)]
        self._known.clear()
        self._merge_list = self._new_merge_list()
        for packable in kept:
            if packable in self.unread:
                self._known[packable.object_id, packable.version] = packable
            else:
                self.wait(packable)


def _packable(message: Message, request: PackRequest) -> Packable:
    return Packable(
        object_id=request.object_id,
        key=request.key,
        version=request.version,
        size=request.size,
        crc32c=request.crc32c,
        source=request.landing_id,
        tickets=((message.partition, message.offset),),
    )


def _request(packable: Packable) -> PackRequest:
    """What the log said of it."""
    assert not isinstance(packable.source, Extent), "consumers pack from the landing store"
    return PackRequest(
        object_id=packable.object_id,
        key=packable.key,
        version=packable.version,
        size=packable.size,
        crc32c=packable.crc32c,
        landing_id=packable.source,
    )

"""The backlog of a consumer: objects that were taken from the log and are not packed yet.

An object is first looked up in the metadata store, because its event may be old. After that it is on the merge list, in
a plan, or parked because its landing copy cannot be read.

9  the merge list has a limit in objects and in bytes; beyond either, the consumer polls no more messages
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nos_consumer.unread import UnreadObjects
from nos_ec.core.formats.messages import NamedVersion, PackRequest
from nos_ec.core.packing.plan import GroupPlan, MergeList
from nos_ec.engine.packable import Packable, with_fitting_attributes
from nos_ec.ports.clock import Clock
from nos_ec.ports.message_log import Message
from nos_ec.ports.metadata import Objects

CLOCK_MARGIN_MS = 60_000
"""How much the clocks of the consumer and of the process that stored an object may differ. An event that another
program publishes right after a PUT must not count as too early."""


class Backlog:
    """The backlog. The consumer's thread owns it; any thread may read `waiting_objects` and `waiting_bytes`."""

    def __init__(
        self,
        metadata: Objects,
        new_merge_list: Callable[[], MergeList[Packable]],
        unread: UnreadObjects,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._new_merge_list = new_merge_list
        self._merge_list = new_merge_list()
        self._clock = clock
        self._known: dict[tuple[int, int], Packable] = {}
        """The objects on the merge list, in flight, or parked, by (object id, version)."""
        self._unchecked: list[tuple[Message, PackRequest | NamedVersion]] = []
        """Messages taken from the log whose objects have not been looked up yet: at most those of one poll."""
        self.unread = unread

    def __len__(self) -> int:
        """Return the number of objects on the merge list, in flight, or parked."""
        return len(self._known)

    @property
    def waiting_objects(self) -> int:
        """The number of objects on the merge list."""
        return len(self._merge_list)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the objects on the merge list."""
        return self._merge_list.waiting_bytes

    @property
    def size_max(self) -> int:
        """The size in bytes of the largest object that can be packed."""
        return self._merge_list.size_max

    @property
    def idle(self) -> bool:
        """Whether no object is left to look up or to pack."""
        return not (self._known or self._unchecked)

    @property
    def only_unread_left(self) -> bool:
        """Whether all known objects are parked, so that none is on the merge list or in flight."""
        return len(self._known) == len(self.unread)

    def next_deadline_ms(self) -> int | None:
        """Return when the next object on the merge list must be planned, or None if no object waits."""
        return self._merge_list.next_deadline_ms()

    def take(self, message: Message, request: PackRequest | NamedVersion) -> None:
        """Add an object that is looked up later."""
        self._unchecked.append((message, request))

    def look_up(self) -> list[Message]:
        """Look up the taken objects, and put those that still need packing on the merge list.

        Returns the stale messages, which need no work: the object was deleted, overwritten or already packed, or no row
        ever matched the message, or the message repeats one that is being worked on. The earlier message holds back the
        commit of its own partition; if both are in the same partition, it has the lower offset. Raises Transient; then
        no object was looked up, and the next call looks up all of them.
        """
        if not self._unchecked:
            return []
        found = self._found()
        taken, self._unchecked = self._unchecked, []
        stale = []
        for message, requested in taken:
            row = found.get(requested)
            if row is None or (row[0].object_id, row[0].version) in self._known:
                stale.append(message)
            else:
                self.wait(with_fitting_attributes(_packable(message, *row), self.size_max))
        return stale

    def _found(self) -> dict[PackRequest | NamedVersion, tuple[PackRequest, bytes]]:
        """Return the taken requests that are still valid, with the attributes of their objects. A request that only
        names a version is completed from its row."""
        requests = [request for _, request in self._unchecked if isinstance(request, PackRequest)]
        named = [request for _, request in self._unchecked if isinstance(request, NamedVersion)]
        found: dict[PackRequest | NamedVersion, tuple[PackRequest, bytes]] = {}
        if requests:
            found |= {request: (request, having) for request, having in self._metadata.still_landed(requests).items()}
        if named:
            found.update(self._metadata.complete(named, self._clock.now_ms() + CLOCK_MARGIN_MS).items())
        return found

    def still_landed(self, packables: Sequence[Packable]) -> set[Packable]:
        """Return the objects that must still be packed from this landing copy, by their rows. Raises Transient."""
        landed = self._metadata.still_landed([packable.request for packable in packables if packable.request])
        return {packable for packable in packables if packable.request in landed}

    def wait(self, packable: Packable) -> None:
        """Put an object on the merge list."""
        self.unread.resume(packable)
        self._known[packable.object_id, packable.version] = packable
        self._merge_list.add(packable.candidate(self._clock.now_ms()))

    def plan(self, *, flush: bool) -> GroupPlan[Packable] | None:
        """Return the next group to write now, or None. With `flush`, the group need not be full."""
        return self._merge_list.plan(self._clock.now_ms(), flush=flush)

    def shorten(self) -> None:
        """Plan waiting objects in groups of at most `stripes_per_group_max` stripes, because a longer one failed."""
        self._merge_list.shorten()

    def release(self, packable: Packable) -> None:
        """Remove an object that needs no more work."""
        self._known.pop((packable.object_id, packable.version), None)
        self.unread.release(packable)

    def forget(self, partitions: frozenset[int]) -> None:
        """Drop all objects of revoked partitions, because the new owner packs them. No group may be in flight."""
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


def _packable(message: Message, request: PackRequest, attributes: bytes) -> Packable:
    return Packable(
        object_id=request.object_id,
        key=request.key,
        version=request.version,
        size=request.size,
        crc32c=request.crc32c,
        source=request.landing_id,
        request=request,
        tickets=((message.partition, message.offset),),
        attributes=attributes,
    )

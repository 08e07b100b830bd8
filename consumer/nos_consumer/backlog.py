"""The backlog of a consumer: objects whose events were polled from the message log, and that are not packed yet.

An object is first looked up in the metadata store, because its event may be old. After that it is in one of three
places: on the merge list, in a plan that a lane has (in flight), or set aside because its landing copy cannot be read
(unread.py).

9  the merge list has a limit in objects and in bytes; once it reaches either, the consumer polls no more messages
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
"""How far the clock of this consumer may be behind the clock of the process that stored an object. Another program may
publish an event right after the PUT; if the row were not due yet by our clock, the event would count as stale."""


class Backlog:
    """The backlog. The consumer's thread owns it; any thread may read `waiting_objects` and `waiting_bytes`.

    new_merge_list: makes an empty merge list, at first and when partitions are revoked.
    """

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
        """The objects on the merge list, in flight, or set aside, by (object id, version)."""
        self._unchecked: list[tuple[Message, PackRequest | NamedVersion]] = []
        """Messages whose objects have not been looked up yet: at most the messages of one poll."""
        self.unread = unread

    def __len__(self) -> int:
        """Return the number of objects on the merge list, in flight, or set aside."""
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
        """Whether all known objects are set aside, so that none is on the merge list or in flight."""
        return len(self._known) == len(self.unread)

    def next_deadline_ms(self) -> int | None:
        """Return when the next object on the merge list must be planned, or None if no object waits."""
        return self._merge_list.next_deadline_ms()

    def add_message(self, message: Message, request: PackRequest | NamedVersion) -> None:
        """Add a message with its decoded request. The next `look_up` looks its object up."""
        self._unchecked.append((message, request))

    def look_up(self) -> list[Message]:
        """Look up the objects of the added messages, and put those that still need packing on the merge list.

        Returns the stale messages, which need no work. A message is stale if its object was deleted, overwritten or
        already packed, if no row ever matched it, or if it repeats a message that is being worked on. In the last case
        its offset may be committed although the object is not packed yet: the earlier message holds back the offset of
        its own partition, and in the same partition it has the lower offset. Raises Transient; then no object was
        looked up, and the next call looks up all of them.
        """
        if not self._unchecked:
            return []
        found = self._waiting_requests()
        added, self._unchecked = self._unchecked, []
        stale = []
        for message, requested in added:
            request, attributes = found.get(requested, (None, b""))
            if request is None or (request.object_id, request.version) in self._known:
                stale.append(message)
            else:
                self.add_to_merge_list(with_fitting_attributes(_packable(message, request, attributes), self.size_max))
        return stale

    def _waiting_requests(self) -> dict[PackRequest | NamedVersion, tuple[PackRequest, bytes]]:
        """Return the requests of the added messages that are still valid, each with the attributes of its object. A
        request that only names a version (NamedVersion) is completed from its row."""
        requests = [request for _, request in self._unchecked if isinstance(request, PackRequest)]
        named = [request for _, request in self._unchecked if isinstance(request, NamedVersion)]
        found: dict[PackRequest | NamedVersion, tuple[PackRequest, bytes]] = {}
        if requests:
            landed = self._metadata.still_landed(requests)
            found.update({request: (request, attributes) for request, attributes in landed.items()})
        if named:
            found.update(self._metadata.waiting_requests(named, self._clock.now_ms() + CLOCK_MARGIN_MS).items())
        return found

    def still_landed(self, packables: Sequence[Packable]) -> set[Packable]:
        """Return the objects whose rows still refer to the landing copy that is to be packed. Raises Transient."""
        landed = self._metadata.still_landed([packable.request for packable in packables if packable.request])
        return {packable for packable in packables if packable.request in landed}

    def add_to_merge_list(self, packable: Packable) -> None:
        """Put an object on the merge list: a new one, one that was set aside, or one whose plan was not carried out."""
        self.unread.resume(packable)
        self._known[packable.object_id, packable.version] = packable
        self._merge_list.add(packable.candidate(self._clock.now_ms()))

    def plan(self, *, flush: bool) -> GroupPlan[Packable] | None:
        """Return the next group that should be written now, or None. With `flush`, the group need not be full."""
        return self._merge_list.plan(self._clock.now_ms(), flush=flush)

    def shorten(self) -> None:
        """Plan the objects that wait now in groups of at most `stripes_per_group_max` stripes, because a longer group
        failed."""
        self._merge_list.shorten()

    def release(self, packable: Packable) -> None:
        """Remove an object that needs no more work."""
        self._known.pop((packable.object_id, packable.version), None)
        self.unread.release(packable)

    def forget(self, partitions: frozenset[int]) -> None:
        """Drop all objects of revoked partitions, because the new owner packs them. No group may be in flight."""
        self._unchecked = [added for added in self._unchecked if added[0].partition not in partitions]
        self.unread.forget(partitions)
        kept = [p for p in self._known.values() if not any(partition in partitions for partition, _ in p.tickets)]
        # A merge list cannot drop single objects, so the others move to a new one.
        self._known.clear()
        self._merge_list = self._new_merge_list()
        for packable in kept:
            if packable in self.unread:
                self._known[packable.object_id, packable.version] = packable
            else:
                self.add_to_merge_list(packable)


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

"""A group with more stripes than a window, which is written one window at a time, from the front.

Its header names all of its objects, and it is written before most of them are read: their keys, versions, sizes, CRCs
and attributes are known from rows.

9  the bytes in memory are those of a window, of the objects that begin in it, and of one that extends into it
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.group_bytes import GroupItem, GroupPlace, header_and_names, window_bytes


class LongGroup:
    """The windows of a planned group, each of `group_size_max` bytes except for the last. Used once, by one thread: for
    each window call `begin`, then `take`, then `first_window` or `next_window`."""

    def __init__(self, geometry: Geometry, plan: GroupPlan[Packable]) -> None:
        self.stream = plan.stream
        self.stripe_count = plan.stripe_count
        self.packables = [placed.candidate.payload for placed in plan.placed]
        self.items = [item_at(placed.offset, placed.candidate.payload) for placed in plan.placed]
        self._geometry = geometry
        self._offsets = [item.offset for item in self.items]
        self._pieces: list[tuple[int, bytes]] = []
        """The objects that overlap this window, each with its offset."""
        self._front = b""
        self._begins = range(0)
        """The indexes of the objects that begin in this window."""
        self._start = self._end = 0

    @property
    def windows(self) -> range:
        """Return the numbers of the windows."""
        return range(self._geometry.windows_for(self.stripe_count))

    def begin(self, number: int) -> Sequence[Packable]:
        """Begin the next window, and return the objects that must be read for it. Earlier bytes are dropped."""
        size = self._geometry.group_size_max
        self._start = number * size
        self._end = min(self._start + size, self.stripe_count * self._geometry.stripe_size)
        self._drop_before(self._start)
        self._begins = range(bisect_left(self._offsets, self._start), bisect_left(self._offsets, self._end))
        return [self.packables[index] for index in self._begins]

    def take(self, data: Sequence[bytes]) -> None:
        """Take the bytes of the objects that `begin` returned."""
        self._pieces += zip((self._offsets[index] for index in self._begins), data, strict=True)

    def first_window(self, place: GroupPlace) -> bytes:
        """Return the bytes of the first window if the group is written to `place`. Raise ValueError if objects overlap
        the front or each other, or do not fit into the group (a bug)."""
        self._front = header_and_names(self._geometry, place, self.items)
        return self._bytes()

    def next_window(self) -> bytes:
        """Return the bytes of this window, which is not the first one. Call it once: it drops the objects that end in
        the window."""
        window = self._bytes()
        self._drop_before(self._end)
        return window

    def _bytes(self) -> bytes:
        return window_bytes(self._start, self._end, [(0, self._front), *self._pieces])

    def _drop_before(self, place: int) -> None:
        self._pieces = [(offset, data) for offset, data in self._pieces if offset + len(data) > place]


def item_at(offset: int, packable: Packable) -> GroupItem:
    """Return what the header of a group records about an object that is `offset` bytes from the group's start."""
    return GroupItem(
        packable.key,
        packable.version,
        offset,
        packable.size,
        packable.crc32c,
        attributes=packable.attributes,
    )

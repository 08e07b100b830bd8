"""A stripe group while it is being planned: where bytes may lie, whichever policy chooses the objects.

Invariants (tests cite the letter):
  A  the objects of a row of span R touch, together, at most R - 1 chunks more than the fewest possible; where no row is
     wider than 1, an object of at most a chunk lies in exactly one
  B  no two objects overlap, and none reaches outside the group
  C  every object lies after the front: the header and the space for names, at the size that the final set of
     objects gives them
  D  a group has the fewest stripes that its layout allows

The unit of planning is the *row*. For an object of `size` bytes, write `size = full x chunk_size + rest` with
1 <= rest <= chunk_size. A row is a sequence of neighbouring chunks that holds objects end to end: first large ones
(full > 0), then small ones (full = 0). When the rests of all of them sum to at most `span` chunks, the row takes
sum(full) + span chunks. Of its sum(full) + span - 1 inner borders, each is crossed by at most one object, and n objects
touch n chunks and one more for each border that they cross. The fewest possible are n + sum(full). This proves
invariant A. With span 1 it holds for each object alone: a large object that starts `before` bytes into a chunk ends
`before + rest` bytes into its last one, which is at most chunk_size; the small ones all lie in the last chunk. So
packing without splits is bin packing of rests, and a split makes one bin of two.

The front is at the start of the group and grows with each object. So offsets are fixed only when the last object is
known; until then rows have no order. The front takes the chunks that no row has, and may reach into the row next to it
as far as that row has room: it pushes everything in the row back, as one more rest in the sum would. The row with the
most room is placed next to the front. So an object that takes all chunks of the group starts right after the front.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, chain
from operator import attrgetter
from typing import Generic

from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX
from nos_ec.core.formats.header import (
    ATTRIBUTES_FIXED,
    ENTRY_SIZE,
    NAME_RECORD_FIXED,
    PREAMBLE_SIZE,
    header_length,
    names_size_max,
)
from nos_ec.core.geometry import CHUNK_SIZE_MIN, PAGE, Geometry
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX
from nos_ec.core.packing.plan import Candidate, GroupPlan, P, PlacedObject

PLAIN_RECORD_MAX = NAME_RECORD_FIXED + BUCKET_BYTES_MAX + NAME_BYTES_MAX
"""Bytes of the largest name record without attributes, before compression."""
NAME_RECORD_MAX = PLAIN_RECORD_MAX + ATTRIBUTES_FIXED + ATTRIBUTES_SIZE_MAX
"""Bytes of the largest name record before compression."""
ATTRIBUTES_ROOM = names_size_max(NAME_RECORD_MAX) - names_size_max(PLAIN_RECORD_MAX)
"""Bytes by which the largest object that can be packed is smaller if it has attributes."""

NAMES_AHEAD = 8
"""An allowance near the front reserves room for this many objects of average name size."""

_size_of = attrgetter("size")

assert header_length(1) == PAGE
assert names_size_max(NAME_RECORD_MAX) + PAGE < CHUNK_SIZE_MIN, "a front of one object must fit in the smallest chunk"


def size_max(geometry: Geometry) -> int:
    """Return the bytes of the largest object without attributes that every policy can plan: a group of its own, with
    the longest name."""
    return geometry.group_size_max - PAGE - names_size_max(PLAIN_RECORD_MAX)


def size_max_beside(name_size: int, size_max: int) -> int:
    """Return the bytes of the largest object that can be packed with a name record of this size. `size_max` is for
    objects without attributes."""
    return size_max - (ATTRIBUTES_ROOM if name_size > PLAIN_RECORD_MAX else 0)


def check_candidate(candidate: Candidate[P], size_max: int) -> None:
    """Raise ValueError for a candidate that no merge list may take. `size_max` is for objects without attributes."""
    size_max = size_max_beside(candidate.name_size, size_max)
    if not 1 <= candidate.size <= size_max:
        raise ValueError(f"object of {candidate.size} bytes: only 1 to {size_max} bytes can be packed")
    if not 0 <= candidate.name_size <= NAME_RECORD_MAX:
        raise ValueError(f"name record of {candidate.name_size} bytes: only 0 to {NAME_RECORD_MAX} are possible")
    if candidate.waiting:
        raise ValueError("this candidate already waits in a merge list; add each candidate once")


class Allowance:
    """The small objects that may be added to a row at once, in any order: at most `room` bytes, `entries` objects and
    `names` bytes of name records. Within all three limits, there is room for the front."""

    __slots__ = ("entries", "names", "room")

    def __init__(self, room: int, entries: int, names: int) -> None:
        self.room = room
        self.entries = entries
        self.names = names


class Row(Generic[P]):
    """`full + span` neighbouring chunks that hold large objects, then small ones, end to end. `room` counts their bytes
    without an object; the front may need some of them. `planned` is how many objects should fill the row; 0 if any
    number may."""

    __slots__ = ("full", "large", "planned", "room", "small", "span")

    def __init__(self, candidate: Candidate[P], full: int, room: int) -> None:
        self.full = full
        self.span = 1
        self.planned = 0
        self.room = room
        self.large = [candidate] if full else []
        self.small = [] if full else [candidate]


class GroupLayout(Generic[P]):
    """The layout of one group. Usage: `open` a row with an object; then `allowance` and `extend`, or `chain`, while
    something fits into any row; `open` more rows, in any order; finally `seal`."""

    __slots__ = (
        "_chunk",
        "_geometry",
        "_names",
        "chunks_free",
        "count",
        "data_length",
        "names_size",
        "rows",
    )

    def __init__(self, geometry: Geometry, stripe_count: int, *, names: bool) -> None:
        self._geometry = geometry
        self._names = names
        self._chunk = geometry.chunk_size
        self.rows: list[Row[P]] = []
        self.chunks_free = stripe_count * geometry.k
        self.count = 0
        self.names_size = 0
        self.data_length = 0

    def front_size(self, candidate: Candidate[P] | None = None) -> int:
        """Return the bytes of header and names, with `candidate` added."""
        if candidate is None:
            return self.front(self.count, self.names_size)
        return self.front(self.count + 1, self.names_size + candidate.name_size)

    def front(self, count: int, names_size: int) -> int:
        """Return the bytes of header and names of that many objects."""
        header = header_length(count)
        return header + names_size_max(names_size) if self._names else header

    def _room_apart_from(self, but: Row[P] | None) -> int:
        """Return the bytes of room in the emptiest row other than `but`: the front may use them when `but` is full."""
        return max((row.room for row in self.rows if row is not but), default=0)

    def _bears(self, front: int, chunks_free: int, changed: Row[P] | None, room: int) -> bool:
        """Return whether there is room for a front of that many bytes once row `changed` has `room` bytes of room."""
        pushed = front - chunks_free * self._chunk
        return pushed <= room or pushed <= self._room_apart_from(changed)

    def fits(self, candidate: Candidate[P]) -> bool:
        """Return whether `open` would accept the candidate."""
        chunk = self._chunk
        full = (candidate.size - 1) // chunk
        free = self.chunks_free - 1 - full
        return free >= 0 and self._bears(self.front_size(candidate), free, None, (full + 1) * chunk - candidate.size)

    def small_size_max(self) -> int:
        """Return the bytes of the largest small object that `open` would accept, if its name record is of average size
        at most."""
        names_size = self.names_size + -(-self.names_size // max(1, self.count))
        pushed = self.front(self.count + 1, names_size) - (self.chunks_free - 1) * self._chunk
        return self._chunk if pushed <= self._room_apart_from(None) else self._chunk - pushed

    def open(self, candidate: Candidate[P]) -> Row[P] | None:
        """Start another row with this object. Return None, and change nothing, if the group has no room for it."""
        if not self.fits(candidate):
            return None
        full = (candidate.size - 1) // self._chunk
        opened = Row(candidate, full, (full + 1) * self._chunk - candidate.size)
        self.rows.append(opened)
        self.chunks_free -= full + 1
        self._count(candidate)
        return opened

    def _count(self, candidate: Candidate[P]) -> None:
        self.count += 1
        self.names_size += candidate.name_size
        self.data_length += candidate.size

    def chain(self, into: Row[P], candidate: Candidate[P]) -> bool:
        """Add a large object to a row, which then takes more chunks. Return False if it does not fit."""
        full = (candidate.size - 1) // self._chunk
        room = into.room + full * self._chunk - candidate.size
        free = self.chunks_free - full
        if free < 0 or room < 0 or not self._bears(self.front_size(candidate), free, into, room):
            return False
        into.large.append(candidate)
        into.full += full
        into.room = room
        self.chunks_free = free
        self._count(candidate)
        return True

    def widen(self, into: Row[P], chunks: int) -> bool:
        """Let a row take more chunks, so that objects cross their inner borders. Return False, and change nothing, if
        the group has too few."""
        free = self.chunks_free - chunks
        room = into.room + chunks * self._chunk
        if free < 0 or not self._bears(self.front_size(), free, into, room):
            return False
        into.span += chunks
        into.room = room
        self.chunks_free = free
        return True

    def narrow(self, into: Row[P]) -> None:
        """Return the chunks that a row's objects do not need to the group."""
        unneeded = into.room // self._chunk
        into.span -= unneeded
        into.room -= unneeded * self._chunk
        self.chunks_free += unneeded

    def allowance(self, into: Row[P]) -> Allowance:
        """Return which small objects may join this row. Call again when the allowance is used up: more may fit."""
        start = self.chunks_free * self._chunk
        spare = start - self.front(self.count, self.names_size) - PAGE
        # Far from the front, any small objects may join: half of the distance is for entries, half for names.
        if spare > self._chunk // 2:
            return Allowance(into.room, spare // (2 * ENTRY_SIZE), spare // 2 - spare // 4096 - 64)
        return self._allowance_nearfront(into, start)

    def _allowance_nearfront(self, into: Row[P], start: int) -> Allowance:
        """Allow one page of entries at a time: until the page is full, the header does not grow."""
        header = header_length(self.count + 1)
        entries = (header - PREAMBLE_SIZE) // ENTRY_SIZE - self.count
        names = -(-self.names_size // self.count) * min(entries, NAMES_AHEAD)
        front = header + names_size_max(self.names_size + names) if self._names else header
        pushed = max(0, front - start)
        if pushed <= self._room_apart_from(into):
            pushed = 0
        return Allowance(max(0, into.room - pushed), entries, names if self._names else 1 << 60)

    def extend(self, into: Row[P], candidates: list[Candidate[P]], size: int, names_size: int) -> None:
        """Add small objects of `size` bytes and `names_size` bytes of name records in all, within the allowance."""
        into.small.extend(candidates)
        into.room -= size
        self.count += len(candidates)
        self.names_size += names_size
        self.data_length += size

    def limit(self, size: int, front: int) -> None:
        """Give up the stripes that the group does not need for `size` more bytes and a front of `front` bytes."""
        used = sum(row.full + row.span for row in self.rows)
        pushed = max(0, front - self._room_apart_from(None))
        stripes = self._geometry.stripes_for(used * self._chunk + size + pushed)
        self.chunks_free = min(self.chunks_free, stripes * self._geometry.k - used)

    def unsplit(self) -> None:
        """Divide rows whose objects cross borders, as far as the group has free chunks in the stripes that it takes
        anyway."""
        wide = [row for row in self.rows if row.span > 1]
        if not wide:
            return
        self.limit(0, self.front_size())
        for row in wide:
            divided: Row[P] | None = row
            while divided is not None and divided.span > 1:
                divided = self._divide(divided)

    def _divide(self, row: Row[P]) -> Row[P] | None:
        """Split off the first objects of a row, as many as need no split, into a row of span 1. Return the row of the
        others, or None, and change nothing, if the group has no chunk for that.

        Together they take as many chunks as before, with one extra read less, or one chunk more with as many.
        """
        objects = row.large + row.small
        first = bisect_right(list(accumulate((one.size - 1) % self._chunk + 1 for one in objects)), self._chunk)
        parts = [self._row_of(objects[:first]), self._row_of(objects[first:])]
        free = self.chunks_free + row.span - sum(part.span for part in parts)
        others = [one for one in self.rows if one is not row]
        pushed = self.front_size() - free * self._chunk
        if free < 0 or pushed > max(one.room for one in others + parts):
            return None
        self.rows = others + parts
        self.chunks_free = free
        return parts[1]

    def _row_of(self, objects: list[Candidate[P]]) -> Row[P]:
        """Return the row of the least span that holds these objects, large ones first."""
        found = Row(objects[0], 0, 0)
        found.large = [one for one in objects if one.size > self._chunk]
        found.small = [one for one in objects if one.size <= self._chunk]
        found.full = sum((one.size - 1) // self._chunk for one in objects)
        rests = sum(map(_size_of, objects)) - found.full * self._chunk
        found.span = -(-rests // self._chunk)
        found.room = found.span * self._chunk - rests
        return found

    def seal(self) -> GroupPlan[P]:
        """Fix the offsets. Stripes without content are left out (invariant D)."""
        assert self.count, "an empty group was sealed"
        header = header_length(self.count)
        names_room = names_size_max(self.names_size) if self._names else 0
        end = header + names_room
        # The emptiest row is next to the front, which uses the room left in it.
        first = max(0, -(-(end - self._room_apart_from(None)) // self._chunk))
        assert first <= self.chunks_free, "a group is longer than its stripes"
        placed: list[PlacedObject[P]] = []
        split_objects = 0
        for row in sorted(self.rows, key=attrgetter("room"), reverse=True):
            objects = row.large + row.small
            start = first * self._chunk if placed else max(first * self._chunk, end)
            offsets = list(accumulate(map(_size_of, objects), initial=start))
            assert start >= end, "two rows overlap, or the front reaches a row"
            end = offsets[-1]
            placed += map(PlacedObject, objects, offsets)
            first += row.full + row.span
            assert end <= first * self._chunk, "a row is longer than its chunks"
            if row.span > 1:
                split_objects += sum(map(self._geometry.is_split, offsets, map(_size_of, objects)))
        stripe_count = self._geometry.stripes_for(first * self._chunk)
        return GroupPlan(
            stripe_count,
            header,
            names_room,
            tuple(placed),
            self.data_length,
            split_objects=split_objects,
        )

    def candidates(self) -> list[Candidate[P]]:
        """Return the objects planned so far."""
        return list(chain.from_iterable(row.large + row.small for row in self.rows))

"""A stripe group while it is being planned: where bytes may lie, whatever policy chooses the objects.

Invariants (tests cite the letter):
  A  every object touches ceil(size / chunk_size) chunks, the fewest there can be; so an object of at most a
     chunk lies in exactly one
  B  no two objects overlap, and none reaches outside the group
  C  every object lies behind the front: the header and the room for names, as long as the final number of
     objects and their names make them
  D  a group has the fewest stripes that its layout allows

The unit of planning is the *bin*. An object of `size` bytes is `size = full x chunk_size + rest` with
1 <= rest <= chunk_size. A bin is a row of neighbouring chunks that holds large objects (full > 0) one behind the
other from its start and then small ones (full = 0). When the rests of all of them sum to at most a chunk, a bin
takes sum(full) + 1 chunks and invariant A holds for each object in it: a large object that starts at `before`
bytes in a chunk ends `before + rest` bytes into its last, which is at most chunk_size; the small ones all lie in
the last chunk. So packing large and small objects together is bin packing of rests.

The front is at the start of the group and grows with each object. Therefore bins are planned from the last chunk
to the first, and offsets are fixed when the last object is known. The front may reach into the bin nearest to it, as
far as that has room left: it pushes everything in the bin back, as one more rest in the sum would. So the bin that
starts at chunk 0 is a bin as any other, and an object that takes all chunks of the group starts right behind the front.
"""

from __future__ import annotations

from itertools import accumulate, chain
from operator import attrgetter

from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.header import (
    ENTRY_SIZE,
    NAME_RECORD_FIXED,
    PREAMBLE_SIZE,
    header_length,
    names_size_max,
)
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX
from nos_ec.core.plan import Candidate, GroupPlan, Placement

NAME_RECORD_MAX = NAME_RECORD_FIXED + BUCKET_BYTES_MAX + NAME_BYTES_MAX
"""Bytes of the largest name record before compression."""

NAMES_AHEAD = 8
"""Objects of average name size for which an allowance reserves room near the front."""

_size_of = attrgetter("size")

assert header_length(1) == PAGE
assert names_size_max(NAME_RECORD_MAX) + PAGE < 4 * PAGE, "a front of one object must fit in the smallest chunk"


def size_max(geometry: Geometry) -> int:
    """Bytes of the largest object that every policy can plan: a group of its own, with the longest name."""
    return geometry.group_size_max - PAGE - names_size_max(NAME_RECORD_MAX)


def check_candidate(candidate: Candidate, size_max: int) -> None:
    """Raise ValueError for a candidate that no merge list may take."""
    if not 1 <= candidate.size <= size_max:
        raise ValueError(f"object of {candidate.size} bytes: only 1 to {size_max} bytes can be packed")
    if not 0 <= candidate.name_size <= NAME_RECORD_MAX:
        raise ValueError(f"name record of {candidate.name_size} bytes: only 0 to {NAME_RECORD_MAX} are possible")
    if candidate.waiting:
        raise ValueError("this candidate waits in a merge list already; add each candidate once")


class Allowance:
    """What may be added to the open bin at once, in any order: at most `room` bytes, `entries` objects and
    `names` bytes of name records. Within all three, the front stays where the bin can bear it."""

    __slots__ = ("entries", "names", "room")

    def __init__(self, room: int, entries: int, names: int) -> None:
        self.room = room
        self.entries = entries
        self.names = names


class GroupLayout:
    """The layout of one group. Use: `open` a bin with an object, then `allowance` and `extend`, or `chain`, as often
    as something fits; `open` the next one; `seal` in the end."""

    __slots__ = (
        "_bins",
        "_chunk",
        "_first",
        "_geometry",
        "_names",
        "_rests",
        "chunks_free",
        "count",
        "data_length",
        "names_size",
        "stripe_count",
    )

    def __init__(self, geometry: Geometry, stripe_count: int, *, names: bool) -> None:
        self._geometry = geometry
        self._names = names
        self._chunk = geometry.chunk_size
        self._bins: list[tuple[int, list[Candidate], list[Candidate]]] = []
        self._first = 0
        self._rests = 0
        self.stripe_count = stripe_count
        self.chunks_free = stripe_count * geometry.k
        self.count = 0
        self.names_size = 0
        self.data_length = 0

    def front_size(self, candidate: Candidate | None = None) -> int:
        """Bytes of header and names, with `candidate` added."""
        if candidate is None:
            return self.front(self.count, self.names_size)
        return self.front(self.count + 1, self.names_size + candidate.name_size)

    def front(self, count: int, names_size: int) -> int:
        header = header_length(count)
        return header + names_size_max(names_size) if self._names else header

    def fits(self, candidate: Candidate) -> bool:
        """Whether `open` would take it."""
        chunk = self._chunk
        full = (candidate.size - 1) // chunk
        first = self.chunks_free - 1 - full
        if first < 0:
            return False
        pushed = max(0, self.front_size(candidate) - first * chunk)
        return pushed + candidate.size - full * chunk <= chunk

    def small_size_max(self) -> int:
        """Bytes of the largest small object that `open` would take, if its name record is no larger than average."""
        names_size = self.names_size + -(-self.names_size // max(1, self.count))
        pushed = self.front(self.count + 1, names_size) - (self.chunks_free - 1) * self._chunk
        return self._chunk - max(0, pushed)

    def open(self, candidate: Candidate) -> bool:
        """Start the next bin with this object. False, and nothing changed, when the group has no place for it."""
        if not self.fits(candidate):
            return False
        full = (candidate.size - 1) // self._chunk
        self._first = self.chunks_free = self.chunks_free - 1 - full
        self._rests = candidate.size - full * self._chunk
        self._bins.append((self._first, [candidate], []) if full else (self._first, [], [candidate]))
        self._count(candidate)
        return True

    def _count(self, candidate: Candidate) -> None:
        self.count += 1
        self.names_size += candidate.name_size
        self.data_length += candidate.size

    def chain(self, candidate: Candidate) -> bool:
        """Add a large object to the open bin, which grows towards the front. False when it does not fit."""
        chunk = self._chunk
        full = (candidate.size - 1) // chunk
        rests = self._rests + candidate.size - full * chunk
        first = self._first - full
        if first < 0 or rests + max(0, self.front_size(candidate) - first * chunk) > chunk:
            return False
        _, large, small = self._bins[-1]
        self._bins[-1] = (first, [*large, candidate], small)
        self._first = self.chunks_free = first
        self._rests = rests
        self._count(candidate)
        return True

    def allowance(self) -> Allowance:
        """What small objects may join the open bin. Ask again when it was used up: it may be less than all."""
        start = self._first * self._chunk
        spare = start - self.front(self.count, self.names_size) - PAGE
        # Far from the front any small objects may come: half of the distance is for entries, half for names.
        if spare > self._chunk // 2:
            return Allowance(self._chunk - self._rests, spare // (2 * ENTRY_SIZE), spare // 2 - spare // 4096 - 64)
        return self._allowance_nearfront(start)

    def _allowance_nearfront(self, start: int) -> Allowance:
        """One page of entries at a time: the header does not grow until it is full."""
        header = header_length(self.count + 1)
        entries = (header - PREAMBLE_SIZE) // ENTRY_SIZE - self.count
        names = -(-self.names_size // self.count) * min(entries, NAMES_AHEAD)
        front = header + names_size_max(self.names_size + names) if self._names else header
        pushed = max(0, front - start)
        return Allowance(self._chunk - self._rests - pushed, entries, names if self._names else 1 << 60)

    def extend(self, candidates: list[Candidate], size: int, names_size: int) -> None:
        """Add small objects of `size` bytes and `names_size` bytes of name records in all, within the allowance."""
        self._bins[-1][2].extend(candidates)
        self._rests += size
        self.count += len(candidates)
        self.names_size += names_size
        self.data_length += size

    def seal(self) -> GroupPlan:
        """Fix the offsets. Stripes that hold nothing are left out (invariant D)."""
        assert self.count, "an empty group was sealed"
        header = header_length(self.count)
        names_room = names_size_max(self.names_size) if self._names else 0
        front = header + names_room
        moved = self._stripes_unused(front) * self._geometry.k
        stripe_count = self.stripe_count - moved // self._geometry.k
        placements: list[Placement] = []
        end = front
        for first, large, small in reversed(self._bins):
            objects = large + small
            start = max((first - moved) * self._chunk, front)
            assert start >= end, "two bins overlap, or the front reaches a bin"
            offsets = list(accumulate(map(_size_of, objects), initial=start))
            end = offsets[-1]
            placements += map(Placement, objects, offsets)
        assert end <= stripe_count * self._geometry.stripe_size, "a group is longer than its stripes"
        return GroupPlan(stripe_count, header, names_room, tuple(placements), self.data_length)

    def _stripes_unused(self, front: int) -> int:
        """Stripes by which every bin can move towards the start of the group and stay behind the front."""
        lowest = (self._first + 1) * self._chunk - self._rests
        return max(0, lowest - front) // self._geometry.stripe_size

    def candidates(self) -> list[Candidate]:
        """The objects planned so far."""
        return list(chain.from_iterable(large + small for _, large, small in self._bins))

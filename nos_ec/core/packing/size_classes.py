"""Waiting objects by size. The best-fit policy uses it to find the object that fills a given room best.

An object is `full` whole chunks and a rest of 1 to chunk_size bytes (see packer.py). Objects with the same `full` make
one shelf. A shelf is divided into classes of `grain` bytes of rest, each a FIFO. One int per shelf is the bitmap of its
non-empty classes, so one mask and one bit_length find the best class for a room. The shelf of small objects (full = 0)
also keeps a mirrored bitmap: shifted over the first, it gives in one operation every pair of classes that together fill
a room.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Generic

from nos_ec.core.packing.plan import Candidate, P

CLASSES_MAX = 2048
"""More classes waste fewer bytes at the end of a chunk (about one and a half grains), but make longer bitmaps."""

PAIR_GAP_GRAINS = 16
"""If the best single object would leave more than this, a pair that leaves less is sought."""


def grain_bits(chunk_size: int) -> int:
    """Return log2 of the class width in bytes: 6 (64 bytes) for 128 KiB chunks."""
    return max(2, ((chunk_size - 1) // CLASSES_MAX).bit_length())


class SizeClasses(Generic[P]):
    """Small objects by size, and large ones by number of full chunks and rest, each also in order of arrival."""

    def __init__(self, chunk_size: int) -> None:
        self.small_count = 0
        self.large_count = 0
        self.small_bytes = 0
        self.large_bytes = 0
        self._chunk = chunk_size
        self._bits = grain_bits(chunk_size)
        self._classes = -(-chunk_size // (1 << self._bits))
        self._fifos: defaultdict[int, deque[Candidate[P]]] = defaultdict(deque)
        self._flags = [1 << i for i in range(self._classes)]
        self._masks = [(1 << i) - 1 for i in range(self._classes + 1)]
        self._filled = 0
        self._mirror = 0
        self._large: dict[int, dict[int, deque[Candidate[P]]]] = {}
        self._large_filled: dict[int, int] = {}
        # In order of arrival. Objects that were taken stay here until they reach the head.
        self._small_arrivals: deque[Candidate[P]] = deque()
        self._large_arrivals: deque[Candidate[P]] = deque()

    def __len__(self) -> int:
        return self.small_count + self.large_count

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of all waiting objects."""
        return self.small_bytes + self.large_bytes

    def add_small(self, candidate: Candidate[P]) -> None:
        """Append an object of at most a chunk to its class."""
        index = (candidate.size - 1) >> self._bits
        fifo = self._fifos[index]
        if not fifo:
            self._filled |= self._flags[index]
            self._mirror |= self._flags[-1 - index]
        fifo.append(candidate)
        self._small_arrivals.append(candidate)
        self.small_count += 1
        self.small_bytes += candidate.size
        candidate.waiting = True

    def add_large(self, candidate: Candidate[P]) -> None:
        """Append an object of more than a chunk to its class."""
        full, index = self._large_class(candidate)
        self._large.setdefault(full, {}).setdefault(index, deque()).append(candidate)
        self._large_filled[full] = self._large_filled.get(full, 0) | self._flags[index]
        self._large_arrivals.append(candidate)
        self.large_count += 1
        self.large_bytes += candidate.size
        candidate.waiting = True

    def _large_class(self, candidate: Candidate[P]) -> tuple[int, int]:
        full, rest = divmod(candidate.size - 1, self._chunk)
        return full, rest >> self._bits

    def is_one_size(self) -> bool:
        """Return whether all waiting objects are in one class."""
        if not self.large_count:
            return self._filled.bit_count() == 1
        return not self.small_count and sum(filled.bit_count() for filled in self._large_filled.values()) == 1

    def largest_of_alike(self) -> int | None:
        """Return the bytes of the largest waiting object if all are in one class and a chunk holds as many of their
        smallest rest as of their largest; otherwise None."""
        if not self.is_one_size():
            return None
        fifos = [fifo for shelf in self._large.values() for fifo in shelf.values()]
        sizes = [c.size for c in (fifos[0] if fifos else self._fifos[self._filled.bit_length() - 1])]
        least, most = min(sizes), max(sizes)
        chunk, full_bytes = self._chunk, (most - 1) // self._chunk * self._chunk
        return most if chunk // (least - full_bytes) == chunk // (most - full_bytes) else None

    def oldest_small(self) -> Candidate[P] | None:
        """Return the small object that has waited longest, or None if none waits."""
        return _first_waiting(self._small_arrivals)

    def oldest_large(self) -> Candidate[P] | None:
        """Return the large object that has waited longest, or None if none waits."""
        return _first_waiting(self._large_arrivals)

    def oldest_large_within(self, full_max: int) -> Candidate[P] | None:
        """Return the large object that has waited longest, among those with at most `full_max` full chunks (and a
        rest)."""
        if not any(filled and full <= full_max for full, filled in self._large_filled.items()):
            return None
        size_max = (full_max + 1) * self._chunk
        return next((c for c in self._large_arrivals if c.size <= size_max and c.waiting), None)

    def to_split(self) -> list[Candidate[P]]:
        """Return the objects to try if one is to continue in the next chunk, the best first: one of the smallest class,
        because it leaves most room for objects that fill the end of that chunk; then the oldest ones."""
        found = [self._fifos[(self._filled & -self._filled).bit_length() - 1][0]] if self._filled else []
        return [*found, *(one for one in (self.oldest_small(), self.oldest_large()) if one is not None)]

    def small_sizes(self) -> list[int]:
        """Return the bytes of all small objects."""
        return [candidate.size for candidate in self._small_arrivals if candidate.waiting]

    def evenly(self, room: int, count: int) -> Candidate[P] | None:
        """Return the small object whose size is nearest to an equal share of `room` bytes among `count` objects; None
        if it does not fit. The last but one is of a pair that leaves less than two grains, if there is such a pair; the
        last one is the largest that fits."""
        if count == 1 or room < count:
            return self.largest_small_within(max(0, room))
        filled = (self._pairs(room) if count == 2 else 0) or self._filled
        share = min(room // count - 1, self._chunk - 1) >> self._bits
        below = (filled & self._masks[share + 1]).bit_length() - 1
        above = filled >> share
        above = share + (above & -above).bit_length() - 1 if above else below
        found = self._fifos[above if below < 0 or above - share < share - below else below]
        return found[0] if found and found[0].size <= room else None

    def has_pair(self, room: int) -> bool:
        """Return whether two small objects together fill `room` bytes to less than two grains."""
        return bool(self._pairs(room))

    def _pairs(self, room: int) -> int:
        """Return the bitmap of the classes of these objects."""
        units, shift = room >> self._bits, self._classes + 1
        mirror = self._mirror
        return self._filled & (mirror >> (shift - units) if units < shift else mirror << (units - shift))

    def largest_small_within(self, size_max: int) -> Candidate[P] | None:
        """Return a small object of the largest class whose objects all have at most that many bytes."""
        index = (self._filled & self._masks[min(size_max, self._chunk) >> self._bits]).bit_length() - 1
        return self._fifos[index][0] if index >= 0 else None

    def by_arrival(self) -> list[Candidate[P]]:
        """Return all waiting objects, oldest first."""
        # A candidate that was taken and came back may also still be at its old place, so collect by seq.
        both = {c.seq: c for arrivals in (self._small_arrivals, self._large_arrivals) for c in arrivals if c.waiting}
        return [both[seq] for seq in sorted(both)]

    def take(self, candidate: Candidate[P]) -> None:
        """Remove an object chosen by its age."""
        if candidate.size <= self._chunk:
            self._take_small(candidate)
        else:
            self._take_large(candidate)
        candidate.waiting = False

    def _take_small(self, candidate: Candidate[P]) -> None:
        index = (candidate.size - 1) >> self._bits
        fifo = self._fifos[index]
        _remove(fifo, candidate)
        if not fifo:
            self._filled ^= self._flags[index]
            self._mirror ^= self._flags[-1 - index]
        self.small_count -= 1
        self.small_bytes -= candidate.size

    def _take_large(self, candidate: Candidate[P]) -> None:
        full, index = self._large_class(candidate)
        fifo = self._large[full][index]
        _remove(fifo, candidate)
        if not fifo:
            del self._large[full][index]
            self._large_filled[full] ^= self._flags[index]
        self.large_count -= 1
        self.large_bytes -= candidate.size

    def large_that_fits(self, full_max: int, rest_max: int) -> Candidate[P] | None:
        """Return the large object with the largest class of rest up to `rest_max` bytes; among those, one with the most
        full chunks up to `full_max`. It stays in its class until `take`."""
        mask = self._masks[min(rest_max, self._chunk) >> self._bits]
        best, best_index = 0, -1
        for full, filled in self._large_filled.items():
            index = (filled & mask).bit_length() - 1
            if full <= full_max and (index, full) > (best_index, best):
                best, best_index = full, index
        return self._large[best][best_index][0] if best_index >= 0 else None

    def take_overdue(
        self, seq_overdue: int, room: int, entries: int, names: int
    ) -> tuple[list[Candidate[P]], int, int]:
        """Take small objects that arrived before `seq_overdue`, oldest first, until one does not fit. Limits and result
        are as in `fill`. In a workload of very small objects most objects leave this way, so this is a plain loop, too.
        """
        bits, fifos, flags, arrivals = self._bits, self._fifos, self._flags, self._small_arrivals
        taken: list[Candidate[P]] = []
        room_left, names_left = room, names
        while arrivals and len(taken) < entries:
            candidate = arrivals[0]
            if candidate.waiting:
                size, name_size = candidate.size, candidate.name_size
                if candidate.seq >= seq_overdue or size > room_left or name_size > names_left:
                    break
                index = (size - 1) >> bits
                fifo = fifos[index]
                _remove(fifo, candidate)
                if not fifo:
                    self._filled ^= flags[index]
                    self._mirror ^= flags[-1 - index]
                candidate.waiting = False
                room_left -= size
                names_left -= name_size
                taken.append(candidate)
            arrivals.popleft()
        self.small_count -= len(taken)
        self.small_bytes -= room - room_left
        return taken, room - room_left, names - names_left

    def fill(self, room: int, entries: int, names: int) -> tuple[list[Candidate[P]], int, int]:
        """Take the small objects that fill `room` bytes best: at most `entries` objects, with at most `names` bytes of
        name records. Return them, the sum of their sizes and the sum of their name records' sizes.

        Each turn takes from the largest class that fits. If that would leave more than PAIR_GAP_GRAINS, it takes from
        the larger class of a pair that leaves less than two grains; the next turn then finds the other class. A plain
        loop over local variables, because the packer spends most of its time here.
        """
        bits, fifos, flags, masks = self._bits, self._fifos, self._flags, self._masks
        filled, mirror = self._filled, self._mirror
        # While the mean size is over half a chunk, there are too few smaller objects to use them up in pairs: larger
        # objects would find no partner.
        plentiful = 2 * self.small_bytes <= self.small_count * self._chunk
        gap = PAIR_GAP_GRAINS if plentiful else self._classes
        # Classes i and j with (i + 1) + (j + 1) = units: bit i of `filled`, bit (classes - 1 - j) of `mirror`.
        classes, shift = self._classes, self._classes + 1
        taken: list[Candidate[P]] = []
        room_left, names_left = room, names
        while len(taken) < entries:
            # 1. Find the largest class that fits, or the larger one of a pair if a single object leaves too much.
            units = room_left >> bits
            best = (filled & masks[units] if units < classes else filled).bit_length()
            if not best:
                break
            if units - best > gap or units > classes:
                pairs = filled & (mirror >> (shift - units) if units < shift else mirror << (units - shift))
                if pairs:
                    best = pairs.bit_length()
            # 2. Check that the name of its oldest object fits, too.
            best -= 1
            fifo = fifos[best]
            candidate = fifo[0]
            names_left -= candidate.name_size
            if names_left < 0:
                names_left += candidate.name_size
                break
            # 3. Take it. A class that is now empty leaves both bitmaps.
            fifo.popleft()
            if not fifo:
                filled ^= flags[best]
                mirror ^= flags[-1 - best]
            candidate.waiting = False
            room_left -= candidate.size
            taken.append(candidate)
        self._filled, self._mirror = filled, mirror
        self.small_count -= len(taken)
        self.small_bytes -= room - room_left
        return taken, room - room_left, names - names_left


def _first_waiting(arrivals: deque[Candidate[P]]) -> Candidate[P] | None:
    while arrivals:
        if arrivals[0].waiting:
            return arrivals[0]
        arrivals.popleft()
    return None


def _remove(fifo: deque[Candidate[P]], candidate: Candidate[P]) -> None:
    """Remove an object. The oldest object of all is the oldest of its class, so it is nearly always at the head."""
    if fifo[0] is candidate:
        fifo.popleft()
    else:
        fifo.remove(candidate)

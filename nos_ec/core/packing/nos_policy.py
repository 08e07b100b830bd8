"""The packing policy that NetEase published for NOS ("Ceph EC online storage"), kept for comparison.

There are nine size classes, each a FIFO: eight of 16 KiB (an eighth of a chunk), and one for everything over a chunk.
A non-empty class is drawn at random, repeatedly. Its head is placed or, if that does not fit, the head of the next
smaller class whose head fits. When none fits, the next chunk is begun. A group that is filled to less than 80 % is put
back to wait for more objects, until its oldest object is past the deadline.

Where the publication leaves a choice open, this code decides in its favour: headers grow with the objects instead of
capping a stripe at 111 of them, and the layout (packer.py), and so the read cost, is that of the default policy. A
group is one stripe, or as many as its first object needs.
"""

from __future__ import annotations

import random
from collections import deque
from math import inf
from typing import Generic

from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.packer import GroupLayout, check_candidate, size_max
from nos_ec.core.packing.plan import Candidate, GroupPlan, Linger, P, lingering

CLASSES_PER_CHUNK = 8
FILLED_MIN = 0.8
"""Share of a group that must be user data unless the deadline has passed."""


class NosMergeList(Generic[P]):
    """MergeList of policy "nos". `rng` draws the classes: the same seed gives the same plans."""

    def __init__(
        self, geometry: Geometry, window: int, linger: Linger | int, rng: random.Random, names: bool = True
    ) -> None:
        self._geometry = geometry
        self._window = window
        self._window_bytes_max = inf
        self._linger = lingering(linger)
        self._rng = rng
        self._names = names
        self._size_max = size_max(geometry)
        self._class_size = geometry.chunk_size // CLASSES_PER_CHUNK
        self._classes: list[deque[Candidate[P]]] = [deque() for _ in range(CLASSES_PER_CHUNK + 1)]
        self._arrivals = 0
        self._count = 0
        self._bytes = 0
        self._count_put_back = 0

    def add(self, candidate: Candidate[P]) -> None:
        """See MergeList."""
        check_candidate(candidate, self._size_max)
        candidate.seq = self._arrivals
        self._arrivals += 1
        self._classes[self._class_of(candidate)].append(candidate)
        candidate.waiting = True
        self._count += 1
        self._bytes += candidate.size

    def plan(self, now_ms: int, *, flush: bool = False) -> GroupPlan[P] | None:
        """See MergeList. A group that misses the 80 % is not tried again until another object has arrived."""
        oldest = self._oldest()
        if oldest is None:
            return None
        needed = flush or oldest.arrived_ms + self._linger.limit_ms(self._bytes) <= now_ms
        is_full = self._count >= self._window or self._bytes > self._window_bytes_max
        if not needed and (not is_full or self._count == self._count_put_back):
            return None
        layout = self._lay_out(oldest if needed else self._draw_first())
        plan = layout.seal()
        if not needed and plan.data_length < FILLED_MIN * plan.stripe_count * self._geometry.stripe_size:
            self._put_back(layout.candidates())
            return None
        self._count_put_back = 0
        return plan

    def set_window(self, window: int, bytes_max: int | None) -> None:
        """See MergeList."""
        self._window = window
        self._window_bytes_max = inf if bytes_max is None else bytes_max

    def shorten(self) -> None:
        """See MergeList. Groups never have more stripes than that."""

    def take_all(self) -> list[Candidate[P]]:
        """See MergeList."""
        taken = [candidate for fifo in self._classes for candidate in fifo]
        for fifo in self._classes:
            fifo.clear()
        for candidate in taken:
            candidate.waiting = False
        self._count = self._bytes = self._count_put_back = 0
        return sorted(taken, key=lambda candidate: candidate.seq)

    def next_deadline_ms(self) -> int | None:
        """See MergeList."""
        oldest = self._oldest()
        return None if oldest is None else oldest.arrived_ms + self._linger.limit_ms(self._bytes)

    def __len__(self) -> int:
        return self._count

    @property
    def waiting_bytes(self) -> int:
        """See MergeList."""
        return self._bytes

    @property
    def size_max(self) -> int:
        """See MergeList."""
        return self._size_max

    def _class_of(self, candidate: Candidate[P]) -> int:
        return min((candidate.size - 1) // self._class_size, CLASSES_PER_CHUNK)

    def _oldest(self) -> Candidate[P] | None:
        return min((fifo[0] for fifo in self._classes if fifo), key=lambda c: c.seq, default=None)

    def _draw_first(self) -> Candidate[P]:
        return self._rng.choice([fifo[0] for fifo in self._classes if fifo])

    def _lay_out(self, first: Candidate[P]) -> GroupLayout[P]:
        probe: GroupLayout[P] = GroupLayout(self._geometry, 1, names=self._names)
        stripes = self._geometry.stripes_for(probe.front_size(first) + first.size)
        layout: GroupLayout[P] = GroupLayout(self._geometry, stripes, names=self._names)
        opened = layout.open(first)
        assert opened is not None, "an accepted object has no place in a group of its own"
        self._take(first)
        self._fill(layout)
        while layout.chunks_free and self._serve(layout, opening=True):
            self._fill(layout)
        return layout

    def _fill(self, layout: GroupLayout[P]) -> None:
        while self._serve(layout, opening=False):
            pass

    def _serve(self, layout: GroupLayout[P], *, opening: bool) -> bool:
        """Place the head of a random non-empty class, or else of the next smaller one whose head fits."""
        # Only small objects join an open row; a large one begins its own.
        usable = self._classes if opening else self._classes[:CLASSES_PER_CHUNK]
        filled = [fifo for fifo in usable if fifo]
        if not filled:
            return False
        for fifo in filled[self._rng.randrange(len(filled)) :: -1]:
            if (layout.open(fifo[0]) is not None) if opening else _join(layout, fifo[0]):
                self._take(fifo[0])
                return True
        return False

    def _take(self, candidate: Candidate[P]) -> None:
        self._classes[self._class_of(candidate)].popleft()
        candidate.waiting = False
        self._count -= 1
        self._bytes -= candidate.size

    def _put_back(self, candidates: list[Candidate[P]]) -> None:
        for candidate in sorted(candidates, key=lambda c: c.seq, reverse=True):
            self._classes[self._class_of(candidate)].appendleft(candidate)
            candidate.waiting = True
            self._count += 1
            self._bytes += candidate.size
        self._count_put_back = self._count


def _join(layout: GroupLayout[P], candidate: Candidate[P]) -> bool:
    allowed = layout.allowance(layout.rows[-1])
    if candidate.size > allowed.room or not allowed.entries or candidate.name_size > allowed.names:
        return False
    layout.extend(layout.rows[-1], [candidate], candidate.size, candidate.name_size)
    return True

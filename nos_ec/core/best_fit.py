"""The default packing policy: oldest object first, then best fit, then pairs that close a chunk.

1. A group is planned when enough waits to choose from, or when an object is past its deadline, or on flush.
2. Its chunks are planned from the last to the first (packer.py says why). Each bin is opened with the oldest
   object that the group still has a place for, small or large: this is what bounds every wait. In a group made
   for a deadline, everything past it joins next, oldest first.
3. Small objects that would have waited for more than two windows of arrivals by the next group join next, oldest
   first, as long as they fit.
4. When small objects are scarce, large ones whose rests fit are chained into the bin, so that the small ones last.
5. The room that is left goes to the small objects that fill it best (size_classes.py).
"""

from __future__ import annotations

from nos_ec.core.geometry import Geometry
from nos_ec.core.packer import NAME_RECORD_MAX, GroupLayout, check_candidate, size_max
from nos_ec.core.plan import Candidate, GroupPlan
from nos_ec.core.size_classes import SizeClasses

GROUP_STRIPES = 4
"""Stripes a group aims for by default: fewer headers, and page roundings, than smaller groups have."""

READY_STRIPES = 24
"""Stripes, in bytes, that make choice enough as soon as `window` objects wait."""

READY_STRIPES_MIN = 1.2
"""Stripes, in bytes, that a group is never planned below without need: one stripe, and something to choose from."""

READY_OBJECTS_EXTRA = 64
"""With fewer bytes than READY_STRIPES, half a window more, but at least so many objects more, are choice enough."""

OVERDUE_WINDOWS = 2
"""Small objects that would have waited for more windows of arrivals by the next group come before those that fit."""

DEPLETION_MAX = 0.9
"""Most of the waiting bytes that one group may take without need; the rest is there to choose from."""

SCARCE_FRACTION = 0.3
"""Share of the window below which small objects are saved: large ones are chained first."""

GAP_FRACTION = 1 / 32
"""Share of a chunk that may stay empty before a large object is looked for to fill it."""


class BestFitMergeList:
    """MergeList of policy "best".

    window: objects that wait before a group is planned. linger_ms: longest wait when events are rare.
    group_stripes: stripes a group aims for when that much waits, None for the default. names: whether groups
    reserve room for names (only figures are ever made without).
    """

    def __init__(
        self, geometry: Geometry, window: int, linger_ms: int, group_stripes: int | None = None, names: bool = True
    ) -> None:
        self._geometry = geometry
        self._window = window
        self._linger_ms = linger_ms
        self._stripes_aim = min(group_stripes or GROUP_STRIPES, geometry.stripes_per_group_max)
        self._names = names
        self._chunk = geometry.chunk_size
        self._size_max = size_max(geometry)
        self._arrivals = 0
        # When the oldest is due, as of the last look; None after a group was taken, as the oldest is another then.
        self._due_ms: int | None = None
        self._waiting = SizeClasses(geometry.chunk_size)
        self._ready_bytes = READY_STRIPES * geometry.stripe_size
        self._ready_bytes_min = int(READY_STRIPES_MIN * geometry.stripe_size)
        self._ready_count = window + max(window // 2, READY_OBJECTS_EXTRA)
        self._gap_max = int(GAP_FRACTION * geometry.chunk_size)

    def add(self, candidate: Candidate) -> None:
        """See MergeList."""
        size = candidate.size
        if not 1 <= size <= self._size_max or not 0 <= candidate.name_size <= NAME_RECORD_MAX or candidate.waiting:
            check_candidate(candidate, self._size_max)
        candidate.seq = self._arrivals
        self._arrivals += 1
        if size <= self._chunk:
            self._waiting.add_small(candidate)
        else:
            self._waiting.add_large(candidate)

    def plan(self, now_ms: int, *, flush: bool = False) -> GroupPlan | None:
        """See MergeList."""
        if self._is_ample():
            return self._plan_ample()
        if not flush and self._due_ms is not None and now_ms < self._due_ms:
            return None
        oldest = self._oldest()
        if oldest is None:
            return None
        self._due_ms = oldest.arrived_ms + self._linger_ms
        if flush:
            return self._plan_needed(oldest, [])
        if self._due_ms <= now_ms:
            return self._plan_needed(oldest, self._overdue(now_ms))
        return None

    def next_deadline_ms(self) -> int | None:
        """See MergeList."""
        oldest = self._oldest()
        return None if oldest is None else oldest.arrived_ms + self._linger_ms

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """See MergeList."""
        return self._waiting.waiting_bytes

    @property
    def size_max(self) -> int:
        """See MergeList."""
        return self._size_max

    def _oldest(self) -> Candidate | None:
        oldest = _oldest_first(self._waiting.oldest_small(), self._waiting.oldest_large())
        return oldest[0] if oldest else None

    # --- how large a group ----------------------------------------------------------------------------

    def _is_ample(self) -> bool:
        waiting = self._waiting
        count = waiting.small_count + waiting.large_count
        if count < self._window:
            return False
        size = waiting.small_bytes + waiting.large_bytes
        return size >= self._ready_bytes or (count >= self._ready_count and size >= self._ready_bytes_min)

    def _plan_ample(self) -> GroupPlan:
        oldest = self._oldest()
        assert oldest is not None, "an empty list is not ample"
        affordable = int(self._waiting.waiting_bytes * DEPLETION_MAX) // self._geometry.stripe_size
        return self._plan_group(oldest, min(self._stripes_aim, affordable), [])

    def _plan_needed(self, oldest: Candidate, overdue: list[Candidate]) -> GroupPlan:
        """As few stripes as the overdue objects need (on flush, where none are named: all objects)."""
        size = sum(c.size for c in overdue) or self._waiting.waiting_bytes
        names_size = sum(c.name_size for c in overdue)
        layout = GroupLayout(self._geometry, 1, names=self._names)
        front = layout.front(len(overdue) or len(self._waiting), names_size)
        return self._plan_group(oldest, min(self._stripes_aim, self._geometry.stripes_for(size + front)), overdue)

    def _overdue(self, now_ms: int) -> list[Candidate]:
        """The objects past their deadline, oldest first, as far as they may fit in one group."""
        overdue: list[Candidate] = []
        room = self._stripes_aim * self._geometry.stripe_size
        for candidate in self._waiting.by_arrival():
            if room <= 0 or candidate.arrived_ms + self._linger_ms > now_ms:
                break
            overdue.append(candidate)
            room -= candidate.size
        return overdue

    # --- what goes in ---------------------------------------------------------------------------------

    def _plan_group(self, oldest: Candidate, stripes: int, overdue: list[Candidate]) -> GroupPlan:
        stripes = max(1, stripes, self._stripes_for(oldest))
        layout = GroupLayout(self._geometry, stripes, names=self._names)
        seq_overdue = self._seq_overdue(stripes)
        self._due_ms = None
        scarce = SCARCE_FRACTION * self._window
        waiting = self._waiting
        while layout.chunks_free and self._open_bin(layout):
            if overdue:
                self._fill_overdue(layout, overdue)
            self._fill_long_waiting(layout, seq_overdue)
            if waiting.large_count and waiting.small_count < scarce:
                self._chain_large(layout)
            room = self._fill_best(layout)
            if room > self._gap_max and waiting.large_count and self._chain_large(layout):
                self._fill_best(layout)
        return layout.seal()

    def _stripes_for(self, candidate: Candidate) -> int:
        layout = GroupLayout(self._geometry, 1, names=self._names)
        return self._geometry.stripes_for(layout.front_size(candidate) + candidate.size)

    def _open_bin(self, layout: GroupLayout) -> bool:
        """With the oldest object that the group still has a place for."""
        small, large = self._waiting.oldest_small(), self._waiting.oldest_large()
        if large is not None and not layout.fits(large):
            large = self._waiting.oldest_large_within(layout.chunks_free - 2)
        for seed in _oldest_first(small, large):
            if layout.open(seed):
                self._waiting.take(seed)
                return True
        # Only the chunk behind the front is smaller than the others, so that the oldest may not fit there.
        best = self._waiting.largest_small_within(max(0, layout.small_size_max()))
        if best is None or not layout.open(best):
            return False
        self._waiting.take(best)
        return True

    def _fill_overdue(self, layout: GroupLayout, overdue: list[Candidate]) -> None:
        for candidate in overdue:
            if candidate.waiting:
                self._place(layout, candidate)

    def _seq_overdue(self, stripes: int) -> int:
        """Objects that arrived before this one are overdue by arrivals.

        No earlier than the bound on waits asks for: objects taken out of turn fit badly, and with a threshold of 1.5
        windows the list of W1 was seen to clog with large objects after 100,000 (99.6 instead of 99.8 %).
        """
        objects_per_group = stripes * self._geometry.stripe_size * len(self._waiting) // self._waiting.waiting_bytes
        wait_max = OVERDUE_WINDOWS * self._window
        return self._arrivals - max(self._window, self._ready_count - self._window, wait_max - objects_per_group)

    def _fill_long_waiting(self, layout: GroupLayout, seq_overdue: int) -> None:
        """Small objects that are overdue by arrivals, oldest first, until one does not fit."""
        oldest = self._waiting.oldest_small()
        if oldest is None or oldest.seq >= seq_overdue:
            return
        allowed = layout.allowance()
        taken, size, names_size = self._waiting.take_overdue(seq_overdue, allowed.room, allowed.entries, allowed.names)
        if taken:
            layout.extend(taken, size, names_size)

    def _place(self, layout: GroupLayout, candidate: Candidate) -> bool:
        """Add one object to the open bin, if it fits."""
        if candidate.size > self._chunk:
            if not layout.chain(candidate):
                return False
        else:
            allowed = layout.allowance()
            if candidate.size > allowed.room or not allowed.entries or candidate.name_size > allowed.names:
                return False
            layout.extend([candidate], candidate.size, candidate.name_size)
        self._waiting.take(candidate)
        return True

    def _chain_large(self, layout: GroupLayout) -> bool:
        """Add the large objects whose rests fill the open bin best; False when none does."""
        chained = False
        while True:
            candidate = self._waiting.large_that_fits(layout.chunks_free - 1, layout.allowance().room)
            if candidate is None or not self._place(layout, candidate):
                return chained
            chained = True

    def _fill_best(self, layout: GroupLayout) -> int:
        """Add the small objects that fill the open bin best. Returns the bytes of room left."""
        while True:
            allowed = layout.allowance()
            if allowed.room <= 0:
                return 0
            taken, size, names_size = self._waiting.fill(allowed.room, allowed.entries, allowed.names)
            if taken:
                layout.extend(taken, size, names_size)
            if not taken or (len(taken) < allowed.entries and names_size + NAME_RECORD_MAX <= allowed.names):
                return allowed.room - size  # nothing more fits: neither limit stopped the search


def _oldest_first(small: Candidate | None, large: Candidate | None) -> tuple[Candidate, ...]:
    if small is None or large is None:
        return tuple(c for c in (small, large) if c is not None)
    return (small, large) if small.seq < large.seq else (large, small)

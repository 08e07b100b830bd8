"""The default packing policy: oldest object first, then best fit, then pairs that close a chunk.

Objects wait in a list and move from there to the *open group*. Objects can be added to any of its rows (see packer.py)
until the group is planned. Invariants (tests cite the letter):
  E  when `plan` has no group to return, at most `window` objects wait outside the open group, and at most the bytes of
     WINDOW_GROUPS groups, or those given to `set_window` if they are fewer
  F  and since any of these arrived, at most OVERDUE_WINDOWS windows of other objects have arrived

Objects are moved by these rules until both invariants hold:

1. The row opened last is filled: first with objects that are overdue by F; then, when small objects are scarce, with
   large ones whose rests fit, to save the small ones; then with the small objects that fill it best (size_classes.py).
2. If nothing fits there, and leaving it so costs more than a split, the row continues in the next chunk (splits.py).
3. Otherwise another row is opened with the oldest object that the group has room for. While all waiting objects have
   one size, it takes as many chunks as are cheapest (equal_sizes.py). While no small ones wait, and chunks without
   splits would leave too much empty, it is planned: the size of the oldest determines how many objects should fill how
   many chunks (size_ranges.py). Such a row is filled with objects of about one size, instead of by rule 1.
4. If the group has no room for another row, the objects that fit into any of its rows are added.
5. If nothing fits at all, or an overdue object needs a new row but the group is full, the group is filled as far as
   possible and planned.
6. A group that holds a window of objects takes no further stripe.

So each choice is made from a window of objects, and a row that is not full can still choose from later arrivals. For a
deadline, or on flush, the open group is closed: overdue objects join first, then others that fit, in as few stripes as
possible, or while FULL_GROUPS wait until it is full. Objects leave only in whole groups, so the oldest object of all
stays the oldest until then. Deadlines follow the time at which an object entered, everything else the order in which
objects were added.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from typing import Generic

from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.packing.equal_sizes import EqualRows, cheapest_rows
from nos_ec.core.packing.packer import PLAIN_RECORD_MAX, GroupLayout, Row, check_candidate, size_max
from nos_ec.core.packing.plan import Candidate, GroupPlan, Linger, P, lingering
from nos_ec.core.packing.size_classes import SizeClasses
from nos_ec.core.packing.size_ranges import SizeRange, cheapest_ranges, row_of
from nos_ec.core.packing.splits import SPLIT_BYTES, Splits

GROUP_STRIPES = 4
"""Stripes that a group aims for by default. Smaller groups would spend more on headers and page rounding."""

LONGER_SAVES_MIN = 0.005
"""Share of the bytes of objects of one size that a group of more stripes must save. Longer groups hold more objects in
one commit, and lose more if one is not written."""

CHUNKS_EMPTY_MAX = 0.01
"""Share of the chunks of a full group that may stay empty. If more do on average, such a group gets another stripe. The
mixes of docs/PACKING.md leave less: there, longer groups would only make blocks that are not full."""
_GROUPS_MEAN = 64
"""The average share of empty chunks is taken over about this many groups."""
_GROUPS_PRIOR = 4
"""The average begins as if this many groups had been filled completely."""

OVERDUE_WINDOWS = 2
"""Windows of arrivals after which an object is placed at any cost. Objects taken out of turn fit badly: with 1.5
windows, the list of W1 was seen to clog with large objects after 100,000 objects (99.6 instead of 99.8 %)."""

HELD_WINDOWS = 1
"""Windows of objects after which a group ends with the stripe it has begun. Otherwise objects much smaller than a chunk
would wait far longer, and in far greater number, than the window allows."""

WINDOW_GROUPS = 128
"""A window has at most the bytes of this many groups of `stripes_per_group_max` stripes, 512 MiB by default. For large
objects, fewer are enough to choose from, and many would reach their deadline before a window is full: then groups are
short."""

FULL_GROUPS = 2
"""While the bytes of this many groups of `stripes_per_group_max` stripes wait, a group is filled before it is closed.
Otherwise it would have as few stripes as its overdue objects need: half of them empty, if a few large objects are due.
"""

LEFT_FRACTION = 0.5
"""Share of the window that stays in the list when a row is filled, so that there is still a choice for the end of a row
of very small objects."""

SCARCE_FRACTION = 0.3
"""Share of the window. If fewer small objects wait, they are saved: large ones are chained first."""

GAP_FRACTION = 1 / 32
"""Share of a chunk. If more space than this would stay empty, a large object is sought to fill it."""

FULL_FRACTION = 1 / 512
"""Share of a chunk that is not worth a search: a row with no more space than this counts as full."""

RANGES_WAITING_MIN = 250
"""Small objects that must wait before rows are planned by ranges of their sizes: among fewer, none has the size that a
row needs."""
RANGES_GAP_MIN = 0.15
"""Share of the price that chunks without splits must leave empty on average."""
RANGES_LEAST = 1 / 16
"""The least share of a chunk of the smallest object: smaller objects fill the gaps of others."""
RANGES_WINDOWS = 0.25
"""Windows of arrivals after which the ranges are computed again, in a millisecond or two."""


class BestFitMergeList(Generic[P]):
    """MergeList of policy "best".

    At most `window` objects wait outside the open group. `linger` is the longest wait when events are rare.
    `group_stripes` is the number of stripes that a group aims for, None for the default. `names`: groups reserve space
    for names (only measurements do without). `split_bytes` is how many bytes of a chunk may be left empty to save one
    shard read. With 0, objects are split wherever that fills a chunk; with a chunk or more, no object is split that
    fits in one chunk.
    """

    def __init__(
        self,
        geometry: Geometry,
        window: int,
        linger: Linger | int,
        group_stripes: int | None = None,
        names: bool = True,
        split_bytes: int = SPLIT_BYTES,
    ) -> None:
        self._geometry = geometry
        self._linger = lingering(linger)
        self._stripes_aim = min(group_stripes or GROUP_STRIPES, geometry.stripes_per_group_max)
        self._names = names
        self._chunk = geometry.chunk_size
        self._size_max = size_max(geometry)
        self._arrivals = 0
        self._waiting: SizeClasses[P] = SizeClasses(geometry.chunk_size)
        self._group: GroupLayout[P] | None = None
        # The oldest object of all when the open group was begun. It still is the oldest, in the group or not.
        self._oldest: Candidate[P] | None = None
        self._latest_ms = -inf
        """The latest time at which an object entered."""
        self._earlier: list[tuple[int, int, Candidate[P]]] = []
        """A heap of (arrived_ms, seq, object) of the objects that entered before an object that was added before them.
        An object that was handed out stays here until it is the first one."""
        self._splits = Splits(split_bytes, geometry.chunk_size)
        self._stripes = self._stripes_aim
        """Stripes of the open group."""
        self._empty_mean = 0.0
        """Share of the chunks that full groups of the default number of stripes leave empty."""
        self._groups_counted = _GROUPS_PRIOR
        self._short_until = 0
        """Objects that arrived before this one are packed in groups of the default number of stripes."""
        self._equal_rows: EqualRows | None = None
        """The rows of the open group while all waiting objects have one size; None if another size waited when it was
        opened."""
        self._is_last_open = False
        """Whether the last of these rows is open."""
        self._ranges: list[SizeRange] = []
        """The ranges by which rows are planned while objects of similar sizes wait; empty otherwise."""
        self._ranges_until = 0
        """The count of arrived objects up to which the ranges are valid."""
        self._gap_max = int(GAP_FRACTION * geometry.chunk_size)
        self._full_room = int(FULL_FRACTION * geometry.chunk_size)
        self.set_window(window, None)

    def set_window(self, window: int, bytes_max: int | None) -> None:
        """See MergeList."""
        self._window_max = window
        bytes_most = WINDOW_GROUPS * self._geometry.group_size_max
        self._window_bytes_max = bytes_most if bytes_max is None else min(bytes_max, bytes_most)
        self._narrow_window(window)

    def _narrow_window(self, window: int) -> None:
        self._window = window
        self._overdue_count = OVERDUE_WINDOWS * window
        self._held_count = HELD_WINDOWS * window
        self._left_min = int(LEFT_FRACTION * window)
        self._scarce_count = SCARCE_FRACTION * window

    def shorten(self) -> None:
        """See MergeList."""
        self._short_until = self._arrivals

    def take_all(self) -> list[Candidate[P]]:
        """See MergeList."""
        taken = [*([] if self._group is None else self._group.candidates()), *self._waiting.by_arrival()]
        self._waiting = SizeClasses(self._chunk)
        self._group = self._oldest = None
        self._earlier.clear()
        for candidate in taken:
            candidate.waiting = False
        return sorted(taken, key=attrgetter("seq"))

    def add(self, candidate: Candidate[P]) -> None:
        """See MergeList."""
        size = candidate.size
        if not 1 <= size <= self._size_max or not 0 <= candidate.name_size <= PLAIN_RECORD_MAX or candidate.seq >= 0:
            check_candidate(candidate, self._size_max)
            if self._group is not None and any(candidate is placed for placed in self._group.candidates()):
                raise ValueError("this candidate is already in the open group; add each candidate once")
        candidate.seq = self._arrivals
        self._arrivals += 1
        if candidate.arrived_ms >= self._latest_ms:
            self._latest_ms = candidate.arrived_ms
        else:
            heappush(self._earlier, (candidate.arrived_ms, candidate.seq, candidate))
        if size <= self._chunk:
            self._waiting.add_small(candidate)
        else:
            self._waiting.add_large(candidate)

    def plan(self, now_ms: int, *, flush: bool = False) -> GroupPlan[P] | None:
        """See MergeList."""
        plan = self._plan_overflow()
        if plan is not None:
            return plan
        due_ms = self.next_deadline_ms()
        if due_ms is None or not (flush or due_ms <= now_ms):
            return None
        return self._plan_early(now_ms, flush=flush)

    def next_deadline_ms(self) -> int | None:
        """See MergeList."""
        oldest = self._oldest
        if self._group is None:
            oldest = next(iter(self._oldest_first()), None)
            self._forget_handed_out()
        if oldest is None:
            return None
        # Those that are not in the heap entered no earlier than the oldest, which was added before them.
        first_ms = min(oldest.arrived_ms, self._earlier[0][0]) if self._earlier else oldest.arrived_ms
        return first_ms + self._linger.limit_ms(self.waiting_bytes)

    def __len__(self) -> int:
        return len(self._waiting) + (0 if self._group is None else self._group.count)

    @property
    def waiting_bytes(self) -> int:
        """See MergeList."""
        return self._waiting.waiting_bytes + (0 if self._group is None else self._group.data_length)

    @property
    def size_max(self) -> int:
        """See MergeList."""
        return self._size_max

    # --- groups ---------------------------------------------------------------------------------------

    def _plan_overflow(self) -> GroupPlan[P] | None:
        """Move objects to the open group until at most a window of them waits. Return the group once it is full."""
        waiting, bytes_max = self._waiting, self._window_bytes_max
        while len(waiting) > self._window or waiting.waiting_bytes > bytes_max or self._late():
            group = self._group or self._begin_group()
            if not self._place_some(group):
                return self._finish(group, [])
        return None

    def _plan_early(self, now_ms: int, *, flush: bool) -> GroupPlan[P]:
        """Close the open group with the overdue objects (on flush: with all), in as few stripes as they need. While
        FULL_GROUPS wait, it gets as many stripes as it would have without a deadline."""
        waiting = self._waiting
        group = self._group or self._begin_group()
        overdue = [] if flush else self._overdue(now_ms)
        if waiting.waiting_bytes >= FULL_GROUPS * self._geometry.group_size_max:
            return self._plan_full(group, overdue)
        for into in group.rows:
            self._place_all(group, into, overdue)
            group.narrow(into)
        overdue = [c for c in overdue if c.waiting]
        size = waiting.waiting_bytes if flush else sum(c.size for c in overdue)
        count = group.count + (len(waiting) if flush else len(overdue))
        # On flush, count only the names of the oldest objects, so that one of them fits. The next group takes the rest.
        named = self._oldest_first() if flush else overdue
        group.limit(size, group.front(count, group.names_size + sum(c.name_size for c in named)))
        return self._finish(group, overdue)

    def _plan_full(self, group: GroupLayout[P], overdue: list[Candidate[P]]) -> GroupPlan[P]:
        """Close the group once it is full: first with the overdue objects, then with the oldest."""
        for into in group.rows:
            self._place_all(group, into, overdue)
        self._fill_up(group, overdue)
        while len(self._waiting) and (any(self._fill(group, into, 0) for into in group.rows) or self._grow(group)):
            self._fill_up(group, overdue)
        return self._finish(group, overdue)

    def _overdue(self, now_ms: int) -> list[Candidate[P]]:
        """Return the waiting objects past their deadline, oldest first, up to as many as may fit in one group."""
        overdue: list[Candidate[P]] = []
        room = self._stripes * self._geometry.stripe_size
        limit_ms = self._linger.limit_ms(self.waiting_bytes)
        for candidate in sorted(self._waiting.by_arrival(), key=attrgetter("arrived_ms")):
            if room <= 0 or candidate.arrived_ms + limit_ms > now_ms:
                break
            overdue.append(candidate)
            room -= candidate.size
        return overdue

    def _forget_handed_out(self) -> None:
        """Remove objects that were handed out from the top of the heap. While a group is open, some of its objects may
        be first."""
        while self._earlier and not self._earlier[0][2].waiting:
            heappop(self._earlier)

    def _begin_group(self) -> GroupLayout[P]:
        """Open a group with the default number of stripes, or with as many as the oldest object needs. Until the next
        one, a window has as many objects of the present mean size as fit in its bytes."""
        self._oldest = oldest = self._oldest_first()[0]
        self._forget_handed_out()
        window = len(self._waiting) * self._window_bytes_max // self._waiting.waiting_bytes
        self._narrow_window(max(1, min(self._window_max, window)))
        alone: GroupLayout[P] = GroupLayout(self._geometry, 1, names=self._names)
        stripes_min = self._geometry.stripes_for(alone.front_size(oldest) + oldest.size)
        self._equal_rows = self._plan_rows(oldest, alone, max(self._stripes_aim, stripes_min))
        self._is_last_open = False
        self._group = GroupLayout(self._geometry, self._stripes, names=self._names)
        return self._group

    def _plan_rows(self, oldest: Candidate[P], layout: GroupLayout[P], stripes: int) -> EqualRows | None:
        """Choose the number of stripes of the next group. If all waiting objects have one size, except for a few bytes,
        return their cheapest rows.

        `oldest` is one of them, and `layout` can be any layout. The group has at most `stripes` stripes, unless equal
        objects save enough with as many as a block.
        """
        self._stripes = stripes
        size = None if self._splits.price >= self._chunk else self._waiting.largest_of_alike()
        if size is None:
            return None
        rows = self._cheapest_rows(size, oldest.name_size, layout, stripes)
        saves_min = LONGER_SAVES_MIN * size
        if rows is not None and rows.cost >= saves_min and self._may_be_long():
            longer = self._cheapest_rows(size, oldest.name_size, layout, self._geometry.stripes_per_block)
            if longer is not None and rows.cost - longer.cost >= saves_min:
                rows = longer
        if rows is not None:
            self._stripes = rows.stripes
        return rows

    def _cheapest_rows(self, size: int, name_size: int, layout: GroupLayout[P], stripes: int) -> EqualRows | None:
        geometry = self._geometry
        count = stripes * geometry.stripe_size // size
        front = -(-layout.front(count, count * name_size) // PAGE) * PAGE
        return cheapest_rows(stripes, geometry.k, self._chunk, size, front, self._splits.price)

    def _may_be_long(self) -> bool:
        """Return whether the open group may be longer than the default."""
        return self._oldest is not None and self._oldest.seq >= self._short_until

    def _grow(self, group: GroupLayout[P]) -> bool:
        """Let a group that is full have another stripe if too many of its chunks would stay empty."""
        if self._equal_rows is not None or group.count >= self._held_count:
            return False
        empty = group.chunks_free / (self._stripes * self._geometry.k)
        if self._stripes == self._stripes_aim:
            self._groups_counted = min(self._groups_counted + 1, _GROUPS_MEAN)
            self._empty_mean += (empty - self._empty_mean) / self._groups_counted
        if self._stripes >= self._geometry.stripes_per_block or not self._may_be_long():
            return False
        if min(empty, self._empty_mean) <= CHUNKS_EMPTY_MAX:
            return False
        self._stripes += 1
        group.chunks_free += self._geometry.k
        return True

    def _finish(self, group: GroupLayout[P], overdue: list[Candidate[P]]) -> GroupPlan[P]:
        """Close the group: add the overdue objects as far as they fit, then others that fit; split no more objects than
        its stripes need."""
        self._fill_up(group, overdue)
        for into in group.rows:
            self._fill(group, into, 0)
            if into.span > 1:
                group.narrow(into)
        group.unsplit()
        self._group = self._oldest = None
        return group.seal()

    def _fill_up(self, group: GroupLayout[P], overdue: list[Candidate[P]]) -> None:
        """Open rows and fill them until the group has no room for another."""
        while (opened := self._open_row(group, overdue)) is not None:
            self._place_all(group, opened, overdue)
            self._fill(group, opened, 0)
            while self._split(group, opened):
                self._fill(group, opened, 0)

    # --- what goes in ---------------------------------------------------------------------------------

    def _place_some(self, group: GroupLayout[P]) -> bool:
        """Move objects to the group by rules 1 to 4. Return False if the group must be closed."""
        if group.rows:
            last = group.rows[-1]
            if self._fill(group, last, self._left_min):
                return True
            if len(self._waiting) > self._left_min and self._split(group, last):
                return True
        if not all(map(group.fits, self._late())):
            return self._grow(group)
        if group.count >= self._held_count:
            group.limit(0, group.front_size())
        opened = self._open_row(group)
        if opened is not None:
            self._fill(group, opened, self._left_min)
            return True
        return any(self._fill(group, into, self._left_min) for into in group.rows) or self._grow(group)

    def _late(self) -> list[Candidate[P]]:
        """Return the oldest small and the oldest large object, as far as they are overdue by arrivals."""
        seq_overdue = self._arrivals - self._overdue_count
        return [c for c in self._oldest_first() if c.seq < seq_overdue]

    def _oldest_first(self) -> tuple[Candidate[P], ...]:
        """Return the oldest small and the oldest large object, the older one first."""
        small, large = self._waiting.oldest_small(), self._waiting.oldest_large()
        if small is None or large is None:
            return tuple(c for c in (small, large) if c is not None)
        return (small, large) if small.seq < large.seq else (large, small)

    def _open_row(self, group: GroupLayout[P], overdue: Sequence[Candidate[P]] = ()) -> Row[P] | None:
        """Open a row with the first overdue object, or else the oldest one that the group still has room for."""
        if not group.chunks_free:
            return None
        first = next((one for one in overdue if one.waiting), None)
        oldest_first = self._oldest_first() if first is None else (first, *self._oldest_first())
        if self._equal_rows is not None and self._waiting.is_one_size():
            span = 0 if self._is_last_open else self._equal_rows.spans[group.chunks_free]
            self._is_last_open = self._is_last_open or self._equal_rows.last[group.chunks_free]
            opened = self._open_with(group, oldest_first[0]) if span else None
            if opened is not None:
                group.widen(opened, span - 1)
            if opened is not None or group.rows:
                return opened
        for oldest in oldest_first:
            opened = self._open_with(group, oldest)
            if opened is None and oldest.size > self._chunk:
                opened = self._open_with(group, self._waiting.oldest_large_within(group.chunks_free - 2))
            if opened is not None:
                if self._ranges or self._arrivals >= self._ranges_until:
                    self._plan_row(group, opened)
                return opened
        # Only the chunk after the front is smaller than the others, so the oldest may not fit there.
        return self._open_with(group, self._waiting.largest_small_within(max(0, group.small_size_max())))

    def _plan_row(self, group: GroupLayout[P], opened: Row[P]) -> None:
        """Choose how many chunks and objects a row should have, if objects of similar sizes wait."""
        if self._arrivals >= self._ranges_until:
            self._ranges_until = self._arrivals + max(1, int(RANGES_WINDOWS * self._window))
            self._ranges = self._find_ranges()
        if self._ranges and not opened.large and opened.small[0].size >= self._ranges[0].least:
            chunks = group.chunks_free + 1
            span, objects = row_of(self._ranges, opened.small[0].size, chunks, self._chunk, self._splits.price)
            if group.widen(opened, span - 1):
                opened.planned = objects

    def _find_ranges(self) -> list[SizeRange]:
        waiting = self._waiting
        if not (self._ranges or self._splits.gap_ratio > RANGES_GAP_MIN) or waiting.small_count < RANGES_WAITING_MIN:
            return []
        if waiting.largest_small_within(int(RANGES_LEAST * self._chunk)) is not None:
            return []
        ranges = cheapest_ranges(waiting.small_sizes(), self._chunk, self._splits.price)
        return ranges if any(one.span > 1 for one in ranges) else []

    def _open_with(self, group: GroupLayout[P], seed: Candidate[P] | None) -> Row[P] | None:
        opened = None if seed is None else group.open(seed)
        if seed is not None and opened is not None:
            self._waiting.take(seed)
        return opened

    def _split(self, group: GroupLayout[P], into: Row[P]) -> bool:
        """Let a row that nothing fills continue in the next chunk, with an object that crosses the border, if that
        costs less than the space left empty. Return whether it does."""
        waiting, gap = self._waiting, into.room
        if not len(waiting) or self._splits.price >= self._chunk:
            return False
        if self._equal_rows is not None and waiting.is_one_size():
            return False
        if into.planned or not self._splits.pays(gap, first=into.span == 1) or not group.widen(into, 1):
            return False
        if waiting.has_pair(into.room) or any(self._place(group, into, one) for one in waiting.to_split()):
            return True
        group.narrow(into)
        return False

    def _fill(self, group: GroupLayout[P], into: Row[P], left_min: int) -> bool:
        """Fill a row while more than `left_min` objects wait. Return whether anything was placed."""
        if into.planned and into.planned > len(into.small):
            if self._fill_evenly(group, into, left_min):
                return True
            into.planned = 0
        waiting, room, count = self._waiting, into.room, group.count
        if room <= self._full_room or (not waiting.large_count and waiting.largest_small_within(room) is None):
            return False
        self._place_overdue(group, into)
        if waiting.large_count and waiting.small_count < self._scarce_count:
            self._chain_large(group, into)
        room = self._fill_best(group, into, left_min)
        if room > self._gap_max and waiting.large_count and self._chain_large(group, into):
            self._fill_best(group, into, left_min)
        return group.count > count

    def _fill_evenly(self, group: GroupLayout[P], into: Row[P], left_min: int) -> bool:
        """Fill a planned row with objects of about one size, and choose the last two so that nothing stays empty.
        Return whether anything was placed."""
        count = group.count
        while into.planned > len(into.small) and len(self._waiting) > left_min:
            found = self._waiting.evenly(group.allowance(into).room, into.planned - len(into.small))
            if found is None or not self._place(group, into, found):
                break
        return group.count > count

    def _place_overdue(self, group: GroupLayout[P], into: Row[P]) -> None:
        """Add objects that are overdue by arrivals, oldest first, until one does not fit."""
        seq_overdue = self._arrivals - self._overdue_count
        while (large := self._waiting.oldest_large()) is not None and large.seq < seq_overdue:
            if not self._place(group, into, large):
                break
        small = self._waiting.oldest_small()
        if small is None or small.seq >= seq_overdue:
            return
        allowed = group.allowance(into)
        taken, size, names_size = self._waiting.take_overdue(seq_overdue, allowed.room, allowed.entries, allowed.names)
        if taken:
            group.extend(into, taken, size, names_size)

    def _place_all(self, group: GroupLayout[P], into: Row[P], candidates: list[Candidate[P]]) -> None:
        for candidate in candidates:
            if candidate.waiting:
                self._place(group, into, candidate)

    def _place(self, group: GroupLayout[P], into: Row[P], candidate: Candidate[P]) -> bool:
        """Add one object to the row, if it fits."""
        if candidate.size > self._chunk:
            if not group.chain(into, candidate):
                return False
        else:
            allowed = group.allowance(into)
            if candidate.size > allowed.room or not allowed.entries or candidate.name_size > allowed.names:
                return False
            group.extend(into, [candidate], candidate.size, candidate.name_size)
        self._waiting.take(candidate)
        return True

    def _chain_large(self, group: GroupLayout[P], into: Row[P]) -> bool:
        """Add the large objects whose rests fill the row best. Return False if none fits."""
        chained = False
        while True:
            candidate = self._waiting.large_that_fits(group.chunks_free, group.allowance(into).room)
            if candidate is None or not self._place(group, into, candidate):
                return chained
            chained = True

    def _fill_best(self, group: GroupLayout[P], into: Row[P], left_min: int) -> int:
        """Add the small objects that fill the row best. Return the bytes left empty."""
        while True:
            allowed = group.allowance(into)
            entries = min(allowed.entries, len(self._waiting) - left_min)
            if allowed.room <= 0 or entries <= 0:
                return max(0, allowed.room)
            taken, size, names_size = self._waiting.fill(allowed.room, entries, allowed.names)
            if taken:
                group.extend(into, taken, size, names_size)
            if not taken or (len(taken) < entries and names_size + PLAIN_RECORD_MAX <= allowed.names):
                return allowed.room - size  # nothing more fits: no limit stopped the search, or very long attributes

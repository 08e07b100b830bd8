"""A merge list of several streams, which are packed separately and in order.

Objects that are expected to die at about the same time share a stream (core/packing/lifetimes.py), and a group holds
objects of one stream. Before they are packed, objects are gathered until there are `gathered_max` of them, the first
has waited for half of the deadline, or `bytes_max` bytes wait in all. Then they go to the merge lists of their streams
in the order stream, bucket, prefix, age, a few at a time, so that objects that are deleted together are stored
together. The merge lists share SHARED_WINDOWS windows, and WINDOWS_SHARE of `bytes_max`.

Each stream closes groups at its own deadlines, and half a stripe is lost at each. So a stream that collects less than
`stream_bytes_min` in a period is folded into its longer-lived neighbour; the longest-lived one into the next shorter. A
small store has one stream. Invariants (tests cite the letter):
  G  a group holds objects of one stream, or of streams that are folded together
  H  no object waits in the gathering longer than half of the deadline
  I  at most `gathered_max` objects are gathered, as many are being passed on, and all streams share SHARED_WINDOWS
     windows; when `plan` has no group to return, fewer than `bytes_max` bytes wait, unless open groups have the rest of
     them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic

from nos_ec.core.packing.lifetimes import ToPack, packing_order
from nos_ec.core.packing.packer import PLAIN_RECORD_MAX, check_candidate
from nos_ec.core.packing.plan import Candidate, GroupPlan, Linger, MergeList, P, lingering

STREAM_BYTES_MIN = 50 << 20
"""The least bytes of a stream in a period. Half a stripe is lost at its end: 1 % with stripes of 1 MiB."""
STREAM_STRIPES_MIN = 50
"""The same with larger stripes. With few stripes to a stream, GC would rewrite the blocks of several streams again and
again: packed without streams, as it packs them in memory to decide, their objects take fewer stripes."""
GATHERED_WINDOWS = 2
"""How many windows of objects a consumer sorts together. The other objects that it holds are being packed."""
SHARED_WINDOWS = 2
"""Several streams share this many windows. With one, four streams of W1 would lose 0.2 points of utilisation, not 0.06
(docs/PACKING.md)."""
WINDOWS_SHARE = 0.75
"""Share of `bytes_max` that the windows of all merge lists may have together. The rest is for their open groups, which
may be as long as a block, and for gathered objects. If a caller stopped adding before the windows are full, it would
only get groups that are closed early."""
_STEPS = 8
"""Objects go to the merge lists in parts of the window, so that each group is chosen from neighbours."""

Sorting = Callable[[P, int], tuple[int, str, str, float]]
"""Returns the stream, bucket, prefix and time of birth of an object that arrived at a time in milliseconds."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How streams are packed. There are at most `streams` streams. `gathered_max` objects are sorted together. The
    bytes of a stream are counted in periods of `period_ms`; None: over the whole life of the list. The caller adds no
    more objects once `bytes_max` bytes are in the list; None: it always does. A stream must collect `stream_bytes_min`
    in a period to be packed separately."""

    streams: int
    gathered_max: int
    period_ms: int | None
    bytes_max: int | None = None
    stream_bytes_min: int = STREAM_BYTES_MIN

    @property
    def window_bytes(self) -> int | None:
        """Return the most bytes that the windows of all streams may have together; None: the policy decides."""
        return None if self.bytes_max is None else int(WINDOWS_SHARE * self.bytes_max)


def folded(collected_bytes: Sequence[int], bytes_min: int) -> tuple[int, ...]:
    """Return, for each stream, the one in which its objects are packed, according to the bytes that the streams have
    collected."""
    into: list[int] = [0] * len(collected_bytes)
    gathered = first = 0
    previous: int | None = None
    for stream, collected in enumerate(collected_bytes):
        gathered += collected
        last = stream == len(collected_bytes) - 1
        if gathered < bytes_min and not last:
            continue
        place = previous if gathered < bytes_min and previous is not None else stream
        into[first : stream + 1] = [place] * (stream + 1 - first)
        gathered, first, previous = 0, stream + 1, place
    return tuple(into)


class StreamedMergeList(Generic[P]):
    """MergeList of several streams. `new_list` makes an empty merge list with a window; `linger` is the same as in
    those lists."""

    def __init__(
        self,
        new_list: Callable[[int], MergeList[P]],
        sorting: Sorting[P],
        window: int,
        linger: Linger | int,
        options: StreamOptions,
    ) -> None:
        self._sorting = sorting
        self._window = window
        self._window_bytes = options.window_bytes
        self._options = options
        self._hold_ms = lingering(linger).wait_ms // 2
        self._lists = [new_list(window) for _ in range(options.streams)]
        self._size_max = self._lists[0].size_max
        self._gathering: list[ToPack[Candidate[P]]] = []
        self._sorted: deque[ToPack[Candidate[P]]] = deque()
        self._held_bytes = 0
        """Bytes of the gathering and the sorted objects."""
        self._short_gathering = self._short_sorted = False
        """Whether the gathered and the sorted objects are to be packed in short groups."""
        self._collected = [0] * options.streams
        self._collected_before = [0] * options.streams
        self._period_ends_ms: int | None = None
        self.stream_bytes = [0] * options.streams
        """Bytes that each stream has collected so far. Any thread may read them."""
        self._into = folded(self._collected, options.stream_bytes_min)
        self._share_window()

    @property
    def streams_open(self) -> int:
        """Return the number of streams that are packed separately at present."""
        return len(set(self._into))

    def add(self, candidate: Candidate[P]) -> None:
        """See MergeList."""
        if candidate.waiting or not 1 <= candidate.size <= self._size_max or candidate.name_size > PLAIN_RECORD_MAX:
            check_candidate(candidate, self._size_max)
        stream, bucket, prefix, born = self._sorting(candidate.payload, candidate.arrived_ms)
        candidate.waiting = True
        self._gathering.append(ToPack(stream, bucket, prefix, born, candidate))
        self._held_bytes += candidate.size
        self._collected[stream] += candidate.size
        self.stream_bytes[stream] += candidate.size

    def plan(self, now_ms: int, *, flush: bool = False) -> GroupPlan[P] | None:
        """See MergeList."""
        self._turn_period(now_ms)
        while True:
            for stream, merge_list in enumerate(self._lists):
                plan = merge_list.plan(now_ms) if len(merge_list) else None
                if plan is not None:
                    return plan._replace(stream=stream)
            if self._sorted:
                self._feed()
            elif self._gathering and (flush or self._is_due(now_ms)):
                self._sort()
            else:
                return self._plan_rest(now_ms) if flush else None

    def next_deadline_ms(self) -> int | None:
        """See MergeList."""
        found = [due_ms for one in self._lists if (due_ms := one.next_deadline_ms()) is not None]
        if self._sorted:
            found.append(self._sorted[0].ref.arrived_ms)
        if self._gathering:
            found.append(self._gathering[0].ref.arrived_ms + self._hold_ms)
        return min(found, default=None)

    def set_window(self, window: int, bytes_max: int | None) -> None:
        """See MergeList."""
        self._window = window
        self._window_bytes = bytes_max
        self._share_window()

    def shorten(self) -> None:
        """See MergeList."""
        self._short_gathering = True
        self._short_sorted = bool(self._sorted)
        self._shorten_lists()

    def _shorten_lists(self) -> None:
        for merge_list in self._lists:
            merge_list.shorten()

    def take_all(self) -> list[Candidate[P]]:
        """See MergeList."""
        held = [one.ref for one in (*self._sorted, *self._gathering)]
        self._sorted.clear()
        self._gathering.clear()
        self._held_bytes = 0
        for candidate in held:
            candidate.waiting = False
        taken = [*(candidate for one in self._lists for candidate in one.take_all()), *held]
        return sorted(taken, key=attrgetter("arrived_ms"))

    def __len__(self) -> int:
        return len(self._gathering) + len(self._sorted) + sum(map(len, self._lists))

    @property
    def waiting_bytes(self) -> int:
        """See MergeList."""
        return self._held_bytes + sum(one.waiting_bytes for one in self._lists)

    @property
    def size_max(self) -> int:
        """See MergeList."""
        return self._size_max

    # --- gathering and sorting ------------------------------------------------------------------------
    def _is_due(self, now_ms: int) -> bool:
        options, first = self._options, self._gathering[0].ref
        if len(self._gathering) >= options.gathered_max or first.arrived_ms + self._hold_ms <= now_ms:
            return True
        return options.bytes_max is not None and self.waiting_bytes >= options.bytes_max

    def _sort(self) -> None:
        self._fold()
        self._sorted.extend(packing_order(self._gathering))
        self._gathering.clear()
        self._short_sorted, self._short_gathering = self._short_gathering, False

    def _feed(self) -> None:
        for _ in range(min(len(self._sorted), max(1, self._window // _STEPS))):
            one = self._sorted.popleft()
            self._held_bytes -= one.ref.size
            one.ref.waiting = False
            self._lists[self._into[one.stream]].add(one.ref)
        if self._short_sorted:
            self._shorten_lists()

    def _plan_rest(self, now_ms: int) -> GroupPlan[P] | None:
        stream, fullest = max(enumerate(self._lists), key=lambda one: one[1].waiting_bytes)
        plan = fullest.plan(now_ms, flush=True)
        return None if plan is None else plan._replace(stream=stream)

    # --- folding --------------------------------------------------------------------------------------
    def _turn_period(self, now_ms: int) -> None:
        period_ms = self._options.period_ms
        if period_ms is None:
            return
        if self._period_ends_ms is None:
            self._period_ends_ms = now_ms + period_ms
        if not self._period_ends_ms - period_ms <= now_ms < self._period_ends_ms:
            just_over = 0 <= now_ms - self._period_ends_ms < period_ms
            self._collected_before = self._collected if just_over else [0] * len(self._collected)
            self._collected = [0] * len(self._collected)
            self._period_ends_ms = now_ms + period_ms
            self._fold()

    def _fold(self) -> None:
        """Decide again which streams are packed separately. Objects that wait in a stream that is now folded go to its
        neighbour."""
        most = [max(pair) for pair in zip(self._collected, self._collected_before, strict=True)]
        into = folded(most, self._options.stream_bytes_min)
        if into == self._into:
            return
        self._into = into
        self._share_window()
        for stream, merge_list in enumerate(self._lists):
            if into[stream] != stream:
                for candidate in merge_list.take_all():
                    self._lists[into[stream]].add(candidate)

    def _share_window(self) -> None:
        share = max(1, min(self._window, SHARED_WINDOWS * self._window // self.streams_open))
        bytes_max = None if self._window_bytes is None else self._window_bytes // self.streams_open
        for merge_list in self._lists:
            merge_list.set_window(share, bytes_max)

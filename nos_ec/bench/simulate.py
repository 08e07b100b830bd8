"""Measures how well a policy packs a list of sizes, for docs/PACKING.md and `nos-ec simulate packing`.

The merge list is "always backlogged": whenever it cannot return a group, the next sizes arrive, one per simulated
millisecond, a thirty-second part of the window at a time. Objects that still wait when the sizes end are left out of
the figures, except for their wait, because a last half-full stripe is not typical of an endless stream. They are
flushed and counted only if all sizes together did not fill a single group; `flushed` reports this. The bound is
computed for exactly the objects that were packed.

With several streams, each object belongs to a random stream, because this makes the share of the window smallest. They
are packed as by a consumer that is never idle.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from nos_ec.composition.packing import new_merge_list
from nos_ec.core.errors import InvalidInput
from nos_ec.core.formats.header import NAME_RECORD_FIXED
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.bounds import cost_min, utilisation_max
from nos_ec.core.packing.merge_list import split_price
from nos_ec.core.packing.plan import Candidate, GroupPlan, MergeList, P
from nos_ec.core.packing.streams import GATHERED_WINDOWS, StreamedMergeList, StreamOptions
from nos_ec.settings.sections import ConsumerSettings

KEY_BYTES = 40
"""Bytes of bucket and name of every simulated object: a short bucket name and a UUID. The space reserved for names is
counted, which assumes that names do not compress at all."""

LINGER_WINDOWS = {"best": 1 << 40, "nos": 2}
"""The deadline, in windows of arrivals. "Always backlogged" means that events are never rare, so "best" has no
deadline. "nos" needs one, because some workloads cannot reach its 80 % threshold and it would wait for ever."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The figures of one run. Ratios are from 0 to 1, sizes in bytes. The module docstring explains which objects
    count.

    `split_bytes` is the price of an extra shard read. `utilisation` is user bytes per byte of stripe, without space for
    names; `utilisation_with_names` is the same in a second run that reserves this space (None if not requested).
    `bound` is the utilisation that no policy can exceed without names (packing/bounds.py). `single_chunk_ratio` is the
    share of packed objects of at most a chunk that are in a single chunk; 1.0 if there are no such objects.
    `shard_reads` is the mean number of chunks that a read of an object touches, and `extra_reads` the mean number
    beyond the fewest possible. `cost` is the bytes left empty per object, headers included, plus split_bytes for each
    extra read; no policy can go below `cost_bound`. `max_wait_windows` is the maximum number of arrivals until an
    object in the merge list was placed in a group, divided by the window; `max_hold_windows` is the same until its
    group was returned. `header_overhead` is header bytes per byte of stripe. `objects_per_s` is objects packed per
    second spent in `add` and `plan`. `objects` were packed and counted; `left_waiting` were not packed when the sizes
    ended. `skipped_empty` and `skipped_large` have 0 bytes and more than size_max; a store keeps them elsewhere, and no
    policy sees them.
    """

    policy: str
    window: int
    split_bytes: int
    utilisation: float
    utilisation_with_names: float | None
    bound: float
    single_chunk_ratio: float
    shard_reads: float
    extra_reads: float
    cost: float
    cost_bound: float
    max_wait_windows: float
    max_hold_windows: float
    objects_per_s: float
    header_overhead: float
    groups: int
    stripes: int
    objects: int
    user_bytes: int
    left_waiting: int
    skipped_empty: int
    skipped_large: int
    size_max: int
    flushed: bool


def simulate(
    sizes: Iterable[int],
    consumer: ConsumerSettings,
    geometry: Geometry,
    *,
    timer: Callable[[], float],
    seed: int = 0,
    names: bool = True,
    streams: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> SimulationResult:
    """Pack `sizes` in bytes as a consumer with these settings does.

    `timer` returns seconds, such as time.perf_counter. `seed` determines the random choices of policy "nos". With
    `names`, a second run reserves space for names. The objects are spread over `streams`. `progress` is called
    from time to time with the objects that have arrived in the first run, and all of them. Raises InvalidInput for an
    unknown policy, a bad window or price, a negative size, or if there is nothing to pack.
    """
    window, split_bytes = consumer.window_objects, consumer.split_bytes
    price = split_price(consumer.policy, geometry, split_bytes)
    packable, skipped_empty, skipped_large, limit = _packable(sizes, consumer, geometry)
    plain = _run(packable, consumer, geometry, timer, seed, streams, names=False, progress=progress)
    named = _run(packable, consumer, geometry, timer, seed, streams, names=True) if names else None
    count = len(plain.sizes)
    empty = plain.stripes * geometry.stripe_size - plain.user_bytes
    return SimulationResult(
        policy=consumer.policy,
        window=window,
        split_bytes=split_bytes,
        utilisation=plain.share(plain.user_bytes),
        utilisation_with_names=None if named is None else named.share(named.user_bytes),
        bound=utilisation_max(plain.sizes, geometry, price),
        single_chunk_ratio=plain.small_in_one_chunk / plain.small if plain.small else 1.0,
        shard_reads=plain.chunks / count,
        extra_reads=plain.split_objects / count,
        cost=(empty + split_bytes * plain.split_objects) / count,
        cost_bound=cost_min(plain.sizes, geometry, price) / count,
        max_wait_windows=plain.wait_max / window,
        max_hold_windows=plain.hold_max / window,
        objects_per_s=count / plain.seconds if plain.seconds > 0 else 0.0,
        header_overhead=plain.share(plain.header_bytes),
        groups=plain.groups,
        stripes=plain.stripes,
        objects=count,
        user_bytes=plain.user_bytes,
        left_waiting=len(packable) - count,
        skipped_empty=skipped_empty,
        skipped_large=skipped_large,
        size_max=limit,
        flushed=plain.flushed,
    )


def raw_bytes_per_user_byte(geometry: Geometry, utilisation: float) -> float:
    """Return the bytes on all shards, including coding chunks, for each byte of an object."""
    return (geometry.k + geometry.m) / geometry.k / utilisation


def read_sizes(path: Path) -> list[int]:
    """Read sizes in bytes from a text file, one decimal integer per line; blank lines and lines that begin with '#' are
    skipped. Raises InvalidInput with the line that is not a size, or the reason why the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not a text file" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise InvalidInput(f"{path}: {reason}; give a text file with one size in bytes per line") from error
    return parse_sizes(text.splitlines(), str(path))


def parse_sizes(lines: Iterable[str], name: str) -> list[int]:
    """Parse sizes in bytes from lines of text, as `read_sizes` does. `name` is used in errors. Raises InvalidInput."""
    found = [_parse_size(name, number, line) for number, line in enumerate(lines, 1) if _is_data(line)]
    if not found:
        raise InvalidInput(f"{name}: contains no sizes; give one size in bytes per line")
    return found


def _is_data(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _parse_size(name: str, number: int, line: str) -> int:
    digits = line.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise InvalidInput(f"{name}, line {number}: {digits[:40]!r} is not a size; write bytes as digits, such as 4096")
    return int(digits)


def _packable(sizes: Iterable[int], consumer: ConsumerSettings, geometry: Geometry) -> tuple[list[int], int, int, int]:
    """Return the sizes that can be packed, the numbers of empty and of too large objects, and the limit."""
    merge: MergeList[None] = new_merge_list(consumer, geometry, 0, random.Random(0))
    limit = merge.size_max
    packable: list[int] = []
    empty = large = 0
    for size in sizes:
        if size < 0:
            raise InvalidInput(f"object size is {size}; it cannot be negative")
        if size == 0:
            empty += 1
        elif size > limit:
            large += 1
        else:
            packable.append(size)
    if not packable:
        raise InvalidInput(f"nothing to pack: give at least one size between 1 and {limit} bytes")
    return packable, empty, large, limit


@dataclass(slots=True)
class _Figures:
    geometry: Geometry
    sizes: list[int] = field(default_factory=list)
    groups: int = 0
    stripes: int = 0
    user_bytes: int = 0
    header_bytes: int = 0
    small: int = 0
    small_in_one_chunk: int = 0
    chunks: int = 0
    split_objects: int = 0
    wait_max: int = 0
    hold_max: int = 0
    waiting: deque[Candidate[None]] = field(default_factory=deque)
    seconds: float = 0.0
    flushed: bool = False

    def add_arrivals(self, batch: list[Candidate[None]], arrivals: int) -> None:
        """Record the wait of the object that has waited longest, before groups are requested."""
        self.waiting.extend(batch)
        while not self.waiting[0].waiting:
            self.waiting.popleft()
        self.wait_max = max(self.wait_max, arrivals - 1 - self.waiting[0].arrived_ms)

    def add_group(self, plan: GroupPlan[None], arrivals: int) -> None:
        """Add one planned group; `arrivals` objects have arrived in total."""
        geometry = self.geometry
        self.groups += 1
        self.stripes += plan.stripe_count
        self.user_bytes += plan.data_length
        self.header_bytes += plan.header_length
        self.split_objects += plan.split_objects
        for candidate, offset in plan.placed:
            self.sizes.append(candidate.size)
            self.hold_max = max(self.hold_max, arrivals - 1 - candidate.arrived_ms)
            chunks = geometry.chunks_touched(offset, candidate.size)
            self.chunks += chunks
            if candidate.size <= geometry.chunk_size:
                self.small += 1
                self.small_in_one_chunk += chunks == 1

    def share(self, size_bytes: int) -> float:
        """Return the share of all stripes that this many bytes take."""
        found = self.geometry.share(size_bytes, self.stripes)
        assert found is not None, "a run packs at least one group"
        return found


def _run(
    sizes: list[int],
    consumer: ConsumerSettings,
    geometry: Geometry,
    timer: Callable[[], float],
    seed: int,
    streams: int,
    *,
    names: bool,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> _Figures:
    window = consumer.window_objects
    linger_ms = LINGER_WINDOWS[consumer.policy] * window
    rng = random.Random(seed)

    def plain(share: int) -> MergeList[None]:
        return new_merge_list(consumer, geometry, linger_ms, rng, window=share, names=names)

    merge: MergeList[None] = plain(window)
    if streams > 1:
        options = StreamOptions(streams, GATHERED_WINDOWS * window, None)
        of_any = random.Random(seed)
        merge = StreamedMergeList(
            plain, lambda _, __: (of_any.randrange(streams), "", "", 0), window, linger_ms, options
        )
    figures = _Figures(geometry)
    incoming = (Candidate(size, NAME_RECORD_FIXED + KEY_BYTES, None, now) for now, size in enumerate(sizes))
    arrivals = 0
    while True:
        # Candidates are created outside the measured time, because in production the consumer creates them.
        batch = list(islice(incoming, max(1, window // 32)))
        if not batch:
            break
        arrivals += len(batch)
        _serve(merge, batch, arrivals, figures, timer)
        progress(arrivals, len(sizes))
    if not figures.groups:
        figures.flushed = True
        for plan in groups_ready(merge, arrivals, flush=True):
            figures.add_group(plan, arrivals)
    return figures


def _serve(
    merge: MergeList[None], batch: list[Candidate[None]], arrivals: int, figures: _Figures, timer: Callable[[], float]
) -> None:
    """Add a batch, then take all groups that are ready."""
    begun = timer()
    for candidate in batch:
        merge.add(candidate)
    figures.seconds += timer() - begun
    figures.add_arrivals(batch, arrivals)
    begun = timer()
    plans = list(groups_ready(merge, arrivals, flush=False))
    figures.seconds += timer() - begun
    for plan in plans:
        figures.add_group(plan, arrivals)


def groups_ready(merge: MergeList[P], now_ms: int, *, flush: bool) -> Iterator[GroupPlan[P]]:
    """Yields the groups that a merge list has ready; with `flush`, groups of all waiting objects."""
    while (plan := merge.plan(now_ms, flush=flush)) is not None:
        yield plan

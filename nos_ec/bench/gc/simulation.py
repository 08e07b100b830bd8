"""Runs the GC policies of the core over a workload, in simulated days.

A store has blocks of equal size, and for each stream an open block of fresh objects and one of survivors. After each
block of arrivals, a cycle of GC runs: blocks without live objects are deleted, and the policy chooses others, whose
survivors are written again at once. Nothing fails, and GC takes no time.

Space amplification is stored / live bytes, including dead bytes in open blocks, as the mean over the measured days.
Write amplification is the bytes written to blocks, by consumer and GC, per byte that users wrote, in the measured days.
Objects that died before they were packed were never written, so with a landing delay it can be less than 1. Neither
includes headers, padding, names and coding. With the packer of a store, the space amplification with padding is shown
as well: the bytes of all stripes without coding, per live byte.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil, exp

from nos_ec.bench.gc.blocks import Blocks
from nos_ec.bench.gc.bound import amplification_at
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.workloads import Objects, Workload
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_policy import Behind, GcPolicy, SpaceTarget, Threshold
from nos_ec.core.packing.lifetimes import SurvivalTable, is_sampled
from nos_ec.core.sums import Summed

PERIODS = 10
SURVEY_DAYS = 20.0
"""How often watched objects are counted and the expected lifetimes are computed again."""
_CYCLE_BLOCKS = 8
"""Blocks of arrivals between the cycles of a policy without a target, because each of its cycles examines all
blocks."""
_START_AMPLIFICATION = 1.5
_TICKS_PER_MIN_AGE = 16
"""Time advances in ticks. Objects leave the landing store at the next tick, so ticks must be short compared with the
delay."""
_MIN_AGE_DAYS_MIN = 0.02
"""For shorter delays, ticks are as long as for this one (half an hour), because ticks have a minimum length."""


@dataclass(frozen=True, slots=True)
class Period:
    """The figures of a tenth of the days. The first periods show how the store reaches its steady state."""

    until_day: float
    space_amplification: float
    write_amplification: float
    live_blocks: float


@dataclass(frozen=True, slots=True)
class GcResult:
    """The figures of one run; see the module. `space_amplification_with_padding` is None without the packer. `cycles`
    counts cycles that chose victims, and `behind` the cycles that did not reach the target, by reason. `never_packed`
    is the share of user bytes that died in the landing store. `landing_ratio` is the mean of the bytes in the landing
    store per live byte in blocks, with one copy of each object, including objects that have died there."""

    space_amplification: float
    space_amplification_with_padding: float | None
    write_amplification: float
    never_packed: float
    landing_ratio: float
    live_blocks: float
    blocks_stored: int
    user_bytes: int
    copied_bytes: int
    measured_days: float
    cycles: int
    behind: dict[str, int]
    periods: list[Period]


@dataclass(slots=True)
class _Sums(Summed):
    """The sums so far. The difference of two gives the figures of the time between them."""

    user: int = 0
    packed: int = 0
    copied: int = 0
    amplification: float = 0.0
    padding: float = 0.0
    live: int = 0
    landed: int = 0
    looks: int = 0

    @property
    def space_amplification(self) -> float:
        return self.amplification / self.looks if self.looks else 1.0

    @property
    def padding_ratio(self) -> float:
        return self.padding / self.looks if self.looks else 0.0

    @property
    def write_amplification(self) -> float:
        return (self.packed + self.copied) / self.user if self.user else 0.0


def simulate_gc(
    workload: Workload, options: GcOptions, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> GcResult:
    """Run a workload from its beginning to its end. `progress` is called from time to time with the days done and the
    total. Raises InvalidInput if no object arrives in the measured days."""
    result = _Run(workload, options).run(progress)
    if not result.user_bytes:
        raise InvalidInput("nothing is packed in the measured days; simulate more days, or a shorter delay or window")
    return result


class _Run:
    def __init__(self, workload: Workload, options: GcOptions) -> None:
        self._workload = workload
        self._options = options
        self._objects = Objects()
        self._dead = bytearray()
        self._rate = workload.bytes_per_day or options.blocks * options.block_bytes / workload.mean_days
        days = options.days or workload.days
        self._start = workload.history_days
        self._end = workload.history_days + days
        self._measured_days = workload.measured_days * days / workload.days
        self._measured_from = self._end - self._measured_days
        self._tick_days = options.block_bytes / self._rate_at(self._end)
        if options.min_age_days:
            self._tick_days = min(self._tick_days, max(options.min_age_days, _MIN_AGE_DAYS_MIN) / _TICKS_PER_MIN_AGE)
        self._ticks = ceil(self._end / self._tick_days)
        self._deaths: list[list[int]] = [[] for _ in range(self._ticks)]
        self._landed: list[int] = []
        self._landed_bytes = 0
        self._due = 0
        """Bytes that became due to be packed since the last check."""
        self._blocks = Blocks(self._objects, self._dead, options)
        self._lifetimes = Watch(self._objects, self._dead, workload.survival())
        self._sums = _Sums()
        self._periods: list[Period] = []
        self._looks = 0
        self._looks_per_cycle = 1 if isinstance(options.policy, SpaceTarget) else _CYCLE_BLOCKS
        self._cycles = 0
        self._behind = dict.fromkeys(Behind, 0)

    def run(self, progress: Callable[[int, int], None]) -> GcResult:
        count = round(self._rate * self._workload.mean_days) if self._start else 0
        self._workload.begin(self._objects, count)
        self._born(0, 0)
        period_days = (self._end - self._start) / PERIODS
        at_period, at_measured = replace(self._sums), replace(self._sums)
        for tick in range(self._ticks):
            begins = tick * self._tick_days
            ends = begins + self._tick_days
            if begins >= self._start > begins - self._tick_days:
                self._fill_first_blocks(begins)
            self._arrive(tick, begins)
            self._die(tick)
            if begins >= self._start and self._due >= self._options.block_bytes:
                self._due = 0
                self._look(ends)
            if self._lifetimes.survey(ends):
                progress(round(ends), round(self._end))
            if begins < self._measured_from <= ends:
                at_measured = replace(self._sums)
            if ends >= self._start + period_days * (len(self._periods) + 1) - 1e-9:
                self._periods.append(self._period(ends, at_period))
                at_period = replace(self._sums)
        return self._result(at_measured)

    def _rate_at(self, day: float) -> float:
        growth = self._workload.growth
        return self._rate * exp(growth * (day - self._measured_from)) if growth else self._rate

    def _arrive(self, tick: int, begins: float) -> None:
        """Let objects arrive, and pack objects that landed long enough ago."""
        objects = self._objects
        first = len(objects)
        self._workload.arrive(objects, begins, self._tick_days, self._rate_at(begins))
        self._born(first, tick)
        if begins < self._start:
            return
        self._landed.extend(range(first, len(objects)))
        self._landed_bytes += sum(objects.size[first:])
        self._pack_landed(begins)

    def _pack_landed(self, now: float) -> None:
        """Pack objects that are old enough, a window at a time. Arrivals count when they leave the landing store."""
        options, born = self._options, self._objects.born
        waits = options.min_age_days
        landed = self._landed
        old = len(landed)
        if waits:
            old = next((i for i, number in enumerate(landed) if born[number] + waits > now), len(landed))
        window = options.sort_window_blocks * options.block_bytes
        if not old or old < window:
            return
        leaving = landed[:old]
        del landed[:old]
        size = self._objects.size
        left = sum(size[number] for number in leaving)
        living = [number for number in leaving if not self._dead[number]]
        died = left - sum(size[number] for number in living)
        packed = self._blocks.pack(living, now, self._lifetimes.now, fresh=True, ordered=window > 0)
        self._due += left
        # With the packer of a store, objects that wait for their group are still in the landing store.
        self._landed_bytes -= died + packed
        self._sums.user += died + packed
        self._sums.packed += packed

    def _born(self, first: int, tick: int) -> None:
        dies, ticks, width = self._objects.dies, self._ticks, self._tick_days
        count = len(self._objects)
        self._dead.extend(bytes(count - first))
        self._blocks.born(count - first)
        self._lifetimes.born(range(first, count))
        for number in range(first, count):
            last = int(dies[number] / width)
            if last < ticks:
                self._deaths[max(tick, last)].append(number)

    def _die(self, tick: int) -> None:
        for number in self._deaths[tick]:
            self._dead[number] = 1
            self._blocks.died(number)
        self._deaths[tick] = []

    def _look(self, now: float) -> None:
        """Run a cycle of GC if it is due, and record how much space is used after it."""
        blocks = self._blocks
        blocks.delete_dead()
        self._looks += 1
        if self._looks % self._looks_per_cycle == 0 and self._options.policy.is_due(blocks.stored):
            self._cycle(now)
        if blocks.stored.live_bytes:
            self._sums.amplification += blocks.stored.space_amplification
            self._sums.padding += blocks.padding_bytes / blocks.stored.live_bytes
            self._sums.live += blocks.stored.live_bytes
            self._sums.landed += self._landed_bytes
            self._sums.looks += 1

    def _cycle(self, now: float) -> None:
        blocks = self._blocks
        plan = self._options.policy.plan(blocks.sealed(now), blocks.stored)
        self._sums.copied += blocks.collect(plan, now, self._lifetimes.now)
        self._cycles += bool(plan.victims) or plan.behind is not None
        if plan.behind is not None:
            self._behind[plan.behind] += 1

    def _fill_first_blocks(self, now: float) -> None:
        target = _first_amplification(self._options.policy)
        self._lifetimes.survey(now, force=True)
        living = [number for number in range(len(self._objects)) if not self._dead[number]]
        self._blocks.fill(living, now, self._lifetimes.now, target, random.Random(self._options.seed))

    def _period(self, ends: float, since: _Sums) -> Period:
        sums = self._sums - since
        return Period(
            round(ends - self._start, 2), sums.space_amplification, sums.write_amplification, self._live_blocks(sums)
        )

    def _live_blocks(self, sums: _Sums) -> float:
        return sums.live / max(1, sums.looks) / self._options.block_bytes

    def _result(self, at_measured: _Sums) -> GcResult:
        sums = self._sums - at_measured
        packer = self._options.packer
        return GcResult(
            space_amplification=sums.space_amplification,
            space_amplification_with_padding=None if packer is None else sums.space_amplification + sums.padding_ratio,
            write_amplification=sums.write_amplification,
            never_packed=1 - sums.packed / sums.user if sums.user else 0.0,
            landing_ratio=sums.landed / sums.live if sums.live else 0.0,
            live_blocks=self._live_blocks(sums),
            blocks_stored=len(self._blocks),
            user_bytes=sums.user,
            copied_bytes=sums.copied,
            measured_days=self._measured_days,
            cycles=self._cycles,
            behind={str(reason): count for reason, count in self._behind.items() if count},
            periods=self._periods,
        )


def _first_amplification(policy: GcPolicy) -> float:
    """Return the space amplification with which a store begins that is not empty: as near as possible to its steady
    state."""
    if isinstance(policy, SpaceTarget):
        return policy.space_amp
    if isinstance(policy, Threshold) and policy.hole_ratio_min < 1:
        return amplification_at(1 - policy.hole_ratio_min)
    return _START_AMPLIFICATION


class Watch:
    """The survival table of the core, and the objects that it watches. Deaths are counted at the next survey, together
    with the exposure of the living objects. If they were counted at once, a bucket would look short-lived until
    then."""

    def __init__(self, objects: Objects, dead: bytearray, table: SurvivalTable) -> None:
        self.now = table.lifetimes()
        """The lifetimes that are expected at present."""
        self._objects = objects
        self._dead = dead
        self._table = table
        self._watched: list[int] = []
        self._last = 0.0

    def born(self, numbers: Iterable[int]) -> None:
        """Watch a sample of these new objects."""
        self._watched += [n for n in numbers if is_sampled(hashlib.md5(b"%d" % n, usedforsecurity=False).digest())]

    def survey(self, now: float, *, force: bool = False) -> bool:
        """Count exposure and deaths of the watched objects since the last survey. Returns False if it is too early."""
        if now - self._last < SURVEY_DAYS and not force:
            return False
        dead, last = self._dead, self._last
        born, dies, bucket, names = self._objects.born, self._objects.dies, self._objects.bucket, self._objects.buckets
        observe = self._table.observe
        self._table.decay(now - last)
        for n in self._watched:
            begun = born[n]
            ended = dies[n] if dead[n] else now
            observe(names[bucket[n]], last - begun, ended - begun, died=bool(dead[n]))
        self._watched = [n for n in self._watched if not dead[n]]
        self._last = now
        self.now = self._table.lifetimes()
        return True
